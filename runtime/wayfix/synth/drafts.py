"""All fair sentences of a city, before they are put into words: who is meant and by what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wayfix.geo.relations import NEXT_TO_GAP_M
from wayfix.synth.facts import LOOSE_GAP, Facts, Mask, Noun, Place, Relation

MIN_STEP_M = 1.0
"""Places in an order differ by at least this."""
MAX_RANK = 6
COMBINED_TRIES = 6000
ABSENT_PER_KIND = 400

AXES = {"west": (0, 1.0), "east": (0, -1.0), "north": (1, -1.0), "south": (1, 1.0)}
"""Counting from a side: the coordinate counted along, and its sign."""


@dataclass(frozen=True)
class Draft:
    """A sentence's meaning. `kind` is the expression's, `form` the sub-kind that picks its wording."""

    kind: str
    form: str
    target: int | None
    """Index into the facts' items; None where nothing satisfies the sentence."""
    noun: Noun
    relation: Relation | None = None
    anchor: Noun | None = None
    """The neighbour's noun."""
    side: str = ""
    """Where counting starts, or which end is meant."""
    rank: int = 0
    place: Place | None = None


def all_drafts(facts: Facts, rng: np.random.Generator) -> list[Draft]:
    """Every draft of the enumerable kinds, and a sample of the combined and the absent ones."""
    near = np.array(facts.gaps <= NEXT_TO_GAP_M), np.array(facts.gaps <= NEXT_TO_GAP_M * LOOSE_GAP)
    found = [*_attribute(facts), *_neighbour(facts, near), *_related(facts), *_named(facts)]
    found += [*_combined(facts, near, rng), *_ordinal(facts), *_extreme(facts), *_outermost(facts), *_nearest(facts)]
    return found + list(_absent(facts, near, rng))


def only(strict: Mask, loose: Mask) -> int | None:
    """The one item that both masks hold, or None where they hold anything else."""
    found = np.flatnonzero(loose)
    return int(found[0]) if len(found) == 1 and strict[found[0]] else None


def _attribute(facts: Facts) -> Iterator[Draft]:
    for noun in facts.nouns:
        target = only(noun.strict, noun.loose)
        if target is not None:
            yield Draft("attribute", "attribute", target, noun)


def _neighbour(facts: Facts, near: tuple[Mask, Mask]) -> Iterator[Draft]:
    for anchor in facts.nouns:
        if not anchor.strict.any() or not (anchor.color or anchor.category in ("bus", "truck", "tower")):
            continue
        strict, loose = near[0][:, anchor.strict].any(axis=1), near[1][:, anchor.loose].any(axis=1)
        for noun in facts.nouns:
            target = only(noun.strict & strict, noun.loose & loose)
            if target is not None and noun.loose.sum() > 1 and not _same(noun, anchor):
                yield Draft("neighbour", "neighbour", target, noun, anchor=anchor)


def _same(a: Noun, b: Noun) -> bool:
    return a.kind == b.kind and a.category == b.category and a.color == b.color


def _related(facts: Facts) -> Iterator[Draft]:
    """A noun and a relation to a landmark; all pairs at once as products of mask matrices."""
    strict, loose = _counts(facts)
    for k, r in np.argwhere((strict == 1) & (loose == 1)):
        noun, relation = facts.nouns[k], facts.relations[r]
        target = only(noun.strict & relation.strict, noun.loose & relation.loose)
        if target is None:
            continue
        side = relation.name.startswith("side:")
        if relation.name == "along":
            continue
        form = "direction" if relation.name in AXES else relation.name
        kind = "road_side" if side else "landmark"
        yield Draft(kind, "side" if side else form, target, noun, relation, place=relation.place)


