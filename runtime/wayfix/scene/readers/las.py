"""LAS, LAZ and COPC files: header by laspy, points straight into record arrays, LAZ chunk by chunk through lazrs."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from itertools import accumulate
from pathlib import Path

import laspy
import lazrs  # type: ignore[import-untyped]
import numpy as np
import rasterio
from numpy.typing import NDArray
from pyproj import CRS
from pyproj.exceptions import CRSError
from rasterio.errors import RasterioError
from rasterio.io import MemoryFile

from wayfix.errors import InvalidCrs, InvalidPoints, UnreadableSource
from wayfix.scene.readers.cloud import RawPoints, Scale

_WKT, _GEO_KEYS, _GEO_DOUBLES, _GEO_TEXT = 2112, 34735, 34736, 34737
_CRS_USERS = ("LASF_Projection", "liblas")
_LARGEST_CRS = 1 << 20  # bytes
_BAD_VALUES = (ValueError, LookupError, OverflowError, struct.error)
_DAMAGED = "copy or export it again"


@dataclass(frozen=True)
class LasFile:
    """An opened LAS, LAZ or COPC file."""

    path: Path
    count: int
    low: Scale
    high: Scale
    wkt: str
    """The CRS as WKT; empty where the file has none."""
    geo_keys: tuple[bytes, bytes, bytes]
    """GeoTIFF key directory, doubles and text; the directory is empty where the file has none."""
    record: np.dtype[np.void]
    """One point of the file."""
    scales: Scale
    offsets: Scale
    points_at: int
    """File position of the first point or LAZ chunk."""
    laz: LazChunks | None

    def own_crs(self) -> CRS | None:
        """The CRS the file states: its WKT, else its GeoTIFF keys; None without. Raises InvalidCrs if unreadable.

        WKT comes first whatever the header's WKT flag says: writers that have both fill it better than the keys.
        """
        try:
            if self.wkt:
                return CRS.from_wkt(self.wkt)
            return _crs_of_geo_keys(*self.geo_keys) if self.geo_keys[0] else None
        except (CRSError, RasterioError, ValueError) as error:
            raise InvalidCrs(
                f"the CRS stored in {self.path.name} cannot be read: {error}; give the right one with --crs"
            ) from error

    def read(self, start: int, size: int, scale: Scale) -> Iterator[RawPoints]:
        """Points from `start` on, at most `size` at a time, in metres by `scale`. Raises UnreadableSource."""
        try:
            with self.path.open("rb") as stream:
                records = self._plain(stream, start, size) if self.laz is None else self._laz(stream, start, size)
                for points in records:
                    yield self._decoded(points, scale)
        except OSError as error:
            raise UnreadableSource(f"{self.path} cannot be read: {error.strerror or error}") from error

    def _plain(self, stream: BufferedReader, start: int, size: int) -> Iterator[NDArray[np.void]]:
        stream.seek(self.points_at + start * self.record.itemsize)
        for first in range(start, self.count, size):
            points = np.empty(min(size, self.count - first), self.record)
            there = stream.readinto(points.view(np.uint8).data) // self.record.itemsize
            if there < len(points):
                raise _breaks_off(self.path, first + there, self.count)
            yield points

    def _laz(self, stream: BufferedReader, start: int, size: int) -> Iterator[NDArray[np.void]]:
        """Whole LAZ chunks are decoded, as many at once as fit into `size`; laspy's seek is wrong for COPC files."""
        assert self.laz is not None
        ends, positions = self.laz.ends, self.laz.positions
        index = int(np.searchsorted(ends, start, side="right"))
        while index < len(ends):
            first = int(ends[index - 1]) if index else 0
            stop = max(index + 1, int(np.searchsorted(ends, first + size, side="right")))
            counts = np.diff(ends[index:stop], prepend=first).tolist()
            lengths = np.diff(positions[index : stop + 1]).tolist()
            stream.seek(int(positions[index]))
            data = stream.read(sum(lengths))
            if len(data) < sum(lengths):
                raise _breaks_off(self.path, first, self.count)
            points = self._decompressed(data, list(zip(counts, lengths, strict=True)))
            if points is None:
                raise UnreadableSource(
                    f"{self.path.name} is damaged between points {first} and {int(ends[stop - 1])}, or does not hold "
                    f"as many as its header says; {_DAMAGED}"
                )
            wanted = points[max(start - first, 0) :]
            for part in range(0, len(wanted), size):
                yield wanted[part : part + size]
            index = stop

    def _decompressed(self, data: bytes, table: list[tuple[int, int]]) -> NDArray[np.void] | None:
        """The points of LAZ chunks with these counts and lengths; None where they are damaged."""
        assert self.laz is not None
        if self.laz.layers and not _layers_fit(data, table, self.record.itemsize, self.laz.layers):
            return None
        points = np.empty(sum(count for count, _ in table), self.record)
        try:
            lazrs.decompress_points_with_chunk_table(data, self.laz.vlr, points.view(np.uint8), table)
        except BaseException as error:  # a panic in Rust is no Exception
            if not isinstance(error, lazrs.LazrsError) and type(error).__name__ != "PanicException":
                raise
            return None
        return points

    def _decoded(self, points: NDArray[np.void], scale: Scale) -> RawPoints:
        xyz = np.empty((len(points), 3))
        for axis, name in enumerate("XYZ"):
            np.multiply(points[name], self.scales[axis] * scale[axis], out=xyz[:, axis])
            xyz[:, axis] += self.offsets[axis] * scale[axis]
        names = points.dtype.names or ()
        colors = (points["red"], points["green"], points["blue"]) if "red" in names else None
        # Before format 6 the upper three bits are flags.
        classes = points["raw_classification"] & 31 if "raw_classification" in names else points["classification"]
        return RawPoints(xyz, colors, points["intensity"], np.ascontiguousarray(classes))


