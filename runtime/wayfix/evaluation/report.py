"""The report of an evaluation: what was asked, every figure with its interval, every outcome; and its table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wayfix.errors import UnreadableReport
from wayfix.evaluation.figures import (
    Bin,
    Figure,
    accuracy,
    by_kind,
    effort,
    figure,
    local_by_distractors,
    regional_by_distance,
    times,
)
from wayfix.evaluation.outcome import Outcome

REPORT_VERSION = 1
CLEAN = "clean"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class RunConfig(_Part):
    """What was run; equal configurations give equal outcomes but for time."""

    suite: str
    """synth-v1, synth or file."""
    suite_sha256: str
    """Of queries, truths and candidates of the whole suite, in order."""
    scenes: int
    queries: int
    seed: int
    policy: str
    policy_detail: str = ""
    """Of a remote policy: the model, and where it is served, without credentials."""
    workflow: str
    turns: int
    tools: list[str]
    conditions: list[str]
    budget_s: float | None


class LandmarkRow(_Part):
    """Hit@1 of the queries that name a landmark and have a target, under one condition (Urbex, Table 10)."""

    condition: str
    hit1: Figure
    less_than_clean: Figure | None
    """Clean minus this, paired by query; None for clean itself."""


class EvalReport(_Part):
    """All of a run. `clean` outcomes make every figure but those of `landmarks`."""

    version: Annotated[int, Field(le=REPORT_VERSION)] = REPORT_VERSION
    config: RunConfig
    remarks: list[str] = []
    accuracy: dict[str, Figure]
    effort: dict[str, Figure]
    by_kind: dict[str, dict[str, Figure]]
    regional: list[Bin]
    local: list[Bin]
    landmarks: list[LandmarkRow]
    without_landmark: Figure
    """Hit@1 of the queries that name none."""
    times: dict[str, dict[str, float]]
    outcomes: list[Outcome]
    machine: dict[str, Any] = {}
    versions: dict[str, Any] = {}
    commit: str | None = None

    def save(self, path: Path) -> None:
        """Write as JSON."""
        path.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> EvalReport:
        """Read a saved report; UnreadableReport where it is none."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            what = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            raise UnreadableReport(f"{path} is no report of this version of `wayfix eval --json`: {what}") from error

    def summary(self) -> dict[str, Any]:
        """Everything but the single outcomes: what is kept in docs/benchmarks."""
        return self.model_dump(mode="json", exclude={"outcomes"})


def make_report(
    config: RunConfig, outcomes: Sequence[Outcome], remarks: Sequence[str], environment: dict[str, Any]
) -> EvalReport:
    """All figures of a run's outcomes."""
    clean = [o for o in outcomes if o.condition == CLEAN]
    return EvalReport(
        config=config,
        remarks=list(remarks),
        accuracy=accuracy(clean),
        effort=effort(clean),
        by_kind=by_kind(clean),
        regional=regional_by_distance(clean),
        local=local_by_distractors(clean),
        landmarks=_landmark_rows(outcomes, config.conditions),
        without_landmark=accuracy([o for o in clean if o.landmark is None])["hit@1"],
        times=times(clean),
        outcomes=list(outcomes),
        **environment,
    )


def _landmark_rows(outcomes: Sequence[Outcome], conditions: Sequence[str]) -> list[LandmarkRow]:
    named = [o for o in outcomes if o.landmark is not None and o.target is not None and o.candidates]
    clean = {o.id: o for o in named if o.condition == CLEAN}
    rows = []
    for condition in conditions:
        part = [o for o in named if o.condition == condition]
        lost = figure([o for o in part if o.id in clean], lambda o: float(clean[o.id].hit()) - float(o.hit()))
        rows.append(
            LandmarkRow(
                condition=condition,
                hit1=figure(part, lambda o: o.hit()),
                less_than_clean=None if condition == CLEAN or not clean else lost,
            )
        )
    return rows
