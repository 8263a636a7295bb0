"""The grammar of a turn, so that a model can write nothing else: a bounded thought, then one well-formed action.

It is one Lark grammar for llguidance, made from the tools and views of a prompt. Tool calls are written as json.dumps
writes them, on one line between their tags: that is how the protocol formats them, and a line break that may or may not
come would cost two choices, each a step of the model, where now all is forced.
"""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from wayfix.agent.messages import Prompt
from wayfix.errors import EngineMismatch

_MAX_THOUGHT_CHARS = 2048
"""With the longest action and token it stays within MAX_ACTION_CHARS."""
_KEPT_GRAMMARS = 64
_CALL_TAGS = ("<tool_call>", "</tool_call>")

_CHAR = r'[^"\\<\x00-\x1f\x7f]'
"""A character that stands for itself in a JSON string. The sign < would let a tag end the action early."""
_CODE = "(00[2-9a-f]|0[1-9a-f][0-9a-f]|[1-9a-cef][0-9a-f]{2}|d[0-7][0-9a-f])[0-9a-f]"
_ESCAPE = rf'\\["\\]|\\u{_CODE}|\\ud[89ab][0-9a-f]{{2}}\\ud[c-f][0-9a-f]{{2}}'
"""A character as json.dumps escapes it, and with it every turn that a model was trained on: no control character, and
halves of surrogate pairs only together."""
_SLICES = [rf"{_CHAR}{{1,10}}", rf"{_CHAR}{{1,30}}", rf"{_CHAR}+", "[^<]+"]
"""Parts of the vocabulary that texts allow as a whole: llguidance then need not look at each token."""


class ActionGrammar:
    """The protocol's grammar for one tokenizer. Turns of several episodes may be under way at once."""

    def __init__(self, tokenizer_json: str, end_token: int, logits_width: int, max_thought_tokens: int = 64) -> None:
        """`tokenizer_json` is the content of tokenizer.json, `end_token` the id that ends a turn.

        Raises EngineMismatch where the tokenizer has more tokens than the logits have room for.
        """
        self.tokenizer = LLTokenizer(tokenizer_json, eos_token=end_token, slices=_SLICES)
        if self.tokenizer.vocab_size > logits_width:
            raise EngineMismatch(
                f"the tokenizer has {self.tokenizer.vocab_size} tokens, more than the model's {logits_width}; "
                "they do not belong together"
            )
        self.logits_width, self.max_thought_tokens = logits_width, max_thought_tokens
        added = {token["content"]: token["id"] for token in json.loads(tokenizer_json).get("added_tokens", ())}
        # A tag that is a token of its own, which llguidance keeps out of texts, is written as that token.
        alone = {tag: token for tag, token in added.items() if self.tokenizer.is_special_token(token)}
        self._tags = [f"<[{alone[tag]}]>" if tag in alone else _text(tag) for tag in _CALL_TAGS]
        self._compiled = lru_cache(maxsize=_KEPT_GRAMMARS)(self._compile)

    def start(self, prompt: Prompt) -> ActionMatcher:
        """A matcher for the next turn of an episode. Raises ValueError where the prompt leaves no action at all."""
        return ActionMatcher(self, prompt)

    def matcher(self, prompt: Prompt, *, thought: bool, only_answer: bool = False) -> LLMatcher:
        """A fresh llguidance matcher of what may follow a prompt, with or without a thought before the action."""
        return self._compiled(self._source(prompt, thought, only_answer)).deep_copy()

    def _compile(self, source: str) -> LLMatcher:
        matcher = LLMatcher(self.tokenizer, LLMatcher.grammar_from_lark(source), log_level=0)
        if matcher.is_error():
            raise ValueError(f"not a grammar: {matcher.get_error()}")
        return matcher

    def _source(self, prompt: Prompt, thought: bool, only_answer: bool) -> str:
        # Tools and answers take the same views: those in which boxes can be given.
        views = list(dict.fromkeys(view.id for m in prompt.messages for view in m.views if view.bev))
        only_answer = only_answer or prompt.must_answer
        actions = [] if prompt.must_call and not only_answer else _answers(views)
        if views and not only_answer:
            opening, closing = self._tags
            functions = [tool["function"] for tool in prompt.tools]
            actions += [
                f"{opening} {_call(function)} {closing}"
                for function in functions
                if prompt.must_call in (None, function["name"])
            ]
        if not actions:
            raise ValueError(f"the prompt leaves no action: it demands {prompt.must_call}, which it does not offer")
        rules = [f"start: {'/[^<]+/? ' if thought else ''}( {' | '.join(actions)} )"]
        if views:
            rules += [f"view: {' | '.join(_text(json.dumps(view)) for view in views)}", _BOX_RULES]
        return "\n".join(rules)


