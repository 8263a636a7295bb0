"""Writes a scene folder's files: what importers and the synthetic city both use."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import rasterio.shutil
from affine import Affine
from numpy.typing import NDArray
from pyproj import CRS
from tqdm import tqdm

from wayfix.geo.crs import crs_label
from wayfix.geo.frame import SceneFrame
from wayfix.scene.journal import FILE_NAME as JOURNAL_FILE
from wayfix.scene.journal import Journal
from wayfix.scene.landmark import Landmark
from wayfix.scene.manifest import (
    FORMAT_VERSION,
    Extent,
    Layer,
    Manifest,
    Origin,
    RegistrationEntry,
    Source,
    file_entry,
    write_manifest,
)
from wayfix.scene.network import Network, Place
from wayfix.scene.point_writer import write_points
from wayfix.scene.points import store_paths
from wayfix.scene.readers.raster import Grid
from wayfix.scene.tiff import tile_table
from wayfix.scene.vectors import write_landmarks, write_network

TILE_PX = 256
"""Measured: a 768 px zoom decodes fewer spare pixels than with 512 (docs/benchmarks)."""

JPEG_QUALITY = 90


class SceneWriter:
    """Fills one new folder, layer by layer, and closes it with the manifest."""

    def __init__(self, folder: Path, crs: CRS, quiet: bool = True, journal: Journal | None = None) -> None:
        """With a journal, layers that an interrupted run completed are kept; see `has`."""
        self.folder = folder
        self.crs = crs
        self.quiet = quiet
        self._journal = journal
        kept = journal.get("layers", {}) if journal is not None else {}
        self._layers: dict[str, Layer] = {name: Layer.model_validate(layer) for name, layer in kept.items()}

    def has(self, name: str) -> bool:
        """Whether a layer is complete."""
        return name in self._layers

    def photo(self, grid: Grid, blocks: Iterable[tuple[int, NDArray[np.uint8], NDArray[np.uint8]]]) -> None:
        """Write bev.tif from row blocks (first row, RGB (3, rows, width), mask (rows, width) 255 where valid)."""
        _, width, height = grid
        plain = self.folder / "bev.plain.tif"
        options = {"count": 3, "dtype": "uint8", "photometric": "RGB", "BIGTIFF": "IF_SAFER"}
        with (
            rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True),
            rasterio.open(plain, "w", **self._profile(grid), **options) as out,
            self._bar("photo", height) as bar,
        ):
            for row, rgb, mask in blocks:
                window = rasterio.windows.Window(0, row, width, rgb.shape[1])
                out.write(rgb, window=window)
                out.write_mask(mask > 0, window=window)
                bar.update(rgb.shape[1])
        self._to_cog(
            plain,
            "bev",
            COMPRESS="JPEG",
            QUALITY=JPEG_QUALITY,
            OVERVIEW_RESAMPLING="AVERAGE",
            OVERVIEWS="IGNORE_EXISTING",
        )

    def heights(self, name: str, grid: Grid, blocks: Iterable[tuple[int, NDArray[np.float32]]]) -> None:
        """Write `dsm` or `dtm` from row blocks of metres (first row, (rows, width)), NaN where not known."""
        plain = self.folder / f"{name}.plain.tif"
        with (
            rasterio.open(plain, "w", **self._profile(grid), count=1, dtype="float32", nodata=np.nan) as out,
            self._bar(name, grid[2]) as bar,
        ):
            for row, cells in blocks:
                out.write(cells, 1, window=rasterio.windows.Window(0, row, grid[1], cells.shape[0]))
                bar.update(cells.shape[0])
        self._to_cog(plain, name, COMPRESS="DEFLATE", PREDICTOR="YES", OVERVIEW_RESAMPLING="AVERAGE")

    def points(self, xyz: NDArray[np.float64], rgb: NDArray[np.uint8], classes: NDArray[np.uint8]) -> None:
        """Write points/ from world coordinates (N, 3), colours (N, 3) and ASPRS classes (N,)."""
        write_points(self.folder / "points", xyz, rgb, classes)
        self.finished_points()

    def finished_points(self) -> None:
        """Take up the folder points/ that a PointWriter has finished."""
        self._add("points", *store_paths(self.folder / "points"))

    def landmarks(self, landmarks: Sequence[Landmark]) -> None:
        """Write vectors.gpkg with landmarks only."""
        self.names(landmarks, None, ())

    def names(self, landmarks: Sequence[Landmark], network: Network | None, places: Sequence[Place]) -> None:
        """Write vectors.gpkg: landmarks, and the footways and places of a map; one step, always from nothing."""
        path = self.folder / "vectors.gpkg"
        path.unlink(missing_ok=True)
        if landmarks:
            write_landmarks(path, landmarks, crs_label(self.crs))
        if network is not None:
            write_network(path, network, places, crs_label(self.crs))
        layer = Layer(files=(file_entry(self.folder, path),))
        if landmarks:
            self._layers["landmarks"] = layer
        if network is not None:
            self._layers["network"] = layer
        self._record()

    def finish(
        self,
        *,
        scene_id: str,
        revision: int,
        grid: Grid,
        vertical_datum: str,
        sources: Sequence[Source],
        attribution: Sequence[str],
        survey_date: str | None,
        origin_z: float,
        registration: RegistrationEntry | None = None,
        fingerprint: str | None = None,
    ) -> Manifest:
        """Write scene.json; call it last. `grid` is the photo's."""
        self._remove_strays()
        extent, width, _ = grid
        # A whole metre near the middle reads well, and keeps offsets small.
        x, y = (float(round(v)) for v in extent.center)
        frame = SceneFrame(self.crs, x, y, origin_z)
        lon, lat = frame.origin_lonlat
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            id=scene_id,
            revision=revision,
            created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            survey_date=survey_date,
            crs=crs_label(self.crs),
            vertical_datum=vertical_datum,
            origin=Origin(x=x, y=y, z=origin_z, lon=lon, lat=lat),
            convergence_deg=frame.convergence_deg,
            extent=Extent(min_x=extent.min_x, min_y=extent.min_y, max_x=extent.max_x, max_y=extent.max_y),
            gsd_m=round(extent.width / width, 9),
            wgs84_accuracy_m=frame.to_wgs84.accuracy_m,
            layers=self._layers,
            sources=tuple(sources),
            attribution=tuple(attribution),
            registration=registration,
            fingerprint=fingerprint,
        )
        write_manifest(self.folder, manifest)
        return manifest

    def _remove_strays(self) -> None:
        """Drop what belongs to no layer: GDAL's own temporary files outlive a process that was killed."""
        kept = {entry.path for layer in self._layers.values() for entry in layer.files} | {JOURNAL_FILE}
        for path in self.folder.rglob("*"):
            if path.is_file() and path.relative_to(self.folder).as_posix() not in kept:
                path.unlink()

    def _profile(self, grid: Grid) -> dict[str, Any]:
        extent, width, height = grid
        return {
            "driver": "GTiff",
            "width": width,
            "height": height,
            "crs": rasterio.CRS.from_wkt(self.crs.to_wkt()),
            "transform": Affine(extent.width / width, 0, extent.min_x, 0, -extent.height / height, extent.max_y),
            "tiled": True,
            "blockxsize": 512,
            "blockysize": 512,
        }

    def _to_cog(self, plain: Path, name: str, **options: object) -> None:
        path = self.folder / f"{name}.tif"
        with self._bar(f"{name} pyramid", 1) as bar:
            rasterio.shutil.copy(plain, path, driver="COG", BLOCKSIZE=TILE_PX, BIGTIFF="IF_SAFER", **options)
            plain.unlink()
            table = self.folder / f"{name}.crc"
            table.write_bytes(tile_table(path).astype("<u4").tobytes())
            bar.update(1)
        self._add(name, path, table)

    def _add(self, name: str, *paths: Path) -> None:
        self._layers[name] = Layer(files=tuple(file_entry(self.folder, path) for path in paths))
        self._record()

    def _record(self) -> None:
        if self._journal is not None:
            self._journal.put("layers", {key: layer.model_dump(mode="json") for key, layer in self._layers.items()})

    def _bar(self, what: str, total: int) -> tqdm:
        return tqdm(total=total, desc=f"{what:<12}", unit="row", leave=False, disable=True if self.quiet else None)
