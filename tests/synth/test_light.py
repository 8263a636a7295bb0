from __future__ import annotations

import math

import numpy as np
import pytest

from wayfix.synth.light import cast_shadows


@pytest.mark.parametrize("azimuth", [0.0, 40.0, 90.0, 130.0, 180.0, 215.0, 250.0, 300.0])
def test_a_shadow_points_away_from_the_sun_and_is_as_long_as_the_sun_is_low(azimuth: float) -> None:
    z = np.zeros((401, 401), np.float32)
    z[199:202, 199:202] = 10.0
    shadow = cast_shadows(z, 0.1, math.radians(azimuth), math.radians(45.0))
    rows, cols = np.nonzero(shadow > 0.5)
    away = np.hypot(rows - 200, cols - 200)
    tip = away.argmax()
    bearing = math.degrees(math.atan2(cols[tip] - 200, 200 - rows[tip])) % 360
    assert abs((bearing - azimuth - 180 + 180) % 360 - 180) < 3.0
    assert away.max() * 0.1 == pytest.approx(10.0, abs=0.4)
