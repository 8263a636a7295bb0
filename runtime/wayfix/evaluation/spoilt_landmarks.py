"""Landmark queries answered wrongly on purpose: how much a policy leans on them (Urbex, D.3 and Table 10)."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import shapely.affinity

from wayfix.scene.landmark import Landmark
from wayfix.scene.landmark_index import LandmarkIndex, LandmarkMatch, LandmarkMatches

CONDITIONS = ("clean", "missing", "noisy", "wrong")
NOISE_M = 10.0
WRONG_M = 50.0
"""A wrong landmark is at least this far from the right one, shape to shape."""


class SpoiltLandmarks:
    """A scene's landmark index whose every match is withheld, moved or exchanged, the same way for the same seed."""

    def __init__(self, index: LandmarkIndex, landmarks: Sequence[Landmark], condition: str, seed: int) -> None:
        """`condition`: missing, noisy or wrong."""
        self._index = index
        self._landmarks = tuple(landmarks)
        self._condition = condition
        self._seed = seed

    def query(self, name: str, landmark_type: str | None = None, limit: int = 5) -> LandmarkMatches:
        """The landmarks a name may mean, spoilt."""
        found = self._index.query(name, landmark_type, limit)
        if self._condition == "missing":
            return LandmarkMatches("not_found", ())
        spoilt = [self._spoil(match) for match in found.matches]
        matches = tuple(match for match in spoilt if match is not None)
        return LandmarkMatches(found.status if matches else "not_found", matches)

    def _spoil(self, match: LandmarkMatch) -> LandmarkMatch | None:
        mark = match.landmark
        rng = np.random.default_rng([self._seed, zlib.crc32(mark.name.encode()), zlib.crc32(mark.geometry.wkb)])
        if self._condition == "noisy":
            angle = rng.uniform(0.0, 2 * math.pi)
            moved = shapely.affinity.translate(mark.geometry, NOISE_M * math.cos(angle), NOISE_M * math.sin(angle))
            return replace(match, landmark=replace(mark, geometry=moved))
        others = [other for other in self._landmarks if shapely.distance(other.geometry, mark.geometry) >= WRONG_M]
        if not others:
            return None
        other = others[int(rng.integers(len(others)))]
        return LandmarkMatch(other, match.score, other.name)
