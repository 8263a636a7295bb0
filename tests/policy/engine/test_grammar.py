"""Under the grammar a model can write nothing but turns of the protocol, whatever it prefers to write."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from wayfix.agent.messages import Message, Prompt
from wayfix.agent.protocol import (
    MAX_ACTION_CHARS,
    SYSTEM_TEXT,
    Action,
    Answer,
    NotFound,
    format_answer,
    format_call,
    format_not_found,
    parse_action,
)
from wayfix.errors import EngineMismatch
from wayfix.geo.boxes import UnitBox, WorldBox
from wayfix.geo.transforms import ViewTransform
from wayfix.policy.engine.grammar import ActionGrammar, ActionMatcher
from wayfix.tools.arguments import TOOLS, ObliqueRender, ToolCall, ZoomIn, tool_name, tool_schema
from wayfix.views.view import View

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MORE_LOGITS = 37
"""A model's logits are wider than its vocabulary."""
THOUGHT_TOKENS = 6

# ---- two tokenizers: one like Qwen's, and one whose tokens respect no border and that has no tokens for the tags

BOXES: list[UnitBox] = [(100 * n % 990, 70 * n % 900, 100 * n % 990 + 9, 1000) for n in range(60)]
CALLS = [
    *(format_call("zoom_in", {"source_view_id": "v1", "crop_box": box, "scale": 1.5}, "Look closer.") for box in BOXES),
    *(
        format_call("landmark_query", {"landmark_name": name, "source_view_id": "v0"})
        for name in ("Alte Mühle", "B 12")
    ),
    format_call("oblique_render", {"source_view_id": "v0", "candidate_box": (1, 2, 30, 400), "direction": "north"}),
    *(format_answer("v1", box, "It is the red one.") for box in BOXES),
    format_not_found("There is none.\n" + " " * 64),
]


