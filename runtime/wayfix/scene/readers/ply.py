"""PLY files, ascii or binary: the scalar properties of their vertices, read in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from pyproj import CRS

from wayfix.errors import InvalidPoints, UnreadableSource
from wayfix.scene.readers.cloud import RawPoints, Scale

_TYPES = {
    **{"char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4"},
    **{"int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2", "int32": "i4", "uint32": "u4"},
    **{"float": "f4", "double": "f8", "float32": "f4", "float64": "f8"},
}
_BYTE_ORDERS = {"ascii": "=", "binary_little_endian": "<", "binary_big_endian": ">"}
_COLORS = (("red", "green", "blue"), ("r", "g", "b"), ("diffuse_red", "diffuse_green", "diffuse_blue"))
_INTENSITIES = ("intensity", "scalar_intensity")
_CLASSES = ("classification", "scalar_classification")
_HEADER_LINES = 10_000
_BLOCK = 1 << 16  # vertices
_COARSEST_STEP = 0.1  # units of x and y
_AGAIN = "copy or export it again"


@dataclass(frozen=True)
class PlyFile:
    """An opened PLY file whose vertices have been looked at once."""

    path: Path
    count: int
    low: Scale
    high: Scale
    record: np.dtype[np.void]
    """One vertex; property names in lower case."""
    ascii: bool
    marks: tuple[int, ...]
    """File positions of vertices 0, _BLOCK, 2 * _BLOCK, ...; of vertex 0 only where the file is binary."""

    def own_crs(self) -> CRS | None:
        """None: a PLY file does not say."""
        return None

    def read(self, start: int, size: int, scale: Scale) -> Iterator[RawPoints]:
        """Points from `start` on, at most `size` at a time, coordinates multiplied by `scale`.

        Raises UnreadableSource, and InvalidPoints for coordinates, colours or classes that cannot be used.
        """
        try:
            with self.path.open("rb") as stream:
                if self.ascii:
                    mark = min(start // _BLOCK, len(self.marks) - 1)
                    stream.seek(self.marks[mark])
                    _skip_lines(stream, start - mark * _BLOCK)
                else:
                    stream.seek(self.marks[0] + start * self.record.itemsize)
                for first in range(start, self.count, size):
                    number = min(size, self.count - first)
                    points = self._parsed(stream, number) if self.ascii else np.fromfile(stream, self.record, number)
                    if len(points) < number:
                        raise _breaks_off(self.path, first + len(points), self.count)
                    yield _decoded(self.path, points, scale)
        except OSError as error:
            raise UnreadableSource(f"{self.path} cannot be read: {error.strerror or error}") from error

    def _parsed(self, stream: BinaryIO, number: int) -> NDArray[np.void]:
        lines = (line.decode("latin-1") for line in islice(stream, number))
        try:
            return np.loadtxt(lines, self.record, comments=None, ndmin=1)
        except ValueError as error:
            names = " ".join(self.record.names or ())
            raise UnreadableSource(
                f"{self.path.name} has a line that is not one point ({names}): {error}; {_AGAIN}"
            ) from error


def open_ply(path: Path) -> PlyFile:
    """Read the header of a PLY file, then all its vertices once for their bounds.

    Vertices need x, y and z; they may have red, green, blue (also r, g, b or diffuse_red, ...; uchar, ushort, or float
    0..1), intensity and classification (also with scalar_ before). Anything else is ignored, as are faces.
    Raises UnreadableSource (damaged, truncated, or more vertices than its header says) or InvalidPoints (coordinates
    not finite or too coarse, colours or classes that cannot be used).
    """
    try:
        with path.open("rb") as stream:
            form, elements = _header(path, stream)
            before, (count, record), after = _vertices(path, elements, _BYTE_ORDERS[form])
            if form == "ascii":
                _skip_lines(stream, sum(number for number, _ in before))
                marks = _line_marks(path, stream, count)
            else:
                marks = (stream.tell() + sum(number * kind.itemsize for number, kind in before),)
                stream.seek(0, 2)
                room = (stream.tell() - marks[0]) // max(record.itemsize, 1)
                if room < count:
                    raise _breaks_off(path, max(room, 0), count)
                stream.seek(marks[0] + count * record.itemsize)
            if not after and stream.read(4096).strip():
                raise UnreadableSource(
                    f"{path.name} holds more than the {count} points its header says; was it cut by hand? {_AGAIN}"
                )
    except OSError as error:
        raise UnreadableSource(f"{path} cannot be read: {error.strerror or error}") from error
    nowhere = (0.0, 0.0, 0.0)
    return _measured(PlyFile(path, count, nowhere, nowhere, record, form == "ascii", marks))


_Element = tuple[str, int, list[tuple[str, str]]]
"""Name, number of rows, and the name and type of each property."""


def _header(path: Path, stream: BinaryIO) -> tuple[str, list[_Element]]:
    """Format and elements; leaves the stream at the first row."""
    form, elements = "", list[_Element]()
    for _ in range(_HEADER_LINES):
        line = stream.readline(_HEADER_LINES)
        words = line.decode("latin-1").split()
        match words:
            case ["end_header"] if form:
                return form, elements
            case [] if not line:
                break
            case ["format", name, "1.0"] if name in _BYTE_ORDERS:
                form = name
            case ["element", name, number] if number.isdecimal():
                elements.append((name, int(number), []))
            case ["property", "list", _, _, name] if elements:
                elements[-1][2].append((name, "list"))
            case ["property", kind, name] if elements and kind in _TYPES:
                elements[-1][2].append((name.lower(), _TYPES[kind]))
            case [] | ["ply"] | ["comment", *_] | ["obj_info", *_]:
                continue
            case _:
                break
    raise UnreadableSource(
        f"{path.name} has no PLY header that can be read (stopped at {' '.join(words)[:80]!r}); expected format "
        f"{' or '.join(_BYTE_ORDERS)} 1.0, elements, properties and end_header"
    )


def _vertices(
    path: Path, elements: list[_Element], order: str
) -> tuple[list[tuple[int, np.dtype]], tuple[int, np.dtype], bool]:
    """Row count and record of each element before the vertices, of the vertices, and whether elements follow."""
    names = [name for name, _, _ in elements]
    if "vertex" not in names:
        raise UnreadableSource(f"{path.name} has no element `vertex`; it has: {', '.join(names) or 'none'}")
    index = names.index("vertex")
    records: list[tuple[int, np.dtype]] = []
    for name, number, properties in elements[: index + 1]:
        if any(kind == "list" for _, kind in properties) and (name == "vertex" or order != "="):
            raise UnreadableSource(
                f"{path.name} has lists in its element `{name}`, points must have plain properties and come before "
                "faces; export it as a point cloud"
            )
        try:
            records.append((number, np.dtype([(key, order + kind) for key, kind in properties if kind != "list"])))
        except ValueError as error:
            raise UnreadableSource(f"{path.name} names a property of `{name}` twice: {error}") from error
    missing = {"x", "y", "z"} - set(records[-1][1].names or ())
    if missing:
        raise UnreadableSource(f"the points of {path.name} lack {', '.join(sorted(missing))}; expected x, y and z")
    return records[:-1], records[-1], index + 1 < len(elements)


def _skip_lines(stream: BinaryIO, number: int) -> int:
    """The number of lines that there were to skip."""
    return sum(1 for _ in islice(stream, number))


def _line_marks(path: Path, stream: BinaryIO, count: int) -> tuple[int, ...]:
    """File positions of every _BLOCK-th vertex of an ascii file; leaves the stream behind the last."""
    marks = []
    for first in range(0, max(count, 1), _BLOCK):
        marks.append(stream.tell())
        number = min(_BLOCK, count - first)
        there = _skip_lines(stream, number)
        if there < number:
            raise _breaks_off(path, first + there, count)
    return tuple(marks)


def _breaks_off(path: Path, have: int, count: int) -> UnreadableSource:
    return UnreadableSource(
        f"{path.name} is truncated: it ends at point {have} of the {count} its header says; {_AGAIN}"
    )


def _measured(file: PlyFile) -> PlyFile:
    """The file with its bounds, which only its points tell."""
    low, high = np.full(3, np.inf), np.full(3, -np.inf)
    for points in file.read(0, _BLOCK, (1.0, 1.0, 1.0)):
        low, high = np.minimum(low, points.xyz.min(axis=0)), np.maximum(high, points.xyz.max(axis=0))
    for axis, name in enumerate("xy"):
        furthest = max(abs(low[axis]), abs(high[axis]))
        if file.count and file.record[name].itemsize == 4 and np.spacing(np.float32(furthest)) > _COARSEST_STEP:
            raise InvalidPoints(
                f"{file.path.name} has {name} up to {furthest:.10g} in 32 bits, where neighbouring numbers are "
                f"{np.spacing(np.float32(furthest)):g} apart; export it with double coordinates"
            )
    return replace(file, low=tuple(low.tolist()), high=tuple(high.tolist()))


# ---- vertices


def _decoded(path: Path, points: NDArray[np.void], scale: Scale) -> RawPoints:
    xyz = np.empty((len(points), 3))
    for axis, name in enumerate("xyz"):
        np.multiply(points[name], scale[axis], out=xyz[:, axis])
    finite = np.isfinite(xyz).all(axis=1)
    if not finite.all():
        raise InvalidPoints(
            f"{path.name} has points whose coordinates are NaN or infinite ({len(xyz) - finite.sum()} of "
            f"{len(xyz)} looked at); remove them before the import"
        )
    names = points.dtype.names or ()
    intensity = next((points[name] for name in _INTENSITIES if name in names), None)
    return RawPoints(xyz, _colors(path, points, names), intensity, _classes(path, points, names))


def _colors(
    path: Path, points: NDArray[np.void], names: tuple[str, ...]
) -> tuple[NDArray[np.integer], NDArray[np.integer], NDArray[np.integer]] | None:
    fields = next((fields for fields in _COLORS if set(fields) <= set(names)), None)
    if fields is None:
        return None
    red, green, blue = (_color(path, name, points[name]) for name in fields)
    return red, green, blue


def _color(path: Path, name: str, values: NDArray) -> NDArray[np.integer]:
    if values.dtype.kind == "u" and values.dtype.itemsize <= 2:
        return values
    if values.dtype.kind == "f" and ((values >= 0) & (values <= 1)).all():
        return np.rint(values * 255).astype(np.uint8)
    raise InvalidPoints(
        f"{path.name} has {name} of type {values.dtype.name} from {values.min():g} to {values.max():g}; "
        "expected uchar, ushort, or float from 0 to 1; export the colours as uchar"
    )


def _classes(path: Path, points: NDArray[np.void], names: tuple[str, ...]) -> NDArray[np.uint8]:
    values = next((points[name] for name in _CLASSES if name in names), np.zeros(len(points), np.uint8))
    if not ((values >= 0) & (values <= 255) & (values == np.floor(values))).all():
        raise InvalidPoints(f"{path.name} has classes that are not ASPRS numbers, whole and from 0 to 255")
    return np.ascontiguousarray(values, np.uint8)
