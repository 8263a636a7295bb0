"""The proof that an engine says what its checkpoint says, part by part, on recorded episodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wayfix.agent.deadline import Deadline
from wayfix.policy.engine.chat import Chat, TokenPrompt
from wayfix.policy.engine.engine import Engine, EngineConfig
from wayfix.policy.engine.graphs import Watch
from wayfix.policy.engine.images import ImageSpec, Patches, make_patches
from wayfix.policy.engine.manifest import Precisions
from wayfix_export import checks
from wayfix_export.boxes import box_conformance
from wayfix_export.checkpoint import Checkpoint
from wayfix_export.checks import Check, relative_l2
from wayfix_export.episodes import Episode, conversation
from wayfix_export.reference import Reference, ReferencePatches
from wayfix_export.runner import GraphRunner

GREEDY_TOKENS = 24
KEPT_TURNS = 4
_COMPARED_LOGITS = 32_000_000


class Parity:
    """Compares one engine folder with its checkpoint, both in memory at once."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        reference: Reference,
        folder: Path,
        chat: Chat,
        spec: ImageSpec,
        precision: Precisions,
    ) -> None:
        self.reference, self.chat, self.spec, self.precision = reference, chat, spec, precision
        self.folder = folder
        self.vocabulary = checkpoint.shape.text_config.vocab_size
        self.runner = GraphRunner(folder, checkpoint)
        self.found: list[Check] = []

    def run(self, episodes: Sequence[Episode], progress: Callable[[str], None]) -> list[Check]:
        """All that can be compared without the engine's manifest."""
        prompts = [self.chat.tokens(conversation(episode)) for episode in episodes]
        patches = [[make_patches(image.image, self.spec) for image in prompt.images] for prompt in prompts]
        expected = [[self.reference.patches(image.image) for image in prompt.images] for prompt in prompts]
        progress("preprocessing")
        self._preprocessing(patches, expected)
        progress("vision features")
        self._vision(patches[0], expected[0])
        progress("logits")
        self._logits(prompts, patches, expected)
        progress("boxes")
        self.found += box_conformance(self.reference, self.runner, self.chat, self.spec, self.precision)
        return self.found

    def _preprocessing(self, patches: list[list[Patches]], expected: list[list[ReferencePatches]]) -> None:
        worst, count = 0.0, 0
        for ours, theirs in zip(chain(*patches), chain(*expected), strict=True):
            if (ours.rows, ours.columns) != theirs.grid:
                worst = math.inf
                continue
            steps = np.abs(ours.pixels - theirs.pixels).max() * 255 * max(self.spec.std)
            worst, count = max(worst, float(steps)), count + 1
        self._add("preprocessing", worst, checks.PREPROCESSING_255, f"steps of 255, {count} images")

    def _vision(self, patches: list[Patches], expected: list[ReferencePatches]) -> None:
        limit = checks.VISION[self.precision.vision].rel_l2
        pairs = [
            (self.runner.encode(ours), self.reference.features(theirs))
            for ours, theirs in zip(patches, expected, strict=True)
        ]
        features = max(relative_l2(ours["features"], theirs[0]) for ours, theirs in pairs)
        taps = max(relative_l2(ours["deepstack"][:, 0], theirs[1]) for ours, theirs in pairs)
        note = f"relative L2, worst of {len(pairs)} images"
        self._add("vision features", features, limit, note)
        self._add("deepstack features", taps, limit, note)

    def _logits(
        self, prompts: list[TokenPrompt], patches: list[list[Patches]], expected: list[list[ReferencePatches]]
    ) -> None:
        limit = _worse(checks.DECODER[self.precision.decoder], checks.VISION[self.precision.vision])
        errors, same, tokens = [], 0, 0
        for prompt, ours, theirs in zip(prompts, patches, expected, strict=True):
            rows = _rows(len(prompt.ids), self.vocabulary)
            wanted = self.reference.logits(prompt.ids.tolist(), theirs, rows)
            got = self.runner.read(prompt, ours, rows)["logits"]
            errors.append(relative_l2(got, wanted))
            same += int((got.argmax(axis=1) == wanted.argmax(axis=1)).sum())
            tokens += len(rows)
        images = sum(len(prompt.images) for prompt in prompts)
        note = f"{len(prompts)} episodes, {images} images, {tokens} tokens"
        self._add("logits", max(errors), limit.rel_l2, f"relative L2, worst of {note}")
        self._add("likeliest tokens", same / tokens, limit.top1, f"share that is the same, {note}", at_least=True)

    def _add(self, name: str, value: float, limit: float, note: str, *, at_least: bool = False) -> None:
        self.found.append(Check(name, value, limit, note, at_least))


def engine_checks(folder: Path, reference: Reference, episodes: Sequence[Episode]) -> list[Check]:
    """What the finished engine itself must show: greedy decoding, and a cache kept over turns."""
    engine = Engine(folder, EngineConfig(verify=False, threads=2))
    found = [_kept_cache(engine, episodes)]
    if engine.manifest.precision.decoder == "fp32" and engine.manifest.precision.vision == "fp32":
        found.append(_greedy(engine, reference, episodes[0]))
    return found


def _greedy(engine: Engine, reference: Reference, episode: Episode) -> Check:
    prompt = engine.chat.tokens(conversation(episode))
    expected = reference.greedy(prompt.ids.tolist(), [reference.patches(i.image) for i in prompt.images], GREEDY_TOKENS)
    watch, sequence = Watch(Deadline(math.inf)), engine.new_sequence()
    logits = engine.read(sequence, prompt, watch)
    said = []
    for _ in range(GREEDY_TOKENS):
        # A trained model would end its turn sooner; generate(), told to go on, leaves the same tokens out.
        logits[reference.ends] = -np.inf
        said.append(int(logits.argmax()))
        logits = engine.step(sequence, said[-1], watch)
    equal = sum(a == b for a, b in zip(said, expected, strict=True))
    return Check("greedy tokens", equal, GREEDY_TOKENS, "the same as generate()'s", at_least=True)


def _kept_cache(engine: Engine, episodes: Sequence[Episode]) -> Check:
    """Every turn of the longest episode on a kept cache, against each prompt read from nothing."""
    episode = max(episodes, key=len)
    turns = [turn.prompt for turn in episode][: KEPT_TURNS - 1]
    # Further turns, should the search have been short: the conversation goes on.
    turns += [conversation(episode)]
    watch, kept = Watch(Deadline(math.inf)), engine.new_sequence()
    worst = 0.0
    for prompt in turns:
        tokens = engine.chat.tokens(prompt)
        ours = engine.read(kept, tokens, watch).copy()
        whole = engine.read(engine.new_sequence(), tokens, watch).copy()
        worst = max(worst, relative_l2(ours, whole))
    limit = checks.KEPT_CACHE[engine.manifest.precision.decoder]
    return Check("kept cache", worst, limit, f"relative L2 of the last logits over {len(turns)} turns")


def _rows(tokens: int, vocabulary: int) -> NDArray[np.int64]:
    """Which tokens' logits are compared: all, or as many evenly chosen ones, the last of them too, as memory holds."""
    count = min(tokens, max(32, _COMPARED_LOGITS // vocabulary))
    return np.unique(np.linspace(0, tokens - 1, count).round().astype(np.int64))


def _worse(a: checks.Limit, b: checks.Limit) -> checks.Limit:
    return checks.Limit(max(a.rel_l2, b.rel_l2), a.top1 if b.rel_l2 <= a.rel_l2 else min(a.top1, 0.7))
