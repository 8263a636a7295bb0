"""OpenStreetMap files: every rule of docs/osm.md on maps small enough to know, and real extracts as a whole."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import itertools
import json
import random
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np
import osmium
import pytest
import shapely
from pyproj import CRS
from rapidfuzz.distance import OSA

from wayfix import errors
from wayfix.geo.boxes import WorldBox
from wayfix.geo.crs import WGS84, conversion
from wayfix.scene.landmark import Landmark
from wayfix.scene.landmark_index import LandmarkIndex, normalise
from wayfix.scene.network import FootNode, FootWay
from wayfix.scene.readers.osm import OsmSource, read_osm
from wayfix.scene.readers.osm_remarks import KINDS
from wayfix.scene.readers.osm_tags import metres, whole

SHARED = Path(__file__).parents[3] / "shared" / "data" / "osm"
HELSINKI = SHARED / "Helsinki.osm.pbf"
with_data = pytest.mark.skipif(not HELSINKI.is_file(), reason="the shared extracts are not here")

UTM31 = CRS.from_epsg(32631)
EAST, NORTH = 500_000.0, 5_700_000.0
SCENE = WorldBox(EAST, NORTH, EAST + 1000, NORTH + 1000)
TO_UTM31 = conversion(WGS84, UTM31)


# ---- a map in metres from the scene's south-west corner


def lonlat(x: float, y: float) -> tuple[float, float]:
    lon, lat = TO_UTM31.inverse(np.array([EAST + x]), np.array([NORTH + y]))
    return float(lon[0]), float(lat[0])


def tags_xml(tags: dict[str, str]) -> str:
    return "".join(f"<tag k={quoteattr(k)} v={quoteattr(v)}/>" for k, v in tags.items())


def node(number: int, x: float, y: float, **tags: str) -> str:
    lon, lat = lonlat(x, y)
    return f'<node id="{number}" version="1" lat="{lat:.7f}" lon="{lon:.7f}">{tags_xml(tags)}</node>'


def way(number: int, refs: Iterable[int], tags: dict[str, str]) -> str:
    inside = "".join(f'<nd ref="{ref}"/>' for ref in refs)
    return f'<way id="{number}" version="1">{inside}{tags_xml(tags)}</way>'


def relation(number: int, members: Iterable[tuple[int, str]], tags: dict[str, str]) -> str:
    inside = "".join(f'<member type="way" ref="{ref}" role="{role}"/>' for ref, role in members)
    return f'<relation id="{number}" version="1">{inside}{tags_xml(tags)}</relation>'


def ring(first: int, x0: float, y0: float, x1: float, y1: float) -> tuple[list[str], list[int]]:
    """The four nodes of a rectangle, numbered from `first`, and the closed list of their ids."""
    corners = [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]
    nodes = [node(first + i, *corner) for i, corner in enumerate(corners)]
    return nodes, [first, first + 1, first + 2, first + 3, first]


def osm_xml(elements: Sequence[str]) -> str:
    return f'<?xml version="1.0" encoding="UTF-8"?><osm version="0.6">{"".join(elements)}</osm>'


@pytest.fixture
def read(tmp_path: Path) -> Any:
    """Reads a map of XML elements."""

    def reader(*elements: str, extent: WorldBox = SCENE) -> OsmSource:
        path = tmp_path / "town.osm"
        path.write_text(osm_xml(elements), encoding="utf-8")
        return read_osm(path, UTM31, extent)

    return reader


def kinds_of(source: OsmSource) -> dict[str, int]:
    """Remarks as kind -> count."""
    found = [re.match(r"([a-z ]+): (\d+) ", remark) for remark in source.remarks]
    return {match[1]: int(match[2]) for match in found if match}


def moved(shape: Any) -> Any:
    """A shape in metres from the scene's corner, in the scene's CRS."""
    return shapely.transform(shape, lambda p: p + np.array((EAST, NORTH)))


def assert_near(shape: Any, expected: Any) -> None:
    """The same kind of shape, within 2 cm (OSM rounds degrees to seven digits)."""
    assert shape.geom_type == expected.geom_type
    assert shapely.hausdorff_distance(shape, moved(expected)) < 0.02


STREET = [node(1, 100, 100), node(2, 200, 100), way(10, [1, 2], {"highway": "residential"})]


# ---- geometries


def test_points_lines_and_areas_are_placed_in_the_scenes_crs(read: Any) -> None:
    corners, refs = ring(10, 100, 100, 140, 130)
    source = read(
        node(1, 500, 500, name="Corner Cafe", amenity="cafe"),
        *corners,
        way(20, refs, {"building": "yes", "name": "Town Hall"}),
        node(30, 0, 300),
        node(31, 900, 300),
        way(21, [30, 31], {"highway": "residential", "name": "Mill Road"}),
    )
    by_name = {mark.name: mark for mark in source.landmarks}
    assert_near(by_name["Corner Cafe"].geometry, shapely.Point(500, 500))
    assert_near(by_name["Town Hall"].geometry, shapely.box(100, 100, 140, 130))
    assert_near(by_name["Mill Road"].geometry, shapely.LineString([(0, 300), (900, 300)]))
    assert {mark.name: mark.type for mark in source.landmarks} == {
        "Corner Cafe": "cafe",
        "Town Hall": "building",
        "Mill Road": "road",
    }
    assert source.remarks == ()
    assert source.accuracy_m == TO_UTM31.accuracy_m


def test_what_does_not_touch_the_scene_is_left_out_and_what_crosses_its_edge_stays_whole(read: Any) -> None:
    source = read(
        node(1, -400, 500),
        node(2, 400, 500),
        way(10, [1, 2], {"highway": "footway", "name": "Long Path"}),
        node(3, -600, 500, name="Far Cafe", amenity="cafe"),
        node(4, -700, 0),
        node(5, -600, 0),
        way(11, [4, 5], {"highway": "path", "name": "Far Path"}),
        way(12, [4, 5], {"highway": "path"}),
    )
    (mark,) = source.landmarks
    assert_near(mark.geometry, shapely.LineString([(-400, 500), (400, 500)]))
    (path,) = source.network.ways
    assert_near(path.geometry, shapely.LineString([(-400, 500), (400, 500)]))
    assert kinds_of(source) == {"outside the scene": 3}
    assert source.places == ()


def test_a_way_that_crosses_the_scene_without_a_node_in_it_is_found(read: Any) -> None:
    source = read(node(1, -500, 400), node(2, 1500, 600), way(10, [1, 2], {"highway": "primary", "name": "Causeway"}))
    assert [mark.name for mark in source.landmarks] == ["Causeway"]
    assert len(source.network.ways) == 1


def test_a_multipolygon_has_its_hole_and_the_island_in_the_hole(read: Any) -> None:
    outer, outer_refs = ring(10, 100, 100, 400, 400)
    hole, hole_refs = ring(20, 200, 200, 300, 300)
    island, island_refs = ring(30, 240, 240, 260, 260)
    source = read(
        *outer,
        *hole,
        *island,
        way(1, outer_refs[:3], {}),
        way(2, outer_refs[2:], {}),
        way(3, hole_refs, {}),
        way(4, island_refs, {}),
        relation(
            7,
            [(1, "outer"), (2, "outer"), (3, "inner"), (4, "outer")],
            {"type": "multipolygon", "name": "Ring Lake", "natural": "water", "water": "lake"},
        ),
    )
    (mark,) = source.landmarks
    assert mark.type == "lake"
    expected = shapely.box(100, 100, 400, 400) - shapely.box(200, 200, 300, 300) | shapely.box(240, 240, 260, 260)
    assert mark.geometry.area == pytest.approx(expected.area, rel=1e-3)
    assert not mark.geometry.contains(moved(shapely.Point(220, 220)))
    assert mark.geometry.contains(moved(shapely.Point(250, 250)))


def test_an_outline_named_like_its_relation_does_not_fill_the_hole(read: Any) -> None:
    outer, outer_refs = ring(10, 100, 100, 400, 400)
    hole, hole_refs = ring(20, 200, 200, 300, 300)
    source = read(
        *outer,
        *hole,
        way(1, outer_refs, {"building": "yes", "name": "Court"}),
        way(2, hole_refs, {}),
        relation(7, [(1, "outer"), (2, "inner")], {"type": "multipolygon", "building": "yes", "name": "Court"}),
    )
    (mark,) = source.landmarks
    assert len(mark.geometry.interiors) == 1


def test_a_building_relation_uses_its_outline_and_not_its_parts(read: Any) -> None:
    outline, outline_refs = ring(10, 100, 100, 200, 200)
    part, part_refs = ring(20, 180, 180, 260, 260)
    source = read(
        *outline,
        *part,
        way(1, outline_refs, {"building": "yes"}),
        way(2, part_refs, {"building:part": "yes"}),
        relation(7, [(1, "outline"), (2, "part")], {"type": "building", "name": "Tower", "building": "office"}),
    )
    (mark,) = source.landmarks
    assert_near(mark.geometry, shapely.box(100, 100, 200, 200))
    assert mark.type == "office"


def test_routes_and_boundaries_are_no_landmarks(read: Any) -> None:
    source = read(
        *STREET,
        relation(7, [(10, "")], {"type": "route", "name": "Bus 12", "route": "bus"}),
        relation(8, [(10, "outer")], {"type": "boundary", "name": "Town", "place": "town"}),
    )
    assert source.landmarks == ()


def test_a_polygon_that_crosses_itself_is_repaired_and_a_flat_one_left_out(read: Any) -> None:
    source = read(
        *(node(i, x, y) for i, (x, y) in enumerate([(100, 100), (200, 200), (200, 100), (100, 200)], 1)),
        way(10, [1, 2, 3, 4, 1], {"building": "yes", "name": "Bow Tie"}),
        node(5, 300, 300),
        node(6, 400, 300),
        way(11, [5, 6, 5], {"building": "yes", "name": "Flat"}),
    )
    (mark,) = source.landmarks
    assert mark.geometry.is_valid
    assert mark.geometry.geom_type == "MultiPolygon"
    assert mark.geometry.area == pytest.approx(5000, rel=1e-3)
    assert kinds_of(source) == {"repaired areas": 1, "unusable shapes": 1}


def test_a_multipolygon_whose_ring_crosses_itself_is_repaired(read: Any) -> None:
    source = read(
        *(node(i, x, y) for i, (x, y) in enumerate([(100, 100), (200, 200), (200, 100), (100, 200)], 1)),
        way(10, [1, 2, 3], {}),
        way(11, [3, 4, 1], {}),
        relation(7, [(10, "outer"), (11, "outer")], {"type": "multipolygon", "leisure": "park", "name": "Bow Park"}),
    )
    (mark,) = source.landmarks
    assert mark.geometry.is_valid
    assert kinds_of(source) == {"repaired areas": 1}


def test_rings_that_touch_at_a_node_are_told_apart(read: Any) -> None:
    source = read(
        *(
            node(i, x, y)
            for i, (x, y) in enumerate(
                [(100, 100), (200, 100), (200, 200), (100, 200), (300, 200), (300, 300), (200, 300)], 1
            )
        ),
        way(10, [3, 4, 1], {}),
        way(11, [1, 2, 3], {}),
        way(12, [3, 5, 6], {}),
        way(13, [6, 7, 3], {}),
        relation(
            7,
            [(10, "outer"), (11, "outer"), (12, "outer"), (13, "outer")],
            {"type": "multipolygon", "leisure": "park", "name": "Twin Park"},
        ),
    )
    (mark,) = source.landmarks
    assert mark.geometry.area == pytest.approx(20_000, rel=1e-3)


@pytest.mark.parametrize(
    ("tags", "kind"),
    [
        ({"highway": "residential"}, "LineString"),
        ({"highway": "pedestrian", "area": "yes"}, "Polygon"),
        ({"leisure": "park"}, "Polygon"),
        ({"leisure": "track"}, "LineString"),
        ({"waterway": "river"}, "LineString"),
        ({"natural": "water"}, "Polygon"),
        ({"natural": "cliff"}, "LineString"),
        ({"railway": "rail"}, "LineString"),
        ({"barrier": "city_wall"}, "LineString"),
        ({"amenity": "school", "area": "no"}, "LineString"),
    ],
    ids=str,
)
def test_a_closed_way_is_an_area_only_where_its_tags_say_so(read: Any, tags: dict[str, str], kind: str) -> None:
    corners, refs = ring(10, 100, 100, 200, 200)
    (mark,) = read(*corners, way(1, refs, {**tags, "name": "Thing"})).landmarks
    assert mark.geometry.geom_type == kind


# ---- names and types


def test_aliases_come_from_every_name_key_and_language_once(read: Any) -> None:
    tags = {
        "name": "Hauptbahnhof",
        "railway": "station",
        "alt_name": "Central Station; The Station",
        "old_name": "Südbahnhof",
        "short_name": "Hbf",
        "official_name": "Hauptbahnhof",
        "loc_name": "Bahnhof",
        "int_name": "Central Station",
        "name:fr": "Gare centrale",
        "name:zh-Hans": "中央车站",
        "alt_name:en": "Main Station",
        "name:etymology": "Head",
        "name:signed": "no",
        "source:name": "survey",
    }
    (mark,) = read(node(1, 500, 500, **tags)).landmarks
    assert sorted(mark.aliases) == sorted(
        ["Central Station", "The Station", "Südbahnhof", "Hbf", "Bahnhof", "Gare centrale", "中央车站", "Main Station"]
    )


@pytest.mark.parametrize("name", ["مكتبة الإسكندرية", "בית הכנסת", "東京駅", "🍕", 'Café ☕️ <&> "Q"', "x" * 1000])
def test_names_of_any_script_are_found(read: Any, name: str) -> None:
    (mark,) = read(node(1, 500, 500, name=name, amenity="cafe")).landmarks
    assert mark.name == name
    assert LandmarkIndex([mark]).query(name).matches[0].landmark == mark


def test_a_name_too_long_leaves_the_feature_out_with_a_remark(read: Any) -> None:
    source = read(
        node(1, 500, 500, name="x" * 1001, amenity="cafe"),
        node(2, 300, 500, name="Fine", amenity="pub", alt_name="y" * 1001),
    )
    assert [(mark.name, mark.aliases) for mark in source.landmarks] == [("Fine", ())]
    assert kinds_of(source) == {"long names": 2}
    assert len(source.places) == 2


@pytest.mark.parametrize(
    ("tags", "kind"),
    [
        ({"amenity": "pharmacy", "building": "yes"}, "pharmacy"),
        ({"building": "yes"}, "building"),
        ({"building": "church"}, "church"),
        ({"leisure": "park"}, "park"),
        ({"tourism": "attraction", "historic": "castle"}, "castle"),
        ({"tourism": "attraction"}, "attraction"),
        ({"historic": "yes"}, "historic"),
        ({"shop": "bakery;cafe"}, "bakery"),
        ({"highway": "bus_stop", "public_transport": "platform"}, "bus_stop"),
        ({"public_transport": "stop_position", "tram": "yes"}, "tram_stop"),
        ({"place": "square"}, "square"),
        ({"railway": "station"}, "station"),
        ({"man_made": "bridge"}, "bridge"),
        ({"amenity": "no", "office": "company"}, "company"),
    ],
    ids=str,
)
def test_the_type_is_the_most_telling_value(read: Any, tags: dict[str, str], kind: str) -> None:
    (mark,) = read(node(1, 500, 500, name="Thing", **tags)).landmarks
    assert mark.type == kind


@pytest.mark.parametrize(
    ("tags", "kind"),
    [
        ({"highway": "footway"}, "road"),
        ({"highway": "motorway"}, "road"),
        ({"waterway": "river"}, "river"),
        ({"railway": "tram"}, "railway"),
    ],
    ids=str,
)
def test_the_type_of_a_line(read: Any, tags: dict[str, str], kind: str) -> None:
    (mark,) = read(node(1, 0, 0), node(2, 500, 500), way(3, [1, 2], {**tags, "name": "Line"})).landmarks
    assert mark.type == kind


def test_a_road_not_built_yet_is_neither_a_landmark_nor_walked_on(read: Any) -> None:
    source = read(*STREET, node(3, 0, 0), way(11, [1, 3], {"highway": "proposed", "name": "Future Road"}))
    assert source.landmarks == ()
    assert len(source.network.ways) == 1


def test_a_bridge_has_a_name_of_its_own(read: Any) -> None:
    tags = {"highway": "primary", "bridge": "yes", "bridge:name": "Old Bridge", "name": "Mill Road"}
    source = read(node(1, 0, 0), node(2, 500, 500), way(3, [1, 2], tags))
    assert {(mark.name, mark.type) for mark in source.landmarks} == {("Mill Road", "road"), ("Old Bridge", "bridge")}


def test_a_name_without_a_telling_key_is_no_landmark(read: Any) -> None:
    assert read(*STREET, node(5, 500, 500, name="Mystery")).landmarks == ()


# ---- one thing, one landmark


def street(number: int, x0: float, x1: float, name: str) -> list[str]:
    return [
        node(2 * number, x0, 500),
        node(2 * number + 1, x1, 500),
        way(number, [2 * number, 2 * number + 1], {"highway": "residential", "name": name}),
    ]


def test_a_road_of_many_ways_is_one_landmark(read: Any) -> None:
    source = read(
        *(node(i, 100 * i, 500) for i in range(1, 5)),
        way(10, [1, 2], {"highway": "residential", "name": "Mill Road", "alt_name": "Mill Rd"}),
        way(11, [3, 2], {"highway": "tertiary", "name": "Mill Road", "old_name": "Bridge Road"}),
        way(12, [3, 4], {"highway": "steps", "name": "Mill Road"}),
        way(13, [3, 4], {"highway": "steps", "name": "Other Road"}),
    )
    road, other = source.landmarks
    assert road.aliases == ("Mill Rd", "Bridge Road")
    assert_near(road.geometry, shapely.LineString([(100, 500), (200, 500), (300, 500), (400, 500)]))
    assert other.name == "Other Road"
    assert source.remarks == ()


@pytest.mark.parametrize(("gap", "roads"), [(95, 1), (105, 2)])
def test_roads_of_one_name_are_different_roads_only_beyond_100_m(read: Any, gap: float, roads: int) -> None:
    source = read(*street(10, 100, 300, "Mill Road"), *street(20, 300 + gap, 700, "Mill Road"))
    assert len(source.landmarks) == roads


def test_a_node_in_the_building_of_its_name_is_the_building(read: Any) -> None:
    corners, refs = ring(10, 100, 100, 150, 150)
    source = read(
        *corners,
        way(1, refs, {"building": "yes", "name": "Ateneum", "name:sv": "Ateneum konstmuseum"}),
        node(5, 120, 120, name="Ateneum", tourism="museum", alt_name="Art Museum"),
    )
    (mark,) = source.landmarks
    assert mark.type == "museum"
    assert_near(mark.geometry, shapely.box(100, 100, 150, 150))
    assert set(mark.aliases) == {"Ateneum konstmuseum", "Art Museum"}
    assert kinds_of(source) == {"mapped twice": 1}


@pytest.mark.parametrize(
    "other",
    [
        node(5, 240, 120, name="Opera", amenity="theatre"),
        node(5, 170, 120, name="Opera", highway="bus_stop"),
        node(5, 120, 120, name="opera house", amenity="theatre"),
    ],
    ids=["too far away", "a stop beside it", "another name"],
)
def test_what_is_not_the_same_thing_stays_apart(read: Any, other: str) -> None:
    corners, refs = ring(10, 100, 100, 150, 150)
    source = read(*corners, way(1, refs, {"building": "yes", "name": "Opera"}), other)
    assert len(source.landmarks) == 2
    assert source.remarks == ()


def test_two_stops_across_the_street_are_one_landmark(read: Any) -> None:
    stops = [node(i, 500, 500 + 20 * i, name="Market", highway="bus_stop") for i in (1, 2)]
    (mark,) = read(*stops).landmarks
    assert mark.geometry.geom_type == "MultiPoint"


# ---- the network


def test_ways_are_joined_by_shared_node_ids_and_never_by_place(read: Any) -> None:
    source = read(
        *(node(i, 100 * i, 500) for i in range(1, 4)),
        node(4, 200, 500),
        node(5, 200, 300),
        way(10, [1, 2, 3], {"highway": "footway"}),
        way(11, [4, 5], {"highway": "steps", "layer": "-1"}),
    )
    above, below = source.network.ways
    assert above.nodes == (1, 2, 3)
    assert not set(above.nodes) & set(below.nodes)
    assert [n.id for n in source.network.nodes] == [1, 3, 4, 5]


def test_nodes_of_the_network_are_ends_junctions_and_what_is_on_the_way(read: Any) -> None:
    source = read(
        node(1, 100, 500),
        node(2, 200, 500),
        node(3, 300, 500, barrier="gate", access="private", opening_hours="Mo-Fr 08:00-18:00"),
        node(4, 400, 500, highway="crossing", crossing="zebra", kerb="lowered"),
        node(5, 500, 500),
        node(6, 600, 500, highway="elevator", level="0;1", wheelchair="yes"),
        node(7, 200, 600, entrance="main"),
        node(8, 800, 500, barrier="gate"),
        way(10, [1, 2, 3, 4, 5, 6], {"highway": "footway"}),
        way(11, [2, 7], {"highway": "path"}),
    )
    x, y = EAST + 300, NORTH + 500
    by_id = {n.id: n for n in source.network.nodes}
    assert list(by_id) == [1, 2, 3, 4, 6, 7]
    gate = by_id[3]
    assert (gate.x, gate.y) == (pytest.approx(x, abs=0.02), pytest.approx(y, abs=0.02))
    opening = "Mo-Fr 08:00-18:00"
    assert gate == FootNode(3, gate.x, gate.y, "gate", barrier="gate", access="private", opening_hours=opening)
    assert (by_id[4].kind, by_id[4].crossing, by_id[4].kerb, by_id[4].wheelchair) == (
        "crossing",
        "zebra",
        "lowered",
        None,
    )
    assert (by_id[6].kind, by_id[6].level, by_id[6].wheelchair) == ("elevator", "0;1", "yes")
    assert by_id[7].kind == "entrance"
    assert by_id[2] == FootNode(2, by_id[2].x, by_id[2].y)


def test_what_the_map_does_not_say_stays_unknown(read: Any) -> None:
    (path,) = read(*STREET).network.ways
    assert path == FootWay(10, (1, 2), path.geometry, "residential")
    unset = {name: getattr(path, name) for name in FootWay.__slots__ if getattr(path, name) is None}
    assert len(unset) == len(FootWay.__slots__) - 5


def test_what_the_map_says_is_taken_as_it_is(read: Any) -> None:
    tags = {
        "highway": "footway",
        "footway": "sidewalk",
        "name": "River Walk",
        "layer": "1",
        "level": "0-1",
        "width": "1.5 m",
        "surface": "gravel",
        "incline": "8%",
        "kerb": "raised",
        "access": "permissive",
        "foot": "yes",
        "wheelchair": "limited",
        "opening_hours": "sunrise-sunset",
        "bridge": "yes",
        "lit": "no",
        "step_count": "12",
        "handrail": "both",
        "sidewalk:left": "yes",
        "foot:conditional": "no @ (22:00-06:00)",
    }
    (path,) = read(node(1, 0, 0), node(2, 500, 500), way(3, [1, 2], tags)).network.ways
    assert path == FootWay(
        id=3,
        nodes=(1, 2),
        geometry=path.geometry,
        kind="footway",
        subkind="sidewalk",
        name="River Walk",
        layer=1,
        level="0-1",
        width_m=1.5,
        surface="gravel",
        incline="8%",
        kerb="raised",
        access="permissive",
        foot="yes",
        wheelchair="limited",
        opening_hours="sunrise-sunset",
        bridge="yes",
        lit="no",
        step_count=12,
        handrail="both",
        sidewalk="left",
        access_conditional="no @ (22:00-06:00)",
    )


@pytest.mark.parametrize(
    ("tags", "kind"),
    [
        ({"highway": "motorway"}, None),
        ({"highway": "construction"}, None),
        ({"highway": "trunk"}, "trunk"),
        ({"highway": "track"}, "track"),
        ({"highway": "trail"}, "trail"),
        ({"highway": "tertiary", "foot": "no"}, "tertiary"),
        ({"railway": "platform"}, "platform"),
        ({"railway": "rail"}, None),
        ({"waterway": "river"}, None),
    ],
    ids=str,
)
def test_what_is_walked_on(read: Any, tags: dict[str, str], kind: str | None) -> None:
    source = read(*STREET, node(3, 0, 0), way(11, [1, 3], tags))
    assert [w.kind for w in source.network.ways if w.id == 11] == ([kind] if kind else [])


def test_a_closed_surface_says_that_it_is_one(read: Any) -> None:
    corners, refs = ring(10, 100, 100, 200, 200)
    source = read(
        *corners,
        way(1, refs, {"highway": "pedestrian", "area": "yes"}),
        way(2, refs, {"highway": "pedestrian"}),
    )
    assert [path.area for path in source.network.ways] == [True, False]


def test_a_way_cut_by_the_extract_keeps_its_known_parts(read: Any) -> None:
    source = read(
        *(node(i, 100 * i, 500) for i in (1, 2, 4, 6, 7, 8)),
        way(10, range(1, 10), {"highway": "footway", "name": "Cut Path"}),
        way(11, [98, 99], {"highway": "footway"}),
    )
    assert [(path.id, path.nodes) for path in source.network.ways] == [(10, (1, 2)), (10, (6, 7, 8))]
    (mark,) = source.landmarks
    assert mark.geometry.geom_type == "MultiLineString"
    assert kinds_of(source)["cut ways"] == 1
    assert [n.id for n in source.network.nodes] == [1, 2, 6, 8]


def test_a_cut_area_keeps_what_is_known_of_its_outline(read: Any) -> None:
    corners, refs = ring(10, 100, 100, 200, 200)
    source = read(
        *corners[:3],
        way(1, refs, {"building": "yes", "name": "Cut Hall"}),
        relation(7, [(1, "outer"), (99, "outer")], {"type": "multipolygon", "leisure": "park", "name": "Cut Park"}),
    )
    assert {mark.name: mark.geometry.geom_type for mark in source.landmarks} == {
        "Cut Hall": "LineString",
        "Cut Park": "LineString",
    }
    assert kinds_of(source) == {"cut areas": 2}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", 2.0),
        ("1.5 m", 1.5),
        ("1.5m", 1.5),
        ("150 cm", 1.5),
        ("2,5", 2.5),
        ("2,5 m", 2.5),
        ("5'", 1.524),
        ("5'6\"", 1.6764),
        ("5 ft", 1.524),
        ('36"', 0.9144),
        (".5", 0.5),
        ("1,500", None),
        ("1-2", None),
        ("~2", None),
        ("0", None),
        ("-1", None),
        ("wide", None),
        ("", None),
        (None, None),
        ("nan", None),
        ("1e5", None),
        ("2;3", None),
        ("9" * 400, None),
    ],
)
def test_lengths_are_read_with_their_unit_or_not_at_all(text: str | None, value: float | None) -> None:
    assert metres(text) == (None if value is None else pytest.approx(value))


@pytest.mark.parametrize(
    ("text", "value"), [("3", 3), ("-1", -1), ("0;1", None), ("1.5", None), ("", None), ("٣", None)]
)
def test_whole_numbers(text: str, value: int | None) -> None:
    assert whole(text) == value


# ---- places


def test_places_need_no_name_and_know_what_they_are(read: Any) -> None:
    corners, refs = ring(10, 100, 100, 140, 140)
    source = read(
        node(1, 500, 500, amenity="pharmacy", opening_hours="24/7", level="1", wheelchair="yes"),
        *corners,
        way(2, refs, {"building": "yes", "shop": "bakery", "amenity": "cafe;bar", "name": "Bread"}),
        node(3, -500, 500, amenity="bench"),
        node(4, 600, 600, amenity="no"),
    )
    assert [(p.id, p.kind, p.name) for p in source.places] == [
        ("way/2", "amenity=cafe", "Bread"),
        ("way/2", "amenity=bar", "Bread"),
        ("way/2", "shop=bakery", "Bread"),
        ("node/1", "amenity=pharmacy", None),
    ]
    pharmacy = source.places[-1]
    assert (pharmacy.opening_hours, pharmacy.level, pharmacy.wheelchair) == ("24/7", "1", "yes")
    assert shapely.box(EAST + 100, NORTH + 100, EAST + 140, NORTH + 140).contains(
        shapely.Point(source.places[0].x, source.places[0].y)
    )


# ---- files


TOWN = [*STREET, node(3, 300, 300, name="Cafe", amenity="cafe")]


def same(a: OsmSource, b: OsmSource) -> bool:
    return (a.landmarks, a.network, a.places) == (b.landmarks, b.network, b.places)


def test_every_format_gives_the_same(tmp_path: Path, read: Any) -> None:
    source = read(*TOWN)
    text = osm_xml(TOWN).encode()
    (tmp_path / "a.osm.gz").write_bytes(gzip.compress(text))
    (tmp_path / "a.osm.bz2").write_bytes(bz2.compress(text))
    with osmium.SimpleWriter(str(tmp_path / "a.osm.pbf")) as writer:
        for element in osmium.FileProcessor(str(tmp_path / "town.osm")):
            writer.add(element)
    for name in ("a.osm.gz", "a.osm.bz2", "a.osm.pbf"):
        assert same(read_osm(tmp_path / name, UTM31, SCENE), source)


def test_the_order_of_elements_does_not_matter_and_new_elements_have_negative_ids(read: Any) -> None:
    source = read(
        way(-10, [-2, 7, 1], {"highway": "footway"}), node(7, 700, 500), node(-2, 200, 500), node(1, 100, 500)
    )
    (path,) = source.network.ways
    assert_near(path.geometry, shapely.LineString([(200, 500), (700, 500), (100, 500)]))
    assert path.nodes == (-2, 7, 1)


def test_deleted_elements_are_left_out(read: Any) -> None:
    gone = '<node id="9" version="2" visible="false" lat="1" lon="1"><tag k="amenity" v="cafe"/></node>'
    assert read(*STREET, gone).places == ()


def overpass(tmp_path: Path, elements: list[dict[str, Any]], **more: Any) -> Path:
    path = tmp_path / "answer.json"
    path.write_text(json.dumps({"version": 0.6, "generator": "Overpass", "elements": elements, **more}), "utf-8")
    return path


def point(x: float, y: float) -> dict[str, float]:
    lon, lat = lonlat(x, y)
    return {"lat": round(lat, 7), "lon": round(lon, 7)}


PATH = {"type": "way", "id": 10, "nodes": [1, 2], "tags": {"highway": "residential"}}
CAFE = {"type": "node", "id": 3, **point(300, 300), "tags": {"name": "Cafe", "amenity": "cafe"}}


def test_overpass_body_with_separate_nodes(tmp_path: Path, read: Any) -> None:
    nodes = [{"type": "node", "id": 1, **point(100, 100)}, {"type": "node", "id": 2, **point(200, 100)}]
    # Overpass writes a node again, without its tags, when it is a way's.
    again = {key: value for key, value in CAFE.items() if key != "tags"}
    answer = overpass(tmp_path, [CAFE, PATH, *nodes, again])
    assert same(read_osm(answer, UTM31, SCENE), read(*TOWN))


def test_overpass_geom(tmp_path: Path, read: Any) -> None:
    path = {**PATH, "geometry": [point(100, 100), point(200, 100)]}
    assert same(read_osm(overpass(tmp_path, [path, CAFE]), UTM31, SCENE), read(*TOWN))


def test_overpass_geom_with_vertices_outside_its_box(tmp_path: Path) -> None:
    path = {**PATH, "nodes": [1, 2, 3], "geometry": [point(100, 100), point(200, 100), None]}
    source = read_osm(overpass(tmp_path, [path]), UTM31, SCENE)
    assert source.network.ways[0].nodes == (1, 2)
    assert kinds_of(source) == {"cut ways": 1}


def test_overpass_relations_bring_their_members_along(tmp_path: Path) -> None:
    outer = [point(100, 100), point(300, 100), point(300, 300), point(100, 300), point(100, 100)]
    inner = [point(150, 150), point(200, 150), point(200, 200), point(150, 150)]
    lake = {
        "type": "relation",
        "id": 7,
        "tags": {"type": "multipolygon", "name": "Lake", "natural": "water"},
        "members": [
            {"type": "way", "ref": 1, "role": "outer", "geometry": outer[:3]},
            {"type": "way", "ref": 2, "role": "outer", "geometry": outer[2:]},
            {"type": "way", "ref": 3, "role": "inner", "geometry": inner},
            {"type": "node", "ref": 4, "role": "label", **point(250, 250)},
        ],
    }
    source = read_osm(overpass(tmp_path, [lake]), UTM31, SCENE)
    (mark,) = source.landmarks
    assert mark.geometry.area == pytest.approx(40_000 - 1250, rel=1e-3)
    assert len(mark.geometry.interiors) == 1
    assert source.network.ways == ()


def test_overpass_ways_without_node_ids_are_landmarks_only(tmp_path: Path) -> None:
    line = [point(100, 100), point(200, 100)]
    tags = {"highway": "residential", "name": "Mill Road"}
    hall = [point(300, 300), point(340, 300), point(340, 340), point(300, 300)]
    source = read_osm(
        overpass(
            tmp_path,
            [
                {"type": "way", "id": 10, "geometry": line, "tags": tags},
                {"type": "way", "id": 11, "geometry": hall, "tags": {"building": "yes", "name": "Hall"}},
                {"type": "way", "id": 12, "center": point(5, 5), "tags": tags},
                {"type": "node", "id": 13, "tags": {"amenity": "cafe"}},
            ],
        ),
        UTM31,
        SCENE,
    )
    assert {mark.name: mark.geometry.geom_type for mark in source.landmarks} == {
        "Mill Road": "LineString",
        "Hall": "Polygon",
    }
    assert source.network.ways == ()
    assert kinds_of(source) == {"no node ids": 1, "no geometry": 2}


def test_an_overpass_answer_larger_than_a_piece_of_reading(tmp_path: Path) -> None:
    elements = [{**CAFE, "id": i, "tags": {"amenity": "cafe", "note": "ü" * 300}} for i in range(1, 4000)]
    vertices = 40_000
    line = [{"lat": CAFE["lat"], "lon": CAFE["lon"] + i * 1e-7} for i in range(vertices)]
    elements.insert(2000, {**PATH, "nodes": list(range(10_000, 10_000 + vertices)), "geometry": line})
    source = read_osm(overpass(tmp_path, elements), UTM31, SCENE)
    assert len(source.places) == 3999
    assert len(source.network.ways[0].nodes) == vertices


def test_an_overpass_tag_that_no_osm_file_can_hold_is_left_out(tmp_path: Path) -> None:
    tags = {"name": "🍕" * 300, "amenity": "cafe", "note": "x" * 5000}
    source = read_osm(overpass(tmp_path, [{**CAFE, "tags": tags}]), UTM31, SCENE)
    assert source.landmarks == ()
    assert [place.name for place in source.places] == [None]
    assert kinds_of(source) == {"long names": 1}


def test_a_tag_longer_than_osm_allows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "town.osm"
    path.write_text(osm_xml([node(1, 5, 5, amenity="cafe", name="x" * 5000)]), encoding="utf-8")
    assert "too long" in refused(path, errors.InvalidMap)


# ---- refusals


def refused(path: Path, error: type[errors.WayfixError], extent: WorldBox = SCENE) -> str:
    with pytest.raises(error) as caught:
        read_osm(path, UTM31, extent)
    assert type(caught.value) is error
    assert path.name in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("suffix", [".osm", ".osm.pbf", ".osm.gz", ".osm.bz2", ".json"])
@pytest.mark.parametrize("content", [b"", b"hello", b"\x89PNG\r\n\x1a\n" + bytes(2000), b"<html>busy</html>"])
def test_what_is_no_osm_file_is_refused(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"town{suffix}"
    path.write_bytes(content)
    refused(path, errors.InvalidMap)


@pytest.mark.parametrize("suffix", [".osm", ".osm.gz", ".osm.bz2"])
@pytest.mark.parametrize("part", [0.3, 0.7, 0.99])
def test_cut_files_are_refused(tmp_path: Path, suffix: str, part: float) -> None:
    pack = {".osm": bytes, ".osm.gz": gzip.compress, ".osm.bz2": bz2.compress}[suffix]
    data = pack(osm_xml([node(i, i % 100, i // 100) for i in range(2000)]).encode())
    path = tmp_path / f"cut{suffix}"
    path.write_bytes(data[: int(len(data) * part)])
    refused(path, errors.InvalidMap)


@pytest.mark.parametrize("part", [0.2, 0.5, 0.9, 0.999])
@with_data
def test_a_cut_pbf_is_refused(tmp_path: Path, part: float) -> None:
    data = HELSINKI.read_bytes()
    path = tmp_path / "cut.osm.pbf"
    path.write_bytes(data[: int(len(data) * part)])
    refused(path, errors.InvalidMap)


@with_data
def test_a_damaged_pbf_is_refused(tmp_path: Path) -> None:
    data = bytearray(HELSINKI.read_bytes())
    data[200_000:200_400] = bytes(400)
    path = tmp_path / "damaged.osm.pbf"
    path.write_bytes(data)
    refused(path, errors.InvalidMap)


@pytest.mark.parametrize("suffix", [".osm", ".osm.pbf", ".json"])
def test_damage_anywhere_is_read_or_refused_and_never_crashes(tmp_path: Path, read: Any, suffix: str) -> None:
    read(*TOWN, relation(7, [(10, "outer")], {"type": "multipolygon", "leisure": "park", "name": "Park"}))
    path = tmp_path / f"damaged{suffix}"
    if suffix == ".json":
        data = overpass(tmp_path, [CAFE, {**PATH, "geometry": [point(100, 100), point(200, 100)]}]).read_bytes()
    else:
        data = (tmp_path / "town.osm").read_bytes()
    if suffix == ".osm.pbf":
        with osmium.SimpleWriter(osmium.io.File(str(path), "pbf,pbf_compression=none")) as writer:
            for element in osmium.FileProcessor(str(tmp_path / "town.osm")):
                writer.add(element)
        data = path.read_bytes()
    rng = random.Random(7)
    for _ in range(150):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        with contextlib.suppress(errors.SourceError):
            read_osm(path, UTM31, SCENE)


@pytest.mark.parametrize(
    "elements",
    [[], [node(1, 5, 5)], ['<node id="1" lat="95" lon="500"/>']],
    ids=["no elements", "nothing named", "impossible coordinates"],
)
def test_a_map_that_says_nothing_is_refused(tmp_path: Path, elements: list[str]) -> None:
    path = tmp_path / "town.osm"
    path.write_text(osm_xml(elements), encoding="utf-8")
    refused(path, errors.InvalidMap)


def test_a_map_of_another_place_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "town.osm"
    path.write_text(osm_xml(TOWN), encoding="utf-8")
    elsewhere = WorldBox(EAST + 50_000, NORTH, EAST + 51_000, NORTH + 1000)
    assert "degrees east" in refused(path, errors.NoOverlap, elsewhere)


def test_other_files_are_refused_by_their_name(tmp_path: Path) -> None:
    refused(tmp_path / "missing.osm.pbf", errors.UnreadableSource)
    other = tmp_path / "town.shp"
    other.write_bytes(b"x")
    refused(other, errors.UnreadableSource)


@pytest.mark.parametrize(
    "text",
    [
        '{"type": "FeatureCollection", "features": []}',
        '{"elements": []}',
        '{"elements": [{"type": "node", "id": 1, "lat": 51.0, "lon": 3.0}',
        '{"elements": [{"type": "node", "id": 1, "lat": 51.0, "lon": 3.0}]',
        '{"elements": [{"type": "node", "id": 1, "lat": "north", "lon": 3.0}]}',
        '{"elements": [{"type": "node", "lat": 51.0, "lon": 3.0}]}',
        '{"elements": [{"id": 1, "lat": 51.0, "lon": 3.0}]}',
        '{"elements": [1, 2]}',
        '{"elements": [{"type": "way", "id": 1, "nodes": [1, 2], "geometry": [null]}]}',
        '{"elements": [{"type": "count", "id": 0, "tags": {"total": "5"}}]}',
    ],
)
def test_what_is_no_overpass_answer_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "answer.json"
    path.write_text(text, encoding="utf-8")
    refused(path, errors.InvalidMap)


def test_an_overpass_answer_that_timed_out_is_refused(tmp_path: Path) -> None:
    path = overpass(tmp_path, [CAFE], remark="runtime error: Query timed out after 25 seconds")
    assert "timed out" in refused(path, errors.InvalidMap)


# ---- remarks


def test_every_kind_of_remark_is_explained() -> None:
    rows = re.findall(r"^\| ([a-z ]+) \|", (Path(__file__).parents[2] / "docs" / "osm.md").read_text("utf-8"), re.M)
    assert set(KINDS) <= set(rows)
    assert [row for row in rows if row in KINDS] == list(KINDS)


# ---- real extracts


def extent_of(path: Path, crs: CRS) -> WorldBox:
    places = np.array([(n.lon, n.lat) for n in osmium.FileProcessor(str(path), osmium.osm.NODE)])
    x, y = conversion(WGS84, crs)(places[:, 0], places[:, 1])
    return WorldBox(x.min(), y.min(), x.max(), y.max())


@pytest.fixture(scope="module")
def helsinki() -> OsmSource:
    crs = CRS.from_epsg(3067)
    return read_osm(HELSINKI, crs, extent_of(HELSINKI, crs))


@with_data
@pytest.mark.parametrize(
    ("file", "epsg"),
    [("Helsinki.osm.pbf", 32635), ("monaco.osm.gz", 32632), ("porto_alegre/poa_osm.pbf", 31982)],
)
def test_real_extracts_are_read_with_explained_remarks_only(file: str, epsg: int) -> None:
    crs = CRS.from_epsg(epsg)
    extent = extent_of(SHARED / file, crs)
    source = read_osm(SHARED / file, crs, extent)
    assert source.landmarks and source.network.ways and source.network.nodes and source.places
    assert set(kinds_of(source)) <= set(KINDS)
    assert len(kinds_of(source)) == len(source.remarks)
    assert all(mark.geometry.is_valid for mark in source.landmarks if "Polygon" in mark.geometry.geom_type)
    for path in source.network.ways:
        assert len(path.nodes) == shapely.get_num_coordinates(path.geometry)
    known = {n.id for n in source.network.nodes}
    assert all(path.nodes[0] in known and path.nodes[-1] in known for path in source.network.ways)


@with_data
def test_helsinki_has_what_the_file_has(helsinki: OsmSource) -> None:
    """Counted in the file itself; what is missing has fewer than two known nodes, for the extract cuts ways."""
    here = {n.id for n in osmium.FileProcessor(str(HELSINKI), osmium.osm.NODE)}
    names = {mark.name for mark in helsinki.landmarks}
    walked = {path.id for path in helsinki.network.ways}
    roads = buildings = footways = 0
    for element in osmium.FileProcessor(str(HELSINKI)):
        tags = dict(element.tags)
        if element.is_way() and "highway" in tags:
            refs = [n.ref in here for n in element.nodes]
            usable = any(a and b for a, b in itertools.pairwise(refs))
            roads += "name" in tags
            footways += tags["highway"] in ("footway", "steps") or tags.get("footway") == "crossing"
            if usable and tags["highway"] != "construction":
                assert element.id in walked
                assert "name" not in tags or tags["name"].strip() in names
        shape = not element.is_relation() or tags.get("type") in ("multipolygon", "building")
        if shape and "name" in tags and "building" in tags:
            buildings += 1
            assert tags["name"].strip() in names
    assert (roads, buildings, footways) == (840, 86, 1259)


def typos(name: str, rng: random.Random) -> str:
    """One deletion, insertion, substitution or swap somewhere in the name."""
    at = rng.randrange(len(name))
    letter = rng.choice("abcdefghijklmnopqrstuvwxyz")
    return {
        "delete": name[:at] + name[at + 1 :],
        "insert": name[:at] + letter + name[at:],
        "replace": name[:at] + letter + name[at + 1 :],
        "swap": name[:at] + name[at + 1 : at + 2] + name[at : at + 1] + name[at + 2 :],
    }[rng.choice(("delete", "insert", "replace", "swap"))]


def without_accents(name: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFD", name) if not unicodedata.combining(c))


def is_found(index: LandmarkIndex, query: str, mark: Landmark) -> bool:
    """First, or among those that match equally well."""
    result = index.query(query, limit=10_000)
    if result.status == "found":
        return result.matches[0].landmark == mark
    return result.status == "ambiguous" and any(
        match.landmark == mark and match.score == result.matches[0].score for match in result.matches
    )


@with_data
def test_helsinkis_names_are_found(helsinki: OsmSource) -> None:
    """At least 99 % by each kind of query. Typos leave out names shorter than 4 letters, which forgive none, and names
    within one edit of another name, which a typo may turn into that one."""
    index = LandmarkIndex(helsinki.landmarks)
    compact = {normalise(text).replace(" ", "") for mark in helsinki.landmarks for text in (mark.name, *mark.aliases)}
    rng = random.Random(1)
    tried: dict[str, list[int]] = {}
    misses: list[tuple[str, str, str]] = []
    for mark in helsinki.landmarks:
        own = normalise(mark.name).replace(" ", "")
        queries = {
            "own": mark.name,
            "upper case": mark.name.upper(),
            "lower case": mark.name.lower(),
            "no accents": without_accents(mark.name),
        }
        alone = not any(other != own and OSA.distance(own, other, score_cutoff=1) <= 1 for other in compact)
        if len(own) >= 4 and alone:
            queries["typo"] = typos(mark.name, rng)
        for kind, query in queries.items():
            hit = is_found(index, query, mark)
            tried.setdefault(kind, []).append(hit)
            if not hit:
                misses.append((kind, query, mark.name))
    print({kind: f"{sum(hits)} of {len(hits)}" for kind, hits in tried.items()}, misses)
    for kind, hits in tried.items():
        assert sum(hits) >= 0.99 * len(hits), (kind, misses)
