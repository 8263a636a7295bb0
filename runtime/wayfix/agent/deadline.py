"""Deadlines on the steady clock, and what a turn has cost so far."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from wayfix.errors import Cancelled, DeadlineExceeded, InvalidBudget

MAX_BUDGET_S = 3600.0


def check_budget(seconds: float | None) -> float:
    """A budget in seconds; None means the longest one. Raises InvalidBudget."""
    if seconds is None:
        return MAX_BUDGET_S
    if not 0 < seconds <= MAX_BUDGET_S:
        raise InvalidBudget(f"a budget is more than 0 and at most {MAX_BUDGET_S:g} s, got {seconds}")
    return float(seconds)


class Deadline:
    """The instant an episode must have ended by, and whether its sender has cancelled it."""

    def __init__(self, budget_s: float) -> None:
        self.started = time.monotonic()
        self.instant = self.started + budget_s
        self._cancelled = False

    def cancel(self) -> None:
        """End the episode at its next check; may be called from another thread."""
        self._cancelled = True

    def remaining(self) -> float:
        """Seconds left; negative once it has passed."""
        return self.instant - time.monotonic()

    def elapsed(self) -> float:
        """Seconds since the request was received."""
        return time.monotonic() - self.started

    def over(self) -> bool:
        """Whether the episode must end now."""
        return self._cancelled or self.remaining() <= 0

    def check(self) -> None:
        """Raise Cancelled or DeadlineExceeded if the episode must end now. Policies call this between tokens."""
        if self._cancelled:
            raise Cancelled("the request was cancelled")
        if self.remaining() <= 0:
            raise DeadlineExceeded("the budget ended before the final answer; allow more time, or accept a partial one")


@dataclass
class TurnCosts:
    """Seconds that turns of each kind took lately: what the loop plans with. Nothing is known before the first."""

    kept: int = 16
    _seen: dict[str, list[float]] = field(default_factory=dict)

    def add(self, kind: str, seconds: float) -> None:
        """Record one turn (policy and tool together); `kind` is a tool's name or `answer`."""
        seen = self._seen.setdefault(kind, [])
        seen.append(seconds)
        del seen[: -self.kept]

    def relax(self) -> None:
        """Halve what tool turns are thought to cost: a plan that always says no never learns."""
        for kind, seen in list(self._seen.items()):
            if kind != "answer":
                seen[:] = [s / 2 for s in seen]

    def expected(self, kind: str) -> float:
        """The longest of the recent turns of this kind, 0 before the first: late is worse than early."""
        return max(self._seen.get(kind, [0.0]))

    def affordable(self, deadline: Deadline) -> bool:
        """Whether the dearest tool turn and an answer still fit before the deadline."""
        tools = [self.expected(kind) for kind in list(self._seen) if kind != "answer"]
        return deadline.remaining() > max(tools, default=0.0) + self.expected("answer")
