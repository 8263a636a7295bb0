"""What OpenStreetMap's tags say: names, aliases, types, places, areas and measures. Pure functions of the tags."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

Tags = Mapping[str, str]

ROAD = "road"
"""The landmark type of every street and path."""

_LANGUAGE = r"[a-z]{2,3}(?:[-_][A-Za-z0-9]+)*"
_ALIAS_KEY = re.compile(
    rf"(?:alt|old|short|official|loc|int|nat|reg)_name(?:_\d+)?(?::{_LANGUAGE})?|name:{_LANGUAGE}|name_\d+"
)
"""Keys such as `name:etymology` or `name:signed` have no language after the colon and are no names."""

# fmt: off
TYPE_KEYS = (
    "amenity", "shop", "railway", "aeroway", "tourism", "leisure", "office", "healthcare", "craft", "historic",
    "man_made", "place", "waterway", "natural", "highway", "public_transport", "military", "club", "emergency",
    "building", "landuse", "power", "barrier",
)
"""The most telling first."""

PLACE_KEYS = ("amenity", "shop", "tourism", "leisure", "office", "healthcare", "craft")
_STOPS = {
    "railway": ("station", "halt", "tram_stop", "subway_entrance"),
    "highway": ("bus_stop",),
    "public_transport": ("station",),
}
_UNBUILT = frozenset(("proposed", "planned", "construction", "razed", "demolished", "removed", "abandoned"))
_NOT_TELLING = frozenset(("yes", "attraction"))
"""Values that say less than those of a later key may."""

_LINES = {
    "natural": frozenset(("coastline", "cliff", "ridge", "arete", "tree_row", "valley")),
    "man_made": frozenset(("pipeline", "embankment", "breakwater", "groyne", "cutline", "dyke")),
    "leisure": frozenset(("track", "slipway")),
    "aeroway": frozenset(("runway", "taxiway")),
}
"""Values whose closed ways are loops, not areas."""

_AREAS = {
    "waterway": frozenset(("riverbank", "dock", "boatyard", "dam")),
    "railway": frozenset(("station", "platform", "roundhouse", "turntable", "yard")),
    "power": frozenset(("plant", "substation", "generator")),
    "highway": frozenset(("platform", "services", "rest_area")),
}
"""Keys of which only these values make a closed way an area."""
# fmt: on


def name_of(tags: Tags) -> str | None:
    """The name, stripped; None where there is none."""
    return tags.get("name", "").strip() or None


def aliases_of(tags: Tags, name: str) -> tuple[str, ...]:
    """All other names, in every language, split at semicolons, each once, without `name` itself."""
    found = [part for key, value in sorted(tags.items()) if _ALIAS_KEY.fullmatch(key) for part in value.split(";")]
    if ";" in name:
        found += name.split(";")
    return tuple(alias for alias in dict.fromkeys(part.strip() for part in found) if alias and alias != name)


def type_of(tags: Tags, is_node: bool, is_area: bool) -> tuple[str, int] | None:
    """What a named feature is, and how telling the key was that told it (0 most); None where no key tells.

    Every street or path is a `road`; `building=yes` is a `building`.
    """
    vague: tuple[str, int] | None = None
    for rank, key in enumerate(TYPE_KEYS):
        value = _value(tags, key)
        if not value or value == "no" or (key in ("highway", "railway") and value in _UNBUILT):
            continue
        if value in _NOT_TELLING:
            vague = vague or (key if value == "yes" else value, rank)
            continue
        return _in_plain_words(tags, key, value, is_node, is_area), rank
    return vague


def _in_plain_words(tags: Tags, key: str, value: str, is_node: bool, is_area: bool) -> str:
    """The value, but for the few keys whose value alone would not be understood."""
    if key == "highway" and not is_node and not is_area:
        return ROAD
    if key == "railway" and not is_node and not is_area and value != "platform":
        return "railway"
    if key == "natural" and value == "water":
        return _value(tags, "water") or value
    if key == "waterway" and value == "riverbank":
        return "river"
    if key == "building" and value == "construction":
        return "building"
    if key == "public_transport" and value in ("platform", "stop_position"):
        return next((f"{kind}_stop" for kind in ("tram", "bus") if tags.get(kind) == "yes"), "platform")
    return value


def is_building(tags: Tags) -> bool:
    """Whether the feature itself is mapped as a building."""
    return tags.get("building", "no") != "no"


def is_area(tags: Tags) -> bool:
    """Whether a closed way with these tags is a surface and not a loop."""
    said = tags.get("area")
    if said in ("yes", "no"):
        return said == "yes"
    if is_building(tags):
        return True
    if "highway" in tags and tags["highway"] not in _AREAS["highway"]:
        return False
    for key in TYPE_KEYS:
        value = _value(tags, key)
        if value and key != "barrier" and (value in _AREAS[key] if key in _AREAS else value not in _LINES.get(key, ())):
            return True
    return False


def place_kinds(tags: Tags) -> tuple[str, ...]:
    """The `key=value` of every point of interest the feature is; a list of values counts as several."""
    return tuple(_place_kinds(tags))


def _place_kinds(tags: Tags) -> Iterator[str]:
    for key in PLACE_KEYS:
        if key not in tags:
            continue
        for value in tags[key].split(";"):
            if value.strip() not in ("", "no", "vacant"):
                yield f"{key}={value.strip()}"
    for key, values in _STOPS.items():
        if tags.get(key) in values:
            yield f"{key}={tags[key]}"


def _value(tags: Tags, key: str) -> str:
    """The first of a key's values in lower case, or nothing."""
    return tags.get(key, "").split(";")[0].strip().lower()


# ---- measures

_NUMBER = r"\d+(?:\.\d+)?|\.\d+"
_METRIC = re.compile(rf"({_NUMBER})\s*(m|cm|mm|km|ft|mi)?")
_FEET = re.compile(rf"""(?:({_NUMBER})\s*')?\s*(?:({_NUMBER})\s*(?:"|''))?""")
_METRES = {"m": 1.0, "cm": 0.01, "mm": 0.001, "km": 1000.0, "ft": 0.3048, "mi": 1609.344}
_DECIMAL_COMMA = re.compile(r"(\d+),(\d{1,2})(?!\d)")


def metres(text: str | None) -> float | None:
    """A length in metres from `2`, `1.5 m`, `150 cm`, `5'`, `5'6"` or `2,5`; None for anything else.

    A comma before three digits may part thousands and is not guessed at; neither is a range.
    """
    plain = _DECIMAL_COMMA.sub(r"\1.\2", (text or "").strip().lower())
    if match := _METRIC.fullmatch(plain):
        return _positive(float(match[1]) * _METRES[match[2] or "m"])
    if match := _FEET.fullmatch(plain):
        return _positive(float(match[1] or 0) * 0.3048 + float(match[2] or 0) * 0.0254)
    return None


def _positive(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) and value > 0 else None


def whole(text: str | None) -> int | None:
    """A whole number of at most four digits, or None."""
    plain = (text or "").strip()
    return int(plain) if re.fullmatch(r"[+-]?\d{1,4}", plain, re.ASCII) else None
