"""A referring expression taken apart: the target, how it is singled out, and what it is related to.

A small grammar of English, for the model-free baseline. It knows nothing of any scene.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

CAR_WORDS = {
    "car": "car", "cars": "car", "sedan": "car", "hatchback": "car", "taxi": "car", "van": "van", "vans": "van",
    "truck": "truck", "trucks": "truck", "lorry": "truck", "bus": "bus", "buses": "bus", "coach": "bus",
    "vehicle": "", "vehicles": "",
}  # fmt: skip
"""Word -> kind of vehicle; '' for any."""

BUILDING_WORDS = frozenset(
    {"building", "buildings", "house", "houses", "hall", "tower", "block", "warehouse", "shed", "roof", "rooftop"}
    | {"hangar", "bungalow", "office"}
)
COLORS = {
    "white": "white", "black": "black", "silver": "silver", "grey": "grey", "gray": "grey", "red": "red",
    "blue": "blue", "green": "green", "yellow": "yellow", "orange": "orange", "brown": "brown",
}  # fmt: skip

ObjectClass = Literal["car", "building"]
RelationWord = Literal["direction", "side", "next", "near", "in", "on"]
_DIRECTED_RELATIONS: tuple[RelationWord, ...] = ("side", "direction")
_PLAIN_RELATIONS: tuple[RelationWord, ...] = ("next", "near", "in", "on")


@dataclass(frozen=True)
class Description:
    """What an object looks like; empty strings where the sentence does not say."""

    kind: ObjectClass | None
    category: str = ""
    color: str = ""


@dataclass(frozen=True)
class Relation:
    """How the target stands to an anchor: a named place, or an object described by its looks."""

    word: RelationWord
    direction: str = ""
    """north, south, east, west, or two of them joined by a hyphen."""
    name: str = ""
    anchor: Description | None = None


@dataclass(frozen=True)
class Query:
    """The parsed sentence. With `target.kind` None and no relations, `name` alone is what is sought."""

    target: Description
    name: str = ""
    superlative: str = ""
    """tallest, lowest, largest, smallest, longest, shortest, or north, south, east, west for the outermost one."""
    ordinal: int = 0
    """1 for the first; counted from `ordinal_from`."""
    ordinal_from: str = ""
    relations: tuple[Relation, ...] = field(default=())

    @property
    def names(self) -> tuple[str, ...]:
        """All names to look up, in the order in which they help the search."""
        named = [self.name] if self.name else []
        return tuple(dict.fromkeys(named + [r.name for r in self.relations if r.name]))


_DIRECTION = r"(?:north|south)[- ]?(?:east|west)|north|south|east|west|left|right|above|below"
_CONNECTOR = re.compile(
    rf"""\b(?:
      (?:on|at|along)\s+the\s+(?P<side>{_DIRECTION})(?:ern)?(?:-hand)?\s+side\s+of
    | (?:(?:just|directly|immediately|far|somewhere|lying|standing|located|situated|parked|that\s+is|which\s+is)\s+)*
      (?:to\s+the\s+)?(?P<direction>{_DIRECTION})(?:\s+of\b|(?=\s+the\b)|(?<=above)|(?<=below))
    | (?:(?:parked|standing|right|directly|immediately|just)\s+)*(?P<next>next\s+to|beside|adjacent\s+to|alongside)
    | (?:(?:parked|standing|right)\s+)*(?P<near>near(?:\s+to)?|nearby|close\s+to|around|in\s+the\s+vicinity\s+of|by)
    | (?:(?:parked|standing)\s+)*(?P<in>in|inside|within|at)
    | (?:(?:parked|standing|driving)\s+)*(?P<on>on|along|across|over)
    )\b\s*""",
    re.IGNORECASE | re.VERBOSE,
)
_ORDINALS = {"first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8}
_ORDINAL = re.compile(
    rf"\b(?P<n>{'|'.join(_ORDINALS)}|\d+(?:st|nd|rd|th))\b(?P<what>.*?)\b(?:from|counting\s+from|counted\s+from)\s+the\s+"
    r"(?P<from>left|right|north|south|east|west|top|bottom)(?:ern)?(?:\s+(?:end|side|edge))?",
    re.IGNORECASE,
)
_SUPERLATIVES = {
    "tallest": "tallest", "highest": "tallest", "lowest": "lowest", "largest": "largest", "biggest": "largest",
    "smallest": "smallest", "longest": "longest", "shortest": "shortest", "northernmost": "north",
    "southernmost": "south", "easternmost": "east", "westernmost": "west", "leftmost": "west", "rightmost": "east",
    "topmost": "north", "bottommost": "south",
}  # fmt: skip
_FURTHEST = re.compile(r"\b(?:furthest|farthest)\s+(?:to\s+the\s+)?(north|south|east|west|left|right)\b", re.IGNORECASE)
_MAP_WORDS = {"left": "west", "right": "east", "above": "north", "below": "south", "top": "north", "bottom": "south"}
_FILLER = re.compile(
    r"^(?:the|a|an|only|one|that|is|which|where|are|called|named|find|locate|show|take|me|to|please)(?:\s+|$)",
    re.IGNORECASE,
)


def parse_query(text: str) -> Query:
    """Take a sentence apart. Never fails: what is not understood becomes a name to look up."""
    text = " ".join(text.strip().rstrip(".?!").split())
    text, superlative = _take_superlative(text)
    text, ordinal, ordinal_from = _take_ordinal(text)
    head, relations = _split(text)
    target = describe(head)
    name = ""
    if _is_name(head, target):
        name = _clean_name(head)
    if superlative in ("tallest", "lowest", "largest", "smallest") and target.kind is None and not name:
        target = Description("building", target.category, target.color)
    return Query(target, name, superlative, ordinal, ordinal_from, tuple(relations))


def describe(phrase: str) -> Description:
    """Class, category and colour that a phrase's words name."""
    words = re.findall(r"[a-z]+", re.sub(r"\b(?:car\s+parks?|parking\s+lots?)\b", " ", phrase.lower()))
    color = next((COLORS[w] for w in words if w in COLORS), "")
    for word in words:
        if word in CAR_WORDS:
            return Description("car", CAR_WORDS[word], color)
    if BUILDING_WORDS & set(words):
        return Description("building", "", color)
    return Description(None, "", color)


