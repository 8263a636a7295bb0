"""A model decides turn by turn: always a well-formed action, the same one however episodes are mixed, and in time."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.policy.engine.conftest import Conversation, unwatched

from wayfix.agent.deadline import Deadline
from wayfix.agent.loop import Grounder
from wayfix.agent.messages import Prompt
from wayfix.agent.protocol import Answer, NotFound, parse_action
from wayfix.agent.result import NOT_FOUND, OK
from wayfix.agent.trace import Trace
from wayfix.errors import (
    Cancelled,
    DeadlineExceeded,
    EngineNotFound,
    EngineOutOfMemory,
    PromptTooLong,
    TurnsExhausted,
)
from wayfix.policy.engine import policy as policy_module
from wayfix.policy.engine.engine import EngineConfig
from wayfix.policy.engine.policy import EnginePolicy
from wayfix.policy.engine.sampling import SamplingConfig
from wayfix.policy.engine.sequence import TokenSequence
from wayfix.policy.interface import Chunk, Policy, WarmsUp
from wayfix.scene.scene import Scene
from wayfix.tools.arguments import TOOLS, LandmarkQuery, tool_name

GREEDY, SAMPLED = SamplingConfig(), SamplingConfig(temperature=1.0, top_p=0.95, seed=11)
THOUGHT = 8
"""Tokens of a thought: random weights never end one by themselves."""
QUERIES = (
    "the red car", "a blue van next to the school", "Mill Road", "the tree north of the hall",
    "the second car from the left", "das Café «Zur Mühle»", "it", "the red car",
)  # fmt: skip
LOG_PROB = 1e-4
"""What log-probabilities may differ by where sums were taken in another order."""
PATIENCE_S = 60.0
SLACK_S = 0.5
"""What a busy machine may be late by."""


def make(folder: Path, sampling: SamplingConfig = GREEDY, thought: int = THOUGHT, **config: Any) -> EnginePolicy:
    return EnginePolicy(folder, EngineConfig(threads=1, **config), sampling, max_thought_tokens=thought)


@pytest.fixture
def policy(folder: Path) -> EnginePolicy:
    return make(folder)


def said(chunks: Sequence[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


def respond(policy: EnginePolicy, prompt: Prompt, episode: str = "e", deadline: Deadline | None = None) -> list[Chunk]:
    return list(policy.respond(episode, prompt, deadline or Deadline(math.inf)))


def close(stream: Iterator[Chunk]) -> None:
    """As the loop ends a turn that it wants no more of."""
    assert isinstance(stream, Generator)
    stream.close()


def assert_same(chunks: Sequence[Chunk], expected: Sequence[Chunk]) -> None:
    """Token for token: the same pieces, and as likely."""
    assert [chunk.text for chunk in chunks] == [chunk.text for chunk in expected]
    for ours, theirs in zip(chunks, expected, strict=True):
        assert ours.log_probs == pytest.approx(theirs.log_probs, abs=LOG_PROB)
        assert (ours.prompt_tokens, ours.completion_tokens) == (theirs.prompt_tokens, theirs.completion_tokens)
        assert (ours.confidence is None) == (theirs.confidence is None)
        assert ours.confidence is None or ours.confidence == pytest.approx(theirs.confidence, rel=LOG_PROB)


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "wayfix-engine-watch"]


@pytest.fixture(autouse=True)
def no_watcher_is_left() -> Iterator[None]:
    yield
    assert watchers() == []


# ---- models whose time is known


class Clock:
    """Time that passes only where it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in ("agent.deadline", "agent.loop", "policy.engine.engine"):
        monkeypatch.setattr(f"wayfix.{module}.time", clock)
    return clock


class Session:
    """A graph's session, before each run of which something happens; the run's number is given, from 1."""

    def __init__(self, session: Any, before: Callable[[int, Any], None]) -> None:
        self.session, self.before, self.runs = session, before, 0

    def io_binding(self) -> Any:
        return self.session.io_binding()

    def run_with_iobinding(self, binding: Any, options: Any) -> None:
        self.runs += 1
        self.before(self.runs, options)
        self.session.run_with_iobinding(binding, options)


def takes(policy: EnginePolicy, clock: Clock, seconds: Callable[[int], float] | float) -> Session:
    """Let every run of a policy's decoder take this long."""

    def pass_time(run: int, _: Any) -> None:
        clock.now += seconds(run) if callable(seconds) else seconds

    policy.engine._decoder = Session(policy.engine._decoder, pass_time)
    return policy.engine._decoder


def sleeps(policy: EnginePolicy, seconds: float) -> None:
    """Let every run really take this long, whatever its deadline says."""

    def sleep(run: int, options: Any) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.002)

    policy.engine._decoder = Session(policy.engine._decoder, sleep)