@dataclass(frozen=True)
class LazChunks:
    """Where the compressed chunks of a LAZ file lie."""

    vlr: bytes
    """The LASzip record, as lazrs wants it."""
    ends: NDArray[np.int64]
    """Points in the file up to and including each chunk, (K,)."""
    positions: NDArray[np.int64]
    """File position of each chunk, and of the end of the last, (K + 1,)."""
    layers: int
    """Separately compressed layers of a chunk in point formats 6 to 10; 0 in older ones, which have none."""


def open_las(path: Path) -> LasFile:
    """Read and check the header of a LAS, LAZ or COPC file.

    Raises UnreadableSource for a damaged or truncated file and where the header's point count does not fit the
    content, InvalidPoints for scales or offsets that are not numbers.
    """
    try:
        with path.open("rb") as stream:
            _check_record_counts(path, stream)
            stream.seek(0)
            header = laspy.LasHeader.read_from(stream)
            wkt, geo_keys = _crs_records(header, stream)
            record = header.point_format.dtype()
            if header.are_points_compressed:
                laz = _laz_chunks(path, stream, header, record.itemsize)
            else:
                _check_size(path, header, record.itemsize)
                laz = None
    except (OSError, laspy.LaspyException, lazrs.LazrsError, *_BAD_VALUES) as error:
        raise UnreadableSource(
            f"{path.name} cannot be read, it is damaged or truncated: {error}; {_DAMAGED}"
        ) from error
    usable = (header.scales != 0) & (np.abs(header.scales) < 1e9) & (np.abs(header.offsets) < 1e15)  # not so for NaN
    if not usable.all():
        raise InvalidPoints(
            f"the coordinates of {path.name} are no usable numbers: its header has scales {header.scales.tolist()} and "
            f"offsets {header.offsets.tolist()}; {_DAMAGED}"
        )
    return LasFile(
        path,
        header.point_count,
        _triple(header.mins),
        _triple(header.maxs),
        wkt,
        geo_keys,
        record,
        _triple(header.scales),
        _triple(header.offsets),
        header.offset_to_point_data,
        laz,
    )


def _triple(values: NDArray[np.float64]) -> Scale:
    x, y, z = (float(v) for v in values)
    return x, y, z


def _breaks_off(path: Path, have: int, count: int) -> UnreadableSource:
    return UnreadableSource(
        f"{path.name} is truncated: it ends at point {have} of the {count} its header says; {_DAMAGED}"
    )


