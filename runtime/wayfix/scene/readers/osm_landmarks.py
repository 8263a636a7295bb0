"""Landmarks from named features: a road of many ways is one, and so is a thing that was mapped twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import shapely
from shapely.geometry.base import BaseGeometry

from wayfix.scene.landmark import Landmark
from wayfix.scene.landmark_index import NOT_BUILDINGS
from wayfix.scene.readers.osm_remarks import Remarks

ROAD_GAP_M = 100.0
"""Ways of one name farther apart than this are different roads."""

SAME_PLACE_M = 50.0
"""Features of one name farther apart than this are different things."""

_NOT_INSIDE = NOT_BUILDINGS | {"bus_stop", "tram_stop", "platform", "stop", "halt", "subway_entrance"}
"""Types that stand beside a building of the same name, or are named after it, but are not in it."""


@dataclass(frozen=True)
class Feature:
    """One named feature, as mapped; geometry in the scene's CRS (metres)."""

    name: str
    aliases: tuple[str, ...]
    type: str
    rank: int
    """How telling the type's key is, 0 most."""
    building: bool
    geometry: BaseGeometry

    @property
    def dimension(self) -> int:
        """0 for points, 1 for lines, 2 for areas."""
        return int(shapely.get_dimensions(self.geometry))


def landmarks(features: Sequence[Feature], remarks: Remarks) -> tuple[Landmark, ...]:
    """One landmark for each named thing, in the order of the features."""
    named: dict[str, list[Feature]] = defaultdict(list)
    for feature in features:
        named[feature.name].append(feature)
    found = []
    for same_name in named.values():
        joined = _joined_lines(same_name)
        things = _groups(joined, SAME_PLACE_M, _same_thing)
        remarks.add("mapped twice", len(joined) - len(things))
        found += [_as_landmark(thing) for thing in things]
    return tuple(found)


def _joined_lines(features: Sequence[Feature]) -> list[Feature]:
    """Lines of one type that touch or nearly do, joined; the other features as they were."""
    by_type: dict[str, list[Feature]] = defaultdict(list)
    result = []
    for feature in features:
        if feature.dimension == 1:
            by_type[feature.type].append(feature)
        else:
            result.append(feature)
    for lines in by_type.values():
        result += [_as_one(group) for group in _groups(lines, ROAD_GAP_M, lambda a, b: True)]
    return result


def _same_thing(a: Feature, b: Feature) -> bool:
    """Whether two near features of one name are one thing: of one type, or a building and what is in it."""
    if a.type == b.type:
        return True
    return (a.building and _may_be_inside(b)) or (b.building and _may_be_inside(a))


def _may_be_inside(feature: Feature) -> bool:
    return feature.building or (feature.type not in _NOT_INSIDE and feature.dimension != 1)


def _groups(
    features: Sequence[Feature], reach_m: float, belong: Callable[[Feature, Feature], bool]
) -> list[list[Feature]]:
    """Features that are within reach and belong together, directly or by way of others."""
    if len(features) < 2:
        return [list(features)] if features else []
    shapes = np.array([feature.geometry for feature in features], object)
    first, second = shapely.STRtree(shapes).query(shapes, predicate="dwithin", distance=reach_m)
    group = list(range(len(features)))

    def root(i: int) -> int:
        while group[i] != i:
            group[i] = group[group[i]]
            i = group[i]
        return i

    for i, j in zip(first.tolist(), second.tolist(), strict=True):
        if i < j and belong(features[i], features[j]):
            a, b = sorted((root(i), root(j)))
            group[b] = a
    grouped: dict[int, list[Feature]] = defaultdict(list)
    for i, feature in enumerate(features):
        grouped[root(i)].append(feature)
    return list(grouped.values())


def _as_one(features: Sequence[Feature]) -> Feature:
    """The most telling type, all aliases, and the shapes of the highest dimension: an area says more than its label."""
    if len(features) == 1:
        return features[0]
    telling = min(features, key=lambda feature: feature.rank)
    dimension = max(feature.dimension for feature in features)
    return Feature(
        name=telling.name,
        aliases=_distinct(alias for feature in features for alias in feature.aliases),
        type=telling.type,
        rank=telling.rank,
        building=any(feature.building for feature in features),
        geometry=_union([feature.geometry for feature in features if feature.dimension == dimension], dimension),
    )


def _as_landmark(features: Sequence[Feature]) -> Landmark:
    one = _as_one(features)
    return Landmark(one.name, one.type, one.geometry, one.aliases)


def _union(shapes: Sequence[BaseGeometry], dimension: int) -> BaseGeometry:
    if len(shapes) == 1:
        return shapes[0]
    if dimension == 1:
        # Merged, not dissolved: dissolving would cut a road at every place where it crosses itself.
        parts = [part for shape in shapes for part in shapely.get_parts(shape)]
        return shapely.line_merge(shapely.MultiLineString(parts))
    return shapely.union_all(shapes)


def _distinct(aliases: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(aliases))