class ActionMatcher:
    """One turn as it is written."""

    def __init__(self, grammar: ActionGrammar, prompt: Prompt) -> None:
        self._grammar, self._prompt = grammar, prompt
        self._thought_tokens, self._acting = 0, False
        self._matcher = grammar.matcher(prompt, thought=grammar.max_thought_tokens > 0)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.text = ""
        """What is written, up to the last whole character."""

    @property
    def done(self) -> bool:
        """Whether the action is complete: nothing may follow but the end of the turn."""
        return self._matcher.is_stopped()

    def allowed(self) -> NDArray[np.bool_]:
        """Which tokens may come next, (logits_width,). Once the action is complete, only the end of the turn."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.zeros(self._grammar.logits_width, np.bool_)
        size = self._grammar.tokenizer.vocab_size
        allowed[:size] = np.unpackbits(bits, count=size, bitorder="little")
        return allowed

    def forced(self) -> list[int]:
        """The tokens that come next where the grammar leaves no choice; may be empty."""
        return [] if self.done else self._matcher.compute_ff_tokens()

    def advance(self, token: int) -> None:
        """Write a token. Raises ValueError, and writes nothing, where it is not allowed."""
        known = 0 <= token < self._grammar.tokenizer.vocab_size
        if self.done or not known or self._matcher.try_consume_tokens([token]) != 1:
            raise ValueError(f"token {token} is not allowed after {self.text[-80:]!r}")
        written = self._grammar.tokenizer.decode_bytes([token])
        self.text += self._decoder.decode(written)
        self._acting = self._acting or b"<" in written
        if not self._acting:
            # Counted here: llguidance's own max_tokens turns off what makes it fast.
            self._thought_tokens += 1
            if self._thought_tokens >= self._grammar.max_thought_tokens or len(self.text) >= _MAX_THOUGHT_CHARS:
                self._matcher = self._grammar.matcher(self._prompt, thought=False)

    def force_answer(self) -> bool:
        """End the thought here, so that only a final answer may follow.

        False, with nothing changed, where an action has begun, or a fixed workflow allows no answer yet.
        """
        if self._acting or self._prompt.must_call:
            return False
        self._matcher = self._grammar.matcher(self._prompt, thought=False, only_answer=True)
        return True


def _text(literal: str) -> str:
    """Text as Lark writes it."""
    return json.dumps(literal)


def _answers(views: Sequence[str]) -> list[str]:
    """Rules for a box in a view, where there is one, and for no object."""
    box = " ".join((_text('<answer>{"view_id": '), "view", _text(', "box": '), "box", _text("}</answer>")))
    return [*([box] if views else ()), _text('<answer>{"not_found": true}</answer>')]


def _call(function: dict[str, Any]) -> str:
    """A rule for the JSON object of a call: what the tool requires, one argument at least, before what it does not."""
    fields, required = function["parameters"]["properties"], function["parameters"]["required"]
    rule, before = [], f'{{"name": {json.dumps(function["name"])}, "arguments": {{'
    for name in sorted(fields, key=lambda name: name not in required):
        argument = f"{_text(before + json.dumps(name) + ': ')} {_value(name, fields[name])}"
        rule.append(argument if name in required else f"({argument})?")
        before = ", "
    return " ".join((*rule, _text("}}")))


def _value(name: str, schema: dict[str, Any]) -> str:
    """A rule for an argument: a view, a box, one of several words, a text that says something, or a number."""
    if name == "source_view_id":
        return "view"
    if schema["type"] == "array":
        return "box"
    if "enum" in schema:
        return "( " + " | ".join(_text(json.dumps(word)) for word in schema["enum"]) + " )"
    if schema["type"] == "string":
        first = rf"({_CHAR[:-1]}\s]|{_ESCAPE})"
        return rf'/"{first}({_CHAR}|{_ESCAPE}){{0,{schema["maxLength"] - 1}}}"/'
    return f"/{_decimals(schema['minimum'], schema['maximum'])}/"


@lru_cache
def _decimals(least: float, most: float) -> str:
    """A regular expression for the numbers least..most, neither negative, of up to two decimals."""
    wholes = []
    for whole in range(math.floor(least), math.floor(most) + 1):
        tails = ["", *(f".{digit}" for digit in range(10)), *(f".{digits:02}" for digits in range(100))]
        inside = [tail for tail in tails if least <= float(f"{whole}{tail}") <= most]
        some = "|".join(tail.replace(".", r"\.") for tail in inside)
        wholes.append(rf"{whole}(\.[0-9]{{1,2}})?" if len(inside) == len(tails) else f"{whole}({some})")
    return "|".join(wholes)


def _box_rules() -> str:
    """Rules for a box whose corners are in order.

    Rules carry a number along (llguidance's parametric grammars): here the digits of x_min and y_min, four bits each,
    so that their bits compare as the coordinates do. From them it is known at each digit of x_max and y_max whether the
    coordinate is larger by now, and what follows is free, or still equal, and must yet become larger.
    """
    rules = ['box: "[" near_x::0', f"digit: {' | '.join(map(_digit, range(10)))}"]
    for axis, low, after in (("x", 0, '", " near_y::_'), ("y", 12, '", " far_x::_')):
        rules += [f"near0_{axis}::_: {after}", *_near_rules(axis, low)]
    # The number goes no further than the last rule that asks for it.
    for axis, low, after, carried in (("x", 0, '", " far_y::_', "::_"), ("y", 12, '"]"', "")):
        rules += [f"free0_{axis}{carried}: {after}", *_far_rules(axis, low, carried)]
    return "\n".join(rules)


def _near_rules(axis: str, low: int) -> list[str]:
    """Rules for a coordinate 0..999, kept in the bits from `low` on; named by how many digits are to come."""
    near0, near1, near2, near3, rest2 = (f"{rule}_{axis}::_" for rule in ("near0", "near1", "near2", "near3", "rest2"))

    def digits(place: int, rule: str) -> str:
        return " | ".join(f"{_digit(d)} {rule}_{axis}::bit_or({d << (low + 4 * place)})" for d in range(1, 10))

    return [
        f"near_{axis}::_: {near1} | {near2} | {near3} | {_digit(0)} {near0}",
        f"{near3}: {digits(2, 'rest2')}",
        f"{rest2}: {near2} | {_digit(0)} rest1_{axis}::_",
        f"{near2}: {digits(1, 'rest1')}",
        f"rest1_{axis}::_: {near1} | {_digit(0)} {near0}",
        f"{near1}: {digits(0, 'near0')}",
    ]


def _far_rules(axis: str, low: int, carried: str) -> list[str]:
    """Rules for a coordinate up to 1000 that is larger than the one in the bits from `low` on."""
    units, tens, hundreds = (f"[{low + place}:{low + place + 4}]" for place in (0, 4, 8))
    free0, free1, free2 = (f"free{count}_{axis}{carried}" for count in range(3))
    far1, far2, far3, same2 = (f"{rule}_{axis}::_" for rule in ("far1", "far2", "far3", "same2"))

    def digits(place: str, free: str, equal: str | None = None, room: str = "") -> str:
        """A digit larger than the near one; or the same, where those after it leave room for a larger coordinate."""
        larger = [f"{_digit(digit)} {free} %if lt({place}, {digit})" for digit in range(1, 10)]
        same = [f"{_digit(digit)} {equal} %if and(eq({place}, {digit}), {room})" for digit in range(1, 10) if equal]
        return " | ".join(larger + same)

    shorter = f"{far2} %if is_zeros({hundreds}) | {far1} %if is_zeros([{low + 4}:{low + 12}])"
    return [
        f"free1_{axis}{carried}: digit {free0}",
        f"free2_{axis}{carried}: digit {free1}",
        f'far_{axis}::_: {far3} | {shorter} | "1" "0" "0" "0" {free0}',
        f"{far3}: {digits(hundreds, free2, same2, f'lt([{low}:{low + 8}], 0x99)')}",
        f"{same2}: {far2} | {_digit(0)} {far1} %if and(is_zeros({tens}), lt({units}, 9))",
        f"{far2}: {digits(tens, free1, far1, f'lt({units}, 9)')}",
        f"{far1}: {digits(units, free0)}",
    ]


def _digit(digit: int) -> str:
    return _text(str(digit))


_BOX_RULES = _box_rules()
