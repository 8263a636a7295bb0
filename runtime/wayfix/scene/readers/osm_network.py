"""The pedestrian network from ways and nodes: what may be walked on, and where ways meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import shapely
from numpy.typing import NDArray

from wayfix.scene.network import FootNode, FootWay, Network
from wayfix.scene.readers.osm_tags import Tags, is_area, metres, name_of, whole

# fmt: off
_NOT_WALKED_ON = frozenset((
    "motorway", "motorway_link", "raceway", "bus_guideway", "busway", "escape", "emergency_bay",  # for vehicles only
    "proposed", "planned", "construction", "razed", "demolished", "removed", "abandoned", "no",  # not there
    "services", "rest_area", "bus_stop", "street_lamp", "milestone", "toll_gantry", "traffic_island",  # no ways
))
"""Values of `highway` that are left out. All others are kept, rare ones such as trail too; whether and how well one may
walk there is told by kind, access, foot and sidewalk."""

_WITH_SUBKIND = frozenset(("footway", "path", "steps", "cycleway", "service", "pedestrian"))
NODE_KEYS = ("barrier", "entrance", "crossing", "kerb", "highway", "railway")
"""Keys that may give a node a kind."""
# fmt: on

_NODE_FIELDS = ("barrier", "entrance", "crossing", "kerb", "access", "foot", "wheelchair", "level", "opening_hours")


def kind_of_way(tags: Tags) -> str | None:
    """The kind of footway or street, or None for what people do not walk on."""
    kind = tags.get("highway")
    if kind is not None:
        return None if kind in _NOT_WALKED_ON else kind
    platform = tags.get("railway") == "platform" or tags.get("public_transport") == "platform"
    return "platform" if platform else None


def foot_way(way_id: int, nodes: Sequence[int], points: NDArray[np.float64], tags: Tags) -> FootWay:
    """A walkable way with what its tags tell; `points` (n, 2) in metres, scene CRS, one for each of `nodes`."""
    kind = kind_of_way(tags)
    assert kind is not None, "only walkable ways are asked for"
    get = tags.get
    return FootWay(
        id=way_id,
        nodes=tuple(nodes),
        geometry=shapely.LineString(points),
        kind=kind,
        area=nodes[0] == nodes[-1] and is_area(tags),
        subkind=get(kind) if kind in _WITH_SUBKIND else None,
        name=name_of(tags),
        layer=whole(get("layer")),
        level=get("level"),
        width_m=metres(get("width")),
        surface=get("surface"),
        smoothness=get("smoothness"),
        incline=get("incline"),
        kerb=get("kerb"),
        crossing=get("crossing"),
        sidewalk=_sidewalk(tags),
        access=get("access"),
        foot=get("foot"),
        access_conditional=get("foot:conditional") or get("access:conditional"),
        oneway_foot=get("oneway:foot"),
        wheelchair=get("wheelchair"),
        opening_hours=get("opening_hours"),
        bridge=get("bridge"),
        tunnel=get("tunnel"),
        covered=get("covered"),
        lit=get("lit"),
        step_count=whole(get("step_count")),
        handrail=get("handrail"),
        conveying=get("conveying"),
    )


def _sidewalk(tags: Tags) -> str | None:
    """`sidewalk`, or what the keys for each side say, in the same words."""
    if "sidewalk" in tags:
        return tags["sidewalk"]
    if "sidewalk:both" in tags:
        return "both" if tags["sidewalk:both"] == "yes" else tags["sidewalk:both"]
    sides = {side: tags[f"sidewalk:{side}"] for side in ("left", "right") if f"sidewalk:{side}" in tags}
    if not sides:
        return None
    there = [side for side, value in sides.items() if value == "yes"]
    if there:
        return "both" if len(there) == 2 else there[0]
    return "separate" if "separate" in sides.values() else "no"


def kind_of_node(tags: Tags) -> str:
    """The kind of a node on a footway, empty for a plain one."""
    if tags.get("barrier", "no") != "no":
        return tags["barrier"]
    if tags.get("highway") == "elevator":
        return "elevator"
    if tags.get("railway") in ("crossing", "level_crossing", "tram_crossing", "tram_level_crossing"):
        return "level_crossing"
    if tags.get("highway") == "crossing" or tags.get("crossing", "no") != "no":
        return "crossing"
    if tags.get("entrance", "no") != "no":
        return "entrance"
    return "kerb" if "kerb" in tags else ""


def node_tags(tags: Tags) -> Tags:
    """Only those tags of a node that a FootNode is made from."""
    return {key: tags[key] for key in (*_NODE_FIELDS, "highway", "railway") if key in tags}


def build_network(
    ways: Sequence[FootWay], tagged: Mapping[int, Tags], ids: NDArray[np.int64], xy: NDArray[np.float64]
) -> Network:
    """Ways and the nodes that matter; `tagged` has the tags of nodes, `ids` (sorted) and `xy` where every node is."""
    refs, counts = np.unique(np.fromiter((node for way in ways for node in way.nodes), np.int64), return_counts=True)
    ends = np.fromiter((end for way in ways for end in (way.nodes[0], way.nodes[-1])), np.int64)
    telling = np.fromiter((node for node, tags in tagged.items() if kind_of_node(tags)), np.int64)
    kept = refs[(counts > 1) | np.isin(refs, ends) | np.isin(refs, telling)]
    places = xy[np.searchsorted(ids, kept)]
    nodes = [
        _foot_node(node, x, y, tagged.get(node, {}))
        for node, (x, y) in zip(kept.tolist(), places.tolist(), strict=True)
    ]
    return Network(tuple(nodes), tuple(ways))


def _foot_node(node: int, x: float, y: float, tags: Tags) -> FootNode:
    return FootNode(node, x, y, kind_of_node(tags), **{field: tags.get(field) for field in _NODE_FIELDS})
