"""scene.json: what a scene is, where it lies, and the checksums of everything in it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from wayfix.errors import SceneCorrupt, SceneNotFound, SceneTooNew
from wayfix.geo.boxes import WorldBox

FORMAT_VERSION = 1
FILE_NAME = "scene.json"
_UNSET = "0" * 64


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FileEntry(_Strict):
    """One file of the scene folder."""

    path: str
    bytes: int
    sha256: str


class Layer(_Strict):
    """One kind of data of the scene and the files that hold it, the main one first."""

    files: tuple[FileEntry, ...]


class Source(_Strict):
    """An input of the import, as it was found."""

    name: str
    kind: str
    bytes: int
    sha256: str
    crs: str
    accuracy_m: float | None
    """Accuracy of the operation that brought it into the scene's CRS; 0 where only units changed."""


class Origin(_Strict):
    """Origin of the frame `wayfix/<scene>`, in the scene's CRS and in WGS84 (degrees)."""

    x: float
    y: float
    z: float
    lon: float
    lat: float


class Extent(_Strict):
    """The photo's outer edges in the scene's CRS, metres."""

    min_x: float
    min_y: float
    max_x: float
    max_y: float

    def box(self) -> WorldBox:
        """As a world box without heights."""
        return WorldBox(self.min_x, self.min_y, self.max_x, self.max_y)


class RegistrationEntry(_Strict):
    """How far the points lie from the photo, as measured at the import: add it to the points to meet the photo."""

    east_m: float
    north_m: float
    pixels: float
    """Length of the shift in pixels of the coarser of both."""
    windows: int


class Manifest(_Strict):
    """Everything of scene.json but its own checksum."""

    format_version: int
    id: str
    revision: int
    """Counts the imports into this folder; part of every result."""
    created: str
    survey_date: str | None
    crs: str
    """EPSG:n or WKT; projected, metres."""
    vertical_datum: str
    """`unknown`, `local`, `ellipsoid`, or the name of a vertical CRS."""
    origin: Origin
    convergence_deg: float
    extent: Extent
    gsd_m: float
    wgs84_accuracy_m: float | None
    """Accuracy of the operation from the scene's CRS to WGS84."""
    layers: dict[str, Layer]
    sources: tuple[Source, ...]
    attribution: tuple[str, ...]
    registration: RegistrationEntry | None = None
    """Null where there is no photo or no coloured cloud, or nothing to compare."""
    fingerprint: str | None = None
    """Of the sources and options: the same import again has nothing to do."""


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write scene.json with a checksum over its own bytes."""
    content = {**manifest.model_dump(mode="json"), "checksum": _UNSET}
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    # The checksum is the last member, so this replaces it and nothing a name could hold.
    head, _, tail = text.rpartition(_UNSET)
    (folder / FILE_NAME).write_text(head + digest + tail, encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    """Read and check scene.json.

    Raises SceneNotFound, SceneTooNew (a format this version does not know), or SceneCorrupt.
    """
    path = folder / FILE_NAME
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SceneNotFound(
            f"{folder} is no scene: {FILE_NAME} is missing; make one with `wayfix scene import`"
        ) from error
    try:
        content: dict[str, Any] = json.loads(data)
        version, checksum = int(content["format_version"]), str(content.pop("checksum", _UNSET))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SceneCorrupt(f"{path} cannot be read ({error}); import the scene again") from error
    if version > FORMAT_VERSION:
        raise SceneTooNew(
            f"{path} has format version {version}, this Wayfix reads up to {FORMAT_VERSION}; update Wayfix"
        )
    head, _, tail = data.rpartition(checksum.encode() or b"\0")
    if len(checksum) != len(_UNSET) or hashlib.sha256(head + _UNSET.encode() + tail).hexdigest() != checksum:
        raise SceneCorrupt(f"{path} does not match its checksum: it was changed after the import; import again")
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        raise SceneCorrupt(f"{path} is not a valid manifest: {error}; import the scene again") from error


def file_entry(folder: Path, path: Path) -> FileEntry:
    """Size and SHA-256 of a file of the scene folder."""
    return FileEntry(path=path.relative_to(folder).as_posix(), bytes=path.stat().st_size, sha256=sha256_of(path))


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content, hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
