"""The sources of an import, opened, checked, and brought to one CRS, extent and vertical datum."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyogrio.errors
import pyogrio.raw
import shapely
from pyproj import CRS
from shapely.geometry.base import BaseGeometry

from wayfix.errors import InvalidCrs, InvalidOption, MissingCrs, NoOverlap, UnreadableSource
from wayfix.geo.boxes import WorldBox
from wayfix.geo.crs import UNKNOWN_DATUM, Conversion, MetricCrs, conversion, identify, parse_crs, point_scale, same_crs
from wayfix.geo.frame import SceneFrame
from wayfix.scene.buckets import PlacedCloud
from wayfix.scene.landmark import Landmark
from wayfix.scene.readers.cloud import open_cloud
from wayfix.scene.readers.landmarks import LandmarkSource, read_landmark_file
from wayfix.scene.readers.osm import OsmSource, read_osm
from wayfix.scene.readers.raster import (
    RasterSource,
    check_heights,
    check_photo,
    height_unit_m,
    open_raster,
    photo_grid,
)
from wayfix.scene.reconcile import HeightSource

if TYPE_CHECKING:
    from wayfix.scene.importer import ImportOptions

MAX_SCALE_ERROR = 0.005
"""Web maps (EPSG:3857) and CRSs far from their zone are refused: sizes and distances would be wrong."""

OSM_ATTRIBUTION = "© OpenStreetMap contributors (ODbL)"


@dataclass(frozen=True)
class ImportSources:
    """Everything an import works on."""

    crs: CRS
    extent: WorldBox
    """What becomes the scene: the photo's extent, else the clouds', cut to --bbox and --area."""
    area: BaseGeometry | None
    vertical_datum: str
    photo: RasterSource | None
    clouds: tuple[PlacedCloud, ...]
    dsm: tuple[HeightSource, ...]
    dtm: tuple[HeightSource, ...]
    landmark_source: LandmarkSource | None
    osm: OsmSource | None
    paths: tuple[Path, ...]
    remarks: tuple[str, ...]

    @property
    def landmarks(self) -> tuple[Landmark, ...]:
        """The landmarks of all files; a file of one's own comes before the map."""
        own = self.landmark_source.landmarks if self.landmark_source else ()
        return own + (self.osm.landmarks if self.osm else ())

    @property
    def attribution(self) -> tuple[str, ...]:
        """Credit that the sources' licences ask for."""
        return (OSM_ATTRIBUTION,) if self.osm else ()


def open_sources(options: ImportOptions) -> ImportSources:
    """Open and check everything an import names; any SourceError is raised here, before anything is written."""
    if options.photo is None and not options.clouds:
        raise InvalidOption("an import needs a photo or a point cloud; give --photo or --cloud")
    photo = open_raster(options.photo, options.crs) if options.photo else None
    if photo is not None:
        check_photo(photo)
    opened = [open_cloud(path, options.crs, options.height_unit, options.color) for path in options.clouds]
    first = photo.crs if photo else opened[0].crs
    crs = _registered(first, (photo.extent if photo else opened[0].bounds), (options.photo or options.clouds[0]).name)
    clouds = tuple(PlacedCloud(c, None if same_crs(c.crs.crs, crs) else conversion(c.crs.crs, crs)) for c in opened)
    area = _read_area(options.area, crs) if options.area else None
    extent = _scene_extent(photo, clouds, options.bbox, area)
    dsm = tuple(_open_heights(path, options, crs, extent) for path in options.dsm)
    dtm = tuple(_open_heights(path, options, crs, extent) for path in options.dtm)
    own = read_landmark_file(options.landmarks, crs, extent) if options.landmarks else None
    osm = read_osm(options.osm, crs, extent) if options.osm else None
    everything = [
        options.photo,
        *options.clouds,
        *options.dsm,
        *options.dtm,
        options.landmarks,
        options.osm,
        options.area,
    ]
    return ImportSources(
        crs=crs,
        extent=extent,
        area=area,
        vertical_datum=_vertical_datum(
            options.vertical_datum, [*(c.source.crs for c in clouds), *(h.raster.crs for h in (*dsm, *dtm))]
        ),
        photo=photo,
        clouds=clouds,
        dsm=dsm,
        dtm=dtm,
        landmark_source=own,
        osm=osm,
        paths=tuple(p for p in everything if p is not None),
        remarks=(*_landmark_remarks(own), *(osm.remarks if osm else ())),
    )


def _registered(metric: MetricCrs, extent: WorldBox, what: str) -> CRS:
    lonlat = SceneFrame(metric.crs, *extent.center, 0.0).origin_lonlat
    scale = point_scale(metric.crs, *lonlat)
    if abs(scale - 1.0) > MAX_SCALE_ERROR:
        raise InvalidCrs(
            f"a metre of {metric.crs.name} is {1 / scale:.3f} m on the ground at {what}; reproject it to "
            "a CRS that keeps lengths, for example gdalwarp -t_srs EPSG:<UTM zone> in.tif out.tif"
        )
    return identify(metric.crs, *lonlat)


