"""The grammar of a turn, so that a model can write nothing else: a bounded thought, then one well-formed action.

llguidance turns JSON schemas and a few rules into the set of tokens that may come next. What a grammar cannot say, that
a box's second corner lies beyond its first, is brought in as the numbers become known: the grammar is made anew with
what is already written.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import llguidance
import numpy as np
from numpy.typing import NDArray

from wayfix.agent.messages import Prompt
from wayfix.geo.boxes import UNIT_MAX

_JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As json.dumps writes, and with it every turn that a model was trained on."""

_FIRST = re.compile(r'box": \[(\d+),')
_SECOND = re.compile(r'box": \[(\d+), (\d+),')
_KEPT_GRAMMARS = 64
_ANSWER_TAG = "answer"
_CALL_TAG = "tool_call"

Corner = tuple[int, ...]
"""The numbers of a box that are written: none, its first or its first two."""


class ActionGrammar:
    """The protocol's grammar for one tokenizer."""

    def __init__(self, tokenizer_json: str, end_token: int, logits_width: int, max_thought_tokens: int = 64) -> None:
        """`tokenizer_json` is the content of tokenizer.json; logits may be wider than it has tokens."""
        self._tokenizer = llguidance.LLTokenizer(tokenizer_json, eos_token=end_token)
        self.logits_width, self.max_thought_tokens = logits_width, max_thought_tokens
        added = {token["content"]: token["id"] for token in json.loads(tokenizer_json).get("added_tokens", ())}
        # A tag that is a token of its own is written as that token, else letter by letter.
        self._tags = {
            tag: tag if tag in added and self._tokenizer.is_special_token(added[tag]) else json.dumps(tag)
            for name in (_ANSWER_TAG, _CALL_TAG)
            for tag in (f"<{name}>", f"</{name}>")
        }
        self._ready: OrderedDict[str, Any] = OrderedDict()

    def start(self, prompt: Prompt) -> ActionMatcher:
        """A matcher for the next turn of an episode."""
        views = [view.id for message in prompt.messages for view in message.views if view.bev]
        return ActionMatcher(self, _Choices(prompt, views))

    def matcher(self, actions: Sequence[tuple[str, dict[str, Any]]], thought_tokens: int) -> Any:
        """An llguidance matcher for a thought of so many tokens and one of these actions (tag, JSON schema)."""
        text = self._lark(actions, thought_tokens)
        if text not in self._ready:
            made = llguidance.LLMatcher(self._tokenizer, llguidance.LLMatcher.grammar_from_lark(text))
            if made.is_error():
                raise ValueError(f"the action grammar is not valid: {made.get_error()}")
            self._ready[text] = made
            if len(self._ready) > _KEPT_GRAMMARS:
                self._ready.popitem(last=False)
        self._ready.move_to_end(text)
        return self._ready[text].deep_copy()

    def bytes_of(self, tokens: Sequence[int]) -> bytes:
        """What tokens stand for."""
        return self._tokenizer.decode_bytes(list(tokens))

    def _lark(self, actions: Sequence[tuple[str, dict[str, Any]]], thought_tokens: int) -> str:
        rules = [
            f"a{number}: {self._tags[f'<{tag}>']} j{number} {self._tags[f'</{tag}>']}"
            for number, (tag, _) in enumerate(actions)
        ]
        schemas = [
            f"j{number}: %json {json.dumps({'x-guidance': _JSON_STYLE, **schema})}"
            for number, (_, schema) in enumerate(actions)
        ]
        choice = " | ".join(f"a{number}" for number in range(len(actions)))
        if thought_tokens:
            head = [f"start: thought ( {choice} )", f"thought[max_tokens={thought_tokens}]: /[^<]*/"]
        else:
            head = [f"start: {choice}"]
        return "\n".join([*head, *rules, *schemas]) + "\n"


