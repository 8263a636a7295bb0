"""Fits an engine's confidence on cities of the validation split."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wayfix.errors import InvalidOption
from wayfix.evaluation.outcome import Outcome
from wayfix.evaluation.run import EvalOptions, Evaluation
from wayfix.evaluation.suite import synth
from wayfix.policy.engine.confidence import calibrated, calibration_error, fit_logistic, write_confidence
from wayfix.policy.engine.manifest import ConfidenceModel
from wayfix.policy.engine.policy import EnginePolicy


def calibrate_engine(
    folder: Path, count: int, seed: int, *, data: Path | None = None, quiet: bool = False
) -> dict[str, Any]:
    """Search, fit, write the fit into engine.json; the figures of it. Raises EngineError and InvalidOption."""
    policy = EnginePolicy(folder, calibrated=False)
    options = EvalOptions(policy="engine", data=data, quiet=quiet)
    report, _ = Evaluation(synth(seed, count), lambda _: policy, options).run()
    answers = [o for o in report.outcomes if o.confidence is not None and o.right is not None]
    cities = sorted({o.scene for o in answers})
    if len(cities) < 2:
        raise InvalidOption(
            f"--n {count} gives answers in {len(cities)} cities; two are needed, so at least 100 queries"
        )
    halves = [[o for o in answers if (cities.index(o.scene) % 2) == half] for half in (0, 1)]
    judged = [(o, _applied(o, fit_confidence(halves[1 - half], "half"))) for half in (0, 1) for o in halves[half]]
    right = [bool(o.right) for o, _ in judged]
    model = fit_confidence(answers, f"synth from seed {seed}, {len(report.outcomes)} queries")
    write_confidence(folder, model)
    return {
        "answers": len(answers),
        "right": sum(right) / len(right),
        "error_before": calibration_error([float(o.confidence or 0.0) for o, _ in judged], right),
        "error_after": calibration_error([c for _, c in judged], right),
        "model": model.model_dump(),
    }


def fit_confidence(answers: Sequence[Outcome], suite: str) -> ConfidenceModel:
    """Curves for boxes and for "not found"; where one kind never came, both share one."""
    everything = [(float(o.confidence or 0.0), bool(o.right), o.code == "not_found") for o in answers]
    curves = {}
    for kind in (False, True):
        part = [(raw, right) for raw, right, absent in everything if absent == kind]
        part = part or [(raw, right) for raw, right, _ in everything]
        curves[kind] = fit_logistic([raw for raw, _ in part], [right for _, right in part])
    return ConfidenceModel(box=curves[False], not_found=curves[True], suite=suite, answers=len(everything))


def _applied(outcome: Outcome, model: ConfidenceModel) -> float:
    return calibrated(float(outcome.confidence or 0.0), outcome.code == "not_found", model)
