"""Drawing vehicles: their body's height along its length, glass and lights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wayfix.synth.canvas import CAR, Canvas
from wayfix.synth.plan import Vehicle
from wayfix.synth.solids import base_height, scaled

PROFILES: dict[str, tuple[tuple[float, float], ...]] = {
    "car": (
        (-0.5, 0.55),
        (-0.47, 0.66),
        (-0.40, 0.70),
        (-0.30, 0.98),
        (0.05, 1.0),
        (0.21, 0.68),
        (0.46, 0.58),
        (0.5, 0.45),
    ),
    "van": ((-0.5, 0.96), (-0.46, 1.0), (0.26, 1.0), (0.37, 0.62), (0.48, 0.48), (0.5, 0.4)),
    "truck": ((-0.5, 1.0), (0.22, 1.0), (0.225, 0.3), (0.25, 0.3), (0.255, 0.82), (0.46, 0.82), (0.5, 0.5)),
    "bus": ((-0.5, 0.9), (-0.48, 1.0), (0.48, 1.0), (0.5, 0.85)),
}
"""Height along the length, as (place from rear -0.5 to front 0.5, share of the full height)."""

GLASS: dict[str, tuple[tuple[float, float], ...]] = {
    "car": ((0.07, 0.20), (-0.40, -0.32)),
    "van": ((0.27, 0.37),),
    "truck": ((0.44, 0.49),),
    "bus": ((0.465, 0.492),),
}
"""Where windscreens lie along the length."""

SIDE_GLASS: dict[str, tuple[float, float] | None] = {
    "car": (-0.28, 0.06),
    "van": (0.08, 0.25),
    "truck": None,
    "bus": (-0.46, 0.44),
}


def draw_vehicle(canvas: Canvas, vehicle: Vehicle, number: int) -> None:
    """One vehicle; `number` goes into the ids."""
    place = vehicle.footprint
    window, u, v = canvas.around(place)
    t = u / place.length
    side = np.abs(v) / place.width
    corner_u = np.maximum(np.abs(u) - (place.length / 2 - 0.3), 0)
    corner_v = np.maximum(np.abs(v) - (place.width / 2 - 0.3), 0)
    inside = (np.abs(t) <= 0.5) & (side <= 0.5) & (corner_u**2 + corner_v**2 <= 0.3**2)
    xs, shares = zip(*PROFILES[vehicle.category], strict=True)
    z = vehicle.height * np.interp(t, xs, shares)
    window.albedo[inside] = _paint(vehicle, t, side)[inside]
    window.z[inside] = (base_height(canvas, place) + z)[inside]
    window.grain[inside] = 3
    window.ids[inside] = number
    window.classes[inside] = CAR


def _paint(vehicle: Vehicle, t: NDArray[np.float64], side: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Colour at each pixel, (H, W, 3) uint8."""
    color = np.empty((*t.shape, 3), np.uint8)
    color[:] = vehicle.rgb
    color[side > 0.46] = scaled(vehicle.rgb, 0.86)
    # On a black car the glass is what shines.
    glass = scaled((38, 44, 52), 1.0 if sum(vehicle.rgb) > 160 else 2.1)
    for start, end in GLASS[vehicle.category]:
        color[(t > start) & (t < end) & (side < 0.42)] = glass
    windows = SIDE_GLASS[vehicle.category]
    if windows is not None:
        color[(t > windows[0]) & (t < windows[1]) & (side > 0.39) & (side < 0.46)] = glass
    if vehicle.category == "truck":
        color[(t > 0.222) & (t < 0.253)] = (48, 48, 50)
        color[(t < 0.22) & (np.abs((t * 20) % 1.0 - 0.5) < 0.06)] = scaled(vehicle.rgb, 0.9)
    if vehicle.category == "bus":
        color[(np.abs(np.abs(t) - 0.22) < 0.06) & (side < 0.28)] = (176, 178, 180)
    color[(t > 0.475) & (side > 0.28) & (side < 0.44)] = (235, 232, 214)
    color[(t < -0.48) & (side > 0.3) & (side < 0.45)] = (150, 22, 22)
    return color
