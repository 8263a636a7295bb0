"""The record of an episode, turn by turn: written as JSON, replayed without its policy, drawn as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wayfix.errors import Cancelled, DeadlineExceeded, PolicyFailed, UnreadableTrace, WayfixError
from wayfix.policy.interface import Alternative, Chunk

TRACE_VERSION = 1

UnitBoxField = tuple[int, int, int, int]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class AlternativeRecord(_Record):
    """A further candidate as the policy gave it."""

    view_id: str
    box: UnitBoxField
    confidence: float


class TurnRecord(_Record):
    """One turn: what the policy wrote, and what came of it."""

    text: str
    confidence: float | None = None
    alternatives: list[AlternativeRecord] = []
    action: str
    """A tool's name, `answer`, `not_found`, or `invalid`."""
    result: dict[str, Any] | None = None
    """The tool's or the error's content; None for an answer."""
    view_id: str | None = None
    """The view this turn made."""
    policy_ms: float
    tool_ms: float
    prompt_tokens: int | None = None
    """Tokens the policy's model read for this turn, where its engine says so."""
    completion_tokens: int | None = None
    """Tokens it wrote."""


class ViewRecord(_Record):
    """Where a view of the episode lies, so that it can be cut again."""

    id: str
    size_px: tuple[int, int]
    region: tuple[float, float, float, float]
    """min_x, min_y, max_x, max_y in the scene's CRS."""
    direction: str | None = None


class SizesRecord(_Record):
    """The image sizes the policy asked for."""

    overview: int
    zoom: int
    oblique: int


class Trace(_Record):
    """A whole episode."""

    version: Annotated[int, Field(le=TRACE_VERSION)] = TRACE_VERSION
    query: str
    scene: str
    revision: int
    policy: str
    sizes: SizesRecord
    tools: list[str]
    max_turns: int
    workflow: list[str] = []
    """The fixed order of tool calls; empty where the policy was free."""
    turns: list[TurnRecord] = []
    views: list[ViewRecord] = []
    code: str = ""
    message: str = ""
    box: tuple[float, float, float, float] | None = None
    """What was answered, or the best region: min_x, min_y, max_x, max_y in the scene's CRS."""

    def save(self, path: Path) -> None:
        """Write as JSON."""
        path.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Trace:
        """Read a saved trace; UnreadableTrace where it is none."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise UnreadableTrace(f"{path} is no trace of this version: {error}") from error

    def script(self) -> list[Chunk | Exception]:
        """The turns for a ScriptedPolicy, with the error that ended the episode where one did."""
        turns: list[Chunk | Exception] = [
            Chunk(
                turn.text,
                turn.confidence,
                tuple(Alternative(a.view_id, a.box, a.confidence) for a in turn.alternatives),
                turn.prompt_tokens,
                turn.completion_tokens,
            )
            for turn in self.turns
        ]
        ending = _error_by_code(self.code)
        if ending is not None:
            turns.append(ending(self.message))
        return turns


def _error_by_code(code: str) -> type[WayfixError] | None:
    """The class of an error that can end an episode from outside its turns."""
    kinds: list[type[WayfixError]] = [Cancelled, DeadlineExceeded, PolicyFailed]
    for kind in kinds:  # grows while it is read: subclasses at any depth
        kinds += kind.__subclasses__()
    return next((kind for kind in kinds if kind.code == code), None)
