# Everything a newcomer and CI run. Each target makes what it needs; nothing is installed outside this folder.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check -q
PYTHONS ?= 3.10 3.12 3.13
# The proof of an export and training need torch, and the check that TensorRT builds its graphs TensorRT-RTX, which has
# no CUDA GPU to need. TEST_EXTRAS=runtime,test leaves both out, and the tests that need them are skipped.
TEST_EXTRAS ?= runtime,export,train,test
TENSORRT_RTX = tensorrt-rtx-cu13-libs==1.7.1.116 tensorrt-rtx-cu13-bindings==1.7.1.116

.PHONY: help demo test test-fast test-pythons lint clean

help:
	@echo "make demo          build a small city and answer three queries in it (no torch, no GPU)"
	@echo "make test          lint, types and every test"
	@echo "make test-fast     the tests that take seconds"
	@echo "make test-pythons  the library's tests on Python $(PYTHONS)"
	@echo "make clean         remove virtual environments and the demo"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; assert (3, 10) <= sys.version_info[:2] <= (3, 13), sys.version' 2>/dev/null || \
	  { echo "Wayfix needs Python 3.10 to 3.13; choose one with: make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "install venv first, on Debian: apt install python3-venv"; exit 1; }

$(VENV)/.runtime: pyproject.toml | $(BIN)/python
	@echo "installing wayfix[runtime] into $(VENV) ..."
	@$(PIP) install -e '.[runtime]'
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing wayfix[$(TEST_EXTRAS)] into $(VENV) ..."
	@$(PIP) install -c constraints.txt -e '.[$(TEST_EXTRAS)]'
	@case "$(TEST_EXTRAS),$$(uname -m)" in *export*,x86_64) $(PIP) install --no-deps $(TENSORRT_RTX) ;; esac
	@touch $@ $(VENV)/.runtime

demo: $(VENV)/.runtime
	@$(BIN)/wayfix demo --out demo

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -n 2

test-fast: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-pythons:
	@for version in $(PYTHONS); do \
	  command=$$(command -v python$$version || ls -d $$HOME/.pyenv/versions/$$version.*/bin/python 2>/dev/null | tail -n 1); \
	  [ -n "$$command" ] || { echo "no Python $$version found"; exit 1; }; \
	  echo "== Python $$version"; \
	  $(MAKE) --no-print-directory test-fast VENV=.venv-$$version PYTHON=$$command TEST_EXTRAS=runtime,test || exit 1; \
	done

clean:
	rm -rf .venv .venv-* demo
