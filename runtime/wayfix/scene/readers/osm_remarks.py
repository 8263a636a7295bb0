"""What reading an OpenStreetMap file may leave out or change: a fixed set of kinds, each explained in docs/osm.md."""

from __future__ import annotations

from collections import Counter

KINDS = {
    "outside the scene": "named features, ways and places do not touch the scene and were left out",
    "cut ways": "ways have nodes that the file does not hold; their known parts are kept",
    "cut areas": "areas lack a part of their outline; the known parts of it are kept as lines",
    "repaired areas": "areas crossed themselves and were repaired",
    "unusable shapes": "ways have one node, or areas enclose nothing, and were left out",
    "mapped twice": "named features were mapped more than once and became one landmark with another",
    "long names": "names are longer than 1000 characters; such features, or such aliases, were left out",
    "no node ids": "ways do not list their nodes and are not part of the network; ask Overpass for `out geom`",
    "no geometry": "elements have neither coordinates nor nodes and were left out",
}
"""Kind -> what is said after the count."""


class Remarks:
    """Counts by kind."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, kind: str, count: int = 1) -> None:
        """Count `count` more cases of a kind, one of KINDS."""
        assert kind in KINDS, kind
        self._counts[kind] += count

    def lines(self) -> tuple[str, ...]:
        """`<kind>: <count> <what happened>` for each kind that occurred, in the order of KINDS."""
        return tuple(f"{kind}: {self._counts[kind]} {said}" for kind, said in KINDS.items() if self._counts[kind])
