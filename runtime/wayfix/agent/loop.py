"""The search loop: one sentence in, one georegistered box out, by the deadline."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from wayfix.agent.deadline import Deadline, TurnCosts, check_budget
from wayfix.agent.episode import Episode, check_query
from wayfix.agent.protocol import MAX_ACTION_CHARS, MAX_TURNS, Answer, NotFound, parse_action
from wayfix.agent.result import NOT_FOUND, OK, GroundResult, RankedBox
from wayfix.agent.trace import AlternativeRecord, SizesRecord, Trace, TurnRecord, ViewRecord
from wayfix.errors import PolicyFailed, ToolError, TurnsExhausted, WayfixError
from wayfix.geo.boxes import UNIT_MAX, WorldBox
from wayfix.policy.interface import Chunk, Policy, WarmsUp
from wayfix.policy.scripted import ScriptedPolicy
from wayfix.scene.scene import Scene
from wayfix.tools.arguments import TOOLS, tool_name
from wayfix.tools.toolbox import NameSearch, Toolbox
from wayfix.views.scene_views import SceneViews
from wayfix.views.view import ImageSizes, View

_ANY_QUERY = "the building"

Watcher = Callable[[TurnRecord], None]
"""Called after every turn, for people and logs that follow a search."""


class Grounder:
    """Answers grounding queries on one scene with one policy."""

    def __init__(
        self,
        scene: Scene,
        policy: Policy,
        *,
        max_turns: int = MAX_TURNS,
        tools: Sequence[str] = tuple(TOOLS),
        workflow: Sequence[str] = (),
        landmarks: NameSearch | None = None,
        cache_folder: Path | None = None,
    ) -> None:
        """`workflow` fixes the order of tool calls before the answer; `landmarks` answers in place of the scene's."""
        self.scene = scene
        self.policy = policy
        self.max_turns = max_turns
        self.toolbox = Toolbox(SceneViews(scene, cache_folder=cache_folder), policy.sizes, tools, landmarks)
        self.workflow = tuple(name for name in workflow if name in self.toolbox.offered)
        self.costs = TurnCosts()
        # What every query needs is made before the first one's clock starts.
        self.toolbox.overview()
        if "landmark_query" in self.toolbox.offered and landmarks is None:
            _ = scene.landmark_index
        if isinstance(policy, WarmsUp):
            policy.warm_up(Episode(_ANY_QUERY, self.toolbox, max_turns, self.workflow).prompt(must_answer=False))

    def ground(
        self, query: str, budget_s: float | None = None, watch: Watcher | None = None, deadline: Deadline | None = None
    ) -> tuple[GroundResult, Episode, Trace]:
        """Search for the object of `query` and end by the budget (seconds from now).

        Returns the result, the episode (its views), and the trace. Raises InvalidQuery or InvalidBudget; whatever ends
        a search that has begun is the result's code. A `deadline` of the caller's own can be cancelled from outside.
        """
        # 1. Check what came, start the clock.
        text, budget = check_query(query), check_budget(budget_s)
        deadline = deadline or Deadline(budget)
        episode = Episode(text, self.toolbox, self.max_turns, self.workflow)
        trace = self._new_trace(text)
        # 2. Take turns until an answer, an error that ends the search, or the deadline.
        final: Answer | NotFound | WayfixError
        last = Chunk("")
        try:
            final, last = self._search(episode, trace, deadline, watch)
        except WayfixError as error:
            final = error
        finally:
            with contextlib.suppress(Exception):  # the answer is there; tidying up must not lose it
                self.policy.forget(episode.id)
        # 3. Bring the answer to the world.
        result = self._result(episode, final, last, deadline, None if budget_s is None else budget * 1000)
        trace.code, trace.message = result.code, result.message
        if result.box is not None:
            trace.box = (result.box.min_x, result.box.min_y, result.box.max_x, result.box.max_y)
        trace.views = [_view_record(view) for view in episode.views.values()]
        return result, episode, trace

    def _search(
        self, episode: Episode, trace: Trace, deadline: Deadline, watch: Watcher | None
    ) -> tuple[Answer | NotFound, Chunk]:
        while episode.turns < self.max_turns:
            deadline.check()
            started = time.monotonic()
            last_turn = episode.turns == self.max_turns - 1
            must_answer = last_turn or not self.costs.affordable(deadline)
            reply = self._reply(episode, must_answer, deadline)
            policy_ms = (time.monotonic() - started) * 1000
            record, final = self._act(episode, reply, policy_ms, must_answer)
            trace.turns.append(record)
            self.costs.add("answer" if final else record.action, time.monotonic() - started)
            if watch:
                watch(record)
            if final is not None:
                if must_answer and not last_turn:
                    self.costs.relax()
                return final, reply
        raise TurnsExhausted(f"no final answer in {self.max_turns} turns")

    def _reply(self, episode: Episode, must_answer: bool, deadline: Deadline) -> Chunk:
        """The policy's whole turn, its pieces joined; the deadline is checked between them."""
        text, last = "", Chunk("")
        stream = None
        prompt = episode.prompt(must_answer)
        try:
            stream = self.policy.respond(episode.id, prompt, deadline)
            for chunk in stream:
                text, last = text + chunk.text, chunk
                deadline.check()
                if len(text) > MAX_ACTION_CHARS:
                    break
        except WayfixError:
            raise
        except Exception as error:
            raise PolicyFailed(f"the policy {self.policy.name} failed: {type(error).__name__}: {error}") from error
        finally:
            close = getattr(stream, "close", None)
            if close is not None:
                with contextlib.suppress(Exception):
                    close()
        # What a policy says is not to be trusted: results and traces are JSON, without NaN and half surrogates.
        confidence = last.confidence if last.confidence is not None and 0 <= last.confidence <= 1 else None
        alternatives = tuple(a for a in last.alternatives if 0 <= a.confidence <= 1)
        tokens = (_count_or_none(last.prompt_tokens), _count_or_none(last.completion_tokens))
        return Chunk(text.encode("utf-8", "replace").decode(), confidence, alternatives, *tokens)

    def _act(
        self, episode: Episode, reply: Chunk, policy_ms: float, must_answer: bool
    ) -> tuple[TurnRecord, Answer | NotFound | None]:
        episode.said(reply.text)
        started = time.monotonic()
        final: Answer | NotFound | None = None
        result, view_id = None, None
        try:
            _, action = parse_action(reply.text)
            if isinstance(action, (Answer, NotFound)):
                episode.check_answer_allowed(must_answer)
                if isinstance(action, Answer):
                    episode.world_box(action.view_id, action.box)
                final, kind = action, "answer" if isinstance(action, Answer) else "not_found"
            else:
                done = episode.execute(action)
                kind, result = tool_name(action), done.content
                view_id = done.view.id if done.view else None
        except ToolError as error:
            kind, result = "invalid", episode.refuse(error)
        record = TurnRecord(
            text=reply.text,
            confidence=reply.confidence,
            alternatives=[
                AlternativeRecord(view_id=a.view_id, box=a.box, confidence=a.confidence) for a in reply.alternatives
            ],
            action=kind,
            result=result,
            view_id=view_id,
            policy_ms=round(policy_ms, 3),
            tool_ms=round((time.monotonic() - started) * 1000, 3),
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.completion_tokens,
        )
        return record, final

    def _result(
        self,
        episode: Episode,
        final: Answer | NotFound | WayfixError,
        last: Chunk,
        deadline: Deadline,
        budget_ms: float | None,
    ) -> GroundResult:
        box: WorldBox | None = None
        uncertainty = None
        if isinstance(final, Answer):
            box = episode.world_box(final.view_id, final.box)
            region = episode.views[final.view_id].region
            uncertainty = self._uncertainty(max(region.width, region.height) / UNIT_MAX)
            code, message = OK, "found"
        elif isinstance(final, NotFound):
            code, message = NOT_FOUND, "the policy found no such object in this scene"
        else:
            code, message = final.code, str(final)
            if episode.best is not None:
                box = episode.with_heights(episode.best)
                # The object is somewhere in the region: nothing narrower is known.
                uncertainty = self._uncertainty(max(box.width, box.height) / 2)
        alternatives = [
            RankedBox(episode.world_box(a.view_id, a.box), a.confidence)
            for a in last.alternatives
            if a.view_id in episode.views and episode.views[a.view_id].bev
        ]
        return GroundResult(
            query=episode.query,
            code=code,
            message=message,
            partial=box is not None and code != OK,
            box=box,
            confidence=last.confidence,
            alternatives=tuple(alternatives),
            policy=self.policy.name,
            turns=episode.turns,
            time_ms=deadline.elapsed() * 1000,
            budget_ms=budget_ms,
            uncertainty_m=uncertainty,
        )

    def _uncertainty(self, resolution_m: float) -> float | None:
        accuracy = self.scene.manifest.wgs84_accuracy_m
        return None if accuracy is None else math.hypot(accuracy, self.scene.manifest.gsd_m, resolution_m)

    def _new_trace(self, query: str) -> Trace:
        sizes = self.policy.sizes
        return Trace(
            query=query,
            scene=self.scene.id,
            revision=self.scene.manifest.revision,
            policy=self.policy.name,
            sizes=SizesRecord(overview=sizes.overview, zoom=sizes.zoom, oblique=sizes.oblique),
            tools=list(self.toolbox.offered),
            max_turns=self.max_turns,
            workflow=list(self.workflow),
        )


def replay(scene: Scene, trace: Trace) -> tuple[GroundResult, Episode, Trace]:
    """Run a recorded episode again without its policy; the result is the same but for time."""
    sizes = ImageSizes(**trace.sizes.model_dump())
    policy = ScriptedPolicy(trace.script(), sizes, trace.policy)
    grounder = Grounder(scene, policy, max_turns=trace.max_turns, tools=trace.tools, workflow=trace.workflow)
    return grounder.ground(trace.query)


def _count_or_none(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _view_record(view: View) -> ViewRecord:
    r = view.region
    return ViewRecord(
        id=view.id,
        size_px=(view.image.shape[1], view.image.shape[0]),
        region=(r.min_x, r.min_y, r.max_x, r.max_y),
        direction=view.direction,
    )
