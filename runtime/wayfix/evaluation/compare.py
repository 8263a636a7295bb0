"""Two runs on the same queries, compared query by query."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import BaseModel, ConfigDict

from wayfix.errors import NotComparable
from wayfix.evaluation.figures import Figure, figure
from wayfix.evaluation.outcome import Outcome
from wayfix.evaluation.report import CLEAN, EvalReport
from wayfix.evaluation.tables import aligned, interval, percent, plain

MEASURES: dict[str, Callable[[Outcome], float | bool | None]] = {
    "right": lambda o: o.right,
    "hit@1": lambda o: o.hit() if o.target is not None and o.candidates else None,
    "hit@3": lambda o: o.hit(3) if o.target is not None and o.candidates else None,
    "hit@5": lambda o: o.hit(5) if o.target is not None and o.candidates else None,
    "iou_2d": lambda o: o.iou_2d,
    "iou_3d": lambda o: o.iou_3d,
    "point_f1": lambda o: o.point_f1,
    "turns": lambda o: o.turns,
    "total_ms": lambda o: o.total_ms,
}
FRACTIONS = frozenset(MEASURES) - {"turns", "total_ms"}


class Difference(BaseModel):
    """A measure in both runs, on the queries both have, and B minus A with its paired interval."""

    model_config = ConfigDict(extra="forbid")

    a: float | None
    b: float | None
    difference: Figure

    @property
    def clear(self) -> bool:
        """The interval excludes zero."""
        low, high = self.difference.low, self.difference.high
        return low is not None and high is not None and (low > 0 or high < 0)


class Comparison(BaseModel):
    """B against A."""

    model_config = ConfigDict(extra="forbid")

    a: str
    b: str
    queries: int
    measures: dict[str, Difference]
    both_right: int
    only_a_right: int
    only_b_right: int
    neither_right: int
    remarks: list[str]


def compare(a: EvalReport, b: EvalReport) -> Comparison:
    """Paired differences under clean landmarks. Raises NotComparable where the runs share no query."""
    before = {o.id: o for o in a.outcomes if o.condition == CLEAN}
    after = {o.id: o for o in b.outcomes if o.condition == CLEAN}
    shared = [name for name in before if name in after]
    if not shared:
        raise NotComparable(
            f"the runs share no query: one is {a.config.suite} with seed {a.config.seed}, the other {b.config.suite} "
            f"with seed {b.config.seed}; run both on the same suite"
        )
    for name in shared:
        if (before[name].query, before[name].target) != (after[name].query, after[name].target):
            raise NotComparable(f"query {name} has another text or target in the second run: the suites differ")
    pairs = [(before[name], after[name]) for name in shared]
    rights = [(x.right, y.right) for x, y in pairs]
    return Comparison(
        a=_title(a),
        b=_title(b),
        queries=len(shared),
        measures={name: _difference(pairs, value) for name, value in MEASURES.items()},
        both_right=rights.count((True, True)),
        only_a_right=rights.count((True, False)),
        only_b_right=rights.count((False, True)),
        neither_right=rights.count((False, False)),
        remarks=_remarks(a, b, len(before), len(after), len(shared)),
    )


def print_comparison(found: Comparison) -> None:
    """The comparison as a table."""
    print(
        f"A  {found.a}\nB  {found.b}\n"
        f"{found.queries} queries in both; differences are B - A, paired, with 95 % intervals\n"
    )
    rows = [("measure", "A", "B", "B - A", "95 %", "")]
    for name, entry in found.measures.items():
        show = percent if name in FRACTIONS else plain
        mark = "clear" if entry.clear else ""
        difference = entry.difference
        rows.append((name, show(entry.a), show(entry.b), show(difference.value), interval(difference, show), mark))
    print(aligned(rows))
    print(
        f"\nright in both {found.both_right}, only in A {found.only_a_right}, only in B {found.only_b_right}, "
        f"in neither {found.neither_right}"
    )
    for remark in found.remarks:
        print(f"note: {remark}")


def _difference(pairs: list[tuple[Outcome, Outcome]], value: Callable[[Outcome], float | bool | None]) -> Difference:
    known = [(x, y) for x, y in pairs if value(x) is not None and value(y) is not None]
    other = {x.id: y for x, y in known}
    firsts = [x for x, _ in known]
    return Difference(
        a=figure(firsts, value).value,
        b=figure([y for _, y in known], value).value,
        difference=figure(firsts, lambda x: float(value(other[x.id]) or 0) - float(value(x) or 0)),
    )


def _title(report: EvalReport) -> str:
    config = report.config
    parts = [config.policy, config.policy_detail, config.suite, f"seed {config.seed}", f"workflow {config.workflow}"]
    parts += [f"{config.turns} turns", f"tools {', '.join(config.tools) or 'none'}"]
    return ", ".join(part for part in parts if part)


def _remarks(a: EvalReport, b: EvalReport, first: int, second: int, shared: int) -> list[str]:
    remarks = []
    if first != second or first != shared:
        remarks.append(f"A has {first} queries and B {second}; only the {shared} that both have are compared")
    if a.machine.get("cpu") != b.machine.get("cpu"):
        remarks.append("the runs are of different machines: their times do not compare policies")
    elif a.times and b.times:
        remarks.append("times of two runs on a shared machine differ by chance too")
    return remarks