def _take_superlative(text: str) -> tuple[str, str]:
    match = _FURTHEST.search(text)
    if match:
        side = match.group(1).lower()
        return text[: match.start()] + text[match.end() :], _MAP_WORDS.get(side, side)
    for word, meaning in _SUPERLATIVES.items():
        found = re.search(rf"\b{word}\b", text, re.IGNORECASE)
        if found:
            return text[: found.start()] + text[found.end() :], meaning
    return text, ""


def _take_ordinal(text: str) -> tuple[str, int, str]:
    match = _ORDINAL.search(text)
    if not match:
        return text, 0, ""
    count = match["n"].lower()
    side = match["from"].lower()
    rest = f"{text[: match.start()]}{match['what']}{text[match.end() :]}"
    return rest, _ORDINALS.get(count) or int(re.sub(r"\D", "", count)[:9]), _MAP_WORDS.get(side, side)


def _split(text: str) -> tuple[str, list[Relation]]:
    """The target phrase, and the relations that follow it. Connectors inside a name (Car Park of X) do not split."""
    found = [m for m in _CONNECTOR.finditer(text) if m.start() > 0]
    if not found:
        return text, []
    relations = []
    for match, end in zip(found, [m.start() for m in found[1:]] + [len(text)], strict=True):
        phrase = text[match.end() : end].strip(" ,")
        if phrase:
            relations.append(_relation(match, phrase))
    return text[: found[0].start()].strip(" ,"), relations


def _relation(match: re.Match[str], phrase: str) -> Relation:
    anchor = describe(phrase)
    named = _is_name(phrase, anchor)
    name, described = (_clean_name(phrase), None) if named else ("", anchor)
    for word in _DIRECTED_RELATIONS:
        if match[word]:
            direction = re.sub(r"(north|south)[- ]?(east|west)", r"\1-\2", match[word].lower())
            return Relation(word, _MAP_WORDS.get(direction, direction), name, described)
    kind: RelationWord = next(word for word in _PLAIN_RELATIONS if match[word])
    return Relation(kind, "", name, described)


def _is_name(phrase: str, described: Description) -> bool:
    """Capital letters make a name; so does a phrase that describes nothing."""
    words = re.findall(r"\w+", _strip_filler(phrase))
    capitals = [w for w in words if w[:1].isupper() and w.lower() not in COLORS]
    if described.kind == "car":
        return False
    return bool(capitals) or (described.kind is None and bool(words))


def _clean_name(phrase: str) -> str:
    """A phrase without article and without a class word in small letters behind it ('the Kento Pharmacy building')."""
    words = _strip_filler(phrase).split()
    while len(words) > 1 and words[-1].lower() in BUILDING_WORDS and words[-1].islower():
        words.pop()
    return " ".join(words).strip(" ,")


def _strip_filler(phrase: str) -> str:
    while True:
        shorter = _FILLER.sub("", phrase.strip(), count=1)
        if shorter == phrase.strip():
            return shorter
        phrase = shorter
