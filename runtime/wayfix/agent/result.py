"""What a grounding request ends with, and its GeoJSON form."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from wayfix.geo.boxes import WorldBox
from wayfix.scene.scene import Scene

OK = "ok"
NOT_FOUND = "not_found"


@dataclass(frozen=True)
class RankedBox:
    """A further candidate: its world box and the probability 0..1 that it is the one meant."""

    box: WorldBox
    confidence: float


@dataclass(frozen=True)
class GroundResult:
    """The end of an episode. `box` is None where nothing was found or no region was reached in time."""

    query: str
    code: str
    """`ok`, `not_found`, or the code of the error that ended the search."""
    message: str
    partial: bool
    """The box is the best region so far, not a final answer."""
    box: WorldBox | None
    confidence: float | None
    alternatives: tuple[RankedBox, ...]
    policy: str
    turns: int
    time_ms: float
    budget_ms: float | None
    uncertainty_m: float | None
    """Position uncertainty of the box on Earth, one sigma: CRS operation, photo resolution, and a unit of the view."""

    def untimed(self) -> GroundResult:
        """The result without what a second run may change; two runs of one trace are equal in this form."""
        return replace(self, time_ms=0.0, budget_ms=None)

    def feature(self, scene: Scene) -> dict[str, Any]:
        """The GeoJSON Feature that `wayfix ground --json` prints: WGS84 footprint, everything else as properties."""
        manifest = scene.manifest
        enu = asdict(scene.frame.enu_pose(self.box)) if self.box is not None else None
        properties = {
            "query": self.query,
            "code": self.code,
            "message": self.message,
            "partial": self.partial,
            "confidence": _rounded(self.confidence, 4),
            "policy": self.policy,
            "scene": manifest.id,
            "revision": manifest.revision,
            "survey_date": manifest.survey_date,
            "box": _box(self.box),
            "crs": manifest.crs,
            "vertical_datum": manifest.vertical_datum,
            "enu": _enu(scene, enu),
            "uncertainty_m": _rounded(self.uncertainty_m, 3),
            "alternatives": [
                {
                    "confidence": _rounded(a.confidence, 4),
                    "box": _box(a.box),
                    "geometry": scene.frame.wgs84_geometry(a.box),
                }
                for a in self.alternatives
            ],
            "turns": self.turns,
            "time_ms": round(self.time_ms, 1),
            "budget_ms": _rounded(self.budget_ms, 1),
            "attribution": list(manifest.attribution),
        }
        geometry = scene.frame.wgs84_geometry(self.box) if self.box is not None else None
        return {"type": "Feature", "geometry": geometry, "properties": properties}


def _box(box: WorldBox | None) -> dict[str, float | None] | None:
    """Scene CRS, metres, to the millimetre."""
    if box is None:
        return None
    return {name: _rounded(getattr(box, name), 3) for name in ("min_x", "min_y", "min_z", "max_x", "max_y", "max_z")}


def _enu(scene: Scene, pose: dict[str, float | None] | None) -> dict[str, Any] | None:
    if pose is None:
        return None
    centre = {axis: _rounded(pose[axis], 3) for axis in "xyz"}
    size = {axis: _rounded(pose[f"size_{axis}"], 3) for axis in "xyz"}
    return {"frame": f"wayfix/{scene.id}", "center": centre, "size": size, "yaw": _rounded(pose["yaw"], 6)}


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
