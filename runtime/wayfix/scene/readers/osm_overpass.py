"""Overpass JSON answers, turned into an OSM file that is then read like any other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import osmium
import osmium.osm.mutable

from wayfix.errors import InvalidMap, StorageFailed
from wayfix.scene.readers.osm_remarks import Remarks

FIRST_MADE_UP_ID = 1 << 52
"""Node ids from here on stand for vertices that came without ids; OpenStreetMap's own are far below."""

_KINDS = ("node", "way", "relation")
_ID_LIMIT = 1 << 62
_CHUNK = 1 << 20  # characters
_MAX_VALUE_BYTES = 1024  # OSM's 255 characters of four bytes, and osmium's limit
_BEGIN = re.compile(r'"elements"\s*:\s*\[')
_BETWEEN = re.compile(r"[\s,]*")

Json = dict[str, Any]
Line = list[Any]
"""Vertices as Overpass writes them: {lat, lon}, or null outside the box that was asked for."""


def convert(path: Path, target: Path, remarks: Remarks) -> None:
    """Write the elements of an answer (`out body` or `out geom`) to `target` (.osm.pbf); InvalidMap where it is none.

    The file is read once for nodes and once for the rest, in pieces, so that it may be larger than memory.
    """
    try:
        with osmium.SimpleWriter(str(target)) as writer:
            _Converter(path, writer, remarks).run()
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, osmium.InvalidLocationError) as error:
        raise InvalidMap(f"{path.name} is no Overpass answer: an element has {error!r}") from error
    except RuntimeError as error:
        raise StorageFailed(f"cannot write a temporary copy of {path.name}: {error}") from error


class _Converter:
    """One conversion; `_lines` has the made-up node ids of ways that came without ids."""

    def __init__(self, path: Path, writer: osmium.SimpleWriter, remarks: Remarks) -> None:
        self._path = path
        self._writer = writer
        self._remarks = remarks
        self._nodes: set[int] = set()
        self._listed: set[int] = set()
        self._lines: dict[int, list[int]] = {}
        self._next_id = FIRST_MADE_UP_ID

    def run(self) -> None:
        for element in elements(self._path):
            _check(element)
            self._write_points(element)
        for way, refs in self._lines.items():
            if way not in self._listed:
                self._writer.add_way(osmium.osm.mutable.Way(id=way, nodes=refs))
        for element in elements(self._path):
            if element["type"] == "way":
                self._write_way(element)
            elif element["type"] == "relation":
                members = [(m["type"][0], m["ref"], m.get("role", "")) for m in element.get("members") or ()]
                tags = self._tags(element)
                self._writer.add_relation(osmium.osm.mutable.Relation(id=element["id"], members=members, tags=tags))

    def _write_points(self, element: Json) -> None:
        """Write a node, or the vertices that a way or a relation's members bring along."""
        kind = element["type"]
        if kind == "node" and "lat" in element:
            self._write_node(element["id"], element, self._tags(element))
        elif kind == "node":
            self._remarks.add("no geometry")
        elif kind == "way":
            self._listed.add(element["id"])
            line = element.get("geometry")
            if line and "nodes" in element:
                for node, point in zip(element["nodes"], line, strict=True):
                    self._write_node(node, point)
            elif line:
                self._write_line(element["id"], line)
        for member in element.get("members") or ():
            if member["type"] == "way" and member.get("geometry"):
                self._write_line(member["ref"], member["geometry"])

    def _write_node(self, node: int, point: Json | None, tags: Json | None = None) -> None:
        # An answer may hold a node twice, once without its tags.
        if point is not None and (node not in self._nodes or tags):
            self._nodes.add(node)
            location = (float(point["lon"]), float(point["lat"]))
            self._writer.add_node(osmium.osm.mutable.Node(id=node, location=location, tags=tags or {}))

    def _write_line(self, way: int, line: Line) -> None:
        if way in self._lines:
            return
        refs = list(range(self._next_id, self._next_id + len(line)))
        self._next_id += len(line)
        if line[0] is not None and line[0] == line[-1]:
            refs[-1] = refs[0]
        for node, point in zip(refs, line, strict=True):
            self._write_node(node, point)
        self._lines[way] = refs

    def _write_way(self, element: Json) -> None:
        refs = element.get("nodes") or self._lines.get(element["id"])
        if refs:
            self._writer.add_way(osmium.osm.mutable.Way(id=element["id"], nodes=refs, tags=self._tags(element)))
        else:
            self._remarks.add("no geometry")

    def _tags(self, element: Json) -> Json:
        """The tags but for those that no OSM file can hold."""
        tags = element.get("tags", {})
        long = [key for key, value in tags.items() if len(value.encode()) > _MAX_VALUE_BYTES]
        self._remarks.add("long names", sum("name" in key for key in long))
        return {key: value for key, value in tags.items() if key not in long}


def _check(element: Json) -> None:
    """Raise, as convert() expects it, where osmium could not take an element's ids or roles."""
    members = element.get("members") or ()
    ids = [element["id"], *(element.get("nodes") or ()), *(member["ref"] for member in members)]
    if not all(type(number) is int and abs(number) < _ID_LIMIT for number in ids):
        raise ValueError("an id that is no whole number")
    for member in members:
        member.get("role", "").encode()  # half of a surrogate pair is no text
        if member["type"] not in _KINDS:
            raise ValueError("a member of no known type")


def elements(path: Path) -> Iterator[Json]:
    """The elements of an answer, one at a time; InvalidMap where it is cut, is none, or says that it failed."""
    decoder = json.JSONDecoder()
    try:
        with path.open(encoding="utf-8-sig") as stream:
            text = stream.read(_CHUNK)
            begin = _BEGIN.search(text)
            if begin is None:
                raise InvalidMap(f"{path.name} is no Overpass answer: it has no list `elements`")
            at = begin.end()
            while True:
                at = _skipped(text, at)
                if text[at : at + 1] == "]":
                    break
                try:
                    element, at = decoder.raw_decode(text, at)
                except json.JSONDecodeError as error:
                    more = stream.read(max(_CHUNK, len(text) - at))  # an element may be larger than a piece
                    if not more:
                        raise InvalidMap(f"{path.name} is damaged or cut off: {error}") from error
                    text, at = text[at:] + more, 0
                    continue
                yield element
            _check_end(path, text[at + 1 :] + stream.read())
    except UnicodeDecodeError as error:
        raise InvalidMap(f"{path.name} is not text in UTF-8: {error}") from error


def _skipped(text: str, at: int) -> int:
    between = _BETWEEN.match(text, at)
    return between.end() if between else at


def _check_end(path: Path, rest: str) -> None:
    """Overpass tells after the elements that time or memory ran out: what came is then incomplete."""
    try:
        after = json.loads("{" + rest.lstrip().removeprefix(","))
    except json.JSONDecodeError as error:
        raise InvalidMap(f"{path.name} is damaged or cut off: {error}") from error
    if "remark" in after:
        raise InvalidMap(f"{path.name}: Overpass did not finish: {after['remark']}; ask for less, or for longer")
