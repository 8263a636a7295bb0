"""An engine says the same however it comes to have read a prompt, and reads nothing twice."""

from __future__ import annotations

import json
import math
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.policy.engine.conftest import TOLERANCE, Conversation, Export, picture, relative_l2, unwatched, words

from wayfix.agent.deadline import Deadline
from wayfix.errors import Cancelled, DeadlineExceeded, EngineCorrupt, EngineMismatch, PromptTooLong
from wayfix.policy.engine.chat import PromptImage, TokenPrompt
from wayfix.policy.engine.engine import Engine, EngineConfig
from wayfix.policy.engine.graphs import Watch
from wayfix.policy.engine.sequence import TokenSequence

SAID = ('Look.\n<tool_call>{"name": "zoom_in"}</tool_call>', "And there.", "I see it.")
QUANTIZED = {"int8": 0.2, "int4": 0.5}
"""How far logits may be from float32's, as relative L2: random weights quantize badly, broken ones far worse."""


def turns(query: str = "the red car next to the school") -> list[Conversation]:
    """A conversation before its first, second, ... turn."""
    made = []
    for count in range(len(SAID) + 1):
        conversation = Conversation(query)
        for text in SAID[:count]:
            conversation.said(text)
        made.append(conversation)
    return made


@pytest.fixture(scope="module")
def prompts(engine: Engine) -> list[TokenPrompt]:
    """The same, as tokens: one to four images."""
    return [engine.chat.tokens(conversation.prompt()) for conversation in turns()]


def read(engine: Engine, prompt: TokenPrompt, sequence: TokenSequence | None = None) -> NDArray[np.float32]:
    return engine.read(sequence or engine.new_sequence(), prompt, unwatched()).copy()


@pytest.fixture(scope="module")
def at_once(folder: Path, prompts: list[TokenPrompt]) -> list[NDArray[np.float32]]:
    """Logits after each prompt, read by an engine that reads everything in one piece."""
    engine = Engine(folder)
    in_pieces_of(engine, 10_000)
    return [read(engine, prompt) for prompt in prompts]


def in_pieces_of(engine: Engine, tokens: int) -> None:
    engine._chunk = lambda left: min(left, tokens)  # type: ignore[method-assign]


class CountedRuns:
    """A graph's session that counts its runs."""

    def __init__(self, session: Any) -> None:
        self.session, self.runs = session, 0

    def io_binding(self) -> Any:
        return self.session.io_binding()

    def run_with_iobinding(self, binding: Any, options: Any) -> None:
        self.runs += 1
        self.session.run_with_iobinding(binding, options)


class EndsDuring(CountedRuns):
    """A session during whose n-th run the deadline is cancelled, which onnxruntime notices before its first node."""

    def __init__(self, session: Any, run: int, deadline: Deadline) -> None:
        super().__init__(session)
        self.last, self.deadline = run, deadline

    def run_with_iobinding(self, binding: Any, options: Any) -> None:
        if self.runs + 1 == self.last:
            self.deadline.cancel()
            options.terminate = True
        super().run_with_iobinding(binding, options)


