"""What people walk on, and where they want to go: footways, the nodes they meet at, and places."""

from __future__ import annotations

from dataclasses import dataclass

from shapely import LineString


@dataclass(frozen=True, slots=True)
class FootNode:
    """A node where footways end or meet, or where something stands in the way or helps on.

    What the map does not say is None: it is unknown, not absent.
    """

    id: int
    """OpenStreetMap's node id."""
    x: float
    """East, metres, scene CRS."""
    y: float
    """North, metres, scene CRS."""
    kind: str = ""
    """The value of `barrier` (gate, bollard, ...), or `crossing`, `level_crossing`, `elevator`, `entrance`, `kerb`;
    empty for a plain junction or end."""
    barrier: str | None = None
    entrance: str | None = None
    crossing: str | None = None
    kerb: str | None = None
    access: str | None = None
    foot: str | None = None
    wheelchair: str | None = None
    level: str | None = None
    opening_hours: str | None = None


@dataclass(frozen=True, slots=True)
class FootWay:
    """One way people may walk on, whole, or one known part of a way that the extract cuts.

    What the map does not say is None: it is unknown, not absent. Texts are OpenStreetMap's own values.
    """

    id: int
    """OpenStreetMap's way id; the parts of a cut way share it."""
    nodes: tuple[int, ...]
    """OpenStreetMap's node ids, one for each vertex of `geometry`, in order. Ways are joined where they share an id."""
    geometry: LineString
    """Scene CRS, metres, in the direction it was mapped in."""
    kind: str
    """The value of `highway` (footway, path, steps, residential, ...), or `platform`."""
    area: bool = False
    """The line is the outline of a surface that people may cross anywhere."""
    subkind: str | None = None
    """Of what sort it is: sidewalk or crossing for a footway, alley or driveway for a service road, ..."""
    name: str | None = None
    layer: int | None = None
    level: str | None = None
    """Floor or floors: `0`, `-1;0`, `0-2`."""
    width_m: float | None = None
    """Metres, greater than 0."""
    surface: str | None = None
    smoothness: str | None = None
    incline: str | None = None
    """`up`, `down`, or a slope such as `8%` or `5°`, in the direction of the geometry."""
    kerb: str | None = None
    crossing: str | None = None
    sidewalk: str | None = None
    """On which sides a street has one: both, left, right, no, separate."""
    access: str | None = None
    foot: str | None = None
    access_conditional: str | None = None
    """When another access holds, e.g. `no @ (22:00-06:00)`; that for walkers where there is one."""
    oneway_foot: str | None = None
    wheelchair: str | None = None
    opening_hours: str | None = None
    bridge: str | None = None
    tunnel: str | None = None
    covered: str | None = None
    lit: str | None = None
    step_count: int | None = None
    handrail: str | None = None
    conveying: str | None = None
    """Whether an escalator or moving walkway carries people, and which way."""


@dataclass(frozen=True)
class Network:
    """The ways people may walk on. Two ways are joined only where they share a node id, never by coordinates."""

    nodes: tuple[FootNode, ...] = ()
    """Every end, every node of two ways or of one twice, and every node with a kind; the others are plain vertices."""
    ways: tuple[FootWay, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """A point of interest. What is two things at once (a bakery and a cafe) is two places with one id."""

    id: str
    """`node/<id>`, `way/<id>` or `relation/<id>` in OpenStreetMap."""
    kind: str
    """`key=value`: amenity=pharmacy, shop=bakery, ..."""
    x: float
    """East, metres, scene CRS; of an area, a point inside it."""
    y: float
    """North, metres, scene CRS."""
    name: str | None = None
    level: str | None = None
    opening_hours: str | None = None
    wheelchair: str | None = None
