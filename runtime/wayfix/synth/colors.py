"""Colour words and what they look like, with how often each is drawn."""

from __future__ import annotations

import numpy as np

from wayfix.synth.plan import Rgb

CAR_COLORS: dict[str, Rgb] = {
    "white": (240, 240, 238),
    "black": (26, 26, 29),
    "silver": (160, 164, 169),
    "red": (196, 26, 32),
    "blue": (30, 70, 190),
    "yellow": (238, 203, 28),
    "green": (32, 128, 58),
    "orange": (236, 120, 24),
}

ROOF_COLORS: dict[str, Rgb] = {
    "red": (168, 48, 44),
    "blue": (62, 104, 176),
    "green": (62, 124, 82),
    "grey": (128, 129, 132),
    "brown": (104, 72, 52),
    "white": (226, 225, 220),
    "orange": (222, 130, 58),
}

VEHICLE_ODDS: dict[str, dict[str, float]] = {
    "car": {"white": 4, "black": 3.5, "silver": 3.5, "red": 2, "blue": 2, "yellow": 0.7, "green": 0.8, "orange": 0.7},
    "van": {"white": 5, "black": 1, "silver": 2, "red": 1, "blue": 1.5, "yellow": 1, "green": 0.7, "orange": 0.7},
    "truck": {"white": 3, "red": 1.5, "blue": 1.5, "yellow": 1, "green": 1.5, "orange": 1.5, "silver": 1},
    "bus": {"white": 1.5, "red": 2, "yellow": 2, "blue": 1.5, "green": 1.5},
}

ROOF_ODDS: dict[str, dict[str, float]] = {
    "house": {"red": 4, "brown": 4, "orange": 3, "grey": 3, "blue": 1, "green": 1, "white": 0.5},
    "block": {"grey": 4, "white": 3, "brown": 1.5, "green": 1, "blue": 1, "red": 1, "orange": 0.6},
    "tower": {"grey": 4, "white": 3, "blue": 1.2, "green": 0.8, "brown": 0.8},
    "hall": {"grey": 2.5, "white": 3, "blue": 2, "green": 1.5, "red": 1.2, "orange": 0.7, "brown": 0.7},
}

WALLS: tuple[Rgb, ...] = ((206, 196, 178), (178, 120, 98), (220, 216, 208), (164, 160, 152), (196, 168, 130))


def draw_word(rng: np.random.Generator, odds: dict[str, float]) -> str:
    """One of the words, with its odds."""
    weights = np.array(list(odds.values()))
    return list(odds)[int(rng.choice(len(weights), p=weights / weights.sum()))]


def jittered(rng: np.random.Generator, rgb: Rgb, spread: float) -> Rgb:
    """The colour with its brightness moved by about `spread` and each channel by a third of that."""
    shift = rng.normal(0, spread) + rng.normal(0, spread / 3, 3)
    r, g, b = (int(min(252, max(6, c + s))) for c, s in zip(rgb, shift, strict=True))
    return r, g, b