def in_pieces_of(policy: EnginePolicy, tokens: int) -> None:
    policy.engine._chunk = lambda left: min(left, tokens)  # type: ignore[method-assign]


class TestPolicy:
    def test_it_is_a_policy_that_warms_up_with_the_sizes_it_was_trained_on(self, policy: EnginePolicy) -> None:
        named: Policy = policy
        assert isinstance(policy, WarmsUp)
        assert (named.name, named.sizes.overview, named.sizes.zoom, named.sizes.oblique) == ("engine", 256, 256, 256)

    def test_without_an_engine_there_is_none(self, tmp_path: Path) -> None:
        with pytest.raises(EngineNotFound):
            EnginePolicy(tmp_path)

    def test_the_same_prompt_is_answered_alike(self, policy: EnginePolicy, folder: Path) -> None:
        prompt = Conversation().prompt()
        expected = respond(policy, prompt)
        assert_same(respond(policy, prompt), expected)
        assert_same(respond(policy, prompt, "another"), expected)
        assert_same(respond(make(folder), prompt), expected)

    def test_sampling_depends_on_seed_and_prompt_alone(self, folder: Path) -> None:
        prompt = Conversation().prompt()
        expected = respond(make(folder, SAMPLED), prompt)
        assert_same(respond(make(folder, SAMPLED), prompt, "another"), expected)
        other_seed = SAMPLED.model_copy(update={"seed": 12})
        assert said(respond(make(folder, other_seed), prompt)) != said(expected)


# ---- what is read


class TestReuse:
    def read_before_first_token(self, policy: EnginePolicy, query: str, reads: list[int]) -> int:
        """Tokens of the prompt that are read; the whole turn is taken."""
        reads.clear()
        stream = policy.respond(query, Conversation(query).prompt(), Deadline(math.inf))
        next(stream)
        # The last reading is that of the first token written.
        count = sum(reads[:-1])
        list(stream)
        policy.forget(query)
        return count

    def test_once_warm_every_query_reads_only_what_differs(self, folder: Path, reads: list[int]) -> None:
        policy = make(folder)
        policy.warm_up(Conversation("the building").prompt())
        for query in ("the red car", "a blue van next to the school"):
            tokens = policy.engine.chat.tokens(Conversation(query).prompt())
            shared = policy.cache.shared(tokens.identity)
            (image,) = tokens.images
            assert shared > image.start + image.tokens
            assert self.read_before_first_token(policy, query, reads) == len(tokens.ids) - shared < 32

    def test_cold_the_first_query_reads_all_and_the_next_what_differs(
        self, policy: EnginePolicy, reads: list[int]
    ) -> None:
        tokens = policy.engine.chat.tokens(Conversation("the red car").prompt())
        assert self.read_before_first_token(policy, "the red car", reads) == len(tokens.ids)
        assert self.read_before_first_token(policy, "a blue van", reads) < 32

    def test_another_scene_is_read_as_a_whole(self, policy: EnginePolicy, reads: list[int]) -> None:
        respond(policy, Conversation(scene=0).prompt())
        prompt = Conversation(scene=3).prompt()
        reads.clear()
        next(stream := policy.respond("other", prompt, Deadline(math.inf)))
        close(stream)
        # Of the text before the picture nothing is shared: prefixes are whole.
        assert sum(reads[:-1]) == len(policy.engine.chat.tokens(prompt).ids)

    def test_a_next_turn_reads_what_was_added(self, policy: EnginePolicy, reads: list[int]) -> None:
        conversation = Conversation()
        first = policy.engine.chat.tokens(conversation.prompt())
        second = policy.engine.chat.tokens(conversation.said(said(respond(policy, conversation.prompt()))).prompt())
        reads.clear()
        next(stream := policy.respond("e", conversation.prompt(), Deadline(math.inf)))
        close(stream)
        # At most what is new: of what it has written itself it knows the keys and values already.
        assert sum(reads[:-1]) <= len(second.ids) - len(first.ids)

    @pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
    def test_warm_or_cold_it_says_the_same(self, folder: Path, sampling: SamplingConfig) -> None:
        warm, prompt = make(folder, sampling), Conversation("the red car").prompt()
        warm.warm_up(Conversation("the building").prompt())
        assert_same(respond(warm, prompt), respond(make(folder, sampling), prompt))

    def test_warming_up_runs_every_graph_and_keeps_the_prefix_alone(self, policy: EnginePolicy) -> None:
        prompt = Conversation("the building").prompt()
        policy.warm_up(prompt)
        costs = policy.engine.costs
        assert None not in (costs.prefill_token, costs.decode, costs.image_patch)
        shared = policy.cache.shared(policy.engine.chat.tokens(prompt).identity)
        assert policy.cache.bytes == shared * TokenSequence.bytes_per_token(policy.engine.manifest.text)

    def test_an_episode_that_is_forgotten_takes_no_room(self, policy: EnginePolicy) -> None:
        policy.warm_up(Conversation("the building").prompt())
        before = policy.cache.bytes
        respond(policy, Conversation().prompt())
        assert policy.cache.bytes > before
        policy.forget("e")
        policy.forget("never seen")
        assert policy.cache.bytes == before