class TestReading:
    @pytest.mark.parametrize("pieces", [1, 7, 64, 500])
    def test_the_pieces_a_prompt_is_read_in_do_not_matter(
        self, own_engine: Engine, prompts: list[TokenPrompt], at_once: list[NDArray[np.float32]], pieces: int
    ) -> None:
        in_pieces_of(own_engine, pieces)
        # Those of one token are many: the shortest prompt will do.
        for prompt, expected in list(zip(prompts, at_once, strict=True))[: 1 if pieces == 1 else None]:
            assert relative_l2(read(own_engine, prompt), expected) <= TOLERANCE

    def test_turn_by_turn_only_what_is_new_is_read_and_says_the_same(
        self, engine: Engine, prompts: list[TokenPrompt], at_once: list[NDArray[np.float32]], reads: list[int]
    ) -> None:
        kept = engine.new_sequence()
        for number, (prompt, expected) in enumerate(zip(prompts, at_once, strict=True)):
            reads.clear()
            assert relative_l2(read(engine, prompt, kept), expected) <= TOLERANCE
            assert sum(reads) == len(prompt.ids) - (len(prompts[number - 1].ids) if number else 0)
            assert kept.identity.tolist() == prompt.identity.tolist()

    def test_a_prompt_read_again_costs_its_last_token(
        self, engine: Engine, prompts: list[TokenPrompt], at_once: list[NDArray[np.float32]], reads: list[int]
    ) -> None:
        kept = engine.new_sequence()
        read(engine, prompts[1], kept)
        reads.clear()
        assert relative_l2(read(engine, prompts[1], kept), at_once[1]) <= TOLERANCE
        assert reads == [1]

    def test_an_earlier_prompt_is_gone_back_to(
        self, engine: Engine, prompts: list[TokenPrompt], at_once: list[NDArray[np.float32]], reads: list[int]
    ) -> None:
        kept = engine.new_sequence()
        read(engine, prompts[3], kept)
        reads.clear()
        assert relative_l2(read(engine, prompts[1], kept), at_once[1]) <= TOLERANCE
        assert reads == [1]

    def test_another_query_on_the_scene_is_read_from_where_it_differs(self, engine: Engine, reads: list[int]) -> None:
        first, second = (engine.chat.tokens(Conversation(query).prompt()) for query in ("the red car", "a blue van"))
        kept = engine.new_sequence()
        read(engine, first, kept)
        reads.clear()
        logits = read(engine, second, kept)
        same = int(np.flatnonzero(first.identity[: len(second.ids)] != second.identity[: len(first.ids)])[0])
        assert sum(reads) == len(second.ids) - same < 30
        assert relative_l2(logits, read(engine, second)) <= TOLERANCE

    def test_another_picture_in_the_same_words_is_read(self, engine: Engine) -> None:
        # Scenes 0 and 3 have the same shape, and so the same tokens.
        first, second = (engine.chat.tokens(Conversation(scene=scene).prompt()) for scene in (0, 3))
        assert first.ids.tolist() == second.ids.tolist()
        kept = engine.new_sequence()
        before = read(engine, first, kept)
        logits = read(engine, second, kept)
        assert relative_l2(logits, read(engine, second)) <= TOLERANCE
        assert relative_l2(logits, before) > 1e-3

    def test_plain_text_needs_no_image(self, engine: Engine) -> None:
        kept = engine.new_sequence()
        read(engine, words(20), kept)
        assert relative_l2(read(engine, words(50), kept), read(engine, words(50))) <= TOLERANCE

    def test_a_piece_takes_about_a_tenth_of_a_second(self, own_engine: Engine, reads: list[int]) -> None:
        # By what a token has cost; 16 at least, and 512 at most.
        for cost, size in ((0.002, 50), (1.0, 16), (1e-9, 512), (0.0, 512)):
            own_engine.costs.prefill_token = cost
            reads.clear()
            read(own_engine, words(520))
            assert reads[0] == size

    def test_what_parts_cost_is_measured(self, own_engine: Engine, prompts: list[TokenPrompt]) -> None:
        costs = own_engine.costs
        assert (costs.prefill_token, costs.decode, costs.image_patch) == (None, None, None)
        sequence = own_engine.new_sequence()
        read(own_engine, prompts[0], sequence)
        own_engine.step(sequence, 5, unwatched())
        assert min(costs.prefill_token or 0, costs.decode or 0, costs.image_patch or 0) > 0


class TestTooLong:
    def test_a_prompt_beyond_the_capacity_is_refused_before_any_of_it_is_read(
        self, folder: Path, prompts: list[TokenPrompt], reads: list[int]
    ) -> None:
        engine = Engine(folder, EngineConfig(max_tokens=len(prompts[1].ids)))
        engine._vision = CountedRuns(engine._vision)
        kept = engine.new_sequence()
        read(engine, prompts[1], kept)
        reads.clear()
        runs = engine._vision.runs
        with pytest.raises(PromptTooLong, match=str(len(prompts[2].ids))):
            read(engine, prompts[2], kept)
        assert (reads, engine._vision.runs, kept.length) == ([], runs, len(prompts[1].ids))

    def test_a_turn_that_reaches_the_capacity_ends_there(self, small_engine: Engine) -> None:
        kept = small_engine.new_sequence()
        read(small_engine, words(62), kept)
        small_engine.step(kept, 1, unwatched())
        small_engine.step(kept, 2, unwatched())
        for go_on in (
            lambda: small_engine.step(kept, 3, unwatched()),
            lambda: small_engine.steps(kept, [3, 4], unwatched()),
        ):
            with pytest.raises(PromptTooLong):
                go_on()
        assert kept.length == 64

    def test_no_episode_is_longer_than_the_model_was_made_for(self, folder: Path) -> None:
        engine = Engine(folder, EngineConfig(max_tokens=1_000_000))
        assert engine.capacity == engine.manifest.text.max_tokens


