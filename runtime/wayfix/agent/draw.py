"""Draws an episode: every view with what was searched, where the answer lies, and what each turn did."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from wayfix.agent.episode import Episode
from wayfix.agent.result import GroundResult
from wayfix.agent.trace import Trace, TurnRecord
from wayfix.geo.boxes import WorldBox
from wayfix.geo.transforms import ViewTransform
from wayfix.views.view import View

COLUMNS = 3
PANEL = 460
CAPTION = 46
HEADER = 64
GAP = 8
BACKGROUND = (250, 250, 250)
INK = (35, 35, 35)
ANSWER = (30, 200, 60)
CROP = (255, 200, 40)
LANDMARK = (70, 130, 255)
PARTIAL = (255, 120, 30)
_FONT = cv2.FONT_HERSHEY_SIMPLEX


def draw_episode(result: GroundResult, episode: Episode, trace: Trace) -> NDArray[np.uint8]:
    """A sheet, RGB: green is the answer (orange if partial), yellow the crops, blue the landmarks."""
    panels = [_panel(view, result, episode, trace) for view in episode.views.values()]
    rows = [panels[i : i + COLUMNS] for i in range(0, len(panels), COLUMNS)]
    columns = min(COLUMNS, len(panels))
    height = HEADER + sum(max(panel.shape[0] for panel in row) + GAP for row in rows)
    sheet = np.full((height, columns * (PANEL + GAP) + GAP, 3), BACKGROUND, np.uint8)
    _header(sheet, result)
    y = HEADER
    for row in rows:
        for column, panel in enumerate(row):
            x = GAP + column * (PANEL + GAP)
            sheet[y : y + panel.shape[0], x : x + PANEL] = panel
        y += max(panel.shape[0] for panel in row) + GAP
    return sheet


def _panel(view: View, result: GroundResult, episode: Episode, trace: Trace) -> NDArray[np.uint8]:
    picture, transform = _fitted(view)
    if transform is not None:
        _marks(picture, transform, view, result, episode, trace)
    h, w = picture.shape[:2]
    panel = np.full((h + CAPTION, PANEL, 3), BACKGROUND, np.uint8)
    panel[:h, :w] = picture
    _text(panel, f"{view.id}: {_title(view, trace)}", 2, h + 18, 0.48, PANEL)
    _text(panel, _size(view), 2, h + 36, 0.4, PANEL)
    return panel


def _header(sheet: NDArray[np.uint8], result: GroundResult) -> None:
    _text(sheet, result.query, GAP + 2, 26, 0.66, sheet.shape[1] - 2 * GAP)
    parts = [f"{result.code}{' (partial)' if result.partial else ''}", f"policy {result.policy}"]
    if result.confidence is not None:
        parts.append(f"confidence {result.confidence:.2f}")
    parts += [f"{result.turns} turns", f"{result.time_ms:.0f} ms"]
    _text(sheet, "   ".join(parts), GAP + 2, 50, 0.48, sheet.shape[1] - 2 * GAP)


def _title(view: View, trace: Trace) -> str:
    if view.id == "v0":
        return "the whole scene"
    number, _ = _turn_of(view, trace)
    if view.direction:
        return f"turn {number}, seen from the {view.direction}"
    return f"turn {number}, zoom"


def _turn_of(view: View, trace: Trace) -> tuple[int, TurnRecord | None]:
    return next(((i + 1, turn) for i, turn in enumerate(trace.turns) if turn.view_id == view.id), (0, None))


def _size(view: View) -> str:
    region = view.region
    return f"{region.width:.0f} x {region.height:.0f} m, {view.image.shape[1]} x {view.image.shape[0]} px"


def _fitted(view: View) -> tuple[NDArray[np.uint8], ViewTransform | None]:
    scale = PANEL / max(view.image.shape[:2])
    size = max(1, round(view.image.shape[1] * scale)), max(1, round(view.image.shape[0] * scale))
    picture = cv2.resize(view.image, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
    transform = ViewTransform.north_up(view.transform.extent, *size) if view.transform is not None else None
    return picture.copy(), transform


def _marks(
    picture: NDArray[np.uint8],
    transform: ViewTransform,
    view: View,
    result: GroundResult,
    episode: Episode,
    trace: Trace,
) -> None:
    overview = episode.views["v0"].transform
    assert overview is not None
    for turn in trace.turns:
        found = turn.result or {}
        if turn.action == "landmark_query" and found.get("status") == "found" and found.get("box"):
            source = episode.views[found["view_id"]].transform
            assert source is not None
            _rectangle(picture, transform, source.box_to_world(tuple(found["box"])), LANDMARK, 1, found["name"])
    for other in episode.views.values():
        if other.id not in ("v0", view.id):
            _rectangle(picture, transform, other.region, CROP, 1, other.id)
    for alternative in result.alternatives:
        _rectangle(picture, transform, alternative.box, ANSWER, 1)
    if result.box is not None:
        _rectangle(picture, transform, result.box, PARTIAL if result.partial else ANSWER, 2)


def _rectangle(
    picture: NDArray[np.uint8],
    transform: ViewTransform,
    box: WorldBox,
    color: tuple[int, int, int],
    thickness: int,
    label: str = "",
) -> None:
    x0, y0 = transform.world_to_pixel(box.min_x, box.max_y)
    x1, y1 = transform.world_to_pixel(box.max_x, box.min_y)
    a, b = (round(x0), round(y0)), (round(x1), round(y1))
    cv2.rectangle(picture, a, b, (0, 0, 0), thickness + 2)
    cv2.rectangle(picture, a, b, color, thickness)
    if thickness > 1 and max(b[0] - a[0], b[1] - a[1]) < 24:
        centre = ((a[0] + b[0]) // 2, (a[1] + b[1]) // 2)
        cv2.circle(picture, centre, 22, (0, 0, 0), 4, cv2.LINE_AA)
        cv2.circle(picture, centre, 22, color, 2, cv2.LINE_AA)
    if label and 0 <= a[0] < picture.shape[1] and 0 <= a[1] < picture.shape[0]:
        position = (a[0] + 3, max(12, a[1] - 4))
        cv2.putText(picture, _ascii(label)[:40], position, _FONT, 0.42, (0, 0, 0), 3, cv2.LINE_AA)
        cv2.putText(picture, _ascii(label)[:40], position, _FONT, 0.42, color, 1, cv2.LINE_AA)


def _text(sheet: NDArray[np.uint8], text: str, x: int, y: int, scale: float, width: int) -> None:
    text = _ascii(text)
    while len(text) > 4 and cv2.getTextSize(text, _FONT, scale, 1)[0][0] > width:
        text = text[:-4] + "..."
    cv2.putText(sheet, text, (x, y), _FONT, scale, INK, 1, cv2.LINE_AA)


def _ascii(text: str) -> str:
    """OpenCV's fonts hold ASCII only; other signs become question marks in the picture, never in the data."""
    return text.encode("ascii", "replace").decode()
