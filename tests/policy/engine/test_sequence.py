"""A sequence holds what the decoder has read: it grows, is cut back and copied, and is never left half changed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.policy.engine.conftest import TOLERANCE, relative_l2, unwatched

from wayfix.agent.deadline import Deadline
from wayfix.errors import Cancelled, DeadlineExceeded, PromptTooLong
from wayfix.policy.engine.engine import Engine
from wayfix.policy.engine.graphs import Watch
from wayfix.policy.engine.positions import Rotary
from wayfix.policy.engine.sequence import NewTokens, TokenSequence

identities = st.lists(st.integers(0, 3), max_size=24)


def tokens(engine: Engine, start: int, count: int, seed: int = 0) -> NewTokens:
    """Tokens start, start + 1, ... of an endless text, the same however it is cut."""
    text, taps = engine.manifest.text, engine.manifest.vision.taps
    rows = np.stack(
        [np.random.default_rng((seed, at)).standard_normal(text.hidden) for at in range(start, start + count)]
    )
    positions = np.tile(np.arange(start, start + count), (3, 1))
    cos, sin = Rotary(text.head_dim, text.rope_theta, text.mrope_section).rows(positions)
    return NewTokens(
        identity=positions[0] + 1000 * seed,
        embeds=rows[None].astype(np.float32),
        deepstack=np.zeros((taps, 1, count, text.hidden), np.float32),
        cos=cos,
        sin=sin,
        next_position=positions[0] + 1,
    )


def grow(engine: Engine, sequence: TokenSequence, *counts: int, seed: int = 0) -> NDArray[np.float32]:
    """Read on from where the sequence ends, in pieces of these sizes; the logits after the last token."""
    logits = np.zeros((1, 0), np.float32)
    for count in counts:
        logits = sequence.extend(tokens(engine, sequence.length, count, seed), unwatched(), [count - 1])
    return logits[0].copy()


def fresh(engine: Engine, count: int, seed: int = 0) -> NDArray[np.float32]:
    return grow(engine, engine.new_sequence(), count, seed=seed)


class TestGrowing:
    @pytest.mark.parametrize("counts", [(1,) * 24, (23, 1), (1, 23), (7, 1, 8, 8)], ids=str)
    def test_the_pieces_it_is_read_in_do_not_matter(self, engine: Engine, counts: tuple[int, ...]) -> None:
        sequence = engine.new_sequence()
        assert relative_l2(grow(engine, sequence, *counts), fresh(engine, 24)) <= TOLERANCE
        assert (sequence.length, sequence.next_position) == (24, 24)
        assert sequence.identity.tolist() == list(range(24))

    def test_logits_come_after_each_token_that_was_asked_for(self, engine: Engine) -> None:
        sequence = engine.new_sequence()
        several = sequence.extend(tokens(engine, 0, 12), unwatched(), [2, 7, 11])
        assert several.shape == (3, engine.manifest.text.vocabulary)
        for logits, count in zip(several, (3, 8, 12), strict=True):
            assert relative_l2(logits, fresh(engine, count)) <= TOLERANCE

    def test_the_text_before_matters(self, engine: Engine) -> None:
        # Else all these equalities would say nothing.
        ours, other = engine.new_sequence(), engine.new_sequence()
        grow(engine, ours, 8)
        grow(engine, other, 8, seed=1)
        assert relative_l2(grow(engine, ours, 4), grow(engine, other, 4)) > 0.01

    def test_an_empty_one_begins_at_position_zero(self, engine: Engine) -> None:
        sequence = engine.new_sequence()
        assert (sequence.length, sequence.next_position, sequence.bytes) == (0, 0, 0)


class TestCapacity:
    def test_it_can_be_filled_to_the_last_token(self, small_engine: Engine) -> None:
        sequence = small_engine.new_sequence()
        assert relative_l2(grow(small_engine, sequence, 60, 4), fresh(small_engine, 64)) <= TOLERANCE
        assert sequence.length == sequence.capacity == 64

    def test_beyond_that_it_stays_as_it_was(self, small_engine: Engine) -> None:
        sequence = small_engine.new_sequence()
        grow(small_engine, sequence, 60)
        with pytest.raises(PromptTooLong, match=r"65 tokens.* 64"):
            grow(small_engine, sequence, 5)
        assert (sequence.length, sequence.touched) == (60, 60)
        assert relative_l2(grow(small_engine, sequence, 4), fresh(small_engine, 64)) <= TOLERANCE


class TestBrokenOff:
    @pytest.mark.parametrize("count", [1, 16])
    def test_all_new_tokens_are_read_or_none(self, engine: Engine, count: int) -> None:
        sequence = engine.new_sequence()
        grow(engine, sequence, 10)
        over, cancelled = Deadline(0.0), Deadline(math.inf)
        cancelled.cancel()
        for deadline, error in ((over, DeadlineExceeded), (cancelled, Cancelled)):
            with pytest.raises(error):
                # Other tokens than those that will be read in their place.
                sequence.extend(tokens(engine, 10, count, seed=5), Watch(deadline), [count - 1])
        assert (sequence.length, sequence.next_position, sequence.touched) == (10, 10, 10)
        assert sequence.identity.tolist() == list(range(10))
        assert relative_l2(grow(engine, sequence, 6), fresh(engine, 16)) <= TOLERANCE


class TestCuttingBack:
    @pytest.mark.parametrize("kept", [0, 1, 10, 20])
    def test_what_follows_is_read_as_if_nothing_else_had_been(self, engine: Engine, kept: int) -> None:
        sequence = engine.new_sequence()
        grow(engine, sequence, kept) if kept else None
        grow(engine, sequence, 20, seed=1)
        sequence.truncate(kept)
        assert sequence.identity.tolist() == list(range(kept))
        assert relative_l2(grow(engine, sequence, 30 - kept), fresh(engine, 30)) <= TOLERANCE

    def test_it_never_makes_a_sequence_longer(self, engine: Engine) -> None:
        sequence = engine.new_sequence()
        grow(engine, sequence, 10)
        sequence.truncate(15)
        assert sequence.length == 10

    def test_memory_once_touched_stays_counted(self, engine: Engine) -> None:
        sequence = engine.new_sequence()
        grow(engine, sequence, 20)
        sequence.truncate(5)
        grow(engine, sequence, 3)
        assert sequence.bytes == 20 * TokenSequence.bytes_per_token(engine.manifest.text)

    def test_a_tokens_bytes_are_what_the_buffers_hold_for_it(self, engine: Engine) -> None:
        sequence = engine.new_sequence()
        values = [
            one for value in vars(sequence).values() for one in (value.values() if isinstance(value, dict) else [value])
        ]
        buffers = [value for value in values if isinstance(value, np.ndarray) and sequence.capacity in value.shape]
        whole = sum(buffer.nbytes for buffer in buffers)
        assert whole == sequence.capacity * TokenSequence.bytes_per_token(engine.manifest.text)


class TestCommon:
    @given(identities, identities)
    def test_it_counts_the_tokens_that_are_the_same_from_the_start(
        self, engine: Engine, a: list[int], b: list[int]
    ) -> None:
        sequence = engine.new_sequence()
        if a:
            new = tokens(engine, 0, len(a))
            same = NewTokens(np.array(a), new.embeds, new.deepstack, new.cos, new.sin, new.next_position)
            sequence.extend(same, unwatched(), [0])
        equal = [x == y for x, y in zip(a, b, strict=False)]
        assert sequence.common(np.array(b, np.int64)) == (equal.index(False) if False in equal else len(equal))

    def test_what_was_cut_off_is_no_longer_known(self, engine: Engine) -> None:
        sequence = engine.new_sequence()
        grow(engine, sequence, 10)
        sequence.truncate(4)
        assert sequence.common(np.arange(10)) == 4


class TestCopying:
    def test_a_copy_goes_on_as_the_original_would(self, engine: Engine) -> None:
        original, copy = engine.new_sequence(), engine.new_sequence()
        grow(engine, original, 20)
        copy.copy_from(original, 12)
        assert (copy.length, copy.next_position, copy.touched) == (12, 12, 12)
        assert copy.identity.tolist() == list(range(12))
        assert relative_l2(grow(engine, copy, 18), fresh(engine, 30)) <= TOLERANCE

    def test_a_copy_is_no_part_of_the_original(self, engine: Engine) -> None:
        original, copy = engine.new_sequence(), engine.new_sequence()
        grow(engine, original, 12)
        copy.copy_from(original, 12)
        grow(engine, copy, 20, seed=1)
        copy.truncate(0)
        grow(engine, copy, 20, seed=2)
        assert relative_l2(grow(engine, original, 18), fresh(engine, 30)) <= TOLERANCE

    def test_what_a_sequence_held_before_is_gone(self, engine: Engine) -> None:
        original, copy = engine.new_sequence(), engine.new_sequence()
        grow(engine, original, 6)
        grow(engine, copy, 25, seed=1)
        copy.copy_from(original, 6)
        assert (copy.length, copy.touched) == (6, 25)
        assert relative_l2(grow(engine, copy, 24), fresh(engine, 30)) <= TOLERANCE
