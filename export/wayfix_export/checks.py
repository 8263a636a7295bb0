"""How far an engine may be from its checkpoint, and what was found. The numbers tell a broken graph from a rounded one.

At fp32 they are what two orders of summation differ by, with room for deep models. The others are several times what
sound graphs of random weights reach, which quantize worse than trained ones; leaving out DeepStack, a wrong mask
or a wrong position exceeds all of them but INT4's logits, and shows there in the parts before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wayfix_export.layers import Precision


@dataclass(frozen=True)
class Limit:
    """Of one precision: greatest relative L2 error, and least share of equal likeliest tokens."""

    rel_l2: float
    top1: float


VISION: dict[Precision, Limit] = {
    "fp32": Limit(1e-5, 0),
    "fp16": Limit(1e-2, 0),
    "int8": Limit(0.1, 0),
    "int4": Limit(0.5, 0),
}
DECODER: dict[Precision, Limit] = {
    "fp32": Limit(1e-5, 0.999),
    "fp16": Limit(1e-2, 0.95),
    "int8": Limit(0.15, 0.7),
    "int4": Limit(0.5, 0.3),
}
EMBEDDING = 1e-3
"""Relative L2 of token embeddings, which are looked up and not computed, in float16 at the least."""

PREPROCESSING_255 = 1.0
"""Of the 255 steps of a pixel."""

KEPT_CACHE: dict[Precision, float] = {"fp32": 1e-5, "fp16": 1e-2, "int8": 0.1, "int4": 0.5}
"""Relative L2 of logits read turn by turn against the same read at once. At fp32 only the order of sums differs; a
quantized product rounds a single row's activations in another way than a hundred rows'."""

BOX_UNITS = 1.0
"""Of 1000 in a view."""

FORCED_LOG_PROB: dict[Precision, float] = {"fp32": 1e-3, "fp16": 0.05, "int8": 0.5, "int4": 3.0}
"""By which the mean log-probability of an answer's tokens may differ."""


@dataclass(frozen=True)
class Check:
    """One comparison."""

    name: str
    value: float
    limit: float
    note: str = ""
    at_least: bool = False
    """Whether the limit is the least value, not the greatest."""

    @property
    def passed(self) -> bool:
        """Whether the value keeps the limit; a value that is no number does not."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def relative_l2(value: NDArray[Any], expected: NDArray[Any]) -> float:
    """|value - expected| / |expected|, in float64."""
    a, b = value.astype(np.float64), expected.astype(np.float64)
    return float(np.linalg.norm(a - b)) / max(float(np.linalg.norm(b)), 1e-30)