def _scene_extent(
    photo: RasterSource | None,
    clouds: Sequence[PlacedCloud],
    bbox: tuple[float, float, float, float] | None,
    area: BaseGeometry | None,
) -> WorldBox:
    if photo is not None:
        extent = photo_grid(photo)[0]
    else:
        boxes = [c.source.bounds if c.to_scene is None else box_in(c.source.bounds, c.to_scene) for c in clouds]
        # The far edge belongs to the extent: points on it are points of the scene.
        extent = WorldBox(
            math.floor(min(b.min_x for b in boxes)),
            math.floor(min(b.min_y for b in boxes)),
            math.floor(max(b.max_x for b in boxes)) + 1.0,
            math.floor(max(b.max_y for b in boxes)) + 1.0,
        )
    for what, box in (("--bbox", _bbox(bbox)), ("--area", _area_box(area))):
        if box is not None:
            part = extent.clipped(box)
            if part is None:
                raise NoOverlap(
                    f"{what} does not touch the sources, which reach from {extent.min_x:.0f}, {extent.min_y:.0f} to "
                    f"{extent.max_x:.0f}, {extent.max_y:.0f} in the scene's CRS"
                )
            extent = part
    return extent


def _bbox(bbox: tuple[float, float, float, float] | None) -> WorldBox | None:
    if bbox is None:
        return None
    x0, y0, x1, y1 = bbox
    if not all(math.isfinite(v) for v in bbox) or x0 >= x1 or y0 >= y1:
        raise InvalidOption(f"--bbox is min_x,min_y,max_x,max_y in the scene's CRS with min < max, got {bbox}")
    return WorldBox(x0, y0, x1, y1)


def _area_box(area: BaseGeometry | None) -> WorldBox | None:
    return WorldBox(*area.bounds) if area is not None else None


def _read_area(path: Path, crs: CRS) -> BaseGeometry:
    if not path.is_file():
        raise UnreadableSource(f"{path} does not exist or is not a file")
    try:
        meta, _, geometry, _ = pyogrio.raw.read(path, columns=[])
    except (pyogrio.errors.DataSourceError, pyogrio.errors.DataLayerError) as error:
        raise UnreadableSource(f"{path.name} is no vector file that can be read: {error}") from error
    if meta["crs"] is None:
        raise MissingCrs(f"{path.name} does not say its CRS; save it as GeoJSON (WGS84) or GeoPackage")
    to_scene = conversion(parse_crs(meta["crs"]), crs)
    shape = shapely.union_all(shapely.force_2d(shapely.from_wkb(geometry)))
    placed = shapely.transform(shape, lambda p: np.column_stack(to_scene(p[:, 0], p[:, 1])))
    if placed.area <= 0 or not placed.is_valid:
        raise UnreadableSource(f"{path.name} holds no valid polygon: {shapely.is_valid_reason(placed)}")
    return placed


def _open_heights(path: Path, options: ImportOptions, crs: CRS, extent: WorldBox) -> HeightSource:
    raster = open_raster(path, options.crs)
    unit_m = height_unit_m(raster, options.height_unit)
    check_heights(raster, unit_m)
    to_scene = conversion(raster.crs.crs, crs)
    own = raster.extent if same_crs(raster.crs.crs, crs) else box_in(raster.extent, to_scene)
    if own.clipped(extent) is None:
        raise NoOverlap(f"{path.name} does not touch the scene; is it of another place, or in another CRS?")
    return HeightSource(raster, own, unit_m, to_scene.accuracy_m)


def box_in(box: WorldBox, to_scene: Conversion) -> WorldBox:
    """The box around a converted box, judged by points along its edges."""
    along = np.linspace(0.0, 1.0, 21)
    xs = np.concatenate([box.min_x + along * box.width] * 2 + [np.full(21, box.min_x), np.full(21, box.max_x)])
    ys = np.concatenate([np.full(21, box.min_y), np.full(21, box.max_y)] + [box.min_y + along * box.height] * 2)
    x, y = to_scene(xs, ys)
    return WorldBox(float(x.min()), float(y.min()), float(x.max()), float(y.max()))


def _vertical_datum(given: str | None, sources: Sequence[MetricCrs]) -> str:
    stated = {s.vertical_datum for s in sources} - {UNKNOWN_DATUM}
    if given:
        stated |= {_datum_name(given)}
    if len(stated) > 1:
        raise InvalidCrs(
            f"the sources' heights are in different vertical datums ({', '.join(sorted(stated))}); "
            "bring them to one first"
        )
    return stated.pop() if stated else UNKNOWN_DATUM


def _datum_name(text: str) -> str:
    if text.lower() in ("unknown", "local", "ellipsoid"):
        return text.lower()
    vertical = CRS.from_user_input(text) if re.fullmatch(r"EPSG:\d+", text, re.IGNORECASE) else None
    if vertical is not None and not vertical.is_vertical:
        raise InvalidCrs(f"--vertical-datum {text} is {vertical.name}, which is no vertical CRS (EPSG:5703 is one)")
    return vertical.name if vertical is not None else text


def _landmark_remarks(own: LandmarkSource | None) -> list[str]:
    remarks = []
    if own is not None and own.unnamed:
        remarks.append(f"{own.unnamed} features of {own.path.name} have no name and were left out")
    if own is not None and own.outside:
        remarks.append(f"{own.outside} landmarks of {own.path.name} lie outside the photo and were left out")
    return remarks
