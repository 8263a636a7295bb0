"""An episode: the views a search has opened, and the history its policy reads."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import Any

from wayfix.agent.messages import Message, Prompt
from wayfix.agent.protocol import (
    ANSWER_NOW_TEXT,
    CALL_NOW_TEXT,
    MAX_TURNS,
    OVERVIEW_TEXT,
    QUERY_TEXT,
    SYSTEM_TEXT,
    TURNS_LEFT_TEXT,
)
from wayfix.errors import InvalidQuery, ToolError, UnknownView, WrongStep
from wayfix.geo.boxes import UnitBox, WorldBox
from wayfix.tools.arguments import LandmarkQuery, ObliqueRender, ToolCall, ZoomIn, tool_name
from wayfix.tools.toolbox import Toolbox, ToolResult
from wayfix.views.view import View

MAX_QUERY_CHARS = 1000
_count = itertools.count(1)


def check_query(query: object) -> str:
    """The query stripped of surrounding white space. Raises InvalidQuery where it is empty, too long, or no text."""
    if not isinstance(query, str):
        raise InvalidQuery(f"a query is text, got {type(query).__name__}")
    text = query.strip()
    if not text:
        raise InvalidQuery("the query is empty; say what to find, such as 'the red car next to the police station'")
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise InvalidQuery("the query is not valid Unicode: it holds half a surrogate pair; send it as UTF-8")
    if len(text) > MAX_QUERY_CHARS:
        raise InvalidQuery(f"the query has {len(text)} characters, at most {MAX_QUERY_CHARS} are taken")
    return text


@dataclass
class Episode:
    """State of one search. `views` is ordered; `messages` grows by two a turn and never changes backwards."""

    query: str
    toolbox: Toolbox
    max_turns: int = MAX_TURNS
    workflow: tuple[str, ...] = ()
    """Tools that must be called in this order, each once, before the answer; empty: the policy is free."""
    id: str = field(default_factory=lambda: f"e{next(_count)}")
    views: dict[str, View] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    turns: int = 0
    steps: int = 0
    """Steps of the workflow that are done."""
    best: WorldBox | None = None
    """The best region so far, for a partial answer: the last candidate, else crop, else landmark looked at."""

    def __post_init__(self) -> None:
        overview = self.toolbox.overview()
        self.views[overview.id] = overview
        extent = overview.region
        place = OVERVIEW_TEXT.format(width=round(extent.width), height=round(extent.height))
        system = SYSTEM_TEXT.replace("{max_turns}", str(self.max_turns))
        self.messages.append(Message("system", (system,)))
        self.messages.append(Message("user", (overview, place, QUERY_TEXT.format(query=self.query))))

    def prompt(self, must_answer: bool) -> Prompt:
        """What the policy reads before its next turn."""
        messages = tuple(self.messages)
        must_answer = must_answer or self._workflow_done
        must_call = None if must_answer or not self.workflow else self.workflow[self.steps]
        if must_answer:
            messages += (Message("user", (ANSWER_NOW_TEXT,)),)
        elif must_call:
            messages += (Message("user", (CALL_NOW_TEXT.format(tool=must_call),)),)
        return Prompt(tuple(self.toolbox.schemas()), messages, self.query, must_answer, must_call)

    def said(self, text: str) -> None:
        """Record the policy's turn."""
        self.turns += 1
        self.messages.append(Message("assistant", (text,)))

    def execute(self, call: ToolCall) -> ToolResult:
        """Run a tool call, add its view, record its answer. Raises ToolError, recording nothing, if it cannot be."""
        if self.workflow and (self._workflow_done or tool_name(call) != self.workflow[self.steps]):
            raise WrongStep(f"{tool_name(call)} is not the next step; {self._next_step}")
        result = self.toolbox.run(call, self.views)
        self.steps += 1
        if result.view is not None:
            self.views[result.view.id] = result.view
        self._remember_region(call, result)
        self._answer(result.content, result.view)
        return result

    @property
    def _workflow_done(self) -> bool:
        return bool(self.workflow) and self.steps >= len(self.workflow)

    @property
    def _next_step(self) -> str:
        return "answer now" if self._workflow_done else f"call {self.workflow[self.steps]}"

    def check_answer_allowed(self, forced: bool) -> None:
        """WrongStep where a fixed workflow has steps left, unless no turn or time is left for them."""
        if self.workflow and not self._workflow_done and not forced:
            raise WrongStep(f"an answer is not the next step; {self._next_step}")

    def refuse(self, error: ToolError) -> dict[str, Any]:
        """Record an error as the answer to the policy's turn; it has cost that turn."""
        content = {"error": {"code": error.code, "message": str(error)}}
        self._answer(content, None)
        return content

    def world_box(self, view_id: str, box: UnitBox) -> WorldBox:
        """The world box of a final answer, with heights where the scene has them. Raises UnknownView."""
        view = self.views.get(view_id)
        if view is None or view.transform is None:
            usable = ", ".join(v.id for v in self.views.values() if v.bev)
            raise UnknownView(f"an answer is a box in one of the views {usable}, not in {view_id!r}")
        return self.with_heights(view.transform.box_to_world(box))

    def with_heights(self, box: WorldBox) -> WorldBox:
        """A box with the scene's ground and top heights, None where they are not known."""
        ground, top = self.toolbox.views.scene.heights_in(box)
        if ground is None or top is None:
            return WorldBox(box.min_x, box.min_y, box.max_x, box.max_y)
        return WorldBox(box.min_x, box.min_y, box.max_x, box.max_y, ground, max(top, ground))

    def _remember_region(self, call: ToolCall, result: ToolResult) -> None:
        transform = self.views[call.source_view_id].transform
        assert transform is not None, "the toolbox refuses other views"
        if isinstance(call, (ObliqueRender, ZoomIn)):
            self.best = transform.box_to_world(call.box)
        elif isinstance(call, LandmarkQuery) and result.content.get("box"):
            self.best = transform.box_to_world(tuple(result.content["box"]))

    def _answer(self, content: dict[str, Any], view: View | None) -> None:
        left = TURNS_LEFT_TEXT.format(left=self.max_turns - self.turns)
        # The query again after each answer: a small model reads a new image with it close at hand.
        parts: tuple[str | View, ...] = (
            json.dumps(content, ensure_ascii=False),
            QUERY_TEXT.format(query=self.query),
            left,
        )
        self.messages.append(Message("tool", (view, *parts) if view is not None else parts))
