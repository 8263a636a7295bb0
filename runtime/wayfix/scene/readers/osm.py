"""OpenStreetMap files: named landmarks, the pedestrian network and points of interest of one scene."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import shapely
from numpy.typing import NDArray
from pyproj import CRS
from shapely.geometry.base import BaseGeometry

from wayfix.errors import InvalidMap, NoOverlap
from wayfix.geo.boxes import WorldBox
from wayfix.geo.crs import WGS84, conversion
from wayfix.scene.landmark import Landmark
from wayfix.scene.network import FootWay, Network, Place
from wayfix.scene.readers import osm_areas
from wayfix.scene.readers.landmarks import MAX_NAME_LENGTH
from wayfix.scene.readers.osm_file import OsmFile, Relation, open_osm
from wayfix.scene.readers.osm_landmarks import Feature, landmarks
from wayfix.scene.readers.osm_network import NODE_KEYS, build_network, foot_way, kind_of_way, node_tags
from wayfix.scene.readers.osm_overpass import FIRST_MADE_UP_ID
from wayfix.scene.readers.osm_remarks import Remarks
from wayfix.scene.readers.osm_tags import (
    PLACE_KEYS,
    TYPE_KEYS,
    Tags,
    aliases_of,
    is_area,
    is_building,
    name_of,
    place_kinds,
    type_of,
)
from wayfix.scene.readers.osm_ways import WayTable, Window, read_ways

_NAMED = ("name", "bridge:name", "tunnel:name")
_STOP_KEYS = ("railway", "public_transport", "highway")
_KEYS = (*_NAMED, *PLACE_KEYS, *_STOP_KEYS)
"""An element without any of these is neither a landmark nor a place nor part of the network."""

_BATCH = 10_000
"""Nodes converted to the scene's CRS at once: as quick as all at once, and their tags need not all be held."""

_OUTLINE_ROLES = {"multipolygon": ("outer", "inner", ""), "building": ("outline", "outer", "inner", "")}


@dataclass(frozen=True)
class OsmSource:
    """What one file tells about the scene; geometries in the scene's CRS, whole even where they leave the scene."""

    path: Path
    landmarks: tuple[Landmark, ...]
    network: Network
    places: tuple[Place, ...]
    accuracy_m: float | None
    """Stated accuracy in metres of the conversion from WGS84; None where the registry states none."""
    remarks: tuple[str, ...]
    """What was left out or changed, counted, each of a kind that docs/osm.md explains."""


def read_osm(path: Path, scene_crs: CRS, extent: WorldBox) -> OsmSource:
    """Read .osm.pbf, .osm, .osm.gz, .osm.bz2 or an Overpass answer (.json), for the scene with this CRS and extent.

    Raises UnreadableSource, InvalidMap (empty, damaged, or not OSM), NoOverlap, or ConversionUnavailable.
    """
    to_scene = conversion(WGS84, scene_crs)
    window = Window(extent, to_scene)
    remarks = Remarks()
    with open_osm(path, remarks) as file:
        relations = [relation for relation in file.relations(_OUTLINE_ROLES, *_KEYS) if _is_thing(relation.tags)]
        table = read_ways(file, _KEYS, (_outline(relation) for relation in relations), window)
        harvest = _Harvest(window, remarks)
        harvest.add_relations(relations, table)
        harvest.add_ways(file, table)
        tagged = harvest.add_nodes(file, table)
    if not (harvest.features or harvest.ways or harvest.places):
        if not harvest.usable:
            raise InvalidMap(f"{path.name} names nothing and holds no footways, streets or places")
        west, south, east, north = window.lonlat
        raise NoOverlap(
            f"nothing in {path.name} lies in the scene, which spans {west:.4f} to {east:.4f} degrees east and "
            f"{south:.4f} to {north:.4f} degrees north; is it an extract of another place?"
        )
    return OsmSource(
        path=path,
        landmarks=landmarks(harvest.features, remarks),
        network=build_network(harvest.ways, tagged, table.ids, table.xy),
        places=tuple(harvest.places),
        accuracy_m=to_scene.accuracy_m,
        remarks=remarks.lines(),
    )


def _outline(relation: Relation) -> list[int]:
    """The ways that make up the outline and the holes."""
    return [way for way, role in relation.ways if role in _OUTLINE_ROLES[relation.tags["type"]]]


