"""`wayfix scene import --dry-run`: what an import would make, judged from the sources' headers alone."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from wayfix.geo.crs import crs_label
from wayfix.scene.cloud_import import GSD_PER_SPACING, GSD_STEPS_M, HEIGHT_GSD_M
from wayfix.scene.importer import ImportOptions
from wayfix.scene.points import POINT
from wayfix.scene.readers.raster import photo_grid
from wayfix.scene.reconcile import cropped, finest_first, height_grid
from wayfix.scene.sources import ImportSources, open_sources

JPEG_BYTES_PER_PX = 0.25
HEIGHT_BYTES_PER_CELL = 2.5
POINTS_PER_S = 220_000
PIXELS_PER_S = 9_000_000
"""As measured on two x86 cores (docs/benchmarks/import.md): points of a LAZ; pixels of a photo of 12,000 x 9,000.
They make an estimate, not a promise."""


@dataclass(frozen=True)
class ImportPlan:
    """What would be made."""

    crs: str
    vertical_datum: str
    extent: tuple[float, float, float, float]
    gsd_m: float
    photo_px: tuple[int, int]
    heights_px: tuple[int, int] | None
    points: int
    """At most: what lies outside the extent is not known before it is read."""
    landmarks: int
    megabytes: float
    temporary_megabytes: float
    """Needed on the same disk while the import runs."""
    seconds: float
    remarks: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def plan_import(options: ImportOptions) -> ImportPlan:
    """Open and check the sources as an import would, and estimate the rest; writes nothing."""
    sources = open_sources(options)
    e = sources.extent
    points = sum(c.source.count for c in sources.clouds)
    density = max((c.source.count / max(c.source.bounds.area, 1.0) for c in sources.clouds), default=0.0)
    cloud_gsd = next((s for s in GSD_STEPS_M if density and s >= GSD_PER_SPACING / math.sqrt(density)), GSD_STEPS_M[-1])
    gsd = sources.photo.gsd if sources.photo else cloud_gsd
    width, height = math.ceil(e.width / gsd), math.ceil(e.height / gsd)
    if sources.photo is not None:
        _, width, height = cropped(photo_grid(sources.photo), e)
    cells = _height_cells(sources, cloud_gsd)
    pixels = width * height + (e.area / cloud_gsd**2 if sources.clouds and sources.photo else 0)
    size = width * height * JPEG_BYTES_PER_PX * 4 / 3 + points * POINT.itemsize
    size += 2 * cells[0] * cells[1] * HEIGHT_BYTES_PER_CELL if cells else 0
    return ImportPlan(
        crs=crs_label(sources.crs),
        vertical_datum=sources.vertical_datum,
        extent=(e.min_x, e.min_y, e.max_x, e.max_y),
        gsd_m=gsd,
        photo_px=(width, height),
        heights_px=cells,
        points=points,
        landmarks=len(sources.landmarks),
        megabytes=size / 1e6,
        temporary_megabytes=(points * POINT.itemsize + pixels * 10) / 1e6,
        seconds=points / POINTS_PER_S + pixels / PIXELS_PER_S + 1.0,
        remarks=sources.remarks,
    )


def _height_cells(sources: ImportSources, cloud_gsd: float) -> tuple[int, int] | None:
    rasters = [*sources.dsm, *sources.dtm]
    if rasters:
        return height_grid(finest_first(rasters), sources.extent)[1:]
    if not sources.clouds:
        return None
    cell = max(HEIGHT_GSD_M, cloud_gsd)
    return math.ceil(sources.extent.width / cell), math.ceil(sources.extent.height / cell)


def print_plan(plan: ImportPlan) -> None:
    """For people."""
    x0, y0, x1, y1 = plan.extent
    print("This import would make a scene of")
    print(f"  crs         {plan.crs.splitlines()[0][:80]}, heights in {plan.vertical_datum} datum")
    print(f"  extent      {x1 - x0:.0f} x {y1 - y0:.0f} m, from {x0:.1f}, {y0:.1f} to {x1:.1f}, {y1:.1f}")
    print(f"  photo       {plan.photo_px[0]} x {plan.photo_px[1]} px of {plan.gsd_m:g} m")
    print(f"  heights     {f'{plan.heights_px[0]} x {plan.heights_px[1]} cells' if plan.heights_px else 'none'}")
    print(f"  points      {plan.points or 'none'}")
    print(f"  landmarks   {plan.landmarks or 'none'}")
    print(f"  size        about {plan.megabytes:.0f} MB, and {plan.temporary_megabytes:.0f} MB while it runs")
    print(f"  time        about {plan.seconds:.0f} s on two cores")
    for remark in plan.remarks:
        print(f"  note        {remark}")