class ActionMatcher:
    """One turn as it is written."""

    def __init__(self, grammar: ActionGrammar, choices: _Choices) -> None:
        self._grammar, self._choices = grammar, choices
        self._tokens: list[int] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._corner: Corner = ()
        self._matcher = grammar.matcher(choices.actions(), grammar.max_thought_tokens)
        self.text = ""
        """What is written, up to the last whole character."""

    @property
    def done(self) -> bool:
        """Whether the action is complete: nothing may follow but the end of the turn."""
        return self._matcher.is_stopped()

    def allowed(self) -> NDArray[np.bool_]:
        """Which tokens may come next, (logits_width,)."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.zeros(self._grammar.logits_width, np.bool_)
        known = np.unpackbits(bits, bitorder="little")[: len(allowed)]
        allowed[: len(known)] = known
        return allowed

    def forced(self) -> list[int]:
        """The tokens that come next where there is no choice; may be none."""
        return [] if self.done else self._matcher.compute_ff_tokens()

    def advance(self, token: int) -> None:
        """Write a token. Raises ValueError where it is not allowed."""
        if self.done or not self._matcher.consume_token(token):
            raise ValueError(f"token {token} is not allowed after {self.text!r}")
        self._tokens.append(token)
        self.text += self._decoder.decode(self._grammar.bytes_of([token]))
        self._narrow()

    def force_answer(self) -> bool:
        """End the thought here, so that only a final answer may follow.

        False, with nothing changed, where an action has begun, or a fixed workflow allows no answer yet.
        """
        if "<" in self.text or self.done or not self._choices.may_answer:
            return False
        return self._swap(self._choices.actions(answer_only=True), len(self._tokens))

    def _narrow(self) -> None:
        """Let a box's far corner be only what lies beyond its near one, as soon as that is written.

        Each bound comes in a whole number before it is needed, so that no token reaches beyond it.
        """
        action = self.text.find("<")
        if action < 0 or len(self._corner) == 2 or self.done:
            return
        found = (_SECOND if self._corner else _FIRST).search(self.text, action)
        if found is None:
            return
        corner = tuple(int(number) for number in found.groups())
        written = self.text[action:]
        kept = [choice for choice in self._choices.actions(corner) if written.startswith(_beginning(*choice))]
        # Where a token wrote more than a grammar of the box's order lets through, the loop refuses the box.
        self._corner = corner if self._swap(kept, self._grammar.max_thought_tokens) else (0, 0)

    def _swap(self, actions: Sequence[tuple[str, dict[str, Any]]], thought_tokens: int) -> bool:
        matcher = self._grammar.matcher(actions, thought_tokens)
        if self._tokens and not matcher.consume_tokens(self._tokens):
            return False
        self._matcher = matcher
        return True


class _Choices:
    """What a prompt lets a turn do."""

    def __init__(self, prompt: Prompt, views: Sequence[str]) -> None:
        self._prompt, self._views = prompt, list(dict.fromkeys(views))

    @property
    def may_answer(self) -> bool:
        """Whether a final answer is among the actions."""
        return self._prompt.must_answer or self._prompt.must_call is None

    def actions(self, corner: Corner = (), *, answer_only: bool = False) -> list[tuple[str, dict[str, Any]]]:
        """Tag and JSON schema of each action, boxes beginning with `corner`."""
        prompt = self._prompt
        answers: list[tuple[str, dict[str, Any]]] = [(_ANSWER_TAG, _object({"not_found": {"const": True}}))]
        if self._views:
            box = _object({"view_id": {"enum": self._views}, "box": _box(corner)})
            answers.insert(0, (_ANSWER_TAG, box))
        if prompt.must_answer or answer_only:
            return answers
        functions = [tool["function"] for tool in prompt.tools]
        if prompt.must_call is not None:
            functions, answers = [one for one in functions if one["name"] == prompt.must_call], []
        return [*((_CALL_TAG, self._call(function, corner)) for function in functions), *answers]

    def _call(self, function: dict[str, Any], corner: Corner) -> dict[str, Any]:
        parameters = function["parameters"]
        arguments = {name: self._argument(name, field, corner) for name, field in parameters["properties"].items()}
        called = _object(arguments, parameters["required"])
        return _object({"name": {"const": function["name"]}, "arguments": called})

    def _argument(self, name: str, field: dict[str, Any], corner: Corner) -> dict[str, Any]:
        if name == "source_view_id":
            return {"enum": self._views}
        if name.endswith("_box"):
            return _box(corner)
        if field.get("type") == "string" and "enum" not in field:
            # A tag within a text would end the action early; a blank one says nothing.
            most = field.get("maxLength", 200)
            return {"type": "string", "pattern": rf"^[^<\s\\\"\x00-\x1f][^<\\\"\x00-\x1f]{{0,{most - 1}}}$"}
        return {key: value for key, value in field.items() if key != "description"}


def _beginning(tag: str, schema: dict[str, Any]) -> str:
    """What tells an action from the others."""
    name = schema["properties"].get("name")
    return f"<{tag}>" + (
        f'{{"name": {json.dumps(name["const"])}' if name else f'{{"{next(iter(schema["properties"]))}"'
    )


def _object(properties: dict[str, Any], required: Sequence[str] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties if required is None else required),
        "additionalProperties": False,
    }


def _box(corner: Corner) -> dict[str, Any]:
    """Four integers; what is known of the near corner stands fixed, and the far one lies beyond it."""
    near = [{"const": corner[at]} if at < len(corner) else _integer(0, UNIT_MAX - 1) for at in (0, 1)]
    far = [_integer(corner[at] + 1 if at < len(corner) else 1, UNIT_MAX) for at in (0, 1)]
    return {"type": "array", "prefixItems": [*near, *far], "items": False, "minItems": 4, "maxItems": 4}


def _integer(least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}
