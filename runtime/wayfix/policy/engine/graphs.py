"""The three graphs in onnxruntime: loading them, and running them so that a deadline can end a run."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnxruntime as ort

from wayfix.agent.deadline import Deadline
from wayfix.errors import EngineCorrupt, EngineOutOfMemory, EngineUnsupported, PolicyFailed

_POLL_S = 0.003
_MEMORY_WORDS = ("bad_alloc", "bad allocation", "allocate memory", "out of memory")
_PREFIX = "ExecutionProvider"


def load_graph(path: Path, providers: Sequence[str], threads: int, allow_spinning: bool) -> Any:
    """An onnxruntime session. Raises EngineUnsupported, EngineOutOfMemory or EngineCorrupt."""
    names = [name if name.endswith(_PREFIX) else f"{name}{_PREFIX}" for name in providers]
    missing = [name for name in names if name not in ort.get_available_providers()]
    if missing or not names:
        have = ", ".join(name.removesuffix(_PREFIX) for name in ort.get_available_providers())
        raise EngineUnsupported(
            f"onnxruntime {ort.__version__} has no provider {', '.join(missing) or '(none given)'}; it has {have}"
        )
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    # A waiting thread that spins takes the core that another thread, or another process, needs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if allow_spinning else "0")
    try:
        return ort.InferenceSession(str(path), options, providers=names)
    except MemoryError as error:
        raise _out_of_memory(path) from error
    except Exception as error:
        if any(word in str(error).lower() for word in _MEMORY_WORDS):
            raise _out_of_memory(path) from error
        raise EngineCorrupt(
            f"onnxruntime {ort.__version__} cannot load {path}: {_short(error)}; update it, or export again"
        ) from error


class Watch:
    """Carries one turn's deadline into the graphs: a run that is under way ends when the deadline does."""

    def __init__(self, deadline: Deadline) -> None:
        self.deadline = deadline
        self._options = ort.RunOptions()
        # What goes wrong is raised; that a deadline ended a run is nothing to print.
        self._options.log_severity_level = 4

    def run(self, session: Any, binding: Any) -> None:
        """Run bound inputs and outputs. Raises what the deadline raises, EngineOutOfMemory or PolicyFailed."""
        self.deadline.check()
        try:
            session.run_with_iobinding(binding, self._options)
        except Exception as error:
            self.deadline.check()
            if isinstance(error, MemoryError) or any(word in str(error).lower() for word in _MEMORY_WORDS):
                raise EngineOutOfMemory("no memory was left for a step; lower the engine's byte budgets") from error
            raise PolicyFailed(f"a graph of the engine failed: {_short(error)}") from error

    @contextmanager
    def watching(self) -> Iterator[Watch]:
        """While this is entered a thread looks at the clock; leaving it ends the thread."""
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(_POLL_S):
                if self.deadline.over():
                    self._options.terminate = True
                    return

        thread = threading.Thread(target=look, name="wayfix-engine-watch", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            ended.set()
            thread.join()


def _out_of_memory(path: Path) -> EngineOutOfMemory:
    return EngineOutOfMemory(
        f"{path} does not fit into this machine's memory; use a smaller precision, or free some memory"
    )


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
