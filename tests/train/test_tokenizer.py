"""The nano model's tokenizer spells every text, and the protocol's fixed texts in one token each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("wayfix_train")

from wayfix.agent.protocol import SYSTEM_TEXT, format_answer, format_call, format_not_found
from wayfix_train.nano.tokenizer import make_nano_tokenizer, number_tokens

TOKENIZER = make_nano_tokenizer()


def _tokens(text: str) -> list[str]:
    return TOKENIZER.encode(text, add_special_tokens=False).tokens


@given(st.text(max_size=80))
def test_any_text_survives(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    kept = TOKENIZER.decode(ids, skip_special_tokens=False)
    assert kept.encode("utf-8", "replace") == text.encode("utf-8", "replace")


def test_system_text_is_three_tokens() -> None:
    assert len(_tokens(SYSTEM_TEXT.replace("{max_turns}", "8"))) == 3


@given(st.integers(0, 1000))
def test_a_number_is_one_token(number: int) -> None:
    ids = TOKENIZER.encode(f"[{number}]", add_special_tokens=False).ids
    assert ids[1] == number_tokens(TOKENIZER)[number]


def test_actions_are_short() -> None:
    box = (10, 200, 999, 1000)
    zoom = format_call("zoom_in", {"source_view_id": "v0", "crop_box": list(box)})
    assert len(_tokens(zoom)) == 14
    assert len(_tokens(format_answer("v1", box))) == 11
    assert len(_tokens(format_not_found())) == 2


def test_names_are_spelt() -> None:
    assert _tokens("Winrin Road") == ["W", "i", "n", "r", "i", "n", "Ġ", "Road"]
