"""Choosing a token from logits, and how likely the model itself held it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field


class SamplingConfig(BaseModel):
    """How tokens are chosen: at temperature 0 always the likeliest."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float = Field(default=0.0, ge=0, le=10)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int = Field(default=0, ge=0)


def log_probability(logits: NDArray[np.float32], token: int) -> float:
    """Natural logarithm of the probability of `token` under logits (vocabulary,), nothing masked."""
    most = float(logits.max())
    return float(logits[token]) - most - float(np.log(np.exp(logits - most).sum(dtype=np.float64)))


def choose(
    logits: NDArray[np.float32], allowed: NDArray[np.bool_] | None, config: SamplingConfig, rng: np.random.Generator
) -> int:
    """A token from logits (vocabulary,), of those that are allowed.

    Sampling keeps the fewest likeliest tokens whose probabilities sum to `top_p`, at least one.
    """
    masked = logits if allowed is None else np.where(allowed, logits, np.float32(-np.inf))
    if config.temperature == 0:
        return int(masked.argmax())
    scaled = (masked.astype(np.float64) - masked.max()) / config.temperature
    probabilities = np.exp(scaled)
    probabilities /= probabilities.sum()
    if config.top_p < 1:
        order = np.argsort(-probabilities, kind="stable")
        before = np.cumsum(probabilities[order]) - probabilities[order]
        probabilities[order[before >= config.top_p]] = 0
        probabilities /= probabilities.sum()
    return int(rng.choice(len(probabilities), p=probabilities))
