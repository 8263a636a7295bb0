"""What a policy reads: a prompt of messages made of text and images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from wayfix.views.view import View

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True)
class Message:
    """One message: its parts in order, each a text or the image of a view."""

    role: Role
    parts: tuple[str | View, ...]

    @property
    def text(self) -> str:
        """The text parts joined."""
        return "\n".join(part for part in self.parts if isinstance(part, str))

    @property
    def views(self) -> tuple[View, ...]:
        """The image parts."""
        return tuple(part for part in self.parts if isinstance(part, View))


@dataclass(frozen=True)
class Prompt:
    """All a policy gets for one turn. Everything before the query is the same for every query on a scene."""

    tools: tuple[dict[str, Any], ...]
    """Schemas of the offered tools."""
    messages: tuple[Message, ...]
    query: str
    must_answer: bool
    """No turn or no time is left for a tool: the next action must be the final answer."""
    must_call: str | None = None
    """In a fixed workflow, the tool that the next action must call."""
