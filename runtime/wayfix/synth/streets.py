"""An irregular street grid: through roads both ways, and side streets that end at them."""

from __future__ import annotations

import numpy as np

from wayfix.synth.names import Namer
from wayfix.synth.plan import Rect, Road


def make_streets(rng: np.random.Generator, reach: float, spacing: float, namer: Namer) -> tuple[list[Road], list[Rect]]:
    """Roads and the blocks between them, over the grid-frame square from -reach to reach, metres.

    `spacing` is the mean distance of through roads.
    """
    columns = [_through(rng, "v", at, reach, namer) for at in _cuts(rng, reach, spacing)]
    rows = [_through(rng, "u", at, reach, namer) for at in _cuts(rng, reach, spacing)]
    roads, blocks = columns + rows, []
    u_edges, v_edges = _edges(columns, reach), _edges(rows, reach)
    for u0, u1 in u_edges:
        for v0, v1 in v_edges:
            street, parts = _split(rng, Rect(u0, v0, u1, v1), namer)
            roads += street
            blocks += parts
    return roads, blocks


def crossings(road: Road, roads: list[Road]) -> list[tuple[float, float]]:
    """Where other roads meet this one: intervals along it, metres, in order."""
    found = []
    for other in roads:
        if other.along == road.along:
            continue
        touch = other.width / 2 + other.pavement + 0.1
        meets_me = road.start - touch <= other.at <= road.end + touch
        reach = road.width / 2 + road.pavement + 0.1
        meets_it = other.start - reach <= road.at <= other.end + reach
        if meets_me and meets_it:
            found.append((other.at - other.width / 2, other.at + other.width / 2))
    return sorted(found)


def stretches(road: Road, roads: list[Road], margin: float) -> list[tuple[float, float]]:
    """The parts of a road at least `margin` metres from any crossing, as intervals along it."""
    parts, at = [], road.start
    for start, end in [*crossings(road, roads), (road.end + margin, road.end)]:
        if start - margin > at:
            parts.append((at, start - margin))
        at = max(at, end + margin)
    return parts


def _cuts(rng: np.random.Generator, reach: float, spacing: float) -> list[float]:
    count = max(1, round(2 * reach / spacing))
    step = 2 * reach / count
    jitter = step * 0.16
    return [-reach + (i + 0.5) * step + float(rng.uniform(-jitter, jitter)) for i in range(count)]


def _through(rng: np.random.Generator, along: str, at: float, reach: float, namer: Namer) -> Road:
    lanes = 4 if rng.random() < 0.2 else 2
    sides = ((True, True), (True, False), (False, True), (False, False))
    parking = sides[int(rng.choice(4, p=[0.4, 0.2, 0.2, 0.2]))]
    return Road(along, at, -reach, reach, lanes, parking, float(rng.uniform(2.0, 3.2)), namer.road())


def _edges(roads: list[Road], reach: float) -> list[tuple[float, float]]:
    """The free intervals between parallel roads, pavements excluded."""
    edges, at = [], -reach
    for road in roads:
        half = road.width / 2 + road.pavement
        edges.append((at, road.at - half))
        at = road.at + half
    edges.append((at, reach))
    return [(a, b) for a, b in edges if b - a > 8.0]


def _split(rng: np.random.Generator, block: Rect, namer: Namer) -> tuple[list[Road], list[Rect]]:
    """Cut a large block in two with a side street across its longer side."""
    long = max(block.du, block.dv)
    if long < 78.0 or min(block.du, block.dv) < 40.0 or rng.random() < 0.3:
        return [], [block]
    parking = (bool(rng.random() < 0.5), bool(rng.random() < 0.6))
    pavement = float(rng.uniform(1.6, 2.2))
    part = float(rng.uniform(0.4, 0.6))
    if block.du >= block.dv:
        road = Road("v", block.u0 + part * block.du, block.v0, block.v1, 2, parking, pavement, namer.road())
        half = road.width / 2 + road.pavement
        first = Rect(block.u0, block.v0, road.at - half, block.v1)
        return [road], [first, Rect(road.at + half, block.v0, block.u1, block.v1)]
    road = Road("u", block.v0 + part * block.dv, block.u0, block.u1, 2, parking, pavement, namer.road())
    half = road.width / 2 + road.pavement
    first = Rect(block.u0, block.v0, block.u1, road.at - half)
    return [road], [first, Rect(block.u0, road.at + half, block.u1, block.v1)]
