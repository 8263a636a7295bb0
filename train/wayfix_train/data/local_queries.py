"""Sentences about what one view shows, fair within it: many answers can be learned from one crop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wayfix.geo.boxes import UnitBox, WorldBox, gap
from wayfix.geo.relations import NEXT_TO_GAP_M
from wayfix.geo.transforms import ViewTransform
from wayfix.synth.catalogue import CityObject
from wayfix.synth.drafts import AXES
from wayfix.synth.facts import LOOSE_GAP, Noun
from wayfix.synth.phrases import BESIDE_WORDS, END_WORDS, noun_words

MIN_VISIBLE = 0.5
MIN_STEP_M = 1.5
"""The outermost object of a kind lies at least this far beyond the next one."""
_NO_MASK = np.zeros(0, np.bool_)


@dataclass(frozen=True)
class LocalQuery:
    """A sentence and its answer in the view."""

    query: str
    box: UnitBox


def local_queries(
    objects: Sequence[CityObject], transform: ViewTransform, count: int, rng: np.random.Generator
) -> list[LocalQuery]:
    """Up to `count` sentences about objects that the view shows whole; `objects` are those not hidden by trees."""
    view = transform.extent
    partly = [item for item in objects if item.box.clipped(view) is not None]
    whole = [item for item in partly if _inside(item.box, view)]
    if not whole:
        return []
    found: dict[str, LocalQuery] = {}
    for _ in range(3 * count):
        item = whole[int(rng.integers(len(whole)))]
        words = _describe(item, partly, rng)
        box = transform.box_to_unit(item.box)
        if words and box is not None:
            found.setdefault(words, LocalQuery(words, box))
        if len(found) == count:
            break
    return list(found.values())


def _inside(box: WorldBox, view: WorldBox) -> bool:
    return view.contains(box.min_x, box.min_y) and view.contains(box.max_x, box.max_y)


def _describe(item: CityObject, others: Sequence[CityObject], rng: np.random.Generator) -> str | None:
    """A sentence that only `item` satisfies among `others`, or None where this try finds none."""
    category, color = _noun_of(item, rng)
    same = [other for other in others if _matches(other, item.kind, category, color)]
    noun = noun_words(Noun(item.kind, category, color, _NO_MASK, _NO_MASK), rng)
    if len(same) == 1:
        return f"the {noun}"
    if rng.random() < 0.5:
        return _outermost(item, same, noun, rng)
    return _beside(item, same, others, noun, rng)


def _outermost(item: CityObject, same: Sequence[CityObject], noun: str, rng: np.random.Generator) -> str | None:
    sides = []
    for side, (axis, sign) in AXES.items():
        step = min((other.box.center[axis] - item.box.center[axis]) * sign for other in same if other is not item)
        if step >= MIN_STEP_M:
            sides.append(side)
    if not sides:
        return None
    words = END_WORDS[sides[int(rng.integers(len(sides)))]]
    return f"the {words[int(rng.integers(len(words)))]} {noun}"


def _beside(
    item: CityObject, same: Sequence[CityObject], others: Sequence[CityObject], noun: str, rng: np.random.Generator
) -> str | None:
    near = [other for other in others if other is not item and gap(item.box, other.box) <= NEXT_TO_GAP_M]
    if not near:
        return None
    anchor = near[int(rng.integers(len(near)))]
    category, color = _noun_of(anchor, rng)
    anchors = [other for other in others if _matches(other, anchor.kind, category, color)]
    if any(other is item for other in anchors):
        return None
    for other in same:
        if other is not item and any(gap(other.box, a.box) <= NEXT_TO_GAP_M * LOOSE_GAP for a in anchors):
            return None
    words = noun_words(Noun(anchor.kind, category, color, _NO_MASK, _NO_MASK), rng)
    return f"the {noun} {BESIDE_WORDS[int(rng.integers(len(BESIDE_WORDS)))]} the {words}"


def _noun_of(item: CityObject, rng: np.random.Generator) -> tuple[str, str]:
    """The category and colour an object is called by; '' where its colour is left out."""
    color = item.color if rng.random() < 0.85 else ""
    if item.kind == "car":
        return (item.category if rng.random() < 0.8 else "vehicle"), color
    special = item.category in ("house", "tower") and rng.random() < 0.5
    return (item.category if special else "building"), color


def _matches(item: CityObject, kind: str, category: str, color: str) -> bool:
    """Whether a reader might call an object so."""
    if item.kind != kind or (color and item.color != color):
        return False
    if category in ("vehicle", "building"):
        return True
    return item.category == category or (category == "car" and item.category == "van")
