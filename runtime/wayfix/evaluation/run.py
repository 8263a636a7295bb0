"""Runs a policy over a suite: every query under every landmark condition, journalled, scored."""

from __future__ import annotations

import hashlib
import queue
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from wayfix.agent.deadline import Deadline, check_budget
from wayfix.agent.loop import Grounder
from wayfix.agent.protocol import MAX_TURNS
from wayfix.bench.report import environment
from wayfix.errors import Cancelled
from wayfix.evaluation.journal import Journal, Order
from wayfix.evaluation.outcome import score
from wayfix.evaluation.queries import Case, QuerySet
from wayfix.evaluation.report import CLEAN, EvalReport, RunConfig, make_report
from wayfix.evaluation.spoilt_landmarks import SpoiltLandmarks
from wayfix.evaluation.suite import Suite, SuiteScene, load
from wayfix.evaluation.trajectory import Trajectory, keep
from wayfix.policy.interface import Policy
from wayfix.scene.scene import Scene
from wayfix.tools.arguments import TOOLS

FIXED_WORKFLOW = ("landmark_query", "zoom_in", "oblique_render")
"""Urbex, D.2: landmark query, zoom, oblique, answer."""

FEW_SCENES = 10
"""With fewer scenes a report says that its intervals are rough."""

PolicyMaker = Callable[[QuerySet], Policy]
"""A policy for one scene; only an oracle looks at the queries."""


@dataclass(frozen=True)
class EvalOptions:
    """How a suite is run."""

    policy: str
    policy_detail: str = ""
    seed: int = 0
    """Of the policy's and the landmark noise's random numbers."""
    workflow: str = "free"
    """free or fixed."""
    turns: int = MAX_TURNS
    tools: tuple[str, ...] = tuple(TOOLS)
    conditions: tuple[str, ...] = (CLEAN,)
    budget_s: float | None = None
    workers: int = 1
    """Queries searched at the same time, each with a scene of its own: for policies that wait for others."""
    pictures: int = 0
    """How many queries keep pictures of their views, spread over the suite; under the first condition only."""
    data: Path | None = None
    """Where the cities are kept between runs; None: they are made anew."""
    traces: Path | None = None
    """A folder for one trace per query and condition."""
    quiet: bool = False