# ---- episodes mixed


class Episode:
    """One search of three turns: free, then free or bound to a tool, then the answer."""

    def __init__(self, number: int) -> None:
        self.name = f"e{number}"
        self.conversation = Conversation(QUERIES[number], scene=number % 3)
        tool = [None, *TOOLS][number % 4]
        self.bounds: list[dict[str, Any]] = [{}, {"must_call": tool}, {"must_answer": True}]
        self.turns: list[list[Chunk]] = []

    def run(self, policy: EnginePolicy) -> Iterator[bool]:
        """Gives whether a turn has ended, after every chunk."""
        for bound in self.bounds:
            self.turns.append([])
            for chunk in policy.respond(self.name, self.conversation.prompt(**bound), Deadline(math.inf)):
                self.turns[-1].append(chunk)
                yield False
            self.conversation.said(said(self.turns[-1]))
            yield True
        policy.forget(self.name)


def mix(policy: EnginePolicy, episodes: Sequence[Episode], *, by_turn: bool = False) -> None:
    """Let the episodes go on in turn, chunk by chunk or turn by turn, until all have ended."""
    running = [episode.run(policy) for episode in episodes]
    while running:
        for one in list(running):
            ended = next(one, None)
            while by_turn and ended is False:
                ended = next(one, None)
            if ended is None:
                running.remove(one)


@pytest.fixture(scope="module", params=[GREEDY, SAMPLED], ids=["greedy", "sampled"])
def alone(request: pytest.FixtureRequest, folder: Path) -> tuple[SamplingConfig, list[Episode]]:
    """What each of eight episodes gives on a policy of its own."""
    episodes = [Episode(number) for number in range(8)]
    for episode in episodes:
        mix(make(folder, request.param), [episode])
    return request.param, episodes


Alone = tuple[SamplingConfig, list[Episode]]


