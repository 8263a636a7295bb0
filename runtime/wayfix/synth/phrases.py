"""Words for a draft: several wordings of each meaning, drawn at random."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wayfix.synth.drafts import Draft
from wayfix.synth.facts import Noun, Place

DIRECTION_WORDS = {
    "west": ("left of", "to the left of", "west of", "to the west of"),
    "east": ("right of", "to the right of", "east of", "to the east of"),
    "north": ("north of", "to the north of", "above"),
    "south": ("south of", "to the south of", "below"),
}
FROM_WORDS = {
    "west": ("from the west", "from the left"),
    "east": ("from the east", "from the right"),
    "north": ("from the north", "from the top"),
    "south": ("from the south", "from the bottom"),
}
END_WORDS = {
    "west": ("westernmost", "leftmost"),
    "east": ("easternmost", "rightmost"),
    "north": ("northernmost", "topmost"),
    "south": ("southernmost", "bottommost"),
}
RANK_WORDS = ("first", "second", "third", "fourth", "fifth", "sixth")
NEAR_WORDS = ("near", "close to", "in the vicinity of")
BESIDE_WORDS = ("next to", "beside", "right beside", "adjacent to")
PARKED_WORDS = ("parked next to", "parked beside", *BESIDE_WORDS)


def sentence(draft: Draft, parked: bool, rng: np.random.Generator) -> str:
    """A query for a draft; `parked` says whether its target is a parked vehicle."""
    return _framed(_core(draft, parked, rng), rng)


def _core(draft: Draft, parked: bool, rng: np.random.Generator) -> str:
    noun = noun_words(draft.noun, rng)
    if draft.form == "named" and draft.place is not None:
        name = place_words(draft.place, rng)
        suffix = " building" if name.startswith("the ") and rng.random() < 0.5 else ""
        return f"{name}{suffix}"
    if draft.form == "attribute":
        return f"{_pick(rng, ('the', 'the only'))} {noun}"
    if draft.form == "neighbour":
        return f"the {noun} {_beside(draft, parked, rng)}"
    if draft.form == "combined":
        return f"the {noun} {_beside(draft, parked, rng)} {_relation(draft, parked, rng)}"
    if draft.form == "ordinal":
        start = _pick(rng, FROM_WORDS[draft.side])
        return f"the {RANK_WORDS[draft.rank - 1]} {noun} {start} {_relation(draft, parked, rng)}"
    if draft.form == "outermost":
        return f"the {_pick(rng, END_WORDS[draft.side])} {noun}"
    if draft.form == "nearest" and draft.place is not None:
        return f"the {noun} {_pick(rng, ('closest to', 'nearest to', 'nearest'))} {place_words(draft.place, rng)}"
    if draft.form in ("tallest", "largest", "smallest", "longest"):
        word = _pick(rng, ("largest", "biggest")) if draft.form == "largest" else draft.form
        where = "" if draft.relation is None else f" {_relation(draft, parked, rng)}"
        return f"the {word} {noun}{where}"
    article = _pick(rng, ("the", "the", "the only")) if draft.form == "direction" else "the"
    return f"{article} {noun} {_relation(draft, parked, rng)}"


def noun_words(noun: Noun, rng: np.random.Generator) -> str:
    """'red car', 'blue-roofed house', 'building with the gray roof'."""
    color = _pick(rng, ("grey", "gray")) if noun.color == "grey" else noun.color
    if not color:
        return noun.category
    if noun.kind == "car":
        return f"{color} {noun.category}"
    forms = ("{n} with the {c} roof", "{n} with a {c} roof", "{c}-roofed {n}")
    return _pick(rng, forms).format(n=noun.category, c=color).replace("a orange", "an orange")


def place_words(place: Place, rng: np.random.Generator) -> str:
    """A landmark's name, sometimes an alias, with 'the' where a speaker might put one."""
    name = place.name
    if place.aliases and rng.random() < 0.25:
        name = place.aliases[0]
    if name.startswith("Car Park of"):
        return f"the {_pick(rng, (name, 'car park' + name[len('Car Park') :]))}"
    if place.type in ("building", "road", "parking") or rng.random() < 0.5:
        return name
    return f"the {name}"


def _beside(draft: Draft, parked: bool, rng: np.random.Generator) -> str:
    anchor = noun_words(draft.anchor, rng) if draft.anchor is not None else ""
    return f"{_pick(rng, PARKED_WORDS if parked else BESIDE_WORDS)} the {anchor}"


def _relation(draft: Draft, parked: bool, rng: np.random.Generator) -> str:
    if draft.relation is None:
        return ""
    name = draft.relation.name
    place = place_words(draft.relation.place, rng)
    if name in DIRECTION_WORDS:
        return f"{_pick(rng, DIRECTION_WORDS[name])} {place}"
    if name.startswith("side:"):
        side = name[len("side:") :]
        return f"{_pick(rng, (f'on the {side} side of', f'along the {side} side of'))} {place}"
    if name == "inside":
        return f"{_pick(rng, ('in', 'parked in') if parked else ('in',))} {place}"
    if name == "along":
        return f"{_pick(rng, ('on', 'along'))} {place}"
    return f"{_pick(rng, NEAR_WORDS)} {place}"


def _framed(core: str, rng: np.random.Generator) -> str:
    """Mostly the bare phrase; sometimes a request or a question."""
    draw = rng.random()
    if draw < 0.62:
        return core
    if draw < 0.80:
        return core[0].upper() + core[1:] + "."
    if draw < 0.92:
        return f"{_pick(rng, ('Find', 'Show me', 'Locate'))} {core}."
    return f"Where is {core}?"


def _pick(rng: np.random.Generator, words: Sequence[str]) -> str:
    return words[int(rng.integers(len(words)))]
