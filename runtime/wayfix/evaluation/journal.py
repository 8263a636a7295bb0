"""Every outcome on disk as soon as it is known, so that a stopped run goes on where it was."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from wayfix.errors import InvalidOption, StorageFailed
from wayfix.evaluation.outcome import Outcome
from wayfix.evaluation.report import RunConfig
from wayfix.evaluation.trajectory import Trajectory

Order = tuple[int, int, int]
"""Number of the scene, of the query in it, and of the condition."""


@dataclass
class Journal:
    """A file of JSON lines: the configuration, then one line per scene and per outcome. Without a path, only memory.

    A context manager; the file stays when it is left, `remove` deletes it once the report is safe.
    """

    path: Path | None
    config: RunConfig
    digests: dict[int, str] = field(default_factory=dict)
    """SHA-256 of the queries of each scene that is done, by the scene's number."""
    entries: dict[Order, tuple[Outcome, Trajectory | None]] = field(default_factory=dict)
    _file: IO[str] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Journal:
        if self.path is None:
            return self
        try:
            if self.path.exists():
                self._read(self.path)
                self._file = self.path.open("a", encoding="utf-8")
            else:
                self._file = self.path.open("w", encoding="utf-8")
                self._write({"config": self.config.model_dump(mode="json")})
        except OSError as error:
            raise StorageFailed(f"cannot keep the run's journal {self.path}: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, order: Order, outcome: Outcome, trajectory: Trajectory | None) -> None:
        """Record an outcome; safe to call from several threads."""
        with self._lock:
            self.entries[order] = outcome, trajectory
            kept = None if trajectory is None else trajectory.model_dump(mode="json")
            self._write({"order": order, "outcome": outcome.model_dump(mode="json"), "trajectory": kept})

    def scene_done(self, number: int, sha256: str) -> None:
        """Record that all of a scene's outcomes are there."""
        with self._lock:
            self.digests[number] = sha256
            self._write({"scene": number, "sha256": sha256})

    @property
    def outcomes(self) -> list[Outcome]:
        """In the suite's order."""
        return [self.entries[order][0] for order in sorted(self.entries)]

    @property
    def trajectories(self) -> list[Trajectory]:
        """Those that were kept, in the suite's order."""
        kept = (self.entries[order][1] for order in sorted(self.entries))
        return [trajectory for trajectory in kept if trajectory is not None]

    def remove(self) -> None:
        """Delete the file."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _read(self, path: Path) -> None:
        with path.open(encoding="utf-8") as lines:
            try:
                header = json.loads(next(lines, "{}")).get("config")
            except ValueError:
                header = None
            if header != self.config.model_dump(mode="json"):
                raise InvalidOption(
                    f"{path} was left by another run; repeat that run's options to go on with it, or delete it"
                )
            for line in lines:
                try:
                    self._take(json.loads(line))
                except (ValueError, KeyError, ValidationError):
                    break  # the line that was being written when the run was stopped, which is the last one
        self._cut_to_whole_lines(path)

    def _take(self, entry: dict[str, Any]) -> None:
        if "scene" in entry:
            self.digests[entry["scene"]] = entry["sha256"]
            return
        scene, query, condition = entry["order"]
        kept = entry["trajectory"]
        self.entries[scene, query, condition] = (
            Outcome.model_validate(entry["outcome"]),
            None if kept is None else Trajectory.model_validate(kept),
        )

    @staticmethod
    def _cut_to_whole_lines(path: Path) -> None:
        data = path.read_bytes()
        if not data.endswith(b"\n"):
            path.write_bytes(data[: data.rfind(b"\n") + 1])

    def _write(self, entry: dict[str, Any]) -> None:
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(entry, ensure_ascii=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise StorageFailed(f"cannot write the run's journal {self.path}: {error}") from error
