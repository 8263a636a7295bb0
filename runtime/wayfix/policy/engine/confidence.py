"""Confidence as the probability of being right: a logistic function of how sure the model was of what it wrote."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wayfix.policy.engine.manifest import MANIFEST, ConfidenceModel, Logistic, read_manifest

RIDGE = 0.01
"""Keeps the slope finite where right and wrong answers can be told apart without error."""
_PRIOR = 1e-3
"""A trace of ridge on everything: all answers alike have no finite maximum."""
_STEPS = 50


def calibrated(raw: float, not_found: bool, model: ConfidenceModel | None) -> float:
    """The probability 0..1 that an answer is right; `raw` is the geometric mean of its tokens' probabilities.

    Without a model it is `raw` itself.
    """
    if model is None:
        return raw
    curve = model.not_found if not_found else model.box
    return 1.0 / (1.0 + math.exp(-(curve.intercept + curve.slope * _log(raw))))


def fit_logistic(raw: Sequence[float], right: Sequence[bool]) -> Logistic:
    """Maximum likelihood with a little ridge on the slope, by Newton's method; the base rate where all are alike.

    Raises ValueError where there is nothing to fit.
    """
    if not len(raw):
        raise ValueError("there are no answers to fit confidence to")
    x = np.stack([np.ones(len(raw)), [_log(value) for value in raw]], axis=1)
    y = np.asarray(right, np.float64)
    weights = np.array([math.log((y.sum() + 1) / (len(y) - y.sum() + 1)), 0.0])
    for _ in range(_STEPS):
        chance = 1 / (1 + np.exp(-np.clip(x @ weights, -30, 30)))
        gradient = x.T @ (y - chance) - RIDGE * np.array([0.0, weights[1]]) - _PRIOR * weights
        curvature = (x * (chance * (1 - chance))[:, None]).T @ x + np.diag([_PRIOR, _PRIOR + RIDGE])
        step = np.linalg.solve(curvature, gradient)
        weights = weights + step
        if float(np.abs(step).max()) < 1e-9:
            break
    # More certain tokens never make a right answer less likely: a falling curve is noise.
    if weights[1] < 0:
        return Logistic(intercept=math.log((y.sum() + 1) / (len(y) - y.sum() + 1)), slope=0.0)
    return Logistic(intercept=round(float(weights[0]), 6), slope=round(float(weights[1]), 6))


def calibration_error(confidence: Sequence[float], right: Sequence[bool], bins: int = 10) -> float:
    """Expected calibration error over bins of equal width, 0..1."""
    c, y = np.asarray(confidence, np.float64), np.asarray(right, np.float64)
    number: NDArray[np.int64] = np.minimum((c * bins).astype(np.int64), bins - 1)
    gaps = [abs(c[number == b].mean() - y[number == b].mean()) * (number == b).mean() for b in np.unique(number)]
    return float(sum(gaps))


def write_confidence(folder: Path, model: ConfidenceModel) -> None:
    """Put a fitted model into engine.json, whole or not at all. Raises EngineError."""
    manifest = read_manifest(folder, verify=False).model_copy(update={"confidence": model})
    temporary = folder / f"{MANIFEST}.tmp"
    temporary.write_text(json.dumps(manifest.model_dump(mode="json"), indent=1) + "\n", encoding="utf-8")
    temporary.replace(folder / MANIFEST)


def _log(raw: float) -> float:
    return math.log(max(raw, 1e-6))
