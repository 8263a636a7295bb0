"""OSM files of every kind as plain records, read in passes so that only what is asked for is held in memory."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import osmium
from numpy.typing import NDArray

from wayfix.errors import InvalidMap, UnreadableSource
from wayfix.scene.readers.osm_overpass import convert
from wayfix.scene.readers.osm_remarks import Remarks

SUFFIXES = (".pbf", ".osm", ".osm.gz", ".osm.bz2", ".json")

_ONE_WAY = b'<osm version="0.6"><way id="1"><nd ref="0"/></way></osm>'


@dataclass(frozen=True)
class Relation:
    """A relation's tags, and the ways among its members with their roles."""

    id: int
    tags: Mapping[str, str]
    ways: tuple[tuple[int, str], ...]


@contextlib.contextmanager
def open_osm(path: Path, remarks: Remarks) -> Iterator[OsmFile]:
    """Open a file of one of SUFFIXES. Raises UnreadableSource, or InvalidMap where it is empty or not OSM."""
    if not path.is_file():
        raise UnreadableSource(f"{path} does not exist or is not a file")
    if not path.name.lower().endswith(SUFFIXES):
        raise UnreadableSource(f"{path.name} is no OpenStreetMap file: its name ends in none of {', '.join(SUFFIXES)}")
    try:
        with path.open("rb") as stream:
            if not stream.read(1):
                raise InvalidMap(f"{path.name} is empty")
    except OSError as error:
        raise UnreadableSource(f"{path.name} cannot be read: {error}") from error
    with contextlib.ExitStack() as stack:
        readable = path
        if path.suffix.lower() == ".json":
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="wayfix-osm-"))
            readable = Path(folder) / "answer.osm.pbf"
            convert(path, readable, remarks)
        yield OsmFile(path.name, readable)


class OsmFile:
    """Each method reads the file once from its beginning; the order of elements in it does not matter."""

    def __init__(self, name: str, path: Path) -> None:
        self._name = name
        self._path = path
        with self._own_errors():
            first = next(self._objects(osmium.osm.NODE | osmium.osm.WAY | osmium.osm.RELATION), None)
        if first is None:
            raise InvalidMap(f"{name} holds no elements: is it an empty extract, or an answer that found nothing?")

    def relations(self, types: Collection[str], *keys: str) -> Iterator[Relation]:
        """Relations of one of the types that have one of the keys."""
        with self._own_errors():
            for relation in self._objects(osmium.osm.RELATION, *keys):
                if relation.tags.get("type") in types:
                    ways = tuple((member.ref, member.role) for member in relation.members if member.type == "w")
                    yield Relation(relation.id, _tags(relation), ways)

    def way_nodes(self, ids: Collection[int], *keys: str) -> Iterator[tuple[int, list[int]]]:
        """Id and node ids of ways that have one of the keys, then of those with one of the ids."""
        with self._own_errors():
            for way in self._objects(osmium.osm.WAY, *keys):
                yield way.id, [node.ref for node in way.nodes]
            for way in self._objects(osmium.osm.WAY) if ids else ():
                if way.id in ids:
                    yield way.id, [node.ref for node in way.nodes]

    def way_tags(self, *keys: str) -> Iterator[tuple[int, dict[str, str]]]:
        """Id and tags of ways that have one of the keys."""
        with self._own_errors():
            for way in self._objects(osmium.osm.WAY, *keys):
                yield way.id, _tags(way)

    def tagged_nodes(self, *keys: str) -> Iterator[tuple[int, float, float, dict[str, str]]]:
        """Id, longitude, latitude (degrees) and tags of nodes that have one of the keys and a location."""
        with self._own_errors():
            for node in self._objects(osmium.osm.NODE, *keys):
                if node.location.valid():
                    yield node.id, node.location.lon, node.location.lat, _tags(node)

    def locations(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Longitude and latitude (n, 2) in degrees of nodes by id, NaN where the file does not hold a node."""
        table = osmium.index.create_map("sparse_mmap_array")  # 16 bytes for each node of the file
        handler = osmium.NodeLocationsForWays(table)
        handler.ignore_errors()
        with self._own_errors():
            osmium.apply(osmium.io.Reader(str(self._path), osmium.osm.NODE), handler)
            # Nodes may be in any order in the file, and the table is sorted only when a way comes after them.
            osmium.apply(osmium.io.Reader(osmium.io.FileBuffer(_ONE_WAY, "osm")), handler)
            found = np.full((len(ids), 2), np.nan)
            self._locate_new_nodes(ids, found)
        for row, node in enumerate(ids.tolist()):
            if node >= 0:
                with contextlib.suppress(KeyError):
                    place = table.get(node)
                    if place.valid():
                        found[row] = place.lon, place.lat
        return found

    def _locate_new_nodes(self, ids: NDArray[np.int64], found: NDArray[np.float64]) -> None:
        """Negative ids, which editors give to what was not uploaded yet, do not fit into osmium's table."""
        rows = {node: row for row, node in enumerate(ids.tolist()) if node < 0}
        for node in self._objects(osmium.osm.NODE) if rows else ():
            if node.id in rows and node.location.valid():
                found[rows[node.id]] = node.location.lon, node.location.lat

    def _objects(self, kinds: Any, *keys: str) -> Iterator[Any]:
        """Elements of the kinds that have one of the keys (all, without keys), deleted ones left out."""
        objects = osmium.FileProcessor(str(self._path), kinds)
        if keys:
            objects = objects.with_filter(osmium.filter.KeyFilter(*keys))
        for element in objects:
            if not element.deleted:
                yield element

    @contextlib.contextmanager
    def _own_errors(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, ValueError, IndexError, OverflowError, osmium.InvalidLocationError) as error:
            raise InvalidMap(
                f"{self._name} is damaged, cut off, or no OSM file of the kind its name says: {error}"
            ) from error


def _tags(element: Any) -> dict[str, str]:
    """Keys and values, equal ones shared: most are among a few hundred words that return millions of times."""
    return {sys.intern(key): sys.intern(value) for key, value in element.tags}
