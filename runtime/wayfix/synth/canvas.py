"""The city's full-resolution layers while it is drawn, and how shapes get onto them."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from wayfix.synth.plan import Footprint, Rgb

GROUND, VEGETATION, BUILDING, CAR = 2, 5, 6, 64
"""ASPRS point classes in use; 64 is the first of those left to the user."""

_SHIFT = 4


@dataclass
class Canvas:
    """Layers of (H, W), row 0 = north; `z` and `terrain` are metres, `grain` is the strength of texture."""

    gsd: float
    albedo: NDArray[np.uint8]
    grain: NDArray[np.uint8]
    z: NDArray[np.float32]
    terrain: NDArray[np.float32]
    ids: NDArray[np.int16]
    """Index of the object on top, -1 where there is none."""
    classes: NDArray[np.uint8]

    @classmethod
    def blank(cls, terrain: NDArray[np.float32], gsd: float, rgb: Rgb, grain: int) -> Canvas:
        """Bare ground of one colour on a terrain of (H, W) heights."""
        shape = terrain.shape
        return cls(
            gsd,
            np.full((*shape, 3), rgb, np.uint8),
            np.full(shape, grain, np.uint8),
            terrain.copy(),
            terrain,
            np.full(shape, -1, np.int16),
            np.full(shape, GROUND, np.uint8),
        )

    @property
    def size_m(self) -> float:
        """North-south extent, metres."""
        return len(self.albedo) * self.gsd

    def fill(self, corners: NDArray[np.float64], rgb: Rgb, grain: int | None = None) -> None:
        """Colour the ground inside a convex polygon of (N, 2) local metres."""
        points = np.stack([corners[:, 0], self.size_m - corners[:, 1]], axis=-1) / self.gsd - 0.5
        fixed = np.round(points * (1 << _SHIFT)).astype(np.int32)
        cv2.fillConvexPoly(self.albedo, fixed, rgb, cv2.LINE_8, _SHIFT)
        if grain is not None:
            cv2.fillConvexPoly(self.grain, fixed, grain, cv2.LINE_8, _SHIFT)

    def window(self, low: tuple[float, float], high: tuple[float, float]) -> Window:
        """The part of the layers between two corners in local metres, cut at the scene's edge."""
        rows, cols = self.albedo.shape[:2]
        c0, c1 = max(0, int(low[0] / self.gsd)), min(cols, int(high[0] / self.gsd) + 2)
        r0 = max(0, int((self.size_m - high[1]) / self.gsd))
        r1 = min(rows, int((self.size_m - low[1]) / self.gsd) + 2)
        part = np.s_[r0:r1, c0:c1]
        x = (np.arange(c0, c1) + 0.5) * self.gsd
        y = self.size_m - (np.arange(r0, r1) + 0.5) * self.gsd
        return Window(
            self.albedo[part],
            self.grain[part],
            self.z[part],
            self.terrain[part],
            self.ids[part],
            self.classes[part],
            x,
            y,
        )

    def around(self, footprint: Footprint) -> tuple[Window, NDArray[np.float64], NDArray[np.float64]]:
        """The window of a footprint, with each pixel's position along (u) and across (v) its length axis, metres."""
        corners = footprint.corners(0.2)
        low, high = corners.min(axis=0), corners.max(axis=0)
        window = self.window((float(low[0]), float(low[1])), (float(high[0]), float(high[1])))
        dx, dy = window.x[None, :] - footprint.x, window.y[:, None] - footprint.y
        c, s = np.cos(footprint.angle), np.sin(footprint.angle)
        return window, dx * c + dy * s, -dx * s + dy * c

    def height_at(self, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float32]:
        """(N,) top heights at local positions inside the scene, metres."""
        return self.z[self.cell(x, y)]

    def cell(self, x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """(rows, columns) of the pixels that hold local positions, kept inside the scene."""
        rows, cols = self.albedo.shape[:2]
        row = np.clip(((self.size_m - y) / self.gsd).astype(np.intp), 0, rows - 1)
        return row, np.clip((x / self.gsd).astype(np.intp), 0, cols - 1)


@dataclass
class Window:
    """Views into a canvas's layers, with the local x of its columns and y of its rows."""

    albedo: NDArray[np.uint8]
    grain: NDArray[np.uint8]
    z: NDArray[np.float32]
    terrain: NDArray[np.float32]
    ids: NDArray[np.int16]
    classes: NDArray[np.uint8]
    x: NDArray[np.float64]
    y: NDArray[np.float64]
