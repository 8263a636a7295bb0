"""The one interface of everything that decides: a VLM in an engine, a remote one, a script, a baseline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from wayfix.agent.deadline import Deadline
from wayfix.agent.messages import Prompt
from wayfix.geo.boxes import UnitBox
from wayfix.views.view import ImageSizes


@dataclass(frozen=True)
class Alternative:
    """Another candidate a policy considered: a box in a view, and its probability of being meant."""

    view_id: str
    box: UnitBox
    confidence: float


@dataclass(frozen=True)
class Chunk:
    """A piece of a turn's text. The last one of an answer may carry what the text does not say."""

    text: str
    confidence: float | None = None
    """Probability 0..1 that the answer is a hit."""
    alternatives: tuple[Alternative, ...] = ()
    """Further candidates, the likeliest first."""
    prompt_tokens: int | None = None
    """Tokens the model read for this turn, images included, where the engine says so."""
    completion_tokens: int | None = None
    """Tokens it wrote."""
    log_probs: tuple[float, ...] = ()
    """Natural logarithms of the probabilities, before any masking, of the tokens chosen for this piece, if known."""


@runtime_checkable
class WarmsUp(Protocol):
    """A policy that gains from reading a scene's prefix, which queries share, before the first one's clock starts."""

    def warm_up(self, prompt: Prompt) -> None:
        """Read all of a first prompt that does not depend on its query."""
        ...


class Policy(Protocol):
    """Decides the next action of an episode.

    Episodes are told apart by id and may be interleaved; what a policy keeps for one is dropped in `forget`.
    """

    name: str
    sizes: ImageSizes

    def respond(self, episode_id: str, prompt: Prompt, deadline: Deadline) -> Iterator[Chunk]:
        """The next turn's text, in pieces as it is made.

        Between pieces of work the policy calls `deadline.check()`. Closing the iterator cancels the turn.
        """
        ...

    def forget(self, episode_id: str) -> None:
        """The episode has ended."""
        ...
