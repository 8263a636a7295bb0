"""Executes tool calls on a scene: the same code in training, evaluation and service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import shapely

from wayfix.errors import UnknownTool, UnknownView
from wayfix.geo.boxes import UNIT_MAX, UnitBox, WorldBox
from wayfix.geo.transforms import ViewTransform
from wayfix.scene.landmark import Landmark
from wayfix.scene.landmark_index import LandmarkMatches
from wayfix.tools.arguments import TOOLS, LandmarkQuery, ObliqueRender, ToolCall, ZoomIn, tool_name, tool_schema
from wayfix.views.scene_views import SceneViews
from wayfix.views.view import ImageSizes, View

DEFAULT_MARGIN = 0.5
MIN_MARGIN_M = 5.0
MAX_LINE_POINTS = 8


@dataclass(frozen=True)
class ToolResult:
    """What a call gave: text for the policy, and a new view where there is one."""

    content: dict[str, Any]
    """JSON-ready."""
    view: View | None = None


class NameSearch(Protocol):
    """What finds landmarks by name: a scene's own index, or one that an evaluation has spoilt."""

    def query(self, name: str, landmark_type: str | None = None, limit: int = 5) -> LandmarkMatches:
        """The landmarks a name may mean, best first."""
        ...


class Toolbox:
    """The tools one scene offers: landmarks where it has some, oblique renders where it has points.

    `landmarks` answers landmark queries in place of the scene's own index.
    """

    def __init__(
        self,
        views: SceneViews,
        sizes: ImageSizes,
        allowed: Sequence[str] = tuple(TOOLS),
        landmarks: NameSearch | None = None,
    ) -> None:
        scene = views.scene
        lacking = {name for name, layer in _NEEDS.items() if layer not in scene.manifest.layers}
        self.views = views
        self.sizes = sizes
        self._landmarks = landmarks
        self.offered = tuple(name for name in TOOLS if name in allowed and name not in lacking)

    def schemas(self) -> list[dict[str, Any]]:
        """The offered tools as the policy's prompt lists them."""
        return [tool_schema(name) for name in self.offered]

    def overview(self) -> View:
        """View v0: the whole scene."""
        image, transform = self.views.overview(self.sizes.overview)
        return self._bev_view("v0", image, transform)

    def run(self, call: ToolCall, known: Mapping[str, View]) -> ToolResult:
        """Carry out a checked call. `known` are the episode's views by id, in the order they were made.

        Raises UnknownTool for a tool this scene does not offer, UnknownView for a view that cannot be used.
        """
        name = tool_name(call)
        if name not in self.offered:
            raise UnknownTool(f"this scene does not offer {name}; it offers {', '.join(self.offered)}")
        source = known.get(call.source_view_id)
        if source is None:
            raise UnknownView(f"there is no view {call.source_view_id!r}; the views are {', '.join(known)}")
        if source.transform is None:
            usable = ", ".join(view.id for view in known.values() if view.bev)
            raise UnknownView(f"{source.id} is an oblique image without map coordinates; use one of {usable}")
        if isinstance(call, LandmarkQuery):
            return self._landmark(call, source.id, source.transform)
        if isinstance(call, ZoomIn):
            return self._zoom(call, source.id, source.transform, len(known))
        return self._oblique(call, source.id, source.transform, len(known))

    def _landmark(self, call: LandmarkQuery, view_id: str, transform: ViewTransform) -> ToolResult:
        found = (self._landmarks or self.views.scene.landmark_index).query(call.landmark_name, call.landmark_type)
        content: dict[str, Any] = {"status": found.status, "view_id": view_id}
        described = [_describe(match.landmark, transform) for match in found.matches]
        if found.status == "found":
            content.update(described[0])
        elif found.status == "ambiguous":
            content["candidates"] = described
            content["hint"] = "give landmark_type, or choose by where each lies"
        else:
            content["hint"] = "check the spelling, query another name, or search the map by zooming"
        return ToolResult(content)

    def _zoom(self, call: ZoomIn, source_id: str, transform: ViewTransform, count: int) -> ToolResult:
        long_side = round(self.sizes.zoom * (call.scale or 1.0))
        image, cut = self.views.zoom(transform.box_to_world(call.box), long_side)
        view = self._bev_view(f"v{count}", image, cut)
        extent = cut.extent
        content = {
            "view_id": view.id,
            "source_view_id": source_id,
            "crop_box": _box(transform, extent),
            "world": _world(extent),
            "size_m": [round(extent.width, 1), round(extent.height, 1)],
        }
        return ToolResult(content, view)

    def _oblique(self, call: ObliqueRender, source_id: str, transform: ViewTransform, count: int) -> ToolResult:
        box = transform.box_to_world(call.box)
        margin = DEFAULT_MARGIN if call.margin is None else call.margin
        grown = box.grown(max(MIN_MARGIN_M, margin * max(box.width, box.height)))
        region = grown.clipped(self.views.scene.extent) or box
        image, coverage = self.views.oblique(region, call.direction, self.sizes.oblique)
        view = View(f"o{count}", image, region, None, call.direction)
        content = {
            "view_id": view.id,
            "source_view_id": source_id,
            "direction": call.direction,
            "region_box": _box(transform, region),
            "world": _world(region),
            "coverage": round(coverage, 3),
        }
        return ToolResult(content, view)

    def _bev_view(self, view_id: str, image: np.ndarray, transform: ViewTransform) -> View:
        return View(
            view_id,
            image,
            transform.extent,
            transform,
            read_heights=lambda: self.views.heights_above_ground(transform),
        )


_NEEDS = {"landmark_query": "landmarks", "oblique_render": "points"}


def _describe(landmark: Landmark, transform: ViewTransform) -> dict[str, Any]:
    """A landmark and its projection into a view: a box, the centre, and for roads the line."""
    shape = landmark.geometry
    x0, y0, x1, y1 = shape.bounds
    x, y = shapely.centroid(shape).coords[0]
    u, v = transform.world_to_unit(x, y)
    described: dict[str, Any] = {
        "name": landmark.name,
        "type": landmark.type,
        "box": _box(transform, WorldBox(x0, y0, x1, y1)),
        "center": [round(u), round(v)],
        "world": {"center": [round(x, 2), round(y, 2)], "size_m": [round(x1 - x0, 1), round(y1 - y0, 1)]},
    }
    if described["box"] is None:
        described["outside"] = _where_outside(u, v)
    if shape.geom_type == "LineString":
        described["line"] = _line(shape, transform)
    return described


def _where_outside(u: float, v: float) -> str:
    vertical = "north" if v < 0 else "south" if v > UNIT_MAX else ""
    horizontal = "west" if u < 0 else "east" if u > UNIT_MAX else ""
    return "it lies to the " + ("-".join(part for part in (vertical, horizontal) if part) or "side") + " of this view"


def _line(shape: Any, transform: ViewTransform) -> list[list[int]]:
    """The line's corners in units of the view; they may lie outside 0 to 1000 where the line leaves the view."""
    for tolerance in (0.5, 2.0, 5.0, 20.0, 100.0):
        line = shapely.simplify(shape, tolerance)
        if len(line.coords) <= MAX_LINE_POINTS:
            break
    return [[round(w) for w in transform.world_to_unit(x, y)] for x, y in line.coords]


def _box(transform: ViewTransform, box: WorldBox) -> list[int] | None:
    unit: UnitBox | None = transform.box_to_unit(box)
    return list(unit) if unit is not None else None


def _world(box: WorldBox) -> list[float]:
    return [round(v, 2) for v in (box.min_x, box.min_y, box.max_x, box.max_y)]
