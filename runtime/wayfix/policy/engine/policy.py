"""The engine policy: a model that runs here decides, token by token, under the grammar of actions and a deadline."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wayfix.agent.deadline import Deadline
from wayfix.agent.messages import Message, Prompt
from wayfix.policy.engine.cache import SequenceCache
from wayfix.policy.engine.chat import TokenPrompt
from wayfix.policy.engine.confidence import calibrated as calibrated_confidence
from wayfix.policy.engine.engine import Engine, EngineConfig
from wayfix.policy.engine.grammar import ActionGrammar, ActionMatcher
from wayfix.policy.engine.graphs import Watch
from wayfix.policy.engine.sampling import SamplingConfig, choose, log_probability
from wayfix.policy.engine.sequence import TokenSequence
from wayfix.policy.interface import Chunk
from wayfix.views.view import ImageSizes

_ANSWER_STEPS = 28
"""Steps that an answer takes at most: four numbers of up to four digits, their separators, a few forced runs."""

_OTHER_QUERY = "?"
_ANSWER = "<answer>"
_NOT_FOUND = '{"not_found"'

_SPARE_TOKENS = 512
"""Room for a turn's own tokens when memory is reserved for its prompt."""


@dataclass
class _Turn:
    """What a turn has written."""

    rng: np.random.Generator
    tokens: int = 0
    text: str = ""
    answer_log_probs: list[float] = field(default_factory=list)


