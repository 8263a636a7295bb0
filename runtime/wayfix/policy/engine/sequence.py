"""One sequence of tokens on the decoder: its keys and values in place, growing, cut back, copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wayfix.errors import PromptTooLong
from wayfix.policy.engine.graphs import Watch
from wayfix.policy.engine.manifest import TextModel


@dataclass(frozen=True, eq=False)
class NewTokens:
    """Tokens to add, with what the model reads in their place."""

    identity: NDArray[np.int64]
    """(S,), see TokenPrompt."""
    embeds: NDArray[np.float32]
    """(1, S, hidden), images' features in place."""
    deepstack: NDArray[np.float32]
    """(taps, 1, S, hidden), zero at text."""
    cos: NDArray[np.float32]
    """(S, head_dim / 2) rotary rows, with `sin`."""
    sin: NDArray[np.float32]
    next_position: NDArray[np.int64]
    """(S,): the M-RoPE position that would follow each token; of an image's tokens only the last one's counts."""


class TokenSequence:
    """Keeps what the decoder has read. Buffers are of full length from the start: pages of them exist once touched."""

    def __init__(self, decoder: Any, text: TextModel, taps: int, capacity: int) -> None:
        """`decoder` is the onnxruntime session of the decoder."""
        self._decoder, self._text, self.capacity = decoder, text, capacity
        self.length = 0
        self.touched = 0
        """Largest length so far: what the buffers occupy."""
        shape = (1, text.kv_heads, capacity, text.head_dim)
        self._keys_values = {
            f"{layer}.{part}": np.zeros(shape, np.float32) for layer in range(text.layers) for part in ("key", "value")
        }
        self._rotary = {name: np.zeros((capacity, text.head_dim // 2), np.float32) for name in ("cos", "sin")}
        self._identity = np.zeros(capacity, np.int64)
        self._next = np.zeros(capacity, np.int64)
        self._kept, self._total = np.zeros(1, np.int32), np.zeros((), np.int32)
        # One token at a time is the usual step: its binding is made once, and only the buffers' contents change.
        self._one = _Step(self, 1, 1, taps)

    @staticmethod
    def bytes_per_token(text: TextModel) -> int:
        """What one token occupies."""
        return 4 * (2 * text.layers * text.kv_heads * text.head_dim + text.head_dim) + 16

    @property
    def bytes(self) -> int:
        """What the sequence occupies."""
        return self.touched * self.bytes_per_token(self._text)

    @property
    def next_position(self) -> int:
        """M-RoPE position of the next token."""
        return int(self._next[self.length - 1]) if self.length else 0

    @property
    def identity(self) -> NDArray[np.int64]:
        """Of the tokens kept, a view."""
        return self._identity[: self.length]

    def common(self, identity: NDArray[np.int64]) -> int:
        """How many tokens from the start are the same."""
        count = min(self.length, len(identity))
        differ = np.flatnonzero(self._identity[:count] != identity[:count])
        return int(differ[0]) if len(differ) else count

    def truncate(self, length: int) -> None:
        """Forget all tokens after the first `length`."""
        self.length = min(self.length, length)

    def copy_from(self, other: TokenSequence, length: int) -> None:
        """Become the first `length` tokens of another sequence."""
        for name, buffer in self._keys_values.items():
            buffer[:, :, :length] = other._keys_values[name][:, :, :length]
        self._identity[:length] = other._identity[:length]
        self._next[:length] = other._next[:length]
        self.length = length
        self.touched = max(self.touched, length)

    def extend(self, new: NewTokens, watch: Watch, logits_of: Sequence[int]) -> NDArray[np.float32]:
        """Let the decoder read further tokens; all of them, or none where it raises.

        Returns the logits (len(logits_of), vocabulary) after these of the new tokens, in memory that the next call
        may overwrite. Raises PromptTooLong, and what the watch raises.
        """
        count = len(new.identity)
        end = self.length + count
        if end > self.capacity:
            raise PromptTooLong(f"the episode needs {end} tokens, the engine is set to {self.capacity} an episode")
        now = slice(self.length, end)
        self._rotary["cos"][now], self._rotary["sin"][now] = new.cos, new.sin
        self._kept[0], self._total[()] = end - 1, end
        single = count == 1 and len(logits_of) == 1
        step = self._one if single else _Step(self, count, len(logits_of), len(new.deepstack))
        step.embeds[:], step.deepstack[:], step.logit_positions[:] = new.embeds, new.deepstack, logits_of
        watch.run(self._decoder, step.binding)
        self._identity[now], self._next[now] = new.identity, new.next_position
        self.length = end
        self.touched = max(self.touched, end)
        return step.logits[0]


class _Step:
    """Buffers and binding of a step of some width."""

    def __init__(self, sequence: TokenSequence, width: int, logits: int, taps: int) -> None:
        text = sequence._text
        self.embeds = np.zeros((1, width, text.hidden), np.float32)
        self.deepstack = np.zeros((taps, 1, width, text.hidden), np.float32)
        self.logit_positions = np.zeros(logits, np.int64)
        self.logits = np.zeros((1, logits, text.vocabulary), np.float32)
        self.binding = sequence._decoder.io_binding()
        inputs: dict[str, NDArray[Any]] = {
            "inputs_embeds": self.embeds,
            "deepstack": self.deepstack,
            "logit_positions": self.logit_positions,
            "kept": sequence._kept,
            "total": sequence._total,
            **sequence._rotary,
        }
        for name, array in inputs.items():
            bind(self.binding.bind_input, name, array)
        for name, array in sequence._keys_values.items():
            bind(self.binding.bind_input, f"past.{name}", array)
            bind(self.binding.bind_output, f"present.{name}", array)
        bind(self.binding.bind_output, "logits", self.logits)


def bind(method: Any, name: str, array: NDArray[Any]) -> None:
    """Bind an array in the host's memory by its address: the caller keeps it alive as long as the binding."""
    method(name, "cpu", 0, array.dtype.type, list(array.shape), array.ctypes.data)