@dataclass
class _Harvest:
    """What the passes over a file have found so far."""

    window: Window
    remarks: Remarks
    features: list[Feature] = field(default_factory=list)
    ways: list[FootWay] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    usable: int = 0
    """Elements that would have been taken, were they in the scene."""
    outlines: dict[int, str] = field(default_factory=dict)
    """Way id -> name of the relation it is an outline of: named alike, they are one thing, and the relation knows the
    holes."""

    def add_relations(self, relations: Collection[Relation], table: WayTable) -> None:
        """Multipolygons and buildings of many ways."""
        for relation in relations:
            self.usable += 1
            members = _outline(relation)
            known = [table.points(way) for way in members if way in table]
            if not known and any(way in table.outside for way in members):
                self.remarks.add("outside the scene")
                continue
            area = osm_areas.multipolygon(known) if len(known) == len(members) else (None, "cut areas")
            shape = self._kept(known, *area)
            if shape is not None:
                self._add_thing(f"relation/{relation.id}", relation.tags, shape, is_area=True)
                self.outlines.update(dict.fromkeys(members, name_of(relation.tags) or ""))

    def add_ways(self, file: OsmFile, table: WayTable) -> None:
        """Streets, footways, and everything mapped as a line or a closed line."""
        done: set[int] = set()
        for way, tags in file.way_tags(*_KEYS):
            if way in done or not _is_wanted(tags):
                continue
            done.add(way)
            self.usable += 1
            if way in table.outside:
                self.remarks.add("outside the scene")
            elif way in table:
                self._add_way(way, table.nodes(way), table.points(way), tags)

    def add_nodes(self, file: OsmFile, table: WayTable) -> dict[int, Tags]:
        """Everything mapped as a point; returns what the tags of nodes that footways pass through tell walkers."""
        on_ways = _nodes_of(self.ways)
        tagged: dict[int, Tags] = {}
        near: list[tuple[int, float, float, Tags]] = []
        for node, lon, lat, tags in file.tagged_nodes(*_KEYS, *NODE_KEYS):
            if _contains(on_ways, node):
                tagged[node] = node_tags(tags)
            if not _is_thing(tags):
                continue
            self.usable += 1
            if self.window.holds(lon, lat):
                near.append((node, lon, lat, tags))
            else:
                self.remarks.add("outside the scene")
            if len(near) == _BATCH:
                self._add_points(near)
                near.clear()
        self._add_points(near)
        return tagged

    def _add_points(self, nodes: Sequence[tuple[int, float, float, Tags]]) -> None:
        lonlat = np.array([(lon, lat) for _, lon, lat, _ in nodes]).reshape(-1, 2)
        for (node, _, _, tags), point in zip(nodes, shapely.points(self.window.to_scene(lonlat)), strict=True):
            self._add_thing(f"node/{node}", tags, point, is_area=False)

    def _add_way(self, way: int, nodes: NDArray[np.int64], points: NDArray[np.float64], tags: Tags) -> None:
        if kind_of_way(tags):
            self._add_foot_way(way, nodes, points, tags)
        if not _is_thing(tags):
            return
        closed = len(nodes) > 1 and nodes[0] == nodes[-1] and is_area(tags)
        shape = self._kept([points], *osm_areas.polygon(points)) if closed else osm_areas.known_lines([points])
        if not closed and np.isnan(points).any() and not kind_of_way(tags):
            self.remarks.add("cut ways")
        if shape is not None:
            self._add_thing(f"way/{way}", tags, shape, is_area=closed, outline_of=self.outlines.get(way))

    def _add_foot_way(self, way: int, nodes: NDArray[np.int64], points: NDArray[np.float64], tags: Tags) -> None:
        if nodes.max() >= FIRST_MADE_UP_ID:
            self.remarks.add("no node ids")
            return
        if np.isnan(points).any():
            self.remarks.add("cut ways")
        elif len(nodes) < 2:
            self.remarks.add("unusable shapes")
        parts = [foot_way(way, nodes[run].tolist(), points[run], tags) for run in osm_areas.known_runs(points)]
        kept = [part for part in parts if shapely.intersects(part.geometry, self.window.extent)]
        if parts and not kept and not _is_thing(tags):
            self.remarks.add("outside the scene")
        self.ways += kept

    def _kept(
        self, outline: Sequence[NDArray[np.float64]], area: BaseGeometry | None, outcome: osm_areas.Outcome
    ) -> BaseGeometry | None:
        """The area, or what is known of the outline of one that is cut; counts what is not whole."""
        if outcome != "whole":
            self.remarks.add(outcome)
        return osm_areas.known_lines(outline) if outcome == "cut areas" else area

    def _add_thing(
        self, element: str, tags: Tags, shape: BaseGeometry, is_area: bool, outline_of: str | None = None
    ) -> None:
        """Add the landmark and the places that an element is."""
        if not shapely.intersects(shape, self.window.extent):
            self.remarks.add("outside the scene")
            return
        for feature in self._features(tags, shape, is_area):
            if feature.name != outline_of:
                self.features.append(feature)
        if kinds := place_kinds(tags):
            point = shape if shape.geom_type == "Point" else shapely.point_on_surface(shape)
            told = (name_of(tags), *(tags.get(key) for key in ("level", "opening_hours", "wheelchair")))
            self.places += [Place(element, kind, point.x, point.y, *told) for kind in kinds]

    def _features(self, tags: Tags, shape: BaseGeometry, is_area: bool) -> Iterator[Feature]:
        """The named features that an element is: itself, and the bridge or tunnel it runs through."""
        told = type_of(tags, shape.geom_type == "Point", is_area)
        if (name := name_of(tags)) and told and self._fits(name):
            aliases = tuple(alias for alias in aliases_of(tags, name) if self._fits(alias))
            yield Feature(name, aliases, *told, is_building(tags), shape)
        for kind in ("bridge", "tunnel"):
            if (name := tags.get(f"{kind}:name", "").strip()) and self._fits(name):
                yield Feature(name, (), kind, 0, False, shape)

    def _fits(self, name: str) -> bool:
        if len(name) > MAX_NAME_LENGTH:
            self.remarks.add("long names")
        return len(name) <= MAX_NAME_LENGTH


def _is_thing(tags: Tags) -> bool:
    """Whether an element may be a landmark or a place."""
    return any(tags.get(key, "").strip() for key in _NAMED) or bool(place_kinds(tags))


def _is_wanted(tags: Mapping[str, str]) -> bool:
    named = any(key in tags for key in _NAMED) and any(key in tags for key in (*TYPE_KEYS, *_NAMED[1:]))
    return named or kind_of_way(tags) is not None or bool(place_kinds(tags))


def _nodes_of(ways: Collection[FootWay]) -> NDArray[np.int64]:
    """The ids of all nodes of the ways, sorted: 8 bytes each, where a set would take ten times as much."""
    return np.unique(np.fromiter((node for way in ways for node in way.nodes), np.int64))


def _contains(ordered: NDArray[np.int64], value: int) -> bool:
    at = int(np.searchsorted(ordered, value))
    return at < len(ordered) and bool(ordered[at] == value)
