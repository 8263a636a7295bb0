"""Which sequences are kept: one an episode, and shared prefixes, within a budget of bytes."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from wayfix.errors import EngineOutOfMemory
from wayfix.policy.engine.sequence import TokenSequence

_PREFIX = "prefix:"


class SequenceCache:
    """Sequences by episode, the least lately used dropped first; one in use is never dropped.

    A dropped one costs time, never correctness: its episode's next turn reads the prompt again.
    """

    def __init__(self, new: Callable[[], TokenSequence], budget_bytes: int) -> None:
        self._new, self._budget = new, budget_bytes
        self._kept: OrderedDict[str, TokenSequence] = OrderedDict()
        self._busy: set[str] = set()
        self._reserved: dict[str, int] = {}
        """Bytes that turns under way may come to occupy."""
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        """What all sequences occupy."""
        return sum(sequence.bytes for sequence in self._kept.values())

    @contextlib.contextmanager
    def use(self, episode_id: str, identity: NDArray[np.int64]) -> Iterator[TokenSequence]:
        """The episode's sequence; a new one begins with the longest prefix that is shared."""
        with self._lock:
            if episode_id not in self._kept:
                self._kept[episode_id] = self._started(identity)
            self._kept.move_to_end(episode_id)
            self._busy.add(episode_id)
            sequence = self._kept[episode_id]
        try:
            yield sequence
        finally:
            with self._lock:
                self._busy.discard(episode_id)
                self._reserved.pop(episode_id, None)
                self._fit()

    def reserve(self, tokens: int, episode_id: str, bytes_per_token: int) -> None:
        """Make room for an episode in use to have `tokens`, until it is no longer in use.

        Raises EngineOutOfMemory where, beside what else is in use, there is none.
        """
        with self._lock:
            self._reserved[episode_id] = tokens * bytes_per_token
            self._fit()
            if self._needed() > self._budget:
                raise EngineOutOfMemory(
                    f"an episode of {tokens} tokens needs {tokens * bytes_per_token / 1e6:.0f} MB, with those in use "
                    f"cache_bytes allows {self._budget / 1e6:.0f} MB; raise it, or run fewer episodes at once"
                )

    def share(self, sequence: TokenSequence, length: int) -> None:
        """Keep a copy of a sequence's beginning for all episodes that start with it."""
        with self._lock:
            name = f"{_PREFIX}{hash(sequence.identity[:length].tobytes())}"
            if name not in self._kept:
                copy = self._new()
                copy.copy_from(sequence, length)
                self._kept[name] = copy
                self._fit()

    def shared(self, identity: NDArray[np.int64]) -> int:
        """How many of these first tokens a new sequence would begin with."""
        with self._lock:
            return max((kept.length for kept in self._prefixes(identity)), default=0)

    def drop(self, episode_id: str) -> None:
        """The episode has ended."""
        with self._lock:
            self._kept.pop(episode_id, None)

    def clear(self) -> None:
        """Drop all sequences that are not in use."""
        with self._lock:
            self._kept = OrderedDict((name, kept) for name, kept in self._kept.items() if name in self._busy)

    def _started(self, identity: NDArray[np.int64]) -> TokenSequence:
        sequence = self._new()
        prefix = max(self._prefixes(identity), key=lambda kept: kept.length, default=None)
        if prefix is not None:
            sequence.copy_from(prefix, prefix.length)
        return sequence

    def _prefixes(self, identity: NDArray[np.int64]) -> Iterator[TokenSequence]:
        """Shared prefixes that these tokens begin with; they count as used."""
        for name, kept in list(self._kept.items()):
            if name.startswith(_PREFIX) and kept.length and kept.common(identity) == kept.length:
                self._kept.move_to_end(name)
                yield kept

    def _needed(self) -> int:
        """What all sequences occupy, or may before their turns end."""
        return sum(max(sequence.bytes, self._reserved.get(name, 0)) for name, sequence in self._kept.items())

    def _fit(self) -> None:
        """Drop the least lately used, episodes before prefixes, until all is within the budget."""
        idle = [name for name in self._kept if name not in self._busy]
        for name in sorted(idle, key=lambda name: name.startswith(_PREFIX)):
            if self._needed() <= self._budget:
                return
            del self._kept[name]
