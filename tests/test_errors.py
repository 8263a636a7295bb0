"""Codes are stable, distinct, and documented."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import wayfix.errors
from wayfix.errors import WayfixError

DOCS = Path(__file__).parents[1] / "docs" / "errors.md"


def all_errors() -> list[type[WayfixError]]:
    return [kind for _, kind in inspect.getmembers(wayfix.errors, inspect.isclass) if issubclass(kind, WayfixError)]


def test_every_class_has_a_code_of_its_own() -> None:
    codes = [kind.code for kind in all_errors()]
    assert len(codes) == len(set(codes))
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", code) for code in codes)
    assert all("code" in vars(kind) for kind in all_errors())


def test_every_code_is_documented_and_no_other() -> None:
    text = DOCS.read_text()
    rows = set(re.findall(r"^\| `(\w+)` \| (\w+)", text, re.MULTILINE))
    assert rows == {(kind.code, kind.__name__) for kind in all_errors() if kind is not WayfixError}
