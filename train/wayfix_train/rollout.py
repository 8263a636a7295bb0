"""Rollouts: a transformers model plays an environment, token by token, keeping its cache across turns."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wayfix.policy.engine.chat import Chat
from wayfix.policy.engine.images import ImageSpec, make_patches
from wayfix.policy.engine.positions import token_positions
from wayfix_train.environment import SearchEnvironment

_NEVER_SAID = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>", "<|im_start|>")


@dataclass
class Rollout:
    """A played episode as tokens."""

    prompt: list[int]
    completion: list[int] = field(default_factory=list)
    """All behind the first prompt: the model's turns and what the environment answered."""
    said: list[int] = field(default_factory=list)
    """1 where the model wrote the token of `completion`, 0 where the environment did."""
    images: list[NDArray[np.uint8]] = field(default_factory=list)
    """RGB, in the order of their tokens."""


class FeatureCache:
    """Image features by their pixels, while the vision encoder is frozen: an overview is the same for a whole group."""

    def __init__(self, model: Any, kept: int = 256) -> None:
        """Puts itself before the model's own `get_image_features`, which must have no weights in training."""
        self._inner = model.model
        self._encode = self._inner.get_image_features
        self._kept = kept
        self._found: OrderedDict[bytes, tuple[Tensor, list[Tensor]]] = OrderedDict()
        self._inner.get_image_features = self

    def __call__(self, pixel_values: Tensor, image_grid_thw: Tensor, **options: Any) -> Any:
        """As Qwen3VLModel.get_image_features."""
        counts = image_grid_thw.prod(-1).tolist()
        parts = list(torch.split(pixel_values, counts))
        keys = [hashlib.blake2b(part.cpu().numpy().tobytes(), digest_size=16).digest() for part in parts]
        for key, part, grid in zip(keys, parts, image_grid_thw, strict=True):
            if key not in self._found:
                with torch.no_grad():
                    made = self._encode(part, grid[None], **options)
                self._found[key] = made.pooler_output[0], [level[0] for level in made.deepstack_features]
            self._found.move_to_end(key)
        found = [self._found[key] for key in keys]
        while len(self._found) > self._kept:
            self._found.popitem(last=False)
        levels = zip(*(deep for _, deep in found), strict=True)
        return _Output(tuple(tokens for tokens, _ in found), [tuple(level) for level in levels])


@dataclass
class _Output:
    """The two fields of BaseModelOutputWithDeepstackFeatures that the model reads."""

    pooler_output: tuple[Tensor, ...]
    deepstack_features: list[tuple[Tensor, ...]]


class Player:
    """Samples a model's turns without a grammar: what it may not say, it must learn."""

    def __init__(self, model: Any, chat: Chat, tokenizer: Any, spec: ImageSpec, max_new_tokens: int = 96) -> None:
        """`tokenizer` is of the library `tokenizers`; `model` a Qwen3VLForConditionalGeneration."""
        vocabulary = tokenizer.get_vocab()
        self.model, self.chat, self.tokenizer, self.spec = model, chat, tokenizer, spec
        self.max_new_tokens = max_new_tokens
        self.end, self.start = vocabulary["<|im_end|>"], vocabulary["<|im_start|>"]
        self.pad = vocabulary["<|image_pad|>"]
        self.banned = [vocabulary[token] for token in _NEVER_SAID if token in vocabulary]

    @torch.no_grad()
    def play(self, environment: SearchEnvironment, temperature: float, generator: torch.Generator) -> Rollout:
        """Play a reset environment to its end; temperature 0 takes the likeliest token."""
        from transformers import DynamicCache

        first = self.chat.tokens(environment.prompt())
        rollout = Rollout(first.ids.tolist(), images=[image.image for image in first.images])
        cache = DynamicCache(config=self.model.config.text_config)
        fresh, fresh_images, at = first.ids, list(rollout.images), 0
        while True:
            logits, at = self._read(fresh, fresh_images, cache, at)
            said, at = self._turn(logits, cache, at, temperature, generator)
            rollout.completion += said
            rollout.said += [1] * len(said)
            text = self.tokenizer.decode([t for t in said if t != self.end], skip_special_tokens=False)
            if environment.step(text):
                return rollout
            answer = self._answer(environment, ended=said[-1] == self.end)
            # The turn's last token has been chosen but not yet read.
            fresh = np.array([said[-1], *answer[0]], np.int64)
            fresh_images = answer[1][len(rollout.images) :]
            rollout.completion += answer[0]
            rollout.said += [0] * len(answer[0])
            rollout.images += fresh_images

    def _answer(self, environment: SearchEnvironment, ended: bool) -> tuple[list[int], list[NDArray[np.uint8]]]:
        """What stands behind the turn just taken, and all images so far; a turn cut short is ended first."""
        tokens = self.chat.tokens(environment.prompt())
        starts = np.flatnonzero(tokens.ids == self.start)
        ends = np.flatnonzero(tokens.ids == self.end)
        # The last start opens the next turn; before it stand the environment's message and the turn just taken.
        turns = [int(s) for s in starts if self._opens_assistant(tokens.ids, int(s))]
        end = int(ends[np.searchsorted(ends, turns[-2])])
        return tokens.ids[end + (1 if ended else 0) :].tolist(), [image.image for image in tokens.images]

    def _opens_assistant(self, ids: NDArray[np.int64], at: int) -> bool:
        return self.tokenizer.decode(ids[at + 1 : at + 4].tolist(), skip_special_tokens=False).startswith("assistant")

    def _read(self, ids: NDArray[np.int64], images: list[NDArray[np.uint8]], cache: Any, at: int) -> tuple[Tensor, int]:
        """Feed tokens and images; logits of the next token, and the position after."""
        patches = [make_patches(image, self.spec) for image in images]
        grids = [(p.rows, p.columns) for p in patches]
        positions, after = token_positions(ids, grids, self.pad, at, self.spec.merge_size)
        device = self.model.device
        inputs: dict[str, Any] = {}
        if patches:
            inputs["pixel_values"] = torch.from_numpy(np.concatenate([p.pixels for p in patches])).to(device)
            inputs["image_grid_thw"] = torch.tensor([(1, *grid) for grid in grids], device=device)
        hidden = self.model.model(
            input_ids=torch.from_numpy(ids[None]).to(device),
            position_ids=torch.from_numpy(positions[:, None]).to(device),
            cache=cache,
            use_cache=True,
            **inputs,
        ).last_hidden_state
        return self.model.lm_head(hidden[0, -1]), after

    def _turn(
        self, logits: Tensor, cache: Any, at: int, temperature: float, generator: torch.Generator
    ) -> tuple[list[int], int]:
        said: list[int] = []
        while True:
            logits[self.banned] = -torch.inf
            if temperature > 0:
                chances = torch.softmax(logits.float() / temperature, -1)
                said.append(int(torch.multinomial(chances, 1, generator=generator)))
            else:
                said.append(int(logits.argmax()))
            if said[-1] == self.end or len(said) == self.max_new_tokens:
                return said, at
            logits, at = self._read(np.array(said[-1:], np.int64), [], cache, at)