def _check_record_counts(path: Path, stream: BufferedReader) -> None:
    """Refuse counts of header records that the file cannot hold: laspy would loop over billions of empty ones."""
    head = stream.read(375)
    offset, vlrs = struct.unpack_from("<II", head, 96)
    evlrs_at, evlrs = struct.unpack_from("<QI", head, 235) if head[25] >= 4 else (0, 0)
    size = path.stat().st_size
    if vlrs * 54 > min(offset, size) or (evlrs and evlrs_at + evlrs * 60 > size):
        raise UnreadableSource(
            f"{path.name} is damaged or truncated: its header lists {vlrs} + {evlrs} records that its {size} bytes "
            f"cannot hold; {_DAMAGED}"
        )


def _check_size(path: Path, header: laspy.LasHeader, record_size: int) -> None:
    """Compare the point count of an uncompressed file with the room there is for points."""
    size = path.stat().st_size
    followed_by = [at for at in (header.start_of_first_evlr, header.start_of_waveform_data_packet_record) if at]
    room = (min([size, *followed_by]) - header.offset_to_point_data) // record_size
    if room < header.point_count:
        raise _breaks_off(path, max(room, 0), header.point_count)
    if room > header.point_count:
        raise UnreadableSource(
            f"the header of {path.name} says {header.point_count} points, the file has room for {room}; "
            f"was its writing interrupted? {_DAMAGED}"
        )


def _laz_chunks(path: Path, stream: BufferedReader, header: laspy.LasHeader, record_size: int) -> LazChunks | None:
    """Read the chunk table of a LAZ file and compare it with the point count."""
    if header.point_count == 0:
        return None
    size, begin, count = path.stat().st_size, header.offset_to_point_data, header.point_count
    vlr = header.vlrs.get("LasZipVlr")[0].record_data
    laz = lazrs.LazVlr(vlr)
    stream.seek(begin)
    (table_at,) = struct.unpack("<q", stream.read(8))
    if table_at == -1:  # written to a pipe: the position follows at the very end
        stream.seek(size - 8)
        (table_at,) = struct.unpack("<q", stream.read(8))
    if not begin + 8 <= table_at <= size - 8:
        raise UnreadableSource(f"{path.name} is truncated: its chunk table at byte {table_at} is missing; {_DAMAGED}")
    stream.seek(table_at + 4)
    (number,) = struct.unpack("<I", stream.read(4))
    if laz.item_size() != record_size or number * record_size > table_at - begin:
        raise UnreadableSource(f"{path.name} is damaged: its chunk table does not fit its points; {_DAMAGED}")
    stream.seek(begin)
    table: list[tuple[int, int]] = lazrs.read_chunk_table(stream, laz)
    counts, lengths = [points for points, _ in table], [length for _, length in table]
    if counts and not laz.uses_variable_size_chunks():
        counts[-1] = count - sum(counts[:-1])  # the table does not tell how full the last one is
    fits = counts and 0 < counts[-1] <= laz.chunk_size() and sum(counts) == count
    if not fits or sum(lengths) > table_at - begin - 8:
        raise UnreadableSource(f"the header of {path.name} says {count} points, its chunk table does not; {_DAMAGED}")
    positions = np.fromiter(accumulate(lengths, initial=begin + 8), np.int64)
    return LazChunks(vlr, np.cumsum(counts, dtype=np.int64), positions, _layers(vlr))


def _layers(vlr: bytes) -> int:
    """The number of layers that the items of a LASzip record have: 9 for a point, 1 or 2 for colours, 1 a byte."""
    (items,) = struct.unpack_from("<H", vlr, 32)
    kinds = (struct.unpack_from("<HH", vlr, 34 + 6 * i) for i in range(items))
    return sum({10: 9, 11: 1, 12: 2, 13: 1, 14: size}.get(kind, 0) for kind, size in kinds)


def _layers_fit(data: bytes, table: list[tuple[int, int]], record_size: int, layers: int) -> bool:
    """Whether the point counts and layer lengths inside LAZ chunks match the chunk table.

    A chunk is its first point, the number of points, the length of each layer, and the layers. lazrs believes these
    lengths: unchecked, a damaged file would have it allocate gigabytes.
    """
    at = 0
    for count, length in table:
        head = data[at + record_size : at + record_size + 4 * (1 + layers)]
        if len(head) < 4 * (1 + layers):
            return False
        number, *lengths = struct.unpack(f"<{1 + layers}I", head)
        if number != count or record_size + len(head) + sum(lengths) != length:
            return False
        at += length
    return True


