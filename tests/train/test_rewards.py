"""Rewards, computed by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("wayfix_train")

from wayfix.errors import RewardNotFinite
from wayfix.geo.boxes import WorldBox
from wayfix_train.rewards import RewardConfig, Trajectory, reward

TARGET = WorldBox(100, 100, 110, 110)
START = (205.0, 105.0)  # 100 m east of the target's centre


def _trajectory(**changes: object) -> Trajectory:
    return Trajectory(**{"turns": 4, "max_turns": 8, "start": START, **changes})  # type: ignore[arg-type]


def test_a_perfect_box_after_four_turns() -> None:
    parts = reward(_trajectory(answer=TARGET), TARGET, RewardConfig())
    assert (parts.iou, parts.distance, parts.step) == (1.0, 0.3, -0.025)
    assert parts.total == pytest.approx(1.275)


def test_half_a_box() -> None:
    # 10 x 5 of 10 x 10: IoU 0.5; centres 2.5 m apart.
    parts = reward(_trajectory(answer=WorldBox(100, 100, 110, 105)), TARGET, RewardConfig())
    assert parts.iou == pytest.approx(0.5)
    assert parts.distance == pytest.approx(0.3 * math.exp(-2.5 / 80))


def test_a_miss_80_m_away_keeps_the_distance_term() -> None:
    parts = reward(_trajectory(answer=WorldBox(180, 100, 190, 110)), TARGET, RewardConfig())
    assert parts.iou == 0
    assert parts.distance == pytest.approx(0.3 / math.e)


def test_no_answer_costs_its_turns_only() -> None:
    assert reward(_trajectory(turns=8), TARGET, RewardConfig()).total == pytest.approx(-0.05)


def test_zooms_nearer_and_away() -> None:
    # 100 -> 60 -> 80 m away: 0.05 * 40/80 - 0.05 * 20/80.
    zooms = ((165.0, 105.0), (185.0, 105.0))
    assert reward(_trajectory(zooms=zooms), TARGET, RewardConfig()).zoom == pytest.approx(0.0125)


def test_zooms_are_capped_each_and_together() -> None:
    far = _trajectory(start=(1105.0, 105.0), zooms=((105.0, 105.0),))
    assert reward(far, TARGET, RewardConfig()).zoom == pytest.approx(0.05)
    away = _trajectory(zooms=tuple((205.0 + 100 * n, 105.0) for n in range(1, 7)))
    assert reward(away, TARGET, RewardConfig()).zoom == pytest.approx(-0.1)


def test_oblique_views_count_by_what_they_show_of_the_target() -> None:
    half = _trajectory(obliques=(WorldBox(90, 90, 105, 120),))
    assert reward(half, TARGET, RewardConfig()).oblique == pytest.approx(0.025)
    both = _trajectory(obliques=(WorldBox(90, 90, 120, 120),) * 2)
    assert reward(both, TARGET, RewardConfig()).oblique == pytest.approx(0.05)
    assert reward(_trajectory(obliques=(WorldBox(0, 0, 9, 9),)), TARGET, RewardConfig()).oblique == 0


def test_invalid_turns_cost_a_tenth_each() -> None:
    assert reward(_trajectory(invalid=3), TARGET, RewardConfig()).invalid == pytest.approx(-0.3)


def test_not_found() -> None:
    config = RewardConfig()
    said = _trajectory(turns=2, said_not_found=True)
    assert reward(said, None, config).total == pytest.approx(1.0 - 0.0125)
    assert reward(said, TARGET, config).total == pytest.approx(-0.0125)
    assert reward(_trajectory(turns=2, answer=TARGET), None, config).total == pytest.approx(-0.0125)


@pytest.mark.parametrize(
    ("switches", "left_out"),
    [
        ({"use_distance": False, "use_tools": False}, {"distance", "zoom", "oblique"}),
        ({"use_tools": False}, {"zoom", "oblique"}),
        ({"use_distance": False}, {"distance"}),
        ({}, set()),
    ],
)
def test_rows_of_table_4(switches: dict[str, bool], left_out: set[str]) -> None:
    trajectory = _trajectory(answer=TARGET, zooms=((105.0, 105.0),), obliques=(TARGET,))
    parts = reward(trajectory, TARGET, RewardConfig(**switches))
    zero = {name for name in ("iou", "distance", "zoom", "oblique") if getattr(parts, name) == 0}
    assert zero == left_out


def test_a_damaged_truth_is_named() -> None:
    with pytest.raises(RewardNotFinite, match="distance nan"):
        reward(_trajectory(answer=TARGET), WorldBox(math.nan, 100, 110, 110), RewardConfig())


_number = st.floats(-500, 500)
_boxes = st.tuples(_number, _number, st.floats(0.5, 50), st.floats(0.5, 50)).map(
    lambda v: WorldBox(v[0], v[1], v[0] + v[2], v[1] + v[3])
)


@given(_boxes, _boxes, st.lists(st.tuples(_number, _number), max_size=7), st.lists(_boxes, max_size=3))
def test_shaping_never_outweighs_the_box(
    answer: WorldBox, target: WorldBox, zooms: list[tuple[float, float]], obliques: list[WorldBox]
) -> None:
    parts = reward(_trajectory(answer=answer, zooms=tuple(zooms), obliques=tuple(obliques)), target, RewardConfig())
    assert abs(parts.zoom) <= 0.1 + 1e-9 and 0 <= parts.oblique <= 0.05 + 1e-9
    assert -0.2 <= parts.total <= 1.45
