"""The nano model's tokenizer: the protocol's fixed texts, common words, the numbers 0 to 1000, and bytes for the rest.

A general tokenizer would spend hundreds of tokens on the system text and the tool schemas, which never change; here
each is one token. Names of places are spelt letter by letter, so that a name never seen before can be copied.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from wayfix.agent.protocol import (
    ANSWER_NOW_TEXT,
    CALL_NOW_TEXT,
    MAX_TURNS,
    OVERVIEW_TEXT,
    SYSTEM_TEXT,
)
from wayfix.geo.boxes import UNIT_MAX
from wayfix.policy.query import BUILDING_WORDS as PLAIN_BUILDING_WORDS
from wayfix.policy.query import CAR_WORDS, COLORS
from wayfix.synth.names import ALIAS_WORDS, BUILDING_WORDS, ROAD_WORDS
from wayfix.synth.phrases import (
    BESIDE_WORDS,
    DIRECTION_WORDS,
    END_WORDS,
    FROM_WORDS,
    NEAR_WORDS,
    PARKED_WORDS,
    RANK_WORDS,
)
from wayfix.tools.arguments import TOOLS, tool_schema

SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
    "<|video_pad|>",
)  # fmt: skip
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

_PIECES = (
    "user", "assistant", "system", "# Tools\n\n<tools>", "</tools>", "\nFind: ", "\nTurns left: ", "Find: ",
    '{"name": "', 'landmark_query", "arguments": {"landmark_name": "', '", "source_view_id": "',
    '", "landmark_type": "', 'zoom_in", "arguments": {"source_view_id": "', '", "crop_box": [', ', "scale": ',
    "]}}", '"}}', 'oblique_render", "arguments": {"source_view_id": "', '", "candidate_box": [', '], "direction": "',
    ', "margin": ', ", ", '<answer>{"view_id": "', '", "box": [', "]}</answer>", '<answer>{"not_found"',
    ': true}</answer>',
    '{"status": "found", "view_id": "', '{"status": "not_found", "view_id": "', '{"status": "ambiguous", "view_id": "',
    '", "name": "', '", "type": "', '], "center": [', '], "world": {"center": [', '], "size_m": [', ']}, "line": [[',
    "], [", "]]}", '", "hint": "check the spelling, query another name, or search the map by zooming"}',
    '", "candidates": [{"name": "', ']}}, {"name": "',
    ']}}], "hint": "give landmark_type, or choose by where each lies"}',
    '{"view_id": "', '], "world": [', '", "direction": "', '", "region_box": [', '], "coverage": ',
    '{"error": {"code": "', '", "message": "', "0.",
)  # fmt: skip
"""Runs of text that always come as a whole: an action, or an answer of a tool, is these and a few values.

They end where the grammar of actions leaves a choice, so that what it forces is spelt as in training; and none but the
tags begins with < and ends with >, which llguidance would take for a special token.
"""

_OTHER_WORDS = (
    "the only a an car park of roof with roofed parked in on along side find show me locate where is building tall "
    "longest shortest tallest largest biggest smallest lowest nearest closest parking road cars bridge square river "
    "garden market station stop tower north south east west northern southern eastern western place area map view"
)


def make_nano_tokenizer() -> Tokenizer:
    """A byte-level tokenizer without merges and with one added token for each text, word and number above."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({sign: number for number, sign in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([_added(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([_added(token) for token in (*TAGS, *_fixed_texts())])
    tokenizer.add_tokens([_added(word, single_word=True) for word in words()])
    # With the space before it a word is still one token; names, which may begin like a word, begin with a capital.
    tokenizer.add_tokens([_added(f" {word}") for word in words() if word.islower() and word.isalpha()])
    tokenizer.add_tokens([_added(str(number)) for number in range(10, UNIT_MAX + 1)])
    return tokenizer


def number_tokens(tokenizer: Tokenizer) -> list[int]:
    """Ids of the numbers 0 to 1000, in order; the digits are bytes of the alphabet."""
    vocabulary = tokenizer.get_vocab()
    return [vocabulary[str(number)] for number in range(UNIT_MAX + 1)]


def words() -> list[str]:
    """Words that are one token each, in both spellings that sentences start with."""
    found: dict[str, None] = {}
    groups = [*DIRECTION_WORDS.values(), *FROM_WORDS.values(), *END_WORDS.values()]
    phrases = [*RANK_WORDS, *NEAR_WORDS, *BESIDE_WORDS, *PARKED_WORDS, *CAR_WORDS, *COLORS, *PLAIN_BUILDING_WORDS]
    phrases += [phrase for group in groups for phrase in group] + _OTHER_WORDS.split()
    for word in re.findall(r"[a-z]+", " ".join(phrases).lower()):
        found[word] = None
    for word in list(found):
        found[word.capitalize()] = None
    places = [word for kinds in BUILDING_WORDS.values() for word, _ in kinds]
    for phrase in (*ROAD_WORDS, *places, *ALIAS_WORDS.values(), "Car Park"):
        found.update(dict.fromkeys(phrase.split()))
    types = {kind for kinds in BUILDING_WORDS.values() for _, kind in kinds}
    found.update(dict.fromkeys(sorted(types)))
    found.update(dict.fromkeys(f"{kind}{number}" for kind in "vo" for number in range(MAX_TURNS + 1)))
    return [word for word in found if len(word) > 1]


def _fixed_texts() -> Iterator[str]:
    """The texts of the protocol that no scene and no query changes, cut where something else stands between."""
    yield from SYSTEM_TEXT.split("{max_turns}")
    yield from ("\n" + json.dumps(tool_schema(name), ensure_ascii=False) for name in TOOLS)
    yield from re.split(r"\{\w+\}", OVERVIEW_TEXT)
    yield "\n" + ANSWER_NOW_TEXT
    yield from (ANSWER_NOW_TEXT, CALL_NOW_TEXT.split("{tool}")[0], CALL_NOW_TEXT.split("{tool}")[1])
    yield from TOOLS
    yield from _PIECES


def _added(text: str, *, special: bool = False, single_word: bool = False) -> AddedToken:
    return AddedToken(text, special=special, single_word=single_word, normalized=False)