class Evaluation:
    """One run of a policy over a suite.

    With a journal, every outcome is on disk at once, and a run that was stopped goes on from there.
    """

    def __init__(
        self, suite: Suite, make_policy: PolicyMaker, options: EvalOptions, journal_path: Path | None = None
    ) -> None:
        self.suite = suite
        self.options = options
        self._make_policy = make_policy
        self._total = sum(item.count or 0 for item in suite.scenes)
        self.journal = Journal(journal_path, self._config())
        self._running: set[Deadline] = set()

    def run(self) -> tuple[EvalReport, list[Trajectory]]:
        """Search every query, score it, and make the report; the trajectories are those with pictures."""
        options = self.options
        with ExitStack() as stack:
            folder = options.data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wayfix-eval-")))
            for needed in filter(None, (folder, options.traces)):
                needed.mkdir(parents=True, exist_ok=True)
            stack.enter_context(self.journal)
            total = self._total * len(options.conditions) or None
            bar = stack.enter_context(
                tqdm(total=total, desc=self.suite.name, unit="query", disable=options.quiet or None)
            )
            bar.update(len(self.journal.entries))
            seen = 0
            for number, item in enumerate(self.suite.scenes):
                if number not in self.journal.digests:
                    self._run_scene(number, item, folder, seen, bar)
                seen += item.count or 0
        return self._report(), self.journal.trajectories

    def _run_scene(self, number: int, item: SuiteScene, folder: Path, seen: int, bar: tqdm) -> None:
        scene, queries, sha256 = load(item, folder)
        with scene:
            # Conditions in turn: the scene's views and the policy's caches are warm for all but the first.
            for k, condition in enumerate(self.options.conditions):
                meant = [(j, case) for j, case in enumerate(queries.cases) if condition == CLEAN or _spoilable(case)]
                bar.update(len(queries.cases) - len(meant))
                waiting = [((number, j, k), c) for j, c in meant if (number, j, k) not in self.journal.entries]
                self._search_all(scene, queries, condition, waiting, seen, bar)
        self.journal.scene_done(number, sha256)

    def _search_all(
        self,
        scene: Scene,
        queries: QuerySet,
        condition: str,
        waiting: list[tuple[Order, Case]],
        seen: int,
        bar: tqdm,
    ) -> None:
        workers = max(1, min(self.options.workers, len(waiting)))
        policy = self._make_policy(queries)
        with self._grounders(scene, policy, condition, workers) as free, ThreadPoolExecutor(workers) as pool:

            def search(order: Order, case: Case) -> None:
                grounder = free.get()
                try:
                    self._search(grounder, queries, condition, order, case, seen)
                finally:
                    free.put(grounder)

            try:
                for done in as_completed([pool.submit(search, *task) for task in waiting]):
                    done.result()
                    bar.update()
            except BaseException:
                # A remote model may take minutes: whoever stops a run does not wait for it.
                pool.shutdown(wait=False, cancel_futures=True)
                for deadline in tuple(self._running):
                    deadline.cancel()
                raise

    @contextmanager
    def _grounders(
        self, scene: Scene, policy: Policy, condition: str, count: int
    ) -> Iterator[queue.SimpleQueue[Grounder]]:
        options = self.options
        free: queue.SimpleQueue[Grounder] = queue.SimpleQueue()
        with ExitStack() as stack:
            for n in range(count):
                own = scene if n == 0 else stack.enter_context(Scene(scene.folder))
                spoilt = (
                    None
                    if condition == CLEAN
                    else SpoiltLandmarks(own.landmark_index, own.landmarks, condition, options.seed)
                )
                workflow = FIXED_WORKFLOW if options.workflow == "fixed" else ()
                free.put(
                    Grounder(
                        own,
                        policy,
                        max_turns=options.turns,
                        tools=options.tools,
                        workflow=workflow,
                        landmarks=spoilt,
                    )
                )
            yield free

    def _search(
        self, grounder: Grounder, queries: QuerySet, condition: str, order: Order, case: Case, seen: int
    ) -> None:
        options = self.options
        deadline = Deadline(check_budget(options.budget_s))
        self._running.add(deadline)
        try:
            result, episode, trace = grounder.ground(case.query, options.budget_s, deadline=deadline)
        finally:
            self._running.discard(deadline)
        if result.code == Cancelled.code:
            return  # the run was stopped: this query is searched when it goes on
        outcome = score(case, queries, grounder.scene, condition, result, trace)
        total = self._total or len(queries.cases)  # only a file's size is not known before
        shown = order[2] == 0 and (seen + order[1]) * options.pictures % total < options.pictures
        if options.traces is not None:
            number = f"{order[0]:03d}-{order[1]:04d}"
            trace.save(options.traces / f"{number}-{_file_name(case.id)}.{condition}.json")
        self.journal.add(order, outcome, keep(case.id, condition, episode, trace) if shown else None)

    def _config(self) -> RunConfig:
        options = self.options
        return RunConfig(
            suite=self.suite.name,
            suite_sha256="",
            scenes=len(self.suite.scenes),
            queries=self._total,
            seed=options.seed,
            policy=options.policy,
            policy_detail=options.policy_detail,
            workflow=options.workflow,
            turns=options.turns,
            tools=list(options.tools),
            conditions=list(options.conditions),
            budget_s=options.budget_s,
        )

    def _report(self) -> EvalReport:
        outcomes = self.journal.outcomes
        digests = [self.journal.digests[number] for number in sorted(self.journal.digests)]
        config = self._config()
        config.queries = len({o.id for o in outcomes})
        config.suite_sha256 = hashlib.sha256("\n".join(digests).encode()).hexdigest()
        return make_report(config, outcomes, self._remarks(), environment())

    def _remarks(self) -> list[str]:
        remarks = []
        if 1 < len(self.suite.scenes) < FEW_SCENES:
            remarks.append(f"{len(self.suite.scenes)} scenes only: intervals over resampled scenes are rough")
        if len(self.suite.scenes) == 1:
            remarks.append("one scene only: intervals are over resampled queries, and say nothing of other scenes")
        if not any(o.candidates for o in self.journal.outcomes):
            remarks.append("the queries come without candidates: Hit@k, ranks and overlaps cannot be told")
        if self.options.workers > 1:
            remarks.append(f"{self.options.workers} queries were searched at the same time: times include waiting")
        return remarks


def _spoilable(case: Case) -> bool:
    """Whether landmark conditions are measured on it: it names one, and means something (Urbex, D.3)."""
    return case.landmark is not None and case.box is not None


def _file_name(query_id: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in query_id)[:100]
