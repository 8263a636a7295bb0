"""Names of places. Every split has its own syllables, so no name of one split can occur in another."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

_Form = Callable[[str], str]

_LETTERS = {
    "train": "beldorkenmartolrinwenharlincaspervongraselbronortamfildankarrolhollanmerwinsor",
    "val": "briclodruflegnopristitruvlazweshukriplesnathiwra",
    "test": "acoeviiloomuudairaebeokaaniutoefayloozigeaoteuru",
}

SYLLABLES: dict[str, tuple[str, ...]] = {
    split: tuple(letters[i : i + 3] for i in range(0, len(letters), 3)) for split, letters in _LETTERS.items()
}
"""All of three letters, so a stem can be cut into its syllables in one way only and the splits cannot meet."""

ROAD_WORDS = ("Road", "Street", "Lane", "Avenue", "Way", "Drive")

BUILDING_WORDS: dict[str, tuple[tuple[str, str], ...]] = {
    "house": (
        ("House", "building"), ("Lodge", "building"), ("Cottage", "building"), ("Villa", "building"),
        ("Pharmacy", "pharmacy"), ("Bakery", "bakery"), ("Cafe", "cafe"), ("Guest House", "hotel"),
    ),
    "block": (
        ("Court", "building"), ("House", "building"), ("Pharmacy", "pharmacy"), ("Police Station", "police"),
        ("School", "school"), ("Hotel", "hotel"), ("Library", "library"), ("Clinic", "clinic"), ("Bank", "bank"),
        ("Post Office", "post_office"), ("Church", "church"),
    ),
    "tower": (
        ("Tower", "building"), ("Point", "building"), ("Hotel", "hotel"), ("Hospital", "hospital"),
        ("Heights", "building"),
    ),
    "hall": (
        ("Supermarket", "supermarket"), ("Hall", "building"), ("Fire Station", "fire_station"),
        ("Sports Centre", "sports_centre"), ("Works", "building"), ("School", "school"), ("Church", "church"),
    ),
}  # fmt: skip
"""Per category of building: the last word of its name and its type in OpenStreetMap's words."""

ALIAS_WORDS = {
    "Police Station": "Police",
    "Supermarket": "Market",
    "Pharmacy": "Chemist",
    "Hospital": "Medical Centre",
    "Sports Centre": "Gym",
    "Fire Station": "Fire Brigade",
    "Hotel": "Inn",
    "Tower": "Building",
    "Library": "Public Library",
}

MIN_EDITS = 3
"""Two names of one scene differ in at least this many letters."""


def edit_distance(a: str, b: str) -> int:
    """Levenshtein distance between two strings."""
    row = list(range(len(b) + 1))
    for i, ca in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, cb in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (ca != cb))
    return row[-1]


class Namer:
    """Draws names of one scene, each at least MIN_EDITS from all it gave before."""

    def __init__(self, split: str, rng: np.random.Generator) -> None:
        self._syllables = SYLLABLES[split]
        self._rng = rng
        self._given: list[str] = []

    def road(self) -> str:
        """'Karlin Road'."""
        return self._draw(lambda stem: f"{stem} {self._choice(ROAD_WORDS)}")

    def car_park(self) -> str:
        """'Tolrin Car Park'."""
        return self._draw(lambda stem: f"{stem} Car Park")

    def car_park_of(self, owner: str) -> str | None:
        """'Car Park of Belmar House', or None where that name is taken."""
        name = f"Car Park of {owner}"
        return name if self._accept(name) else None

    def building(self, category: str) -> tuple[str, str, tuple[str, ...]]:
        """Name, type in OSM's words, and aliases of a building of this category."""
        words = BUILDING_WORDS[category]
        word, kind = words[int(self._rng.integers(len(words)))]
        name = self._draw(lambda stem: f"{stem} {word}")
        if word in ALIAS_WORDS and self._rng.random() < 0.6:
            alias = name[: -len(word)] + ALIAS_WORDS[word]
            if self._accept(alias):
                return name, kind, (alias,)
        return name, kind, ()

    def _draw(self, form: _Form) -> str:
        while True:
            count = 2 if self._rng.random() < 0.8 else 3
            name = form("".join(self._choice(self._syllables) for _ in range(count)).capitalize())
            if self._accept(name):
                return name

    def _accept(self, name: str) -> bool:
        if any(edit_distance(name, other) < MIN_EDITS for other in self._given):
            return False
        self._given.append(name)
        return True

    def _choice(self, words: tuple[str, ...]) -> str:
        return words[int(self._rng.integers(len(words)))]
