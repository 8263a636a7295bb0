"""Referring expressions of a city: fair drafts, chosen so that a sample is varied and hard, put into words."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from wayfix.geo.boxes import WorldBox
from wayfix.synth.city import City
from wayfix.synth.drafts import Draft, all_drafts
from wayfix.synth.facts import Facts
from wayfix.synth.phrases import sentence

SHARES = {
    "attribute": 0.09,
    "neighbour": 0.10,
    "landmark": 0.42,
    "road_side": 0.11,
    "ordinal": 0.08,
    "extreme": 0.13,
    "absent": 0.07,
}
"""Of a sample, by kind; what a scene cannot give is made up by landmark expressions."""

FORM_ODDS = {
    "direction": 0.42,
    "combined": 0.30,
    "near": 0.12,
    "inside": 0.07,
    "named": 0.09,
    "outermost": 0.25,
    "nearest": 0.5,
}
"""Within a kind, how often each form is tried; 1 where not given."""

FAR_M = 100.0
FAR_ODDS = 0.85
"""How often a far target is preferred where the form allows one: left to chance, landmarks would often be close by."""
BUILDING_ODDS = 0.35
MAX_USES = 3
"""How often one object may be the target in a sample."""


@dataclass(frozen=True)
class Expression:
    """A sentence and what it means."""

    id: str
    query: str
    kind: str
    """attribute, neighbour, landmark, road_side, ordinal, extreme or absent."""
    target_id: int | None
    """None where nothing satisfies the sentence."""
    box: WorldBox | None
    """The target's box, with heights."""
    candidates: tuple[int, ...]
    """Ids of all buildings and cars, among which an answer is ranked."""
    landmark: str | None
    """The canonical name of the landmark in the sentence."""
    landmark_distance_m: float | None
    """From the target's centre to the landmark's, or to the nearest point of a road."""
    distractors_50m: int
    """Other objects of the target's kind with their centre within 50 m of its centre."""


def make_expressions(city: City, count: int, seed: int) -> list[Expression]:
    """Up to `count` expressions with different sentences, the same for the same seed; fewer where a scene runs dry."""
    rng = np.random.default_rng([city.config.seed, seed, count])
    facts = Facts(city)
    pool = _Pool(facts, all_drafts(facts, rng), rng)
    candidates = tuple(item.id for item in facts.items)
    found: list[Expression] = []
    said: set[str] = set()
    for kind in _kinds(count, rng):
        draft = pool.draw(kind)
        if draft is None:
            continue
        query = sentence(draft, _is_parked(facts, draft), rng)
        if query in said:
            continue
        said.add(query)
        number = f"{city.config.split}-{city.config.seed}-{seed}-{len(found):04d}"
        found.append(_expression(number, query, draft, facts, candidates))
        if len(found) == count:
            break
    return found


def _kinds(count: int, rng: np.random.Generator) -> list[str]:
    """Kinds in the order they are tried: a shuffled sample of `count`, then spares for those that fail."""
    exact = np.array(list(SHARES.values())) * count
    whole = np.floor(exact).astype(int)
    order = np.argsort(whole - exact, kind="stable")
    whole[order[: count - whole.sum()]] += 1
    kinds = [kind for kind, n in zip(SHARES, whole, strict=True) for _ in range(n)]
    return [kinds[int(i)] for i in rng.permutation(len(kinds))] + ["landmark"] * count


def _is_parked(facts: Facts, draft: Draft) -> bool:
    return draft.target is not None and facts.items[draft.target].state == "parked"


def _expression(number: str, query: str, draft: Draft, facts: Facts, candidates: tuple[int, ...]) -> Expression:
    name = None if draft.place is None else draft.place.name
    if draft.target is None:
        return Expression(number, query, draft.kind, None, None, candidates, name, None, 0)
    item = facts.items[draft.target]
    distance = None if draft.place is None else draft.place.distance(item.box)
    near = facts.distractors(draft.target)
    return Expression(number, query, draft.kind, item.id, item.box, candidates, name, distance, near)


class _Pool:
    """Drafts by kind, drawn without replacement so that forms, classes and distances are mixed as wanted."""

    def __init__(self, facts: Facts, drafts: list[Draft], rng: np.random.Generator) -> None:
        self._facts = facts
        self._rng = rng
        self._uses: Counter[int] = Counter()
        self._bins: dict[str, dict[str, dict[tuple[bool, bool], list[Draft]]]] = {}
        for index in rng.permutation(len(drafts)):
            draft = drafts[int(index)]
            forms = self._bins.setdefault(draft.kind, {})
            forms.setdefault(draft.form, {}).setdefault(self._traits(draft), []).append(draft)

    def draw(self, kind: str) -> Draft | None:
        """A draft of this kind, or None where there is none left."""
        forms = self._bins.get(kind, {})
        while forms:
            odds = np.array([FORM_ODDS.get(form, 1.0) for form in forms])
            form = list(forms)[int(self._rng.choice(len(odds), p=odds / odds.sum()))]
            draft = self._draw_from(forms[form])
            if draft is not None:
                return draft
            del forms[form]
        return None

    def _traits(self, draft: Draft) -> tuple[bool, bool]:
        """Whether the target is a building, and whether it is far from its landmark."""
        if draft.target is None:
            return draft.noun.kind == "building", False
        far = draft.place is not None and draft.place.distance(self._facts.boxes[draft.target]) >= FAR_M
        return bool(self._facts.is_building[draft.target]), far

    def _draw_from(self, bins: dict[tuple[bool, bool], list[Draft]]) -> Draft | None:
        building, far = bool(self._rng.random() < BUILDING_ODDS), bool(self._rng.random() < FAR_ODDS)
        for traits in ((building, far), (not building, far), (building, not far), (not building, not far)):
            drafts = bins.get(traits, [])
            while drafts:
                draft = drafts.pop()
                if draft.target is None or self._uses[draft.target] < MAX_USES:
                    if draft.target is not None:
                        self._uses[draft.target] += 1
                    return draft
        return None
