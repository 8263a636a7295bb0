"""vectors.gpkg: the scene's landmarks as a GeoPackage layer that QGIS opens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyogrio
import pyogrio.errors
import pyogrio.raw
import shapely

from wayfix.errors import SceneCorrupt, StorageFailed
from wayfix.scene.landmark import Landmark

LAYER = "landmarks"


def write_landmarks(path: Path, landmarks: Sequence[Landmark], crs: str) -> None:
    """Write the layer `landmarks` (name, type, aliases as a JSON list; geometry in the scene's CRS)."""
    try:
        pyogrio.raw.write(
            path,
            geometry=shapely.to_wkb(np.array([mark.geometry for mark in landmarks], object)),
            field_data=[
                np.array([mark.name for mark in landmarks], object),
                np.array([mark.type for mark in landmarks], object),
                np.array([json.dumps(mark.aliases, ensure_ascii=False) for mark in landmarks], object),
            ],
            fields=["name", "type", "aliases"],
            layer=LAYER,
            driver="GPKG",
            geometry_type="Unknown",
            crs=crs,
        )
    except pyogrio.errors.DataSourceError as error:
        raise StorageFailed(f"cannot write {path}: {error}") from error


def read_landmarks(path: Path) -> list[Landmark]:
    """Read the layer back; SceneCorrupt where it is not as written."""
    try:
        meta, _, geometry, data = pyogrio.raw.read(path, layer=LAYER, columns=["name", "type", "aliases"])
    except (pyogrio.errors.DataSourceError, pyogrio.errors.DataLayerError) as error:
        raise SceneCorrupt(f"{path} cannot be read: {error}; import the scene again") from error
    columns = dict(zip(meta["fields"], data, strict=True))
    shapes = shapely.from_wkb(geometry)
    return [
        Landmark(name=name, type=kind, geometry=shape, aliases=tuple(json.loads(aliases)))
        for name, kind, aliases, shape in zip(columns["name"], columns["type"], columns["aliases"], shapes, strict=True)
    ]
