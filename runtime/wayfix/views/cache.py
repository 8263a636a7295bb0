"""Rendered images kept in memory and on disk, the least recently used dropped first."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import struct
import tempfile
import threading
import zlib
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from wayfix.errors import InvalidOption

_log = logging.getLogger(__name__)

_HEADER = struct.Struct("<4sII")  # magic, CRC-32 of all that follows, bytes of JSON before the JPEG
_MAGIC = b"WFI1"
_SUFFIX = ".view"
_TEMPORARY = ".part"
_JPEG = [cv2.IMWRITE_JPEG_QUALITY, 95]
_KEEP = 0.9  # of the disk budget after an eviction, so that not every write has to list the folder


@dataclass(frozen=True)
class CacheStats:
    """Counters since the cache was made."""

    memory_hits: int = 0
    disk_hits: int = 0
    misses: int = 0
    bytes: int = 0
    """Image bytes held in memory now."""
    disk_bytes: int = 0
    """Bytes of files on disk now; where several processes share the folder, brought up to date at each eviction."""


@dataclass(frozen=True)
class _Entry:
    image: NDArray[np.uint8]
    meta: str


class ImageCache:
    """Images by key, in memory and, where a folder is given, on disk. Safe to use from several threads.

    Images from memory are as they were put; those from disk went through JPEG of quality 95. The folder may be deleted
    at any time. Trouble with the disk never raises: reading is a miss, and writing stops after one warning.
    """

    def __init__(self, memory_bytes: int, folder: Path | None, disk_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._disk_bytes = disk_bytes
        self._folder = folder
        self._writing = folder is not None and disk_bytes > 0
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._stats = CacheStats(disk_bytes=sum(size for _, size, _ in self._files()))
        self._lock = threading.Lock()  # entries and counters; held for microseconds, never while files are touched
        self._eviction = threading.Lock()

    @property
    def stats(self) -> CacheStats:
        """The counters as they are now."""
        return self._stats

    def get(self, key: str) -> tuple[NDArray[np.uint8], dict[str, Any]] | None:
        """The image, RGB uint8 (H, W, 3) and read-only, and its meta data; None where there is none."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
                self._count(memory_hits=1)
        if entry is None:
            entry = self._load(key)
            with self._lock:
                if entry is None:
                    self._count(misses=1)
                else:
                    self._count(disk_hits=1)
                    self._remember(key, entry)
        return None if entry is None else (entry.image, json.loads(entry.meta))

    def put(self, key: str, image: NDArray[np.uint8], meta: dict[str, Any]) -> None:
        """Keep a copy of an image, RGB uint8 (H, W, 3), and its meta data (values that JSON holds).

        Raises InvalidOption for another kind of image or meta data.
        """
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or image.size == 0:
            raise InvalidOption(f"a cached image is uint8 (H, W, 3); got {image.dtype} {image.shape}")
        try:
            text = json.dumps(meta)
        except (TypeError, ValueError) as e:
            raise InvalidOption(f"meta data of a cached image must fit into JSON: {e}") from e
        kept = np.array(image, order="C")
        kept.flags.writeable = False
        entry = _Entry(kept, text)
        with self._lock:
            self._remember(key, entry)
        if self._writing:
            self._store(key, entry)

    def _count(self, **changes: int) -> None:
        self._stats = replace(self._stats, **{k: getattr(self._stats, k) + v for k, v in changes.items()})

    def _remember(self, key: str, entry: _Entry) -> None:
        old = self._entries.pop(key, None)
        size = -old.image.nbytes if old else 0
        if entry.image.nbytes <= self._memory_bytes:
            self._entries[key] = entry
            size += entry.image.nbytes
        while self._stats.bytes + size > self._memory_bytes:
            size -= self._entries.popitem(last=False)[1].image.nbytes
        self._count(bytes=size)

    def _path(self, folder: Path, key: str) -> Path:
        return folder / (hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest() + _SUFFIX)

    def _load(self, key: str) -> _Entry | None:
        if self._folder is None:
            return None
        path = self._path(self._folder, key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        entry = _decoded(data)
        with suppress(OSError):
            if entry is None:
                path.unlink()
            else:
                os.utime(path)  # read lately: among the last to be evicted
        if entry is None:
            with self._lock:
                self._count(disk_bytes=-len(data))
        return entry

    def _store(self, key: str, entry: _Entry) -> None:
        assert self._folder is not None
        path = self._path(self._folder, key)
        data = _encoded(entry)
        if len(data) > self._disk_bytes:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                before = path.stat().st_size
                with self._lock:
                    self._count(disk_bytes=-before)
            _write(path, data)
        except OSError as e:
            with self._lock:
                first, self._writing = self._writing, False
            if first:
                _log.warning("no more images are cached in %s: %s", self._folder, e.strerror or e)
            return
        with self._lock:
            self._count(disk_bytes=len(data))
            full = self._stats.disk_bytes > self._disk_bytes
        if full:
            self._evict()

    def _evict(self) -> None:
        """Remove the files used longest ago until the rest fits well into the budget."""
        with self._eviction:
            files = sorted(self._files())
            total = sum(size for _, size, _ in files)
            if total > self._disk_bytes:
                for _, size, path in files:
                    if total <= self._disk_bytes * _KEEP:
                        break
                    with suppress(OSError):
                        path.unlink(missing_ok=True)
                        total -= size
            with self._lock:
                self._stats = replace(self._stats, disk_bytes=total)

    def _files(self) -> list[tuple[int, int, Path]]:
        """(mtime in ns, bytes, path) of the cache's own files, those that a crash left half written included."""
        found: list[tuple[int, int, Path]] = []
        if self._folder is None:
            return found
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith((_SUFFIX, _TEMPORARY)):
                    with suppress(OSError):
                        info = entry.stat()
                        found.append((info.st_mtime_ns, info.st_size, Path(entry.path)))
        return found


def _encoded(entry: _Entry) -> bytes:
    meta = entry.meta.encode()
    _, jpeg = cv2.imencode(".jpg", cv2.cvtColor(entry.image, cv2.COLOR_RGB2BGR), _JPEG)
    body = meta + jpeg.tobytes()
    return _HEADER.pack(_MAGIC, zlib.crc32(body), len(meta)) + body


def _decoded(data: bytes) -> _Entry | None:
    """None for anything that is not, byte by byte, what was written."""
    if len(data) < _HEADER.size:
        return None
    magic, checksum, size = _HEADER.unpack_from(data)
    body = memoryview(data)[_HEADER.size :]
    if magic != _MAGIC or zlib.crc32(body) != checksum:
        return None
    bgr = cv2.imdecode(np.frombuffer(body[size:], np.uint8), cv2.IMREAD_COLOR)
    image = cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB)
    image.flags.writeable = False
    return _Entry(image, bytes(body[:size]).decode())


def _write(path: Path, data: bytes) -> None:
    """Write to a temporary file beside `path`, then rename it, so that no reader ever sees half a file."""
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=_TEMPORARY)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
