"""Sequences are kept within a budget: what is dropped costs time, and never changes what the model says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.policy.engine.conftest import TOLERANCE, relative_l2, unwatched, words

from wayfix.errors import EngineOutOfMemory
from wayfix.policy.engine.cache import SequenceCache
from wayfix.policy.engine.chat import TokenPrompt
from wayfix.policy.engine.engine import Engine
from wayfix.policy.engine.sequence import TokenSequence


class Cache(SequenceCache):
    """A cache whose budget is a number of tokens, with the turns that fill it."""

    def __init__(self, engine: Engine, budget: int) -> None:
        self.engine, self.token = engine, TokenSequence.bytes_per_token(engine.manifest.text)
        super().__init__(engine.new_sequence, budget * self.token)

    @property
    def tokens(self) -> float:
        """What it holds."""
        return self.bytes / self.token

    def turn(self, episode: str, prompt: TokenPrompt) -> NDArray[np.float32]:
        """A whole turn of an episode: the logits after its prompt."""
        with self.use(episode, prompt.identity) as sequence:
            return self.read(sequence, episode, prompt)

    def read(self, sequence: TokenSequence, episode: str, prompt: TokenPrompt) -> NDArray[np.float32]:
        self.reserve(len(prompt.ids), episode, self.token)
        return self.engine.read(sequence, prompt, unwatched()).copy()

    def share_first(self, prompt: TokenPrompt, length: int) -> None:
        """Share the beginning of a prompt, and keep nothing else of it."""
        with self.use("reader", prompt.identity) as sequence:
            self.read(sequence, "reader", prompt)
            self.share(sequence, length)
        self.drop("reader")

    def holds(self, episode: str, prompt: TokenPrompt) -> int:
        """How many tokens of its prompt an episode would find; asking changes the order of use."""
        with self.use(episode, prompt.identity) as sequence:
            return sequence.common(prompt.identity)


A, B, C, D = (words(40, seed) for seed in range(4))


def joined(*parts: TokenPrompt | Sequence[int]) -> TokenPrompt:
    ids = np.concatenate([part.ids if isinstance(part, TokenPrompt) else np.array(part, np.int64) for part in parts])
    return TokenPrompt(ids, ids, ())


def test_an_episode_finds_what_it_has_read_and_no_other_does(engine: Engine) -> None:
    cache = Cache(engine, 1000)
    cache.turn("a", A)
    assert cache.holds("a", joined(A, B)) == 40
    assert cache.holds("b", joined(A, B)) == 0


class TestBudget:
    def test_the_episode_not_used_for_longest_goes_first(self, engine: Engine) -> None:
        cache = Cache(engine, 120)
        for episode, prompt in (("a", A), ("b", B), ("c", C), ("a", A), ("d", D)):
            cache.turn(episode, prompt)
        held = {name: cache.holds(name, prompt) for name, prompt in (("a", A), ("b", B), ("c", C), ("d", D))}
        assert held == {"a": 40, "b": 0, "c": 40, "d": 40}

    def test_no_more_are_dropped_than_must_be(self, engine: Engine) -> None:
        cache = Cache(engine, 120)
        for episode, prompt in (("a", A), ("b", B), ("c", C)):
            cache.turn(episode, prompt)
        # All three fit to the byte.
        assert cache.tokens == 120
        cache.turn("d", words(1, 9))
        assert cache.tokens == 81

    def test_episodes_go_before_prefixes_however_old(self, engine: Engine) -> None:
        cache = Cache(engine, 100)
        cache.share_first(A, 30)
        cache.turn("b", B)
        cache.turn("c", C)
        assert cache.shared(A.identity) == 30
        assert [cache.holds("b", B), cache.holds("c", C)] == [0, 40]

    def test_prefixes_go_when_nothing_else_is_left(self, engine: Engine) -> None:
        cache = Cache(engine, 100)
        cache.share_first(A, 30)
        cache.share_first(B, 30)
        cache.turn("d", words(60, 7))
        # The older of the two is enough.
        assert [cache.shared(A.identity), cache.shared(B.identity)] == [0, 30]

    def test_a_prefix_that_was_begun_with_counts_as_used(self, engine: Engine) -> None:
        cache = Cache(engine, 100)
        cache.share_first(A, 30)
        cache.share_first(B, 30)
        cache.turn("a", joined(A, [1]))
        cache.drop("a")
        cache.turn("d", words(60, 7))
        assert [cache.shared(A.identity), cache.shared(B.identity)] == [30, 0]

    def test_one_in_use_is_never_dropped(self, engine: Engine) -> None:
        cache = Cache(engine, 100)
        with cache.use("a", A.identity) as sequence:
            cache.read(sequence, "a", A)
            for episode, prompt in (("b", B), ("c", C), ("d", D)):
                cache.turn(episode, prompt)
            cache.clear()
            assert sequence.common(A.identity) == 40
            assert cache.holds("d", D) == 0
        assert cache.holds("a", A) == 40

    def test_no_room_beside_those_in_use_is_said_and_harms_none(self, engine: Engine) -> None:
        cache = Cache(engine, 70)
        alone = engine.read(engine.new_sequence(), joined(A, B, [1]), unwatched()).copy()
        with cache.use("a", A.identity) as sequence:
            cache.read(sequence, "a", A)
            with pytest.raises(EngineOutOfMemory, match="40 tokens"):
                cache.turn("b", B)
            assert sequence.common(A.identity) == 40
        # Once that has ended there is room.
        cache.drop("a")
        cache.turn("b", B)
        assert relative_l2(Cache(engine, 81).turn("a", joined(A, B, [1])), alone) <= TOLERANCE

    def test_an_episode_larger_than_the_budget_is_refused_before_it_is_read(
        self, engine: Engine, reads: list[int]
    ) -> None:
        cache = Cache(engine, 39)
        with pytest.raises(EngineOutOfMemory, match="cache_bytes") as caught:
            cache.turn("a", A)
        assert caught.value.code == "engine_out_of_memory"
        assert reads == []
        Cache(engine, 40).turn("a", A)

    def test_room_that_a_turn_under_way_may_need_is_not_given_to_another(self, engine: Engine) -> None:
        cache = Cache(engine, 100)
        with cache.use("a", A.identity):
            cache.reserve(70, "a", cache.token)
            with pytest.raises(EngineOutOfMemory):
                cache.turn("b", B)
        cache.turn("b", B)

    def test_a_turn_that_came_to_more_than_it_asked_for_drops_others_when_it_ends(self, engine: Engine) -> None:
        cache = Cache(engine, 100)
        cache.turn("a", A)
        with cache.use("b", B.identity) as sequence:
            cache.reserve(40, "b", cache.token)
            engine.read(sequence, joined(B, C), unwatched())
        assert cache.tokens == 80
        assert [cache.holds("a", A), cache.holds("b", B)] == [0, 40]

    def test_nor_is_it_given_to_a_prefix(self, engine: Engine) -> None:
        cache = Cache(engine, 100)
        with cache.use("a", A.identity) as sequence:
            cache.reserve(80, "a", cache.token)
            engine.read(sequence, A, unwatched())
            cache.share(sequence, 30)
            engine.read(sequence, joined(A, B), unwatched())
            assert cache.tokens == 80

    def test_what_an_episode_has_already_counts_towards_what_it_needs(self, engine: Engine) -> None:
        cache = Cache(engine, 80)
        cache.turn("a", A)
        cache.turn("a", joined(A, B))
        assert cache.tokens == 80

    @settings(max_examples=30)
    @given(st.integers(40, 130), st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40), st.booleans()), max_size=20))
    def test_it_is_kept_after_every_turn_whatever_comes(
        self, engine: Engine, budget: int, turns: list[tuple[int, int, bool]]
    ) -> None:
        cache = Cache(engine, budget)
        for episode, length, share in turns:
            prompt = words(length, episode)
            with cache.use(str(episode), prompt.identity) as sequence:
                cache.read(sequence, str(episode), prompt)
                assert cache.tokens <= budget
                if share:
                    cache.share(sequence, length)
            assert cache.tokens <= budget


class TestDropping:
    def test_a_dropped_episodes_next_turn_is_the_same(self, engine: Engine, reads: list[int]) -> None:
        cache, kept = Cache(engine, 120), Cache(engine, 1000)
        for one in (cache, kept):
            one.turn("a", A)
            one.turn("b", joined(B, C))
            one.turn("c", words(30, 9))
        reads.clear()
        following = joined(A, D)
        logits = cache.turn("a", following)
        assert sum(reads) == 80, "it was not dropped"
        reads.clear()
        expected = kept.turn("a", following)
        assert sum(reads) == 40, "it was not kept"
        assert relative_l2(logits, expected) <= TOLERANCE

    def test_an_episode_that_has_ended_takes_no_room(self, engine: Engine) -> None:
        cache = Cache(engine, 100)
        cache.turn("a", A)
        cache.drop("a")
        cache.drop("never seen")
        assert cache.tokens == 0

    def test_clearing_leaves_nothing(self, engine: Engine) -> None:
        cache = Cache(engine, 200)
        cache.turn("a", A)
        cache.share_first(B, 30)
        cache.clear()
        assert cache.tokens == cache.shared(B.identity) == 0


class TestSharing:
    def test_a_new_episode_begins_with_the_longest_prefix_it_starts_with(
        self, engine: Engine, reads: list[int]
    ) -> None:
        cache = Cache(engine, 1000)
        cache.share_first(A, 10)
        cache.share_first(A, 30)
        cache.share_first(B, 35)
        assert cache.shared(joined(A, C).identity) == 30
        expected = engine.read(engine.new_sequence(), joined(A, C), unwatched()).copy()
        reads.clear()
        logits = cache.turn("a", joined(A, C))
        assert sum(reads) == 50
        assert relative_l2(logits, expected) <= TOLERANCE

    def test_a_prefix_is_shared_whole_or_not_at_all(self, engine: Engine) -> None:
        cache = Cache(engine, 1000)
        cache.share_first(A, 30)
        for other in (words(29), joined(words(29), [999]), joined([999], words(39))):
            assert cache.shared(other.identity) == cache.holds("other", other) == 0
            cache.drop("other")

    def test_what_episodes_go_on_to_read_leaves_the_prefix_alone(self, engine: Engine) -> None:
        cache = Cache(engine, 1000)
        cache.share_first(A, 30)
        expected = cache.turn("before", joined(A, C))
        for number in range(3):
            cache.turn(f"e{number}", joined(A, words(50, 20 + number)))
        assert np.array_equal(cache.turn("after", joined(A, C)), expected)

    def test_a_prefix_is_kept_once(self, engine: Engine) -> None:
        cache = Cache(engine, 1000)
        cache.share_first(A, 30)
        cache.share_first(A, 30)
        assert cache.tokens == 30

    def test_a_prefix_that_does_not_fit_is_done_without(self, engine: Engine) -> None:
        cache = Cache(engine, 60)
        with cache.use("a", A.identity) as sequence:
            cache.read(sequence, "a", A)
            cache.share(sequence, 30)
        assert cache.shared(A.identity) == 0
        assert cache.holds("a", A) == 40
