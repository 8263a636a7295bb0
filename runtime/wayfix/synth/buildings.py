"""Buildings: heights, roofs and what stands on flat ones."""

from __future__ import annotations

import numpy as np

from wayfix.synth.colors import ROOF_COLORS, ROOF_ODDS, WALLS, draw_word, jittered
from wayfix.synth.plan import Building, Footprint, RoofUnit

EAVES: dict[str, tuple[float, float]] = {
    "house": (3.0, 6.2),
    "block": (8.5, 16.5),
    "tower": (21.0, 37.0),
    "hall": (5.5, 9.5),
}
"""Least and greatest height of the roof's edge, metres."""


def make_building(rng: np.random.Generator, footprint: Footprint, category: str, block: int) -> Building:
    """A building of this category on this footprint."""
    color = draw_word(rng, ROOF_ODDS[category])
    roof = "flat"
    if category == "house":
        roof = draw_word(rng, {"gable": 6, "hip": 4, "flat": 0.7})
    elif category == "hall":
        roof = draw_word(rng, {"flat": 5, "gable": 3})
    eave = float(rng.uniform(*EAVES[category]))
    units: tuple[RoofUnit, ...] = ()
    rise = 0.0
    if roof == "flat":
        units = _units(rng, footprint, category)
        rise = max([unit.height for unit in units], default=0.35)
    else:
        pitch = float(rng.uniform(0.5, 0.8)) if category == "house" else float(rng.uniform(0.1, 0.2))
        rise = pitch * footprint.width / 2
    roof_rgb = jittered(rng, ROOF_COLORS[color], 7.0)
    wall_rgb = jittered(rng, WALLS[int(rng.integers(len(WALLS)))], 8.0)
    return Building(footprint, category, color, roof_rgb, wall_rgb, roof, eave, eave + rise, units, block)


def _units(rng: np.random.Generator, footprint: Footprint, category: str) -> tuple[RoofUnit, ...]:
    """Lift housings and air handlers, at least a metre inside the parapet."""
    if category == "house":
        return ()
    count = int(rng.integers(1, 4)) if category != "hall" else int(rng.integers(0, 6))
    units = []
    for i in range(count):
        big = i == 0 and category in ("block", "tower")
        size = (3.0, 6.0) if big else (1.1, 2.6)
        length, width = float(rng.uniform(*size)), float(rng.uniform(*size))
        u_room = footprint.length / 2 - length / 2 - 1.2
        v_room = footprint.width / 2 - width / 2 - 1.2
        if u_room <= 0 or v_room <= 0:
            continue
        height = float(rng.uniform(1.8, 3.2)) if big else float(rng.uniform(0.7, 1.5))
        units.append(
            RoofUnit(float(rng.uniform(-u_room, u_room)), float(rng.uniform(-v_room, v_room)), length, width, height)
        )
    return tuple(units)
