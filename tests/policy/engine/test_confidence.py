"""Confidence is fitted to how often answers were right."""

from __future__ import annotations

import math

import numpy as np
import pytest

from wayfix.policy.engine.confidence import calibrated, calibration_error, fit_logistic
from wayfix.policy.engine.manifest import ConfidenceModel, Logistic


def test_without_a_fit_confidence_is_the_tokens_own() -> None:
    assert calibrated(0.37, False, None) == 0.37


def test_boxes_and_not_found_have_curves_of_their_own() -> None:
    model = ConfidenceModel(
        box=Logistic(intercept=0.0, slope=1.0), not_found=Logistic(intercept=2.0, slope=0.0), suite="test", answers=1
    )
    # intercept + slope * log(e^-1) = -1
    assert calibrated(math.exp(-1), False, model) == pytest.approx(1 / (1 + math.e))
    assert calibrated(math.exp(-1), True, model) == pytest.approx(1 / (1 + math.exp(-2)))


def test_a_known_curve_is_found_again() -> None:
    rng = np.random.default_rng(0)
    raw = rng.uniform(0.02, 1.0, 20_000)
    truth = 1 / (1 + np.exp(-(3.0 + 1.5 * np.log(raw))))
    right = rng.random(len(raw)) < truth
    found = fit_logistic(raw.tolist(), right.tolist())
    assert found.intercept == pytest.approx(3.0, abs=0.15)
    assert found.slope == pytest.approx(1.5, abs=0.1)


@pytest.mark.parametrize("right", [True, False])
def test_answers_all_alike_give_a_finite_curve_near_their_rate(right: bool) -> None:
    found = fit_logistic([0.2, 0.5, 0.9] * 10, [right] * 30)
    model = ConfidenceModel(box=found, not_found=found, suite="test", answers=30)
    assert abs(calibrated(0.5, False, model) - right) < 0.15


def test_surer_tokens_never_mean_less() -> None:
    assert fit_logistic([0.1, 0.2, 0.8, 0.9], [True, True, False, False]).slope == 0.0


def test_nothing_cannot_be_fitted() -> None:
    with pytest.raises(ValueError, match="no answers"):
        fit_logistic([], [])


def test_calibration_error_by_hand() -> None:
    # Bins 0.1 and 0.8: |0.145 - 0.5| * 2/4 + |0.8 - 1| * 2/4.
    assert calibration_error([0.1, 0.19, 0.8, 0.8], [False, True, True, True]) == pytest.approx(0.2775, abs=1e-9)