# ---- CRS


def _crs_records(header: laspy.LasHeader, stream: BufferedReader) -> tuple[str, tuple[bytes, bytes, bytes]]:
    """The WKT, and the three GeoTIFF records. libLAS wrote its WKT, right where its keys are wrong, under its name."""

    wanted = (v for v in header.vlrs if v.user_id in _CRS_USERS)
    records = {(v.user_id, v.record_id): v.record_data_bytes() for v in wanted}
    if ("LASF_Projection", _WKT) not in records:
        records |= _extended_records(header, stream)
    texts = (records.get((user, _WKT), b"").decode("utf-8", "replace") for user in _CRS_USERS)
    wkt = next((text for text in (t.strip("\0 \r\n\t") for t in texts) if text), "")
    keys, doubles, text = (records.get(("LASF_Projection", i), b"") for i in (_GEO_KEYS, _GEO_DOUBLES, _GEO_TEXT))
    return wkt, (keys, doubles, text)


def _extended_records(header: laspy.LasHeader, stream: BufferedReader) -> dict[tuple[str, int], bytes]:
    """Those records behind the points that tell of the CRS; others, such as waveforms, may be larger than memory."""
    records = {}
    at = header.start_of_first_evlr
    for _ in range(header.number_of_evlrs):
        stream.seek(at)
        user, number, length = struct.unpack("<2x16sHQ32x", stream.read(60))
        name = user.rstrip(b"\0").decode("ascii", "replace")
        if name in _CRS_USERS and length <= _LARGEST_CRS:
            records[name, number] = stream.read(length)
        at += 60 + length
    return records


def _crs_of_geo_keys(directory: bytes, doubles: bytes, text: bytes) -> CRS | None:
    """Let GDAL read the keys from a one-pixel TIFF: it knows user-defined CRSs, units and vertical ones."""
    rows = np.frombuffer(directory, "<u2", len(directory) // 8 * 4).reshape(-1, 4)[1:]
    rows = rows[rows[:, 0] > 0]  # some writers pad with empty keys
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    keys = struct.pack("<4H", 1, 1, 0, len(rows)) + rows.tobytes()
    with (
        warnings.catch_warnings(),
        rasterio.Env(GTIFF_REPORT_COMPD_CS=True),
        MemoryFile(_tiff(keys, doubles, text)) as memory,
    ):
        warnings.simplefilter("ignore")
        with memory.open() as dataset:
            return CRS.from_wkt(dataset.crs.to_wkt()) if dataset.crs else None


def _tiff(keys: bytes, doubles: bytes, text: bytes) -> bytes:
    """A TIFF of one pixel with these GeoTIFF tags."""
    short, long, double, ascii_ = 3, 4, 12, 2
    tags = [(tag, short, 1, struct.pack("<H", v)) for tag, v in ((256, 1), (257, 1), (258, 8), (259, 1), (262, 1))]
    tags += [(273, long, 1, struct.pack("<I", 8)), (277, short, 1, struct.pack("<H", 1))]
    tags += [(278, short, 1, struct.pack("<H", 1)), (279, long, 1, struct.pack("<I", 1))]
    tags += [(_GEO_KEYS, short, len(keys) // 2, keys)]
    tags += [(_GEO_DOUBLES, double, len(doubles) // 8, doubles)] if doubles else []
    tags += [(_GEO_TEXT, ascii_, len(text), text)] if text else []
    data_at, directory, data = 8 + 2 + 12 * len(tags) + 4, b"", b""
    for tag, kind, number, value in tags:
        directory += struct.pack("<HHI", tag, kind, number)
        if len(value) <= 4:
            directory += value.ljust(4, b"\0")
        else:
            directory += struct.pack("<I", data_at + len(data))
            data += value + b"\0" * (len(value) % 2)
    return struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + directory + bytes(4) + data
