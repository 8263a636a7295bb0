"""A policy that reads its turns from a list: for tests, for replaying a trace, for oracles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from wayfix.agent.deadline import Deadline
from wayfix.agent.messages import Prompt
from wayfix.errors import PolicyFailed
from wayfix.policy.interface import Chunk
from wayfix.views.view import ImageSizes

Turn = Chunk | str | Callable[[Prompt], str] | Exception
"""Text as it is, text made from the prompt, or an exception to raise at that turn."""


class ScriptedPolicy:
    """Gives the turns in order, the same ones to every episode."""

    def __init__(self, turns: Sequence[Turn], sizes: ImageSizes | None = None, name: str = "scripted") -> None:
        self.name = name
        self.sizes = sizes or ImageSizes()
        self._turns = tuple(turns)
        self._next: dict[str, int] = {}

    def respond(self, episode_id: str, prompt: Prompt, deadline: Deadline) -> Iterator[Chunk]:
        """The episode's next scripted turn; PolicyFailed once the script has ended."""
        index = self._next.get(episode_id, 0)
        self._next[episode_id] = index + 1
        if index >= len(self._turns):
            raise PolicyFailed(f"the script has {len(self._turns)} turns and no final answer")
        turn = self._turns[index]
        if isinstance(turn, Exception):
            raise turn
        yield turn if isinstance(turn, Chunk) else Chunk(turn if isinstance(turn, str) else turn(prompt))

    def forget(self, episode_id: str) -> None:
        """Start over should the id come again."""
        self._next.pop(episode_id, None)
