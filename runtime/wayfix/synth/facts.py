"""What is true in a city, as boolean masks over its buildings and cars: the meaning of nouns and relations.

Each meaning has two masks. `strict` holds what satisfies it by the definitions of `wayfix.geo.relations`; `loose` also
what a reader might count as satisfying it. A sentence is fair when its one strict answer is its one loose answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from shapely import contains_xy
from shapely.geometry import Polygon

from wayfix.geo import relations as rel
from wayfix.geo.boxes import WorldBox, gap
from wayfix.synth.catalogue import CityObject
from wayfix.synth.city import City
from wayfix.synth.colors import CAR_COLORS, ROOF_COLORS

Mask = NDArray[np.bool_]

LOOSE_ANGLE_DEG = 55.0
LOOSE_GAP = 1.6
"""Times NEXT_TO_GAP_M or NEAR_GAP_M."""
LOOSE_ALONG = 1.3
"""Times ALONG_ROAD_M."""
MIN_OFF_ROAD_AXIS_M = 1.2
"""Nearer to the centre line than this, nothing is said to be on one side of a road."""
LOOSE_INSIDE_M = 2.0


@dataclass(frozen=True)
class Place:
    """A landmark as an anchor of relations."""

    name: str
    aliases: tuple[str, ...]
    type: str
    item: CityObject

    @property
    def is_road(self) -> bool:
        """Roads are measured from the nearest point of their centre line, everything else from its box."""
        return self.item.kind == "road"

    def anchor(self, target: WorldBox) -> WorldBox:
        """The box that relations to a target are measured from."""
        if not self.is_road:
            return self.item.box
        _, x, y = rel.point_to_line(*target.center, self.item.corners)
        return WorldBox(x, y, x, y)

    def distance(self, target: WorldBox) -> float:
        """From a target's centre to the landmark's centre, or to a road's nearest point, metres."""
        ax, ay = self.anchor(target).center
        return float(np.hypot(target.center[0] - ax, target.center[1] - ay))


@dataclass(frozen=True)
class Noun:
    """A kind of thing: 'red van', 'building with the blue roof'. '' stands for any colour."""

    kind: str
    category: str
    color: str
    strict: Mask
    loose: Mask


@dataclass(frozen=True)
class Relation:
    """Standing in some relation to a place: north, south, east, west, near, inside, along, or side:north and so on."""

    name: str
    place: Place
    strict: Mask
    loose: Mask


class Facts:
    """A city's buildings and cars with all nouns and relations over them; masks follow the order of `items`."""

    def __init__(self, city: City) -> None:
        self.items = [item for item in city.objects if item.kind in ("building", "car")]
        self.boxes = [item.box for item in self.items]
        self.centers = np.array([box.center for box in self.boxes])
        self.is_building = np.array([item.kind == "building" for item in self.items])
        self.places = _places(city)
        self.nouns = list(self._nouns())
        self.relations = [relation for place in self.places for relation in self._relations(place)]
        self.gaps = self._gap_matrix()

    def distractors(self, index: int, radius: float = 50.0) -> int:
        """How many other items of the same kind have their centre within `radius` metres of this one's."""
        away = np.hypot(*(self.centers - self.centers[index]).T)
        return int(((away <= radius) & (self.is_building == self.is_building[index])).sum()) - 1

    def _nouns(self) -> Iterator[Noun]:
        kinds = np.array([item.kind for item in self.items])
        categories = np.array([item.category for item in self.items])
        colors = np.array([item.color for item in self.items])
        car = kinds == "car"
        # A van may pass for a car; neither passes for a truck or a bus.
        loose_category = {"car": np.isin(categories, ("car", "van")), "vehicle": car}
        for category in ("car", "van", "truck", "bus", "vehicle"):
            strict = car if category == "vehicle" else categories == category
            loose = loose_category.get(category, strict)
            yield Noun("car", category, "", strict, loose)
            for color in CAR_COLORS:
                yield Noun("car", category, color, strict & (colors == color), loose & (colors == color))
        building = kinds == "building"
        heights = np.array([item.height_m for item in self.items])
        low, high = building & (heights < 9.0), building & (heights > 17.0)
        for category, strict, loose in (
            ("building", building, building),
            ("house", categories == "house", (categories == "house") | low),
            ("tower", categories == "tower", (categories == "tower") | high),
        ):
            yield Noun("building", category, "", strict, loose)
            for color in ROOF_COLORS:
                yield Noun("building", category, color, strict & (colors == color), loose & (colors == color))

    def _relations(self, place: Place) -> Iterator[Relation]:
        anchors = [place.anchor(box) for box in self.boxes]
        pairs = list(zip(self.boxes, anchors, strict=True))
        other = np.array([item.id != place.item.id for item in self.items])
        gaps = np.array([gap(box, anchor) for box, anchor in pairs])
        angles = {
            name: np.array([rel.direction_angle(box, anchor, name) for box, anchor in pairs]) for name in rel.DIRECTIONS
        }
        for name, angle in angles.items():
            strict = other & (angle <= rel.DIRECTION_HALF_ANGLE_DEG) & (gaps > 0)
            yield Relation(name, place, strict, other & (angle <= LOOSE_ANGLE_DEG))
        near = rel.NEAR_GAP_M
        yield Relation("near", place, other & (gaps <= near), other & (gaps <= near * LOOSE_GAP))
        if place.is_road:
            yield from self._along(place, angles)
        if place.item.kind == "car_park":
            yield self._inside(place)

    def _along(self, place: Place, angles: dict[str, NDArray[np.float64]]) -> Iterator[Relation]:
        found = [rel.road_side(box, place.item.corners) for box in self.boxes]
        away = np.array([distance for _, distance in found])
        close, loose = away <= rel.ALONG_ROAD_M, away <= rel.ALONG_ROAD_M * LOOSE_ALONG
        yield Relation("along", place, close, loose)
        for side in rel.DIRECTIONS:
            on_side = np.array([name == side for name, _ in found])
            strict = on_side & close & (away >= MIN_OFF_ROAD_AXIS_M)
            yield Relation(f"side:{side}", place, strict, loose & (angles[side] <= LOOSE_ANGLE_DEG))

    def _inside(self, place: Place) -> Relation:
        area = Polygon(place.item.corners)
        x, y = self.centers.T
        car = ~self.is_building
        strict = contains_xy(area, x, y) & car
        return Relation("inside", place, strict, contains_xy(area.buffer(LOOSE_INSIDE_M), x, y) & car)

    def _gap_matrix(self) -> NDArray[np.float64]:
        """(n, n) gaps between boxes, metres; infinite on the diagonal: nothing is next to itself."""
        count = len(self.boxes)
        gaps = np.full((count, count), np.inf)
        for i in range(count):
            for j in range(i):
                gaps[i, j] = gaps[j, i] = gap(self.boxes[i], self.boxes[j])
        return gaps


def _places(city: City) -> list[Place]:
    by_name = {item.name: item for item in city.objects if item.name}
    return [Place(mark.name, mark.aliases, mark.type, by_name[mark.name]) for mark in city.landmarks]
