"""What an import has finished, so that one that was killed goes on where it stopped."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

FILE_NAME = "journal.json"


class Journal:
    """A small JSON file in the temporary folder, replaced as a whole at every step.

    A step is recorded only after its files are complete, and every step can be done again over what an interrupted run
    left behind; so whatever the instant of a kill, the next run ends with the same bytes.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        """Open the journal of an import with this fingerprint; one of another import must have been removed before."""
        self._path = folder / FILE_NAME
        self._entries: dict[str, Any] = {"fingerprint": fingerprint}
        if fingerprint_of(folder) == fingerprint:
            self._entries = json.loads(self._path.read_text(encoding="utf-8"))
        else:
            self._save()

    def get(self, key: str, default: Any = None) -> Any:
        """What was recorded under a key."""
        return self._entries.get(key, default)

    def put(self, key: str, value: Any) -> None:
        """Record a step; on the disk when this returns."""
        self._entries[key] = value
        self._save()

    def remove(self) -> None:
        """The import is complete: its folder becomes the scene without a journal."""
        self._path.unlink()

    def _save(self) -> None:
        temporary = self._path.with_suffix(".new")
        with temporary.open("w", encoding="utf-8") as stream:
            json.dump(self._entries, stream)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(self._path)


def fingerprint_of(folder: Path) -> str | None:
    """The fingerprint of the import that a temporary folder belongs to; None where there is none."""
    try:
        return str(json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