def trained(words: Any, added: Sequence[str]) -> str:
    """The tokenizer.json of a byte-level BPE trained on the protocol's texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([SYSTEM_TEXT, *CALLS], trainer)
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in SPECIAL])
    tokenizer.add_tokens([AddedToken(word, special=False, normalized=False) for word in added])
    return tokenizer.to_str()


@functools.cache
def tokenizer_json(kind: str) -> str:
    if kind == "qwen":
        words = [pre_tokenizers.Split(Regex(QWEN_WORDS), "isolated")]
        return trained(words, ["<tool_call>", "</tool_call>", "<think>"])
    return trained([pre_tokenizers.Split(Regex("\n"), "isolated")], [])


@functools.cache
def tokenizer_of(kind: str) -> Tokenizer:
    return Tokenizer.from_str(tokenizer_json(kind))


@functools.cache
def grammar_of(kind: str, thought_tokens: int = THOUGHT_TOKENS) -> ActionGrammar:
    tokenizer = tokenizer_of(kind)
    width = tokenizer.get_vocab_size() + MORE_LOGITS
    return ActionGrammar(tokenizer_json(kind), tokenizer.token_to_id("<|im_end|>"), width, thought_tokens)


KINDS = ("qwen", "borderless")
both = pytest.mark.parametrize("kind", KINDS)

# ---- prompts


def view(view_id: str) -> View:
    """v... are maps, o... are oblique images."""
    transform = ViewTransform(10, 10, 1.0, 0.0, 0.0, 0.0, -1.0, 10.0) if view_id.startswith("v") else None
    return View(view_id, np.zeros((10, 10, 3), np.uint8), WorldBox(0, 0, 10, 10), transform)


def prompt(
    views: Sequence[str] = ("v0",),
    tools: Iterable[str] = TOOLS,
    *,
    must_answer: bool = False,
    must_call: str | None = None,
) -> Prompt:
    """A prompt as an episode makes it: the overview from the user, the others from tools."""
    messages = [Message("system", (SYSTEM_TEXT,)), Message("user", (view(views[0]), "Find: the mill"))]
    for view_id in views[1:]:
        messages += [Message("assistant", ("...",)), Message("tool", (view(view_id), "{}", "Turns left: 3."))]
    return Prompt(tuple(map(tool_schema, tools)), tuple(messages), "the mill", must_answer, must_call)


PROMPTS = {
    "first turn": prompt(),
    "several views, one oblique": prompt(["v0", "v1", "o2", "v3", "v10"]),
    "no points": prompt(["v0", "v1"], ["landmark_query", "zoom_in"]),
    "no tools": prompt(tools=[]),
    "must answer": prompt(["v0", "o1", "v2"], must_answer=True),
    "must query": prompt(must_call="landmark_query"),
    "must zoom": prompt(["v0", "v1"], must_call="zoom_in"),
    "must render": prompt(["v0", "o1"], must_call="oblique_render"),
}
prompts = st.sampled_from(list(PROMPTS.values()))

# ---- writing


def encode(kind: str, text: str) -> list[int]:
    return tokenizer_of(kind).encode(text, add_special_tokens=False).ids


def write(matcher: ActionMatcher, tokens: Iterable[int]) -> ActionMatcher:
    for token in tokens:
        assert matcher.allowed()[token], f"{token} after {matcher.text!r}"
        matcher.advance(token)
    return matcher


def can_be_written(kind: str, asked: Prompt, text: str) -> bool:
    """Whether `text` is a whole turn under the grammar."""
    matcher = grammar_of(kind, 64).start(asked)
    try:
        for token in encode(kind, text):
            matcher.advance(token)
    except ValueError:
        return False
    assert matcher.text == text or not matcher.done
    return matcher.done


def begin(matcher: ActionMatcher, kind: str, turn: str, part: str) -> ActionMatcher:
    """Write the tokens of `turn` that make up its beginning `part`, and what the last of them holds besides."""
    for token in encode(kind, turn):
        if len(matcher.text) < len(part):
            write(matcher, [token])
    assert matcher.text.startswith(part)
    return matcher


def take_forced(matcher: ActionMatcher) -> ActionMatcher:
    """Write on for as long as there is no choice."""
    while not matcher.done and (tokens := matcher.forced()):
        for token in tokens:
            matcher.advance(token)
    return matcher


def walk(matcher: ActionMatcher, rng: np.random.Generator, use_forced: Callable[[], bool] = lambda: False) -> Action:
    """Write on with any allowed token until the action is complete, and read it."""
    while not matcher.done:
        before = matcher.text
        options = np.flatnonzero(matcher.allowed())
        tokens = (use_forced() and matcher.forced()) or [int(rng.choice(options))]
        for token in tokens:
            matcher.advance(token)
        assert matcher.text.startswith(before)
    return parse_action(matcher.text)[1]


def fits(action: Action, asked: Prompt) -> None:
    """The action is one that the prompt offers, in a view that it may be about."""
    maps = {one.id for message in asked.messages for one in message.views if one.bev}
    if isinstance(action, ToolCall):
        offered = {tool["function"]["name"] for tool in asked.tools}
        assert tool_name(action) in ({asked.must_call} if asked.must_call else offered)
        assert not asked.must_answer
        assert action.source_view_id in maps
        _ = action.box if isinstance(action, (ZoomIn, ObliqueRender)) else None
    else:
        assert asked.must_call is None
        assert isinstance(action, NotFound) or action.view_id in maps


@both
@settings(max_examples=150)
@given(asked=prompts, seed=st.integers(0, 2**32 - 1))
def test_whatever_is_written_is_an_action_that_the_prompt_offers(kind: str, asked: Prompt, seed: int) -> None:
    rng = np.random.default_rng(seed)
    matcher = grammar_of(kind).start(asked)
    fits(walk(matcher, rng, lambda: rng.random() < 0.5), asked)
    assert len(matcher.text) <= MAX_ACTION_CHARS


SAMPLES = {
    "zoom_in": format_call("zoom_in", {"source_view_id": "v0", "crop_box": [1, 2, 3, 4]}),
    "landmark_query": format_call("landmark_query", {"landmark_name": "mill", "source_view_id": "v0"}),
    "oblique_render": format_call(
        "oblique_render", {"source_view_id": "v0", "candidate_box": [1, 2, 3, 4], "direction": "east"}
    ),
    "answer": format_answer("v0", (1, 2, 3, 4)),
    "not found": format_not_found(),
}


@both
@pytest.mark.parametrize("name", PROMPTS)
def test_what_the_prompt_offers_can_be_written_and_nothing_else(kind: str, name: str) -> None:
    asked = PROMPTS[name]
    tools, answers = {tool["function"]["name"] for tool in asked.tools}, {"answer", "not found"}
    offered = {asked.must_call} if asked.must_call else answers if asked.must_answer else tools | answers
    assert {key for key, text in SAMPLES.items() if can_be_written(kind, asked, text)} == offered


# ---- what training wrote can be written

names = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), min_size=1, max_size=30)
unit = st.integers(0, 1000)
pair = st.tuples(unit, unit).filter(lambda p: p[0] != p[1]).map(sorted)
boxes = st.tuples(pair, pair).map(lambda p: (p[0][0], p[1][0], p[0][1], p[1][1]))
thoughts = st.sampled_from(["", "Look.", "A\nB", "  ", "über"])


@both
@given(box=boxes, thought=thoughts)
@example(box=(0, 0, 1, 1), thought="")
@example(box=(999, 999, 1000, 1000), thought="")
@example(box=(99, 100, 100, 1000), thought="")
@example(box=(9, 0, 10, 9), thought="")
def test_every_box_can_be_written(kind: str, box: UnitBox, thought: str) -> None:
    grammar = grammar_of(kind, 64)
    texts = (
        format_answer("v3", box, thought),
        format_call("zoom_in", {"source_view_id": "v0", "crop_box": list(box)}, thought),
        format_call("zoom_in", {"source_view_id": "v0", "crop_box": list(box), "scale": 1.25}, thought),
        format_call("oblique_render", {"source_view_id": "v10", "candidate_box": list(box), "direction": "west"}),
    )
    for text in texts:
        matcher = write(grammar.start(PROMPTS["several views, one oblique"]), encode(kind, text))
        assert matcher.done
        assert matcher.text == text


@both
@given(box=st.tuples(unit, unit, unit, unit).filter(lambda box: box[0] >= box[2] or box[1] >= box[3]))
@example(box=(0, 0, 0, 1))
@example(box=(1000, 0, 1000, 1))
@example(box=(10, 0, 9, 1))
@example(box=(5, 999, 6, 99))
def test_no_other_box_can(kind: str, box: UnitBox) -> None:
    matcher = grammar_of(kind).start(prompt())
    with pytest.raises(ValueError, match="not allowed"):
        for token in encode(kind, format_answer("v0", box)):
            matcher.advance(token)


@both
@pytest.mark.parametrize("near", [(999, 999), (0, 999), (999, 0)])
def test_beyond_999_there_is_only_1000(kind: str, near: tuple[int, int]) -> None:
    written = format_answer("v0", (*near, 1000, 1000))
    for seed in range(8):
        matcher = grammar_of(kind).start(PROMPTS["no tools"])
        begin(matcher, kind, written, written[: written.index(", 1000")])
        action = walk(matcher, np.random.default_rng(seed), lambda: True)
        assert isinstance(action, Answer)
        assert all(low < 999 or high == 1000 for low, high in zip(action.box[:2], action.box[2:], strict=True))


@both
@given(name=names, kind_of_place=st.none() | names)
@example(name='Café "Zur Straße" \\ 𝄞', kind_of_place="Brücke")
@example(name="a <tool_call> in a name", kind_of_place=None)
def test_every_name_can_be_written_as_training_wrote_it(kind: str, name: str, kind_of_place: str | None) -> None:
    arguments = {"landmark_name": name, "source_view_id": "v0"}
    arguments |= {"landmark_type": kind_of_place} if kind_of_place else {}
    text = format_call("landmark_query", arguments, "First the name.")
    matcher = write(grammar_of(kind, 64).start(prompt()), encode(kind, text))
    assert matcher.done
    assert matcher.text == text


@both
def test_names_may_be_written_without_escapes(kind: str) -> None:
    text = format_call("landmark_query", {"landmark_name": "Cafe", "source_view_id": "v0"}).replace("Cafe", "Café 𝄞")
    assert can_be_written(kind, prompt(), text)


@both
@pytest.mark.parametrize(
    "tool, argument, least, most", [("zoom_in", "scale", 25, 200), ("oblique_render", "margin", 0, 400)]
)
def test_numbers_of_two_decimals_within_the_range_can_be_written(
    kind: str, tool: str, argument: str, least: int, most: int
) -> None:
    box = {"crop_box": [1, 2, 3, 4]} if tool == "zoom_in" else {"candidate_box": [1, 2, 3, 4], "direction": "south"}

    def fits_in(number: str) -> bool:
        text = format_call(tool, {"source_view_id": "v0", **box, argument: 77}).replace("77", number)
        return can_be_written(kind, prompt(), text)

    steps = sorted({*range(max(least - 2, 0), least + 3), *range(most - 2, most + 3), 50, 99, 100, 101, 110, 150})
    for step in steps:
        assert fits_in(json.dumps(step / 100)) == (least <= step <= most), step
    for number in ("00.5", "-0.5", "1e0", ".5", "1.", "1.250", "true", "null", '"1"'):
        assert not fits_in(number), number


# ---- what is never written


@both
@pytest.mark.parametrize(
    "name", ["", " ", "\n", "x" * 201, "a\x00"], ids=["empty", "blank", "break", "too long", "control"]
)
def test_names_that_say_nothing_or_too_much_are_not_written(kind: str, name: str) -> None:
    matcher = grammar_of(kind).start(prompt())
    with pytest.raises(ValueError, match="not allowed"):
        for token in encode(kind, format_call("landmark_query", {"landmark_name": name, "source_view_id": "v0"})):
            matcher.advance(token)


@both
@pytest.mark.parametrize(
    "text",
    [
        "<think>",
        "<answer></answer>",
        "a < b",
        "</tool_call>",
        '<answer>{"view_id": "o2"',
        '<answer>{"view_id": "v2"',
        '<answer>{"not_found": false',
        '<tool_call>{"name": "fly"',
        '<tool_call>{"name": "landmark_query", "arguments": {"landmark_name": "a<b"',
        r'<tool_call>{"name": "landmark_query", "arguments": {"landmark_name": "\ud83d."',
        format_not_found() + " ",
        format_not_found() + format_not_found(),
    ],
)
def test_other_text_is_refused(kind: str, text: str) -> None:
    matcher = grammar_of(kind).start(PROMPTS["several views, one oblique"])
    with pytest.raises(ValueError, match="not allowed"):
        for token in encode(kind, text):
            matcher.advance(token)


@both
@settings(max_examples=40)
@given(asked=prompts, seed=st.integers(0, 2**32 - 1))
def test_special_tokens_and_the_end_wait_for_the_whole_action(kind: str, asked: Prompt, seed: int) -> None:
    rng, matcher, tokenizer = np.random.default_rng(seed), grammar_of(kind).start(asked), tokenizer_of(kind)
    special = [tokenizer.token_to_id(word) for word in SPECIAL]
    while not matcher.done:
        allowed = matcher.allowed()
        assert allowed.shape == (tokenizer.get_vocab_size() + MORE_LOGITS,)
        assert allowed.dtype == np.bool_
        assert not allowed[special].any()
        assert not allowed[tokenizer.get_vocab_size() :].any()
        matcher.advance(int(rng.choice(np.flatnonzero(allowed))))
    assert np.flatnonzero(matcher.allowed()).tolist() == [tokenizer.token_to_id("<|im_end|>")]
    assert matcher.forced() == []


@both
def test_a_refused_token_changes_nothing(kind: str) -> None:
    matcher = write(grammar_of(kind).start(prompt()), encode(kind, "Hm"))
    before = matcher.allowed()
    for token in (-1, tokenizer_of(kind).token_to_id("<|image_pad|>"), tokenizer_of(kind).get_vocab_size(), 2**40):
        with pytest.raises(ValueError, match=r"not allowed after 'Hm'"):
            matcher.advance(token)
    assert matcher.text == "Hm"
    assert (matcher.allowed() == before).all()
    write(matcher, encode(kind, "." + format_not_found()))
    with pytest.raises(ValueError, match="not allowed"):
        matcher.advance(encode(kind, "a")[0])


# ---- forced tokens


@both
@settings(max_examples=60)
@given(asked=prompts, seed=st.integers(0, 2**32 - 1))
def test_forced_tokens_are_the_only_ones_allowed_and_lead_to_the_same_text(kind: str, asked: Prompt, seed: int) -> None:
    rng, matcher = np.random.default_rng(seed), grammar_of(kind).start(asked)
    while not matcher.done:
        for token in matcher.forced():
            assert np.flatnonzero(matcher.allowed()).tolist() == [token]
            matcher.advance(token)
        if not matcher.done:
            matcher.advance(int(rng.choice(np.flatnonzero(matcher.allowed()))))
    fits(parse_action(matcher.text)[1], asked)


def test_a_call_is_forced_but_for_what_it_says() -> None:
    matcher = grammar_of("qwen").start(prompt(must_call="zoom_in"))
    matcher.advance(tokenizer_of("qwen").token_to_id("<tool_call>"))
    assert take_forced(matcher).text.endswith('{"source_view_id": "v0", "crop_box": [')
    for number in ("123", "456", "789", "999"):
        write(take_forced(matcher), encode("qwen", number))
    write(matcher, encode("qwen", "]}}"))
    assert take_forced(matcher).done
    assert parse_action(matcher.text)[1] == ZoomIn(source_view_id="v0", crop_box=[123, 456, 789, 999])


# ---- the thought


@both
@pytest.mark.parametrize("most", [0, 1, 5])
def test_a_thought_ends_after_so_many_tokens(kind: str, most: int) -> None:
    matcher, letter = grammar_of(kind, most).start(prompt()), encode(kind, "Q")[0]
    for _ in range(most):
        write(matcher, [letter])
    assert not matcher.allowed()[letter]
    fits(walk(matcher, np.random.default_rng(0)), prompt())
    assert parse_action(matcher.text)[0] == "Q" * most


@both
def test_a_turn_is_never_longer_than_is_read(kind: str) -> None:
    tokenizer, most = tokenizer_of(kind), 10_000
    matcher = grammar_of(kind, most).start(prompt())
    plain = [token for token in range(tokenizer.get_vocab_size()) if "<" not in tokenizer.decode([token])]
    longest = max(plain, key=lambda token: len(tokenizer.decode([token])))
    while matcher.allowed()[longest]:
        matcher.advance(longest)
    assert len(matcher.text) > MAX_ACTION_CHARS / 8
    longest_call = {"landmark_name": "𝄞" * 200, "source_view_id": "v0", "landmark_type": "𝄞" * 50}
    write(matcher, encode(kind, format_call("landmark_query", longest_call)))
    fits(parse_action(matcher.text)[1], prompt())
    assert len(matcher.text) < MAX_ACTION_CHARS * 3 / 4


def test_text_grows_by_whole_characters() -> None:
    matcher = grammar_of("qwen", 64).start(prompt())
    seen = []
    for token in encode("qwen", "ß𝄞.") + encode("qwen", format_not_found()):
        matcher.advance(token)
        seen.append(matcher.text)
    assert len(set(seen)) < len(seen), "some tokens are parts of characters"
    assert not any("\ufffd" in text for text in seen)


# ---- an answer at once


@both
@pytest.mark.parametrize("thought", ["", "I think that", "𝄞", "?\n"])
def test_a_thought_can_be_cut_short_for_an_answer(kind: str, thought: str) -> None:
    for turn in (format_answer("v1", (1, 2, 3, 4)), format_not_found()):
        matcher = write(grammar_of(kind, 64).start(PROMPTS["several views, one oblique"]), encode(kind, thought))
        assert matcher.force_answer()
        assert matcher.force_answer(), "a second time changes nothing"
        assert matcher.text == thought
        assert write(matcher, encode(kind, turn)).text == thought + turn


@both
@given(seed=st.integers(0, 2**32 - 1), written=st.integers(0, THOUGHT_TOKENS))
@settings(max_examples=40)
def test_after_that_only_an_answer_follows(kind: str, seed: int, written: int) -> None:
    rng, matcher = np.random.default_rng(seed), grammar_of(kind).start(PROMPTS["several views, one oblique"])
    for _ in range(written):
        if not matcher.done:
            matcher.advance(int(rng.choice(np.flatnonzero(matcher.allowed()))))
    begun = "<" in matcher.text  # with the borderless tokens it may be over, too
    assert matcher.force_answer() is not begun
    action = walk(matcher, rng)
    assert begun or isinstance(action, (Answer, NotFound))


@both
def test_a_character_cut_in_two_does_not_spoil_the_answer(kind: str) -> None:
    matcher = write(grammar_of(kind).start(prompt()), encode(kind, "𝄞")[:1])
    assert matcher.force_answer()
    assert isinstance(walk(matcher, np.random.default_rng(1)), (Answer, NotFound))


@both
@pytest.mark.parametrize(
    "turn, part",
    [
        (format_not_found("Hm."), "Hm.\n<"),
        (format_answer("v0", (1, 2, 3, 4)), '<answer>{"view'),
        (SAMPLES["zoom_in"], "<tool_call>"),
        (SAMPLES["zoom_in"], '<tool_call>{"name": "zoom_in'),
        (format_not_found(), format_not_found()),
    ],
)
def test_an_action_that_has_begun_goes_on(kind: str, turn: str, part: str) -> None:
    matcher = begin(grammar_of(kind, 64).start(prompt()), kind, turn, part)
    text, allowed = matcher.text, matcher.allowed()
    assert not matcher.force_answer()
    assert matcher.text == text
    assert (matcher.allowed() == allowed).all()


@both
def test_a_fixed_workflow_is_not_cut_short(kind: str) -> None:
    matcher = grammar_of(kind).start(prompt(must_call="zoom_in"))
    assert not matcher.force_answer()
    assert isinstance(walk(matcher, np.random.default_rng(0)), ZoomIn)


# ---- one grammar, many turns


def test_turns_do_not_disturb_each_other() -> None:
    grammar, tokens = grammar_of("qwen", 64), encode("qwen", format_answer("v0", (1, 2, 3, 4), "There."))
    matchers = [grammar.start(prompt()) for _ in range(3)]
    for at, token in enumerate(tokens):
        for number, matcher in enumerate(matchers):
            if number < 2 or at < 2:
                write(matcher, [token])
    assert [matcher.done for matcher in matchers] == [True, True, False]
    assert not grammar.start(prompt()).text


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused() -> None:
    size = tokenizer_of("qwen").get_vocab_size()
    with pytest.raises(EngineMismatch, match="do not belong together"):
        ActionGrammar(tokenizer_json("qwen"), 0, size - 1)


def test_a_prompt_that_demands_a_tool_it_does_not_offer_is_refused() -> None:
    with pytest.raises(ValueError, match="no action"):
        grammar_of("qwen").start(prompt(tools=["zoom_in"], must_call="oblique_render"))
