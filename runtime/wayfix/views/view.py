"""A view: an image with a known transform, or an oblique image that is evidence only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wayfix.geo.boxes import WorldBox
from wayfix.geo.transforms import ViewTransform


@dataclass(frozen=True)
class ImageSizes:
    """Long sides in pixels of the images a policy wants; they belong to the policy, not to the scene."""

    overview: int = 1024
    zoom: int = 768
    oblique: int = 512


@dataclass(frozen=True, eq=False)
class View:
    """One image of an episode. Two views are the same only if they are one object."""

    id: str
    """`v0` is the whole scene, `v1`, `v2`, ... are zooms, `o1`, ... are oblique images."""
    image: NDArray[np.uint8] = field(repr=False)
    """RGB (height, width, 3)."""
    region: WorldBox
    """The ground it shows, scene CRS."""
    transform: ViewTransform | None
    """Pixel -> world; None for an oblique image, in which no box can be given."""
    direction: str | None = None
    """Where the camera of an oblique image stands: north, south, east or west."""
    read_heights: Callable[[], NDArray[np.float32] | None] = field(default=lambda: None, repr=False)
    """Height above ground in metres for every pixel, or None; read only when a policy asks for it."""

    @property
    def bev(self) -> bool:
        """Whether boxes can be given in it."""
        return self.transform is not None