class EnginePolicy:
    """Runs an engine folder as a policy. Episodes may be interleaved; what they share is read once."""

    def __init__(
        self,
        folder: Path,
        config: EngineConfig | None = None,
        sampling: SamplingConfig | None = None,
        *,
        max_thought_tokens: int = 64,
        calibrated: bool = True,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        """Raises an EngineError that says what is wrong with the folder or this machine.

        With `calibrated` False confidence is the tokens' own also where the engine holds a fitted model.
        """
        self.name = "engine"
        self.engine = Engine(folder, config, progress)
        sizes, tokens = self.engine.manifest.sizes, self.engine.manifest.tokens
        self.sizes = ImageSizes(sizes.overview, sizes.zoom, sizes.oblique)
        self.sampling = sampling or SamplingConfig()
        self._confidence = self.engine.manifest.confidence if calibrated else None
        vocabulary = self.engine.manifest.text.vocabulary
        self._grammar = ActionGrammar(self.engine.tokenizer_json, tokens.end, vocabulary, max_thought_tokens)
        self.cache = SequenceCache(self.engine.new_sequence, self.engine.config.cache_bytes)
        self._token_bytes = TokenSequence.bytes_per_token(self.engine.manifest.text)

    def warm_up(self, prompt: Prompt) -> None:
        """Read what all queries on a scene have in common, and run every graph once."""
        tokens = self.engine.chat.tokens(prompt)
        with Watch(Deadline(math.inf)).watching() as watch, self.cache.use("warm-up", tokens.identity) as sequence:
            self._read(sequence, "warm-up", prompt, tokens, watch)
            self.engine.step(sequence, int(tokens.ids[-1]), watch)
        self.cache.drop("warm-up")

    def respond(self, episode_id: str, prompt: Prompt, deadline: Deadline) -> Iterator[Chunk]:
        """The next turn's text, a piece for every token or run of forced ones.

        Where the time left is what an answer takes, the thought is cut short and the answer given. The last piece of an
        answer has its confidence, made from the probabilities that the model, unmasked, gave its tokens.
        """
        tokens = self.engine.chat.tokens(prompt)
        with Watch(deadline).watching() as watch, self.cache.use(episode_id, tokens.identity) as sequence:
            logits = self._read(sequence, episode_id, prompt, tokens, watch)
            matcher = self._grammar.start(prompt)
            seed = (self.sampling.seed, zlib.crc32(tokens.ids.tobytes()))
            turn = _Turn(np.random.default_rng(seed))
            while not matcher.done:
                deadline.check()
                if deadline.remaining() < self.answer_reserve():
                    matcher.force_answer()
                log_probs, logits = self._advance(sequence, matcher, logits, turn, watch)
                yield self._chunk(matcher, log_probs, turn, len(tokens.ids))

    def forget(self, episode_id: str) -> None:
        """The episode has ended: its keys and values go."""
        self.cache.drop(episode_id)

    def answer_reserve(self) -> float:
        """Seconds to keep for a final answer, from what steps have cost lately; 0 before the first."""
        decode = self.engine.costs.decode
        return 0.0 if decode is None else 1.25 * _ANSWER_STEPS * decode

    def _read(
        self, sequence: TokenSequence, episode_id: str, prompt: Prompt, tokens: TokenPrompt, watch: Watch
    ) -> NDArray[np.float32]:
        """Read the prompt, what is common to all queries first, which is kept for the next episode."""
        room = min(len(tokens.ids) + _SPARE_TOKENS, self.engine.capacity)
        self.cache.reserve(room, episode_id, self._token_bytes)
        if not self.cache.shared(tokens.identity):
            common = self._common_prefix(prompt, tokens)
            if sequence.common(common.identity) < len(common.ids):
                self.engine.read(sequence, common, watch)
            self.cache.share(sequence, len(common.ids))
        return self.engine.read(sequence, tokens, watch)

    def _common_prefix(self, prompt: Prompt, tokens: TokenPrompt) -> TokenPrompt:
        """The part of a prompt that does not depend on the query: where it differs from one with another query."""
        messages = list(prompt.messages)
        first = next(number for number, message in enumerate(messages) if message.role == "user")
        messages[first] = Message("user", (*messages[first].parts[:-1], _OTHER_QUERY))
        other = self.engine.chat.tokens(Prompt(prompt.tools, tuple(messages), "", prompt.must_answer))
        count = min(len(other.ids), len(tokens.ids))
        differ = np.flatnonzero(other.identity[:count] != tokens.identity[:count])
        length = int(differ[0]) if len(differ) else count
        images = tuple(image for image in tokens.images if image.start + image.tokens <= length)
        return TokenPrompt(tokens.ids[:length], tokens.identity[:length], images)

    def _advance(
        self,
        sequence: TokenSequence,
        matcher: ActionMatcher,
        logits: NDArray[np.float32],
        turn: _Turn,
        watch: Watch,
    ) -> tuple[tuple[float, ...], NDArray[np.float32]]:
        """Write a token, or all that the grammar leaves no choice about.

        Returns the log-probability of a chosen token, before any masking, and the logits of what comes next.
        """
        forced = matcher.forced()
        tokens = forced or [choose(logits, matcher.allowed(), self.sampling, turn.rng)]
        for token in tokens:
            matcher.advance(token)
        turn.tokens += len(tokens)
        log_probs = () if forced else (log_probability(logits, tokens[0]),)
        # The token that begins an answer counts as well: it is the choice between a box and "not found".
        if _ANSWER in matcher.text:
            turn.answer_log_probs += log_probs
        if matcher.done:
            return log_probs, logits
        if len(tokens) == 1:
            return log_probs, self.engine.step(sequence, tokens[0], watch)
        return log_probs, self.engine.steps(sequence, tokens, watch)

    def _chunk(self, matcher: ActionMatcher, log_probs: tuple[float, ...], turn: _Turn, prompt_tokens: int) -> Chunk:
        """What was written since the last chunk; the last of a turn has the counts, and an answer's confidence."""
        text, turn.text = matcher.text[len(turn.text) :], matcher.text
        if not matcher.done:
            return Chunk(text, log_probs=log_probs)
        confidence = None
        if turn.answer_log_probs:
            raw = math.exp(sum(turn.answer_log_probs) / len(turn.answer_log_probs))
            confidence = calibrated_confidence(raw, _NOT_FOUND in matcher.text, self._confidence)
        return Chunk(text, confidence, (), prompt_tokens, turn.tokens, log_probs)