class TestMixed:
    def assert_as_alone(self, episodes: Sequence[Episode], alone: Alone) -> None:
        for episode, expected in zip(episodes, alone[1], strict=True):
            for chunks, ours in zip(episode.turns, expected.turns, strict=True):
                assert_same(chunks, ours)

    def test_these_episodes_are_told_apart(self, alone: Alone) -> None:
        # Else mixing them up would not show.
        for turn in range(3):
            probable = [[p for chunk in episode.turns[turn] for p in chunk.log_probs] for episode in alone[1]]
            for number, ours in enumerate(probable):
                for theirs in probable[:number]:
                    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=False)) > 20 * LOG_PROB

    def test_chunk_by_chunk_each_says_what_it_says_alone(self, folder: Path, alone: Alone) -> None:
        policy, episodes = make(folder, alone[0]), [Episode(number) for number in range(8)]
        mix(policy, episodes)
        self.assert_as_alone(episodes, alone)

    def test_turn_by_turn_dropping_each_other_they_say_the_same(
        self, folder: Path, alone: Alone, reads: list[int]
    ) -> None:
        policy = make(folder, alone[0], cache_bytes=self.room_for(make(folder), 1.5), image_bytes=1)
        episodes = [Episode(number) for number in range(8)]
        mix(policy, episodes, by_turn=True)
        written = sum(turn[-1].completion_tokens or 0 for episode in episodes for turn in episode.turns)
        prompts = sum(episode.turns[-1][-1].prompt_tokens or 0 for episode in episodes)
        # With room for all it would be less than this: every token once.
        assert sum(reads) - written > 1.5 * prompts
        self.assert_as_alone(episodes, alone)

    def test_two_at_a_time_chunk_by_chunk_they_stay_within_the_budget(self, folder: Path, alone: Alone) -> None:
        budget = self.room_for(make(folder), 2)
        policy, episodes = make(folder, alone[0], cache_bytes=budget), [Episode(number) for number in range(4)]
        for number in (0, 2):
            first, second = (episode.run(policy) for episode in episodes[number : number + 2])
            for _ in zip(first, second, strict=False):
                assert policy.cache.bytes <= budget
            for one in (first, second):
                list(one)
        self.assert_as_alone(episodes, (alone[0], alone[1][:4]))

    def room_for(self, policy: EnginePolicy, episodes: float) -> int:
        """Bytes for so many of the longest episodes, with what a turn may write."""
        conversation = Conversation(max(QUERIES, key=len), scene=2)
        for _ in range(2):
            conversation.said("x" * 300)
        tokens = len(policy.engine.chat.tokens(conversation.prompt(must_answer=True)).ids) + 512
        return round(episodes * tokens * TokenSequence.bytes_per_token(policy.engine.manifest.text))

    def test_on_several_threads_each_says_what_it_says_alone(self, folder: Path, alone: Alone) -> None:
        policy, episodes = make(folder, alone[0]), [Episode(number) for number in range(6)]
        threads = [threading.Thread(target=mix, args=(policy, episodes[n::3])) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assert_as_alone(episodes, (alone[0], alone[1][:6]))

    def test_more_at_once_than_there_is_room_for_is_refused_and_harms_none(self, folder: Path, alone: Alone) -> None:
        policy = make(folder, alone[0], cache_bytes=self.room_for(make(folder), 1.2))
        first, second = Episode(0), Episode(1)
        running = first.run(policy)
        next(running)
        with pytest.raises(EngineOutOfMemory, match="fewer episodes at once"):
            next(second.run(policy))
        list(running)
        assert_same(first.turns[0], alone[1][0].turns[0])
        # Now there is room.
        second = Episode(1)
        mix(policy, [second])
        self.assert_as_alone([second], (alone[0], alone[1][1:2]))


# ---- what is written


@pytest.fixture(scope="module")
def policies(folder: Path) -> list[EnginePolicy]:
    """Policies that sample in various ways, with thoughts of various lengths."""
    hot = [SamplingConfig(temperature=heat, seed=seed) for seed, heat in enumerate((1.0, 1.0, 3.0, 10.0))]
    return [make(folder, sampling, thought) for sampling, thought in zip([GREEDY, *hot], (8, 8, 0, 3, 20), strict=True)]


class TestActions:
    """Every turn is one well-formed action that its prompt allows."""

    def actions(self, policies: Sequence[EnginePolicy], **bound: Any) -> list[Any]:
        """What policies do, in the first and in a later turn."""
        later = Conversation().said("Look.").said("Again.")
        return [
            parse_action(said(respond(policy, conversation.prompt(**bound))))[1]
            for policy in policies
            for conversation in (Conversation(), later)
        ]

    def test_free(self, policies: list[EnginePolicy]) -> None:
        kinds = {type(action) for action in self.actions(policies)}
        assert len(kinds) > 1

    @pytest.mark.parametrize("tool", TOOLS)
    def test_bound_to_a_tool_it_calls_that(self, policies: list[EnginePolicy], tool: str) -> None:
        assert {tool_name(action) for action in self.actions(policies, must_call=tool)} == {tool}

    def test_out_of_turns_it_answers(self, policies: list[EnginePolicy]) -> None:
        assert {type(action) for action in self.actions(policies, must_answer=True)} <= {Answer, NotFound}

    def test_only_views_that_are_there_are_spoken_of(self, policies: list[EnginePolicy]) -> None:
        for action in self.actions(policies, must_call="landmark_query"):
            assert isinstance(action, LandmarkQuery)
            assert action.source_view_id in ("v0", "v1", "v2")

    def test_quantized_models_write_well_formed_actions_too(self, export: Callable[[str], Path]) -> None:
        for kind in ("int8", "int4"):
            policy = make(export(kind), SAMPLED)
            assert len(self.actions([policy])) == 2

    def test_the_thought_is_as_long_as_allowed_at_most(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for thought in (0, 1, 20):
            policy = make(folder, SAMPLED, thought)
            chunks = respond(policy, Conversation().prompt())
            pieces = 0
            while "<" not in said(chunks[: pieces + 1]):
                pieces += 1
            assert pieces <= thought
            assert (said(chunks)[0] == "<") == (thought == 0)


class Turn:
    """One turn of a policy, with every token that was chosen or fed."""

    def __init__(self, policy: EnginePolicy, prompt: Prompt, monkeypatch: pytest.MonkeyPatch) -> None:
        self.policy, self.prompt = policy, prompt
        self.written: list[int] = []
        self.chosen: list[int] = []
        """Places in `written` of the tokens that the model chose."""
        advance, choose = policy_module.ActionMatcher.advance, policy_module.choose

        def spy_advance(matcher: Any, token: int) -> None:
            advance(matcher, token)
            self.written.append(token)

        def spy_choose(*given: Any) -> int:
            self.chosen.append(len(self.written))
            return choose(*given)

        with monkeypatch.context() as patched:
            patched.setattr(policy_module.ActionMatcher, "advance", spy_advance)
            patched.setattr(policy_module, "choose", spy_choose)
            self.chunks = respond(policy, prompt)

    def log_probs(self) -> list[float]:
        """Of the chosen tokens, worked out from what the engine says, one token at a time from a fresh start."""
        engine = self.policy.engine
        sequence = engine.new_sequence()
        logits = engine.read(sequence, engine.chat.tokens(self.prompt), unwatched())
        found = []
        for place, token in enumerate(self.written):
            if place in self.chosen:
                exact = logits.astype(np.float64)
                found.append(float(exact[token] - exact.max() - np.log(np.exp(exact - exact.max()).sum())))
            logits = engine.step(sequence, token, unwatched())
        return found


class TestProbabilities:
    @pytest.fixture(params=[GREEDY, SAMPLED, SamplingConfig(temperature=5.0, seed=3)], ids=["greedy", "sampled", "hot"])
    def policy(self, request: pytest.FixtureRequest, folder: Path) -> EnginePolicy:
        return make(folder, request.param)

    @pytest.mark.parametrize(
        "bound", [{}, {"must_answer": True}, {"must_call": "zoom_in"}], ids=["free", "answer", "call"]
    )
    def test_pieces_carry_what_the_model_itself_gave_their_tokens(
        self, policy: EnginePolicy, bound: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        turn = Turn(policy, Conversation().prompt(**bound), monkeypatch)
        # One for a token that was chosen; none for those that the grammar left no choice about.
        assert {len(chunk.log_probs) for chunk in turn.chunks} == {0, 1}
        carried = [log_prob for chunk in turn.chunks for log_prob in chunk.log_probs]
        assert carried == pytest.approx(turn.log_probs(), abs=LOG_PROB)
        # Under the grammar alone even unlikely tokens would look likely.
        assert min(carried) < -5

    def test_an_answers_confidence_is_the_geometric_mean_over_its_tokens(
        self, policy: EnginePolicy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        turn = Turn(policy, Conversation().prompt(must_answer=True), monkeypatch)
        text, counted = "", list[float]()
        for chunk in turn.chunks:
            counted += chunk.log_probs if "<answer>" in text else ()
            text += chunk.text
        # The thought before it does not count.
        assert 0 < len(counted) < len(turn.chosen)
        assert turn.chunks[-1].confidence == pytest.approx(math.exp(np.mean(counted)), rel=1e-6)
        assert [chunk.confidence for chunk in turn.chunks[:-1]] == [None] * (len(turn.chunks) - 1)

    def test_a_call_has_no_confidence(self, policy: EnginePolicy) -> None:
        chunks = respond(policy, Conversation().prompt(must_call="zoom_in"))
        assert [chunk.confidence for chunk in chunks] == [None] * len(chunks)

    def test_the_last_piece_counts_tokens_read_and_written(
        self, policy: EnginePolicy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        prompt = Conversation().said("Look.").prompt()
        turn = Turn(policy, prompt, monkeypatch)
        *others, last = turn.chunks
        assert (last.prompt_tokens, last.completion_tokens) == (
            len(policy.engine.chat.tokens(prompt).ids), len(turn.written),
        )  # fmt: skip
        assert {(chunk.prompt_tokens, chunk.completion_tokens) for chunk in others} == {(None, None)}

    def test_pieces_joined_are_the_tokens_written(self, policy: EnginePolicy, monkeypatch: pytest.MonkeyPatch) -> None:
        turn = Turn(policy, Conversation().prompt(), monkeypatch)
        decoded = policy.engine.tokenizer.decode(turn.written, skip_special_tokens=False)
        assert said(turn.chunks) == decoded


# ---- how turns end early


def end_during(session: Any, run: int, end: Callable[[], None]) -> Session:
    """A session in whose n-th run another thread ends the turn.

    The run goes on once the watching thread has noticed; onnxruntime then stops it before its first node.
    """

    def before(number: int, options: Any) -> None:
        if number != run:
            return
        other = threading.Thread(target=end)
        other.start()
        other.join()
        until = time.monotonic() + PATIENCE_S
        while not options.terminate:
            assert time.monotonic() < until, "nobody watches the deadline"
            time.sleep(0.001)

    return Session(session, before)


Fresh = Callable[[Prompt], list[Chunk]]


@pytest.fixture(scope="module")
def fresh(folder: Path) -> Fresh:
    """What a policy of its own says to a prompt."""
    kept: dict[tuple[str, int], list[Chunk]] = {}

    def turn(prompt: Prompt) -> list[Chunk]:
        key = (prompt.query, len(prompt.messages))
        if key not in kept:
            kept[key] = respond(make(folder), prompt)
        return kept[key]

    return turn


class TestEndedEarly:
    """Whatever ends a turn, its error says so, no thread is left, and later turns are as on a fresh policy."""

    PIECE = 50
    """Tokens read at once: less than an image has."""

    @pytest.fixture(autouse=True)
    def small_pieces(self, policy: EnginePolicy) -> None:
        in_pieces_of(policy, self.PIECE)

    def assert_unharmed(self, policy: EnginePolicy, fresh: Fresh) -> None:
        assert watchers() == []
        # Another episode on the scene, the same one again, and its next turn.
        conversation = Conversation()
        for name, prompt in (
            ("other", Conversation("a blue van").prompt()),
            ("e", conversation.prompt()),
            ("e", conversation.said("Look.").prompt()),
        ):
            assert_same(respond(policy, prompt, name), fresh(prompt))

    @pytest.mark.parametrize("pieces", [1, 5, THOUGHT + 3])
    def test_closed_between_pieces(self, policy: EnginePolicy, fresh: Fresh, pieces: int) -> None:
        stream = policy.respond("e", Conversation().prompt(), Deadline(math.inf))
        for _ in range(pieces):
            next(stream)
        assert len(watchers()) == 1
        close(stream)
        self.assert_unharmed(policy, fresh)

    @pytest.mark.parametrize("pieces", [1, THOUGHT + 3])
    def test_cancelled_between_pieces(self, policy: EnginePolicy, fresh: Fresh, pieces: int) -> None:
        deadline = Deadline(math.inf)
        stream = policy.respond("e", Conversation().prompt(), deadline)
        for _ in range(pieces):
            next(stream)
        deadline.cancel()
        with pytest.raises(Cancelled):
            next(stream)
        self.assert_unharmed(policy, fresh)

    @pytest.mark.parametrize("cancelled", [True, False])
    def test_over_before_it_began(self, policy: EnginePolicy, fresh: Fresh, reads: list[int], cancelled: bool) -> None:
        deadline = Deadline(math.inf if cancelled else 0.0)
        if cancelled:
            deadline.cancel()
        with pytest.raises(Cancelled if cancelled else DeadlineExceeded):
            respond(policy, Conversation().prompt(), deadline=deadline)
        assert reads == []
        self.assert_unharmed(policy, fresh)

    @pytest.mark.parametrize("how", ["cancelled", "deadline"])
    @pytest.mark.parametrize("where", ["vision", "prefill", "prefill within the image", "thought", "action"])
    def test_during_a_run(self, policy: EnginePolicy, fresh: Fresh, clock: Clock, where: str, how: str) -> None:
        engine, prompt = policy.engine, Conversation().prompt()
        (image,) = engine.chat.tokens(prompt).images
        # What all queries share is read first, and the rest of the prompt by itself.
        prefill = -(-len(engine.chat.tokens(prompt).ids) // self.PIECE) + 1
        run = {
            "vision": 1,
            "prefill": 3,
            "prefill within the image": image.start // self.PIECE + 2,
            "thought": prefill + 4,
            "action": prefill + THOUGHT + 5,
        }[where]
        if where == "prefill within the image":
            assert image.start < (run - 1) * self.PIECE < image.start + image.tokens
        deadline = Deadline(1e6)

        def pass_the_deadline() -> None:
            clock.now += 2e6

        end = deadline.cancel if how == "cancelled" else pass_the_deadline
        part = "_vision" if where == "vision" else "_decoder"
        session = end_during(getattr(engine, part), run, end)
        setattr(engine, part, session)
        with pytest.raises(Cancelled if how == "cancelled" else DeadlineExceeded):
            respond(policy, prompt, deadline=deadline)
        assert session.runs == run
        self.assert_unharmed(policy, fresh)

    def test_a_prompt_too_long(self, folder: Path, fresh: Fresh) -> None:
        policy = make(folder, max_tokens=1000)
        longer = Conversation()
        for _ in range(3):
            longer.said("Look.")
        with pytest.raises(PromptTooLong, match="1000"):
            respond(policy, longer.prompt())
        assert watchers() == []
        assert_same(respond(policy, Conversation().prompt()), fresh(Conversation().prompt()))

    def test_a_prompt_may_fill_the_capacity_though_no_turn_would_need_it(self, folder: Path) -> None:
        """Room is reserved for what an episode can come to have, which is never more than its capacity."""
        policy = make(folder)
        tokens = len(policy.engine.chat.tokens(Conversation().prompt()).ids) + 200
        room = tokens * TokenSequence.bytes_per_token(policy.engine.manifest.text)
        parse_action(said(respond(make(folder, max_tokens=tokens, cache_bytes=room), Conversation().prompt())))

    def test_no_memory_for_an_episode(self, folder: Path) -> None:
        policy = make(folder, cache_bytes=100_000)
        with pytest.raises(EngineOutOfMemory, match="cache_bytes"):
            respond(policy, Conversation().prompt())


# ---- deadlines


class TestDeadline:
    STEP = 0.02
    """Seconds of a run of the decoder."""

    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("budget", [0.8, 1.0, 1.5])
    def test_when_time_gets_short_the_thought_ends_and_the_answer_comes_in_time(
        self, folder: Path, clock: Clock, budget: float, seed: int
    ) -> None:
        # The thought alone would take 4 s.
        policy = make(folder, SamplingConfig(temperature=1.0, seed=seed), thought=200)
        takes(policy, clock, self.STEP)
        policy.warm_up(Conversation("the building").prompt())
        deadline = Deadline(budget)
        chunks = respond(policy, Conversation().prompt(), deadline=deadline)
        thought, action = parse_action(said(chunks))
        assert isinstance(action, (Answer, NotFound))
        assert deadline.remaining() >= 0
        # The time was used: at least what a longer answer would have had no need of.
        written = sum(1 for chunk in chunks if chunk.log_probs)
        assert written * self.STEP > budget - 1.25 * 28 * self.STEP - 5 * self.STEP
        assert thought

    def test_with_time_enough_the_thought_is_left_alone(self, folder: Path, clock: Clock) -> None:
        policy, expected = make(folder), respond(make(folder), Conversation().prompt())
        takes(policy, clock, self.STEP)
        assert_same(respond(policy, Conversation().prompt(), deadline=Deadline(30)), expected)

    def test_what_an_answer_takes_is_learnt_from_the_first_step_on(self, folder: Path, clock: Clock) -> None:
        policy = make(folder, thought=200)
        takes(policy, clock, self.STEP)
        assert policy.answer_reserve() == 0
        in_pieces_of(policy, 2000)
        deadline = Deadline(1.0)
        _, action = parse_action(said(respond(policy, Conversation().prompt(), deadline=deadline)))
        assert isinstance(action, (Answer, NotFound))
        assert deadline.remaining() >= 0
        assert policy.answer_reserve() > 20 * self.STEP

    def test_steps_that_become_slower_bring_the_answer_sooner(self, folder: Path, clock: Clock) -> None:
        policy = make(folder, thought=200)
        slow_from = 60
        session = takes(policy, clock, lambda run: self.STEP / 4 if run < slow_from else self.STEP)
        policy.warm_up(Conversation("the building").prompt())
        deadline = Deadline(1.5)
        _, action = parse_action(said(respond(policy, Conversation().prompt(), deadline=deadline)))
        assert session.runs > slow_from
        assert isinstance(action, (Answer, NotFound))
        assert deadline.remaining() >= 0

    def test_a_fixed_workflow_allows_no_answer_and_ends_at_the_deadline(self, folder: Path, clock: Clock) -> None:
        policy = make(folder, thought=200)
        takes(policy, clock, self.STEP)
        policy.warm_up(Conversation("the building").prompt())
        deadline = Deadline(1.0)
        chunks: list[Chunk] = []
        with pytest.raises(DeadlineExceeded):
            for chunk in policy.respond("e", Conversation().prompt(must_call="zoom_in"), deadline):
                chunks.append(chunk)
        assert "<answer>" not in said(chunks)
        # Not before it, and no more than one step behind it.
        assert 0 >= deadline.remaining() >= -self.STEP - 1e-9

    def test_reading_a_prompt_ends_at_the_deadline(self, policy: EnginePolicy, clock: Clock) -> None:
        in_pieces_of(policy, 16)
        takes(policy, clock, self.STEP)
        deadline = Deadline(0.5)
        with pytest.raises(DeadlineExceeded):
            respond(policy, Conversation().prompt(), deadline=deadline)
        assert 0 >= deadline.remaining() >= -self.STEP - 1e-9


class TestDeadlineInRealTime:
    """The same against the wall clock; sleeping takes a busy machine little longer than an idle one."""

    def test_the_answer_comes_before_the_deadline(self, folder: Path) -> None:
        # A step sleeps 40 ms: an answer's dozen of steps take about half of the 1.4 s that are kept for it, so that
        # even a machine that doubles their time is in time. The whole thought would take 16 s.
        policy = make(folder, SAMPLED, thought=400)
        policy.warm_up(Conversation("the building").prompt())
        sleeps(policy, 0.04)
        deadline = Deadline(4.0)
        _, action = parse_action(said(respond(policy, Conversation().prompt(), deadline=deadline)))
        assert isinstance(action, (Answer, NotFound))
        assert deadline.elapsed() <= 4.0

    def test_an_error_comes_within_a_run_of_the_deadline(self, policy: EnginePolicy) -> None:
        # Read in pieces of 16 that sleep 50 ms each the prompt takes 3 s; onnxruntime cannot end a sleep.
        in_pieces_of(policy, 16)
        sleeps(policy, 0.05)
        deadline = Deadline(0.3)
        with pytest.raises(DeadlineExceeded):
            respond(policy, Conversation().prompt(), deadline=deadline)
        assert 0.3 <= deadline.elapsed() < 0.3 + 0.05 + SLACK_S


# ---- searches


def untimed(trace: Trace) -> dict[str, Any]:
    content = trace.model_dump()
    for turn in content["turns"]:
        turn.pop("policy_ms"), turn.pop("tool_ms")
    return content


class TestSearching:
    QUERY = "the white car next to Red Hall"
    ENDS = (OK, NOT_FOUND, TurnsExhausted.code)
    """Of a search that nobody hurries."""

    @pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
    def test_two_searches_take_the_same_turns(self, folder: Path, town: Scene, sampling: SamplingConfig) -> None:
        grounder = Grounder(town, make(folder, sampling))
        first, _, trace = grounder.ground(self.QUERY)
        assert first.code in self.ENDS
        assert (first.box is not None) == (first.code == OK or first.partial)
        for turn in trace.turns:
            parse_action(turn.text)
        again, _, same = grounder.ground(self.QUERY)
        assert untimed(same) == untimed(trace)
        assert again.untimed() == first.untimed()
        other, _, elsewhere = Grounder(town, make(folder, sampling)).ground(self.QUERY)
        assert untimed(elsewhere) == untimed(trace)
        assert other.untimed() == first.untimed()

    def test_a_fixed_workflow_is_kept_to(self, folder: Path, town: Scene) -> None:
        workflow = ("zoom_in", "oblique_render")
        _, _, trace = Grounder(town, make(folder, SAMPLED), workflow=workflow).ground(self.QUERY)
        done = [turn.action for turn in trace.turns if turn.action != "invalid"]
        assert done == [*workflow, done[-1]][: len(done)]
        assert {turn.action for turn in trace.turns} <= {*workflow, "answer", "not_found", "invalid"}

    def test_nothing_is_left_of_a_search(self, folder: Path, town: Scene) -> None:
        policy = make(folder)
        grounder = Grounder(town, policy)
        before = policy.cache.bytes
        grounder.ground(self.QUERY)
        assert policy.cache.bytes == before
        assert watchers() == []

    @pytest.mark.parametrize("seed", range(2))
    @pytest.mark.parametrize("budget", [0.05, 0.5, 1.5, 4.0])
    def test_a_search_ends_within_its_budget(
        self, folder: Path, town: Scene, clock: Clock, budget: float, seed: int
    ) -> None:
        step = 0.01
        policy = make(folder, SamplingConfig(temperature=1.0, seed=seed), thought=40)
        takes(policy, clock, step)
        grounder = Grounder(town, policy)
        for _ in range(2):
            result, episode, trace = grounder.ground(self.QUERY, budget)
            assert result.code in {*self.ENDS, DeadlineExceeded.code}
            if result.code == DeadlineExceeded.code:
                assert result.partial == (episode.best is not None)
                # Noticed at the step during which it passed.
                assert result.time_ms <= (budget + step) * 1000 + 1e-6
            else:
                assert result.time_ms <= budget * 1000
            assert len(trace.turns) == result.turns

    def test_a_search_ends_within_its_budget_by_the_wall_clock(self, folder: Path, town: Scene) -> None:
        policy = make(folder, SAMPLED, thought=40)
        grounder = Grounder(town, policy)
        # 10 ms a step: eight turns would take four seconds and more.
        sleeps(policy, 0.01)
        result, _, _ = grounder.ground(self.QUERY, 1.0)
        assert result.code in {*self.ENDS, DeadlineExceeded.code}
        assert result.time_ms <= 1000 + SLACK_S * 1000

    def test_a_search_that_is_cancelled_says_so(self, folder: Path, town: Scene) -> None:
        policy = make(folder)
        grounder = Grounder(town, policy)
        deadline = Deadline(math.inf)
        policy.engine._decoder = end_during(policy.engine._decoder, 20, deadline.cancel)
        result, _, _ = grounder.ground(self.QUERY, deadline=deadline)
        assert result.code == Cancelled.code
        assert grounder.ground(self.QUERY)[0].code in self.ENDS

    def test_what_ends_a_turn_ends_the_search_by_name_with_the_region_so_far(self, folder: Path, town: Scene) -> None:
        first = Grounder(town, make(folder), workflow=("zoom_in",)).ground(self.QUERY)[2].turns[0]
        # Room for the first turn, and not for the picture it asks for.
        policy = make(folder, max_tokens=(first.prompt_tokens or 0) + (first.completion_tokens or 0) + 30)
        result, episode, _ = Grounder(town, policy, workflow=("zoom_in",)).ground(self.QUERY)
        assert (result.code, result.turns, result.partial) == (PromptTooLong.code, 1, True)
        assert episode.best is not None
