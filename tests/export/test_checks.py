"""A check passes within its limit only, and the limits tell rounding from mistakes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wayfix_export import checks
from wayfix_export.checks import Check, relative_l2

VALUES = st.floats(-1e3, 1e3)


@given(VALUES, VALUES)
def test_a_check_passes_within_its_limit(value: float, limit: float) -> None:
    assert Check("a", value, limit).passed == (value <= limit)
    assert Check("a", value, limit, at_least=True).passed == (value >= limit)


@pytest.mark.parametrize("at_least", [True, False])
def test_what_is_no_number_does_not_pass(at_least: bool) -> None:
    assert not Check("a", math.nan, 1.0, at_least=at_least).passed


def test_an_infinite_error_does_not_pass() -> None:
    assert not Check("a", math.inf, 1.0).passed


@given(st.floats(0.01, 100), st.floats(1e-4, 1), st.integers(1, 50))
def test_relative_l2_is_the_share_of_the_difference(size: float, error: float, count: int) -> None:
    expected = np.full(count, size)
    assert relative_l2(expected * (1 + error), expected) == pytest.approx(error)


def test_relative_l2_of_float16_does_not_overflow() -> None:
    expected = np.full(1000, 60000, np.float16)
    assert relative_l2(-expected, expected) == pytest.approx(2)


def test_relative_l2_against_nothing_is_large_not_a_division_by_zero() -> None:
    assert relative_l2(np.ones(3), np.zeros(3)) > 1e6
    assert relative_l2(np.zeros(3), np.zeros(3)) == 0


def test_relative_l2_of_what_is_not_finite_passes_no_check() -> None:
    assert not Check("a", relative_l2(np.array([1.0, np.nan]), np.ones(2)), 1e9).passed


def test_fewer_bits_have_wider_limits() -> None:
    order = ("fp32", "fp16", "int8", "int4")
    for limits in (checks.VISION, checks.DECODER):
        assert list(limits) == list(order)
        errors = [limits[name].rel_l2 for name in order]
        assert errors == sorted(errors) and errors[0] <= 1e-5
        assert [limits[name].top1 for name in order] == sorted((limits[name].top1 for name in order), reverse=True)
    for figures in (checks.KEPT_CACHE, checks.FORCED_LOG_PROB):
        assert [figures[name] for name in order] == sorted(figures.values())
