"""An episode kept for looking at: its trace, and small pictures of its views."""

from __future__ import annotations

import base64

import cv2
from pydantic import BaseModel, ConfigDict

from wayfix.agent.episode import Episode
from wayfix.agent.trace import Trace
from wayfix.views.view import View

PICTURE_PX = 448
"""Long side at most."""
JPEG_QUALITY = 80


class Trajectory(BaseModel):
    """What a page shows of one query under one landmark condition."""

    model_config = ConfigDict(extra="forbid")

    id: str
    """Of the query."""
    condition: str
    trace: Trace
    """Its `views` say where each picture lies in the world."""
    pictures: dict[str, str]
    """By view id: a JPEG, base64. The overview v0 is the same for all queries of a scene."""


def keep(case_id: str, condition: str, episode: Episode, trace: Trace) -> Trajectory:
    """The trajectory of an episode that has ended."""
    pictures = {view.id: _picture(view) for view in episode.views.values()}
    return Trajectory(id=case_id, condition=condition, trace=trace, pictures=pictures)


def _picture(view: View) -> str:
    image = view.image
    scale = min(1.0, PICTURE_PX / max(image.shape[:2]))
    size = max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale))
    small = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    done, data = cv2.imencode(".jpg", cv2.cvtColor(small, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    assert done, "OpenCV encodes any 8-bit RGB image"
    return base64.b64encode(data.tobytes()).decode()