def _counts(facts: Facts) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(nouns, relations): how many items satisfy both, strictly and loosely."""
    results = []
    for level in ("strict", "loose"):
        nouns = np.array([getattr(noun, level) for noun in facts.nouns], np.float32)
        relations = np.array([getattr(relation, level) for relation in facts.relations], np.float32)
        results.append(nouns @ relations.T)
    return results[0], results[1]


def _named(facts: Facts) -> Iterator[Draft]:
    index = {item.id: i for i, item in enumerate(facts.items)}
    building = next(noun for noun in facts.nouns if noun.category == "building" and not noun.color)
    for place in facts.places:
        if place.item.kind == "building":
            yield Draft("landmark", "named", index[place.item.id], building, place=place)


def _combined(facts: Facts, near: tuple[Mask, Mask], rng: np.random.Generator) -> Iterator[Draft]:
    """'The white car next to the orange car left of X': both are left of X, and nothing near that could be meant."""
    pairs = np.argwhere(near[0])
    nouns = [[n for n in facts.nouns if n.color and n.strict[i]] for i in range(len(facts.items))]
    directions = [r for r in facts.relations if r.name in AXES]
    for _ in range(COMBINED_TRIES if len(pairs) else 0):
        i, j = pairs[int(rng.integers(len(pairs)))]
        noun = nouns[i][int(rng.integers(len(nouns[i])))]
        anchor = nouns[j][int(rng.integers(len(nouns[j])))]
        relation = directions[int(rng.integers(len(directions)))]
        if _same(noun, anchor) or not (relation.strict[i] and relation.strict[j]):
            continue
        beside = near[1][:, anchor.loose].any(axis=1)
        beside_there = near[1][:, anchor.loose & relation.loose].any(axis=1)
        loose = noun.loose & ((beside & relation.loose) | beside_there)
        strict = noun.strict & relation.strict & near[0][:, anchor.strict & relation.strict].any(axis=1)
        if only(strict, loose) == i:
            yield Draft("landmark", "combined", int(i), noun, relation, anchor, place=relation.place)


def _ordinal(facts: Facts) -> Iterator[Draft]:
    """'The third car from the west in X Car Park', or along a road."""
    for relation in facts.relations:
        if relation.name not in ("inside", "along"):
            continue
        heading = relation.place.item.heading_deg
        for noun in facts.nouns:
            strict = noun.strict & relation.strict
            if noun.kind != "car" or strict.sum() < 2 or (strict != (noun.loose & relation.loose)).any():
                continue
            for side, (axis, sign) in AXES.items():
                across = 45.0 < heading < 135.0 if axis == 1 else not 45.0 < heading < 135.0
                if relation.name == "along" and across:
                    continue
                for rank, target in _ranked(facts.centers[:, axis] * sign, strict):
                    yield Draft("ordinal", "ordinal", target, noun, relation, None, side, rank, relation.place)


def _ranked(values: NDArray[np.float64], members: Mask) -> Iterator[tuple[int, int]]:
    """(rank from 1, item) of the members that stand clear of those before and after them."""
    order = np.flatnonzero(members)[np.argsort(values[members])]
    steps = np.concatenate([[np.inf], np.diff(values[order]), [np.inf]])
    for rank, item in enumerate(order[:MAX_RANK]):
        if min(steps[rank], steps[rank + 1]) >= MIN_STEP_M:
            yield rank + 1, int(item)


def _extreme(facts: Facts) -> Iterator[Draft]:
    """The tallest, largest, smallest or longest of a noun, in the whole city or in a relation to a landmark."""
    heights = np.array([item.height_m for item in facts.items])
    sides = np.array([_sides(item.corners) for item in facts.items])
    area, length = sides.prod(axis=1), sides.max(axis=1)
    everywhere = np.ones(len(facts.items), bool)
    nouns = [noun for noun in facts.nouns if noun.color or noun.category in ("building", "house", "vehicle")]
    for noun in nouns:
        if noun.kind == "building":
            measures = [("tallest", heights, 1.15), ("largest", area, 1.2), ("smallest", -area, 1.2)]
        else:
            measures = [("longest", length, 1.2)]
        for relation in [None, *(r for r in facts.relations if not r.name.startswith("side:"))]:
            strict = noun.strict & (everywhere if relation is None else relation.strict)
            if strict.sum() < 2:
                continue
            loose = noun.loose & (everywhere if relation is None else relation.loose)
            for word, values, ratio in measures:
                target = _greatest(values, strict, loose, ratio)
                if target is not None:
                    place = None if relation is None else relation.place
                    yield Draft("extreme", word, target, noun, relation, place=place)


def _greatest(values: NDArray[np.float64], strict: Mask, loose: Mask, ratio: float) -> int | None:
    """The strict item whose value exceeds all other loose ones by a ratio; values may be negated to mean the least."""
    items = np.flatnonzero(loose)
    order = items[np.argsort(-values[items])]
    best, second = values[order[0]], values[order[1]]
    clear = best >= second * ratio if best > 0 else -second >= -best * ratio
    return int(order[0]) if strict[order[0]] and clear else None


def _sides(corners: tuple[tuple[float, float], ...]) -> tuple[float, float]:
    a, b, c = (np.array(p) for p in corners[:3])
    return float(np.hypot(*(b - a))), float(np.hypot(*(c - b)))


def _outermost(facts: Facts) -> Iterator[Draft]:
    """'The northernmost red car', at least 5 m beyond the next one."""
    for noun in facts.nouns:
        items = np.flatnonzero(noun.loose)
        if not noun.color or len(items) < 2:
            continue
        for side, (axis, sign) in AXES.items():
            order = items[np.argsort(facts.centers[items, axis] * sign)]
            step = abs(facts.centers[order[1], axis] - facts.centers[order[0], axis])
            if noun.strict[order[0]] and step >= 5.0:
                yield Draft("extreme", "outermost", int(order[0]), noun, side=side)


def _nearest(facts: Facts) -> Iterator[Draft]:
    """'The red truck closest to X': by distance of centres, the next one at least 1.3 times as far and 4 m farther."""
    for place in facts.places:
        away = np.array([place.distance(box) for box in facts.boxes])
        other = np.array([item.id != place.item.id for item in facts.items])
        for noun in facts.nouns:
            items = np.flatnonzero(noun.loose & other)
            if not noun.color or len(items) < 2:
                continue
            order = items[np.argsort(away[items])]
            first, second = away[order[0]], away[order[1]]
            if noun.strict[order[0]] and second >= max(1.3 * first, first + 4.0):
                yield Draft("extreme", "nearest", int(order[0]), noun, place=place)


def _absent(facts: Facts, near: tuple[Mask, Mask], rng: np.random.Generator) -> Iterator[Draft]:
    """Like the others, but nothing satisfies them even loosely."""
    _, loose = _counts(facts)
    empty = np.argwhere(loose == 0)
    for k, r in rng.permutation(empty)[: 6 * ABSENT_PER_KIND]:
        noun, relation = facts.nouns[k], facts.relations[r]
        # A tower "in" a car park is no question anybody asks.
        if not noun.color or (relation.name in ("inside", "along") and noun.kind == "building"):
            continue
        form = "direction" if relation.name in AXES else relation.name.split(":")[0]
        yield Draft("absent", form, None, noun, relation, place=relation.place)
    for noun in facts.nouns:
        if noun.color and not noun.loose.any():
            yield Draft("absent", "attribute", None, noun)
    colored = [noun for noun in facts.nouns if noun.color and noun.loose.any()]
    for _ in range(ABSENT_PER_KIND):
        noun, anchor = (colored[int(k)] for k in rng.integers(0, len(colored), 2))
        if not _same(noun, anchor) and not (noun.loose & near[1][:, anchor.loose].any(axis=1)).any():
            yield Draft("absent", "neighbour", None, noun, anchor=anchor)
