"""Blocks cut into lots, and what stands on a lot: a building, a car park, or a green."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from wayfix.synth.buildings import make_building
from wayfix.synth.colors import draw_word, jittered
from wayfix.synth.plan import Building, CarPark, Cover, Footprint, Grid, Palette, Rect, Vehicle
from wayfix.synth.vehicles import make_vehicle

DISTRICTS: dict[str, tuple[float, dict[str, float]]] = {
    "residential": (26.0, {"house": 9, "car_park": 0.7, "green": 0.6}),
    "urban": (38.0, {"block": 5, "tower": 1.6, "car_park": 2.0, "house": 0.6, "green": 0.8}),
    "commercial": (54.0, {"hall": 3.5, "car_park": 3.0, "block": 1.2, "green": 0.5}),
    "park": (70.0, {"green": 1}),
}
"""Per kind of block: the longest side of a lot, and the odds of what stands on it."""

BAY_LENGTH, AISLE = 5.5, 6.2


@dataclass
class LotPlan:
    """What a block holds."""

    covers: list[Cover] = field(default_factory=list)
    buildings: list[Building] = field(default_factory=list)
    car_parks: list[CarPark] = field(default_factory=list)
    vehicles: list[Vehicle] = field(default_factory=list)
    greens: list[Footprint] = field(default_factory=list)
    """Where trees stand freely."""


def fill_block(
    rng: np.random.Generator,
    grid: Grid,
    palette: Palette,
    block: Rect,
    number: int,
    district: str,
    occupancy: float,
    scale: float,
) -> LotPlan:
    """Cut a block into lots and fill each; its buildings keep `number`.

    `occupancy` is the share of taken bays, `scale` makes the lots of a scene larger or smaller than usual.
    """
    plan = LotPlan()
    longest, odds = DISTRICTS[district]
    for lot in _lots(rng, block, longest * scale * float(rng.uniform(0.9, 1.1))):
        use = draw_word(rng, odds) if min(lot.du, lot.dv) >= 11.0 else "green"
        if use == "car_park" and min(lot.du, lot.dv) >= 13.5:
            _car_park(rng, grid, palette, lot, number, occupancy, plan)
        elif use in ("green", "car_park"):
            ground = grid.place_rect(lot)
            plan.covers.append(Cover(ground, jittered(rng, palette.grass, 9.0), 26))
            plan.greens.append(ground)
        else:
            _built(rng, grid, palette, lot, block, number, use, plan)
    return plan


def _lots(rng: np.random.Generator, lot: Rect, longest: float) -> list[Rect]:
    if max(lot.du, lot.dv) <= longest:
        return [lot]
    part = float(rng.uniform(0.4, 0.6))
    if lot.du >= lot.dv:
        cut = lot.u0 + part * lot.du
        first, second = Rect(lot.u0, lot.v0, cut, lot.v1), Rect(cut, lot.v0, lot.u1, lot.v1)
    else:
        cut = lot.v0 + part * lot.dv
        first, second = Rect(lot.u0, lot.v0, lot.u1, cut), Rect(lot.u0, cut, lot.u1, lot.v1)
    return _lots(rng, first, longest) + _lots(rng, second, longest)


def _built(
    rng: np.random.Generator,
    grid: Grid,
    palette: Palette,
    lot: Rect,
    block: Rect,
    number: int,
    use: str,
    plan: LotPlan,
) -> None:
    """A lot with a building; a house also has a garden and often a driveway with a car."""
    ground = grid.place_rect(lot.inset(0.4))
    if use == "house":
        plan.covers.append(Cover(ground, jittered(rng, palette.grass, 14.0), 24))
        plan.greens.append(ground)
    else:
        plan.covers.append(Cover(ground, jittered(rng, palette.paving, 9.0), 9))
    yard = lot.inset(float(rng.uniform(1.8, 3.2)))
    driveway = None
    if use == "house" and rng.random() < 0.7:
        driveway, yard = _driveway(lot, block, yard)
    place = _fit(rng, yard, use)
    if place is None:
        return
    if driveway is not None:
        plan.covers.append(Cover(grid.place_rect(driveway), jittered(rng, palette.paving, 10.0), 8))
        if rng.random() < 0.75:
            u, v = driveway.center
            along_u = driveway.du > driveway.dv
            angle = (0.0 if along_u else math.pi / 2) + (math.pi if rng.random() < 0.5 else 0.0)
            place_car = grid.place(u, v, 1.0, 1.0, angle + float(rng.normal(0, 0.03)))
            category = draw_word(rng, {"car": 8, "van": 1.2})
            plan.vehicles.append(make_vehicle(rng, place_car, category, "parked"))
    u, v, length, width, angle = place
    plan.buildings.append(make_building(rng, grid.place(u, v, length, width, angle), use, number))


def _driveway(lot: Rect, block: Rect, yard: Rect) -> tuple[Rect | None, Rect]:
    """A strip beside the house from the street inwards, and the yard without it; None where no side meets a street."""
    depth, wide = 8.5, 3.2
    if min(yard.du, yard.dv) < wide + 6.5:
        return None, yard
    if lot.v0 - block.v0 < 0.1:
        strip = Rect(yard.u0, lot.v0, yard.u0 + wide, lot.v0 + depth)
    elif block.v1 - lot.v1 < 0.1:
        strip = Rect(yard.u0, lot.v1 - depth, yard.u0 + wide, lot.v1)
    elif lot.u0 - block.u0 < 0.1:
        strip = Rect(lot.u0, yard.v0, lot.u0 + depth, yard.v0 + wide)
        return strip, replace(yard, v0=yard.v0 + wide + 0.6)
    elif block.u1 - lot.u1 < 0.1:
        strip = Rect(lot.u1 - depth, yard.v0, lot.u1, yard.v0 + wide)
        return strip, replace(yard, v0=yard.v0 + wide + 0.6)
    else:
        return None, yard
    return strip, replace(yard, u0=yard.u0 + wide + 0.6)


_SPANS: dict[str, tuple[tuple[float, float], tuple[float, float]]] = {
    "house": ((9.0, 14.5), (7.0, 10.5)),
    "block": ((17.0, 31.0), (11.0, 16.0)),
    "tower": ((16.0, 24.0), (15.0, 21.0)),
    "hall": ((26.0, 50.0), (17.0, 32.0)),
}
"""Least and greatest length and width of a building, metres."""


def _fit(rng: np.random.Generator, yard: Rect, use: str) -> tuple[float, float, float, float, float] | None:
    """(u, v, length, width, angle) in the grid frame, or None where a building of this use does not fit."""
    (l0, l1), (w0, w1) = _SPANS[use]
    along_u = yard.du >= yard.dv
    room_l, room_w = max(yard.du, yard.dv), min(yard.du, yard.dv)
    if room_l < l0 * 0.8 or room_w < w0 * 0.8:
        return None
    length = min(room_l, float(rng.uniform(l0, l1)))
    width = min(room_w, float(rng.uniform(w0, w1)))
    # Stepping back from the middle keeps facades from lining up.
    u, v = yard.center
    free_u, free_v = (room_l - length, room_w - width) if along_u else (room_w - width, room_l - length)
    u += float(rng.uniform(-0.5, 0.5)) * free_u
    v += float(rng.uniform(-0.5, 0.5)) * free_v
    turn = float(rng.normal(0, 0.03)) if use == "house" and min(free_u, free_v) > 1.0 else 0.0
    return u, v, length, width, turn + (0.0 if along_u else math.pi / 2)


def _car_park(
    rng: np.random.Generator, grid: Grid, palette: Palette, lot: Rect, number: int, occupancy: float, plan: LotPlan
) -> None:
    """Rows of bays with an aisle between each pair; bays run along the lot's longer side."""
    area = lot.inset(float(rng.uniform(0.8, 2.0)))
    ground = grid.place_rect(area)
    plan.covers.append(Cover(ground, jittered(rng, palette.asphalt, 9.0), 9))
    along_u = area.du >= area.dv
    long, deep = max(area.du, area.dv), min(area.du, area.dv)
    bay = float(rng.uniform(2.6, 2.95))
    lines: list[Footprint] = []
    taken = float(np.clip(occupancy + rng.normal(0, 0.15), 0.2, 0.92))
    for row, facing in _rows(deep):
        count = int((long - 1.0) // bay)
        first = -count * bay / 2
        for i in range(count + 1):
            lines.append(_in_area(grid, area, along_u, first + i * bay, row, 0.12, BAY_LENGTH - 0.4, 0.0))
        for i in range(count):
            if rng.random() >= taken:
                continue
            nose = facing if rng.random() < 0.7 else -facing
            category = draw_word(rng, {"car": 8, "van": 1.3})
            off, slip, turn = (float(rng.normal(0, s)) for s in (0.08, 0.15, 0.02))
            angle = (math.pi / 2 if along_u else 0.0) + (0.0 if nose > 0 else math.pi) + turn
            place = _in_area(grid, area, along_u, first + (i + 0.5) * bay + off, row + slip, 1.0, 1.0, 0.0)
            plan.vehicles.append(make_vehicle(rng, replace(place, angle=grid.angle + angle), category, "parked"))
    plan.car_parks.append(CarPark(ground, tuple(lines), number))


def _rows(deep: float) -> list[tuple[float, int]]:
    """Centres of the rows of bays across a car park `deep` metres deep, each with the way its bays open (+1 or -1)."""
    module = 2 * BAY_LENGTH + AISLE
    modules = int((deep - 0.5) // module)
    rows: list[tuple[float, int]] = []
    used = modules * module + (BAY_LENGTH + AISLE if deep - 0.5 - modules * module >= BAY_LENGTH + AISLE else 0.0)
    at = -used / 2
    for _ in range(modules):
        rows += [(at + BAY_LENGTH / 2, 1), (at + module - BAY_LENGTH / 2, -1)]
        at += module
    if used > modules * module:
        rows.append((at + BAY_LENGTH / 2, 1))
    return rows


def _in_area(
    grid: Grid, area: Rect, along_u: bool, along: float, across: float, wide: float, deep: float, angle: float
) -> Footprint:
    """A rectangle `wide` along the area's longer side and `deep` across it, placed from the area's centre."""
    u, v = area.center
    if along_u:
        return grid.place(u + along, v + across, wide, deep, angle)
    return grid.place(u + across, v + along, deep, wide, angle)
