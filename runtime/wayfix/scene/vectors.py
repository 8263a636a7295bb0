"""vectors.gpkg: landmarks, footways, their nodes and places as GeoPackage layers that QGIS opens."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyogrio
import pyogrio.errors
import pyogrio.raw
import shapely

from wayfix.errors import SceneCorrupt, StorageFailed
from wayfix.scene.landmark import Landmark
from wayfix.scene.network import FootNode, FootWay, Network, Place

LAYER = "landmarks"
FOOTWAYS = "footways"
FOOTNODES = "footnodes"
PLACES = "places"

_WRITTEN = "2000-01-01T00:00:00.000Z"
"""The date in every file, so that the same content has the same bytes; the manifest has the true one."""

_GEOMETRY_FIELDS = ("geometry", "x", "y")
_WITHOUT_COUNTERPART: dict[str, Any] = {"int | None": 0, "float | None": np.nan}
"""What stands in a column's array where a value is None; it is masked, and becomes NULL in the file."""

_DTYPES: dict[str, Any] = {
    "int": np.int64,
    "int | None": np.int64,
    "float": np.float64,
    "float | None": np.float64,
    "bool": np.bool_,
}
"""Of a dataclass field's annotation; every other one is text."""


def write_landmarks(path: Path, landmarks: Sequence[Landmark], crs: str) -> None:
    """Write the layer `landmarks` (name, type, aliases as a JSON list; geometry in the scene's CRS)."""
    columns = {
        "name": np.array([mark.name for mark in landmarks], object),
        "type": np.array([mark.type for mark in landmarks], object),
        "aliases": np.array([json.dumps(mark.aliases, ensure_ascii=False) for mark in landmarks], object),
    }
    _write(path, LAYER, [mark.geometry for mark in landmarks], "Unknown", columns, {}, crs)


def read_landmarks(path: Path) -> list[Landmark]:
    """Read the layer back; SceneCorrupt where it is not as written."""
    columns, shapes = _read(path, LAYER, ("name", "type", "aliases"))
    return [
        Landmark(name=name, type=kind, geometry=shape, aliases=tuple(json.loads(aliases)))
        for name, kind, aliases, shape in zip(columns["name"], columns["type"], columns["aliases"], shapes, strict=True)
    ]


def write_network(path: Path, network: Network, places: Sequence[Place], crs: str) -> None:
    """Write the layers `footways` (node ids as a JSON list), `footnodes` and `places`, beside what the file has."""
    _write_records(path, FOOTWAYS, FootWay, network.ways, "LineString", crs)
    _write_records(path, FOOTNODES, FootNode, network.nodes, "Point", crs)
    _write_records(path, PLACES, Place, places, "Point", crs)


def read_network(path: Path) -> Network:
    """Read ways and nodes back, in the order they were written; SceneCorrupt where they are not as written."""
    return Network(
        nodes=tuple(FootNode(**values) for values in _read_records(path, FOOTNODES, FootNode)),
        ways=tuple(FootWay(**values) for values in _read_records(path, FOOTWAYS, FootWay)),
    )


def read_places(path: Path) -> tuple[Place, ...]:
    """Read the places back, in the order they were written; SceneCorrupt where they are not as written."""
    return tuple(Place(**values) for values in _read_records(path, PLACES, Place))


# ---- dataclasses as rows: a column for each field, and the geometry from `geometry` or from x and y


def _fields(kind: type) -> dict[str, str]:
    """Column names and the annotations that tell their types."""
    return {f.name: str(f.type) for f in dataclasses.fields(kind) if f.name not in _GEOMETRY_FIELDS}


def _write_records(path: Path, layer: str, kind: type, records: Sequence[Any], geometry_type: str, crs: str) -> None:
    columns, masks = {}, {}
    for name, annotation in _fields(kind).items():
        values = [getattr(record, name) for record in records]
        if annotation == "tuple[int, ...]":
            values = [json.dumps(value) for value in values]
        if annotation in _WITHOUT_COUNTERPART:
            masks[name] = np.array([value is None for value in values], bool)
            values = [_WITHOUT_COUNTERPART[annotation] if value is None else value for value in values]
        columns[name] = np.array(values, _DTYPES.get(annotation, object))
    if geometry_type == "Point":
        shapes = [shapely.Point(record.x, record.y) for record in records]
    else:
        shapes = [record.geometry for record in records]
    _write(path, layer, shapes, geometry_type, columns, masks, crs)


def _read_records(path: Path, layer: str, kind: type) -> Iterator[dict[str, Any]]:
    """The arguments of each record, in order."""
    fields = _fields(kind)
    columns, shapes = _read(path, layer, tuple(fields))
    values: dict[str, Any] = {name: _restored(columns[name], fields[name]) for name in fields}
    if any(f.name == "geometry" for f in dataclasses.fields(kind)):
        values["geometry"] = shapes
    else:
        values["x"], values["y"] = shapely.get_x(shapes).tolist(), shapely.get_y(shapes).tolist()
    for row in zip(*values.values(), strict=True):
        yield dict(zip(values, row, strict=True))


def _restored(column: np.ndarray, annotation: str) -> list[Any]:
    """A column's values as they were before it was written."""
    values = column.tolist()
    if annotation == "tuple[int, ...]":
        return [tuple(json.loads(value)) for value in values]
    if annotation == "int | None":  # a column with NULLs comes back as floats
        return [None if np.isnan(value) else int(value) for value in values]
    if annotation == "float | None":
        return [None if np.isnan(value) else value for value in values]
    return values


# ---- the file


def _write(
    path: Path,
    layer: str,
    shapes: Sequence[Any],
    geometry_type: str,
    columns: dict[str, np.ndarray],
    masks: dict[str, np.ndarray],
    crs: str,
) -> None:
    """Write one layer; the others in the file stay."""
    try:
        with _fixed_date():
            pyogrio.raw.write(
                path,
                geometry=shapely.to_wkb(np.array(shapes, object)),
                field_data=list(columns.values()),
                fields=list(columns),
                field_mask=[masks.get(name) for name in columns],
                layer=layer,
                driver="GPKG",
                geometry_type=geometry_type,
                promote_to_multi=False,
                crs=crs,
            )
    except (pyogrio.errors.DataSourceError, pyogrio.errors.DataLayerError) as error:
        raise StorageFailed(f"cannot write {path}: {error}") from error


@contextlib.contextmanager
def _fixed_date() -> Iterator[None]:
    before = pyogrio.get_gdal_config_option("OGR_CURRENT_DATE")
    pyogrio.set_gdal_config_options({"OGR_CURRENT_DATE": _WRITTEN})
    try:
        yield
    finally:
        pyogrio.set_gdal_config_options({"OGR_CURRENT_DATE": before})


def _read(path: Path, layer: str, columns: tuple[str, ...]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    try:
        meta, _, geometry, data = pyogrio.raw.read(path, layer=layer, columns=list(columns))
    except (pyogrio.errors.DataSourceError, pyogrio.errors.DataLayerError) as error:
        raise SceneCorrupt(f"{path} cannot be read: {error}; import the scene again") from error
    found = dict(zip(meta["fields"], data, strict=True))
    missing = [name for name in columns if name not in found]
    if missing:
        raise SceneCorrupt(f"{path}: layer {layer} has no column {missing[0]}; import the scene again")
    return found, shapely.from_wkb(geometry)
