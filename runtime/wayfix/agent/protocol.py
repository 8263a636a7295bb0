"""The text protocol between loop and policy: what the prompt says, and how an action is written and read."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from wayfix.errors import InvalidArguments, MalformedAction
from wayfix.geo.boxes import UnitBox, parse_unit_box
from wayfix.tools.arguments import ToolCall, parse_call

MAX_TURNS = 8
"""Assistant turns of an episode: up to seven tool calls and one answer (Urbex, A.1)."""

MAX_ACTION_CHARS = 8192

SYSTEM_TEXT = """You find one object in a city from a sentence. You see the city from above, north up.

Views: v0 is the whole scene; tools give further ones. Positions in a view are integers from 0 to 1000: x runs right \
(east) from the left edge, y runs down (south) from the top edge. A box is [x_min, y_min, x_max, y_max].
Left, right, above and below in the sentence are west, east, north and south on the map.

Each turn, think briefly, then write exactly one action, either a tool call
<tool_call>{"name": ..., "arguments": {...}}</tool_call>
or the final answer, a tight box around the object in a view you have seen (not in an oblique one),
<answer>{"view_id": "v1", "box": [x_min, y_min, x_max, y_max]}</answer>
or, if the scene does not hold such an object,
<answer>{"not_found": true}</answer>

Small objects can hardly be seen in v0: find the place first, zoom in, check, then answer. You have at most \
{max_turns} turns."""

OVERVIEW_TEXT = "View v0: the whole scene, {width} m wide and {height} m high."
QUERY_TEXT = "Find: {query}"
TURNS_LEFT_TEXT = "Turns left: {left}."
CALL_NOW_TEXT = "Now call {tool}: no other action is possible."
ANSWER_NOW_TEXT = "Answer now: no further tool call is possible."

_ONE_ACTION = "write exactly one <tool_call>{...}</tool_call> or <answer>{...}</answer>"
_ACTION = re.compile(r"<(tool_call|answer)>(.*?)</\1>", re.DOTALL)


@dataclass(frozen=True)
class Answer:
    """The final box, in units of a view of the episode."""

    view_id: str
    box: UnitBox


@dataclass(frozen=True)
class NotFound:
    """The final answer that no such object is in the scene."""


Action = ToolCall | Answer | NotFound


def parse_action(text: str) -> tuple[str, Action]:
    """The thought and the action in an assistant's text.

    Raises MalformedAction, UnknownTool, InvalidArguments or InvalidBox with a message the policy can act on.
    """
    if len(text) > MAX_ACTION_CHARS:
        raise MalformedAction(
            f"the turn has {len(text)} characters, at most {MAX_ACTION_CHARS} are read; {_ONE_ACTION}"
        )
    found = list(_ACTION.finditer(text))
    if len(found) != 1:
        raise MalformedAction(f"the turn holds {len(found) or 'no'} actions; {_ONE_ACTION}")
    kind, body = found[0].groups()
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedAction(f"the {kind} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise MalformedAction(f"the {kind} must be a JSON object, got {type(content).__name__}")
    thought = text[: found[0].start()].strip()
    if kind == "tool_call":
        return thought, parse_call(str(content.get("name")), content.get("arguments"))
    return thought, _parse_answer(content)


def _parse_answer(content: dict[str, Any]) -> Answer | NotFound:
    if content.get("not_found") is True and set(content) == {"not_found"}:
        return NotFound()
    if set(content) != {"view_id", "box"} or not isinstance(content["view_id"], str):
        raise InvalidArguments('an answer is {"view_id": "...", "box": [...]} or {"not_found": true}, nothing else')
    return Answer(content["view_id"], parse_unit_box(content["box"]))


def format_call(name: str, arguments: dict[str, Any], thought: str = "") -> str:
    """A turn that calls a tool."""
    # JSON may spell any sign as its code: a name that holds a tag cannot end the call early.
    body = json.dumps({"name": name, "arguments": arguments}).replace("<", "\\u003c")
    return _join(thought, f"<tool_call>{body}</tool_call>")


def format_answer(view_id: str, box: UnitBox, thought: str = "") -> str:
    """A turn that answers with a box."""
    return _join(thought, f"<answer>{json.dumps({'view_id': view_id, 'box': list(box)})}</answer>")


def format_not_found(thought: str = "") -> str:
    """A turn that answers that there is no such object."""
    return _join(thought, '<answer>{"not_found": true}</answer>')


def _join(thought: str, action: str) -> str:
    return f"{thought}\n{action}" if thought else action