class TestSteps:
    TOKENS = (17, 300, 42, 300, 8)

    def test_a_token_after_another_several_at_once_and_a_longer_prompt_say_the_same(
        self, engine: Engine, prompts: list[TokenPrompt]
    ) -> None:
        one_by_one, together = engine.new_sequence(), engine.new_sequence()
        for sequence in (one_by_one, together):
            read(engine, prompts[1], sequence)
        logits = [engine.step(one_by_one, token, unwatched()).copy() for token in self.TOKENS][-1]
        ids, identity = (np.append(array, self.TOKENS) for array in (prompts[1].ids, prompts[1].identity))
        whole = read(engine, TokenPrompt(ids, identity, prompts[1].images))
        assert relative_l2(logits, whole) <= TOLERANCE
        assert relative_l2(engine.steps(together, self.TOKENS, unwatched()), whole) <= TOLERANCE
        for sequence in (one_by_one, together):
            assert sequence.identity.tolist() == identity.tolist()

    def test_what_was_written_need_not_be_read(
        self, engine: Engine, prompts: list[TokenPrompt], reads: list[int]
    ) -> None:
        sequence = engine.new_sequence()
        read(engine, prompts[0], sequence)
        # The assistant's turn begins as the next prompt will have it.
        start, said = len(prompts[0].ids), prompts[1].ids[len(prompts[0].ids) :][:6].tolist()
        engine.steps(sequence, said[:3], unwatched())
        for token in said[3:]:
            engine.step(sequence, token, unwatched())
        reads.clear()
        logits = read(engine, prompts[1], sequence)
        assert sum(reads) == len(prompts[1].ids) - start - 6
        assert relative_l2(logits, read(engine, prompts[1])) <= TOLERANCE

    def test_a_step_right_after_an_image_follows_its_longer_side(
        self, engine: Engine, prompts: list[TokenPrompt]
    ) -> None:
        (image,) = prompts[0].images
        end = image.start + image.tokens
        sequence = engine.new_sequence()
        read(engine, TokenPrompt(prompts[0].ids[:end], prompts[0].identity[:end], prompts[0].images), sequence)
        # 64 tokens, 8 down and 8 across.
        assert sequence.next_position == image.start + 8
        logits = engine.step(sequence, int(prompts[0].ids[end]), unwatched())
        longer = TokenPrompt(prompts[0].ids[: end + 1], prompts[0].identity[: end + 1], prompts[0].images)
        assert relative_l2(logits, read(engine, longer)) <= TOLERANCE

    def test_an_image_that_two_threads_ask_for_at_once_is_encoded_once(
        self, own_engine: Engine, prompts: list[TokenPrompt]
    ) -> None:
        other = threading.Thread(target=read, args=(own_engine, prompts[0]))

        class AskedForMeanwhile(CountedRuns):
            def run_with_iobinding(self, binding: Any, options: Any) -> None:
                super().run_with_iobinding(binding, options)
                if self.runs == 1:
                    other.start()
                    # Time enough to begin a second run, if nothing kept it from that.
                    other.join(0.2)

        own_engine._vision = counted = AskedForMeanwhile(own_engine._vision)
        read(own_engine, prompts[0])
        other.join()
        assert counted.runs == 1

    def test_steps_of_several_threads_take_turns(self, engine: Engine, prompts: list[TokenPrompt]) -> None:
        texts = [prompts[1], prompts[2], engine.chat.tokens(Conversation("a van", scene=1).prompt())]

        def say(prompt: TokenPrompt) -> NDArray[np.float32]:
            sequence = engine.new_sequence()
            said = [read(engine, prompt, sequence)]
            for token in self.TOKENS * 4:
                said.append(engine.step(sequence, token, unwatched()).copy())
            said.append(engine.steps(sequence, self.TOKENS, unwatched()).copy())
            return np.concatenate(said)

        alone = [say(text) for text in texts]
        engine.forget_images()
        together: dict[int, NDArray[np.float32]] = {}
        threads = [
            threading.Thread(target=lambda number=number: together.update({number: say(texts[number])}))
            for number in range(len(texts))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number, expected in enumerate(alone):
            assert relative_l2(together[number], expected) <= TOLERANCE


class TestBrokenOff:
    """A deadline may end a reading anywhere; what is left is gone on from, or begun anew, with the same outcome."""

    def broken_off(self, engine: Engine, prompt: TokenPrompt, during_run: int, pieces: int) -> TokenSequence:
        """A sequence that was cut off while its n-th piece was read."""
        in_pieces_of(engine, pieces)
        whole, deadline = engine._decoder, Deadline(math.inf)
        engine._decoder = EndsDuring(whole, during_run, deadline)
        sequence = engine.new_sequence()
        with pytest.raises(Cancelled):
            engine.read(sequence, prompt, Watch(deadline))
        sequence._decoder = engine._decoder = whole
        assert sequence.length == (during_run - 1) * pieces
        return sequence

    def test_within_an_image_that_image_is_read_again_and_no_more(
        self, own_engine: Engine, prompts: list[TokenPrompt], at_once: list[NDArray[np.float32]], reads: list[int]
    ) -> None:
        prompt, image = prompts[2], prompts[2].images[1]
        pieces = 16
        run = image.start // pieces + 3
        sequence = self.broken_off(own_engine, prompt, run, pieces)
        assert image.start < sequence.length < image.start + image.tokens
        reads.clear()
        assert relative_l2(read(own_engine, prompt, sequence), at_once[2]) <= TOLERANCE
        assert sum(reads) == len(prompt.ids) - image.start

    @pytest.mark.parametrize("pieces", [16, 50])
    def test_wherever_it_was(
        self, own_engine: Engine, prompts: list[TokenPrompt], at_once: list[NDArray[np.float32]], pieces: int
    ) -> None:
        runs = -(-len(prompts[1].ids) // pieces)
        # Every fifth place, the first and the last.
        for run in sorted({1, runs, *range(1, runs + 1, 5)}):
            sequence = self.broken_off(own_engine, prompts[1], run, pieces)
            assert relative_l2(read(own_engine, prompts[1], sequence), at_once[1]) <= TOLERANCE

    def test_another_episodes_prompt_may_follow(self, own_engine: Engine, prompts: list[TokenPrompt]) -> None:
        image = prompts[2].images[1]
        sequence = self.broken_off(own_engine, prompts[2], image.start // 16 + 3, 16)
        # The image that was cut short in the second prompt is whole here, and another.
        other = own_engine.chat.tokens(turns("another query")[1].prompt())
        assert relative_l2(read(own_engine, other, sequence), read(own_engine, other)) <= TOLERANCE

    def test_while_an_image_is_encoded_nothing_of_it_is_kept(
        self, own_engine: Engine, prompts: list[TokenPrompt], at_once: list[NDArray[np.float32]]
    ) -> None:
        whole, deadline = own_engine._vision, Deadline(math.inf)
        own_engine._vision = EndsDuring(whole, 2, deadline)
        sequence = own_engine.new_sequence()
        with pytest.raises(Cancelled):
            own_engine.read(sequence, prompts[2], Watch(deadline))
        own_engine._vision = counted = CountedRuns(whole)
        assert relative_l2(read(own_engine, prompts[2], sequence), at_once[2]) <= TOLERANCE
        # The first of three had been done.
        assert counted.runs == 2

    def test_between_tokens_a_turn_goes_on_from_its_last(self, own_engine: Engine, prompts: list[TokenPrompt]) -> None:
        sequence = own_engine.new_sequence()
        read(own_engine, prompts[0], sequence)
        own_engine.step(sequence, 5, unwatched())
        over = Watch(Deadline(0.0))
        with pytest.raises(DeadlineExceeded):
            own_engine.step(sequence, 6, over)
        with pytest.raises(DeadlineExceeded):
            own_engine.steps(sequence, [6, 7], over)
        assert sequence.length == len(prompts[0].ids) + 1
        ids, identity = (np.append(array, (5, 6)) for array in (prompts[0].ids, prompts[0].identity))
        expected = read(own_engine, TokenPrompt(ids, identity, prompts[0].images))
        assert relative_l2(own_engine.step(sequence, 6, unwatched()), expected) <= TOLERANCE


class TestNoTimeToRead:
    """Where reading would surely end too late it is not begun: what is known so far can then be answered in time."""

    @pytest.fixture
    def slow(self, own_engine: Engine) -> Engine:
        """An engine that thinks a token takes 10 s and an image of 256 patches 2560 s."""
        own_engine._vision = CountedRuns(own_engine._vision)
        own_engine.costs.prefill_token, own_engine.costs.image_patch = 10.0, 10.0
        return own_engine

    def expected(self, prompt: TokenPrompt) -> float:
        return 10.0 * (len(prompt.ids) + 256 * len(prompt.images))

    def test_it_is_given_up_at_once(self, slow: Engine, prompts: list[TokenPrompt], reads: list[int]) -> None:
        seconds = self.expected(prompts[1])
        with pytest.raises(DeadlineExceeded, match=rf"{len(prompts[1].ids)} tokens and 2 images .* {seconds:.2f} s"):
            slow.read(slow.new_sequence(), prompts[1], Watch(Deadline(0.5 * seconds)))
        assert (reads, slow._vision.runs) == ([], 0)

    def test_what_may_still_come_in_time_is_tried(self, slow: Engine, prompts: list[TokenPrompt]) -> None:
        deadline = Deadline(0.7 * self.expected(prompts[1]))
        slow.read(slow.new_sequence(), prompts[1], Watch(deadline))

    def test_what_is_known_already_takes_no_time(self, slow: Engine, prompts: list[TokenPrompt]) -> None:
        sequence = slow.new_sequence()
        read(slow, prompts[0], sequence)
        slow.encode(prompts[1].images[1], unwatched())
        slow.costs.prefill_token, slow.costs.image_patch = 10.0, 10.0
        new = len(prompts[1].ids) - len(prompts[0].ids)
        slow.read(sequence, prompts[1], Watch(Deadline(10.0 * new)))

    def test_without_a_measurement_it_is_tried(self, own_engine: Engine, prompts: list[TokenPrompt]) -> None:
        own_engine.read(own_engine.new_sequence(), prompts[1], Watch(Deadline(60)))

    def test_a_cost_once_too_high_is_not_believed_for_ever(self, slow: Engine, prompts: list[TokenPrompt]) -> None:
        refused = 0
        for _ in range(20):
            try:
                slow.read(slow.new_sequence(), prompts[1], Watch(Deadline(100)))
            except DeadlineExceeded:
                refused += 1
        # Each time it is believed less, until it is tried: after that it is known better.
        assert 1 <= refused < 15


class TestImages:
    @pytest.fixture
    def counted(self, own_engine: Engine) -> CountedRuns:
        own_engine._vision = CountedRuns(own_engine._vision)
        return own_engine._vision

    def image(self, engine: Engine, seed: int, height: int = 256) -> PromptImage:
        """A prompt's image, each time from a view of its own."""
        prompt = Conversation().prompt()
        messages = prompt.messages[1]
        seen = type(messages.views[0])("v0", picture(seed, height), messages.views[0].region, None)
        message = type(messages)("user", (seen, "Find: it"))
        return engine.chat.tokens(type(prompt)((), (message,), "it", must_answer=False)).images[0]

    def test_one_with_the_same_pixels_is_encoded_once(self, own_engine: Engine, counted: CountedRuns) -> None:
        first = own_engine.encode(self.image(own_engine, 1), unwatched())
        assert own_engine.encode(self.image(own_engine, 1), unwatched()) is first
        assert counted.runs == 1
        own_engine.encode(self.image(own_engine, 2), unwatched())
        assert counted.runs == 2

    def test_an_episode_and_the_next_share_their_scenes_picture(self, own_engine: Engine, counted: CountedRuns) -> None:
        for query in ("the red car", "a blue van"):
            read(own_engine, own_engine.chat.tokens(Conversation(query).prompt()))
        assert counted.runs == 1

    def test_it_has_a_feature_for_each_token_of_each_tap(self, engine: Engine) -> None:
        image = self.image(engine, 1, 320)
        made = engine.encode(image, unwatched())
        hidden, taps = engine.manifest.text.hidden, engine.manifest.vision.taps
        assert (image.tokens, made.grid) == (80, (20, 16))
        assert (made.features.shape, made.deepstack.shape) == ((80, hidden), (taps, 1, 80, hidden))
        assert np.isfinite(made.features).all() and np.isfinite(made.deepstack).all()

    def fitting(self, folder: Path, images: float) -> tuple[Engine, CountedRuns]:
        """An engine whose budget for features is what so many images take."""
        one = Engine(folder)
        size = one.encode(self.image(one, 1), unwatched()).bytes
        engine = Engine(folder, EngineConfig(image_bytes=round(images * size)))
        engine._vision = counted = CountedRuns(engine._vision)
        return engine, counted

    def encoded(self, engine: Engine, counted: CountedRuns, seeds: Sequence[int]) -> list[int]:
        """Which of these had to be encoded."""
        fresh = []
        for seed in seeds:
            before = counted.runs
            engine.encode(self.image(engine, seed), unwatched())
            fresh += [seed] * (counted.runs - before)
        return fresh

    def test_beyond_the_budget_the_one_not_used_for_longest_goes(self, folder: Path) -> None:
        engine, counted = self.fitting(folder, 2.5)
        assert self.encoded(engine, counted, [1, 2, 1, 3]) == [1, 2, 3]
        assert self.encoded(engine, counted, [1, 3]) == []
        assert self.encoded(engine, counted, [2]) == [2]

    def test_as_many_are_kept_as_fit_to_the_byte(self, folder: Path) -> None:
        engine, counted = self.fitting(folder, 3)
        assert self.encoded(engine, counted, [1, 2, 3, 1, 2, 3]) == [1, 2, 3]

    def test_one_larger_than_the_whole_budget_is_still_read(self, folder: Path, prompts: list[TokenPrompt]) -> None:
        engine, _ = self.fitting(folder, 0.1)
        assert relative_l2(read(engine, prompts[2]), read(Engine(folder), prompts[2])) <= TOLERANCE

    def test_encoded_again_it_is_the_same(self, own_engine: Engine, counted: CountedRuns) -> None:
        first = own_engine.encode(self.image(own_engine, 1), unwatched())
        own_engine.forget_images()
        again = own_engine.encode(self.image(own_engine, 1), unwatched())
        assert counted.runs == 2
        assert np.array_equal(again.features, first.features) and np.array_equal(again.deepstack, first.deepstack)

    def test_one_that_was_dropped_changes_no_turn(
        self, folder: Path, prompts: list[TokenPrompt], at_once: list[NDArray[np.float32]]
    ) -> None:
        engine, counted = self.fitting(folder, 1)
        kept = engine.new_sequence()
        for prompt, expected in zip(prompts, at_once, strict=True):
            assert relative_l2(read(engine, prompt, kept), expected) <= TOLERANCE
        # What the sequence holds needs no features any more.
        assert counted.runs == 4


class TestPrecisions:
    @pytest.fixture(params=["int8", "int4"])
    def quantized(self, request: pytest.FixtureRequest, export: Export) -> tuple[Engine, float]:
        return Engine(export(request.param)), QUANTIZED[request.param]

    def test_quantized_engines_say_nearly_what_float32_says(
        self, quantized: tuple[Engine, float], prompts: list[TokenPrompt], at_once: list[NDArray[np.float32]]
    ) -> None:
        engine, tolerance = quantized
        error = relative_l2(read(engine, prompts[1]), at_once[1])
        assert TOLERANCE < error <= tolerance

    def test_they_go_on_token_by_token_and_turn_by_turn(
        self, quantized: tuple[Engine, float], prompts: list[TokenPrompt]
    ) -> None:
        engine, tolerance = quantized
        kept = engine.new_sequence()
        for prompt in prompts:
            logits = read(engine, prompt, kept)
            assert relative_l2(logits, read(engine, prompt)) <= tolerance
            for _ in range(3):
                logits = engine.step(kept, int(logits.argmax()), unwatched())
            assert np.isfinite(logits).all()
            assert kept.length == len(prompt.ids) + 3


class TestEngines:
    def test_two_of_one_folder_say_the_same(self, folder: Path, prompts: list[TokenPrompt]) -> None:
        engines = [Engine(folder), Engine(folder)]
        for engine in engines:
            in_pieces_of(engine, 100)
        first, second = (read(engine, prompts[1]) for engine in engines)
        assert np.array_equal(first, second)

    @pytest.mark.parametrize("threads", [1, 2, 5])
    def test_threads_change_only_the_time_it_takes(
        self, folder: Path, prompts: list[TokenPrompt], at_once: list[NDArray[np.float32]], threads: int
    ) -> None:
        engine = Engine(folder, EngineConfig(threads=threads))
        assert relative_l2(read(engine, prompts[1]), at_once[1]) <= TOLERANCE


@pytest.mark.parametrize("said", [{"layers": 3}, {"layers": 5}, {"hidden": 128}, {"vocabulary": 4096}, {"kv_heads": 4}])
def test_graphs_that_are_not_those_of_the_manifest_are_refused(
    said: dict[str, int], folder: Path, tmp_path: Path
) -> None:
    """A manifest that was edited, or graphs copied from another engine with their checksums."""
    copy = tmp_path / "engine"
    shutil.copytree(folder, copy)
    content = json.loads((copy / "engine.json").read_text(encoding="utf-8"))
    content["text"].update(said)
    (copy / "engine.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises((EngineMismatch, EngineCorrupt)):
        Engine(copy)
