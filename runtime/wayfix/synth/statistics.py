"""How hard a set of expressions is, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from wayfix.synth.city import City
from wayfix.synth.expressions import FAR_M, Expression

CROWD = 4
"""A target with at least this many of its kind within 50 m stands in a crowd."""


def hardness(expressions: Sequence[Expression], *cities: City) -> dict[str, float]:
    """Counts and fractions of a sample of expressions; with the cities they are of, also means per city.

    `crowded`, `far_landmark` and `no_landmark` are what makes it hard; fractions are of all expressions.
    """
    total = len(expressions)
    if total == 0:
        return {"expressions": 0}
    kinds = Counter(e.kind for e in expressions)
    result: dict[str, float] = {
        "expressions": total,
        "crowded": sum(e.distractors_50m >= CROWD for e in expressions) / total,
        "far_landmark": sum((e.landmark_distance_m or 0.0) >= FAR_M for e in expressions) / total,
        "no_landmark": sum(e.landmark is None for e in expressions) / total,
        "mean_distractors_50m": sum(e.distractors_50m for e in expressions) / total,
        "distinct_queries": len({e.query for e in expressions}) / total,
        **{f"kind_{kind}": n / total for kind, n in sorted(kinds.items())},
    }
    if cities:
        objects = [item for city in cities for item in city.objects]
        result["cities"] = len(cities)
        result["buildings_per_city"] = sum(item.kind == "building" for item in objects) / len(cities)
        result["cars_per_city"] = sum(item.kind == "car" for item in objects) / len(cities)
        result["landmarks_per_city"] = sum(len(city.landmarks) for city in cities) / len(cities)
        result["building_targets"] = _building_targets(expressions, cities) / total
    return result


def print_hardness(expressions: Sequence[Expression], *cities: City) -> None:
    """Print `hardness` as a table."""
    for name, value in hardness(expressions, *cities).items():
        print(f"{name:24s} {value:8.0f}" if value == int(value) and value > 1 else f"{name:24s} {value:8.3f}")


def _building_targets(expressions: Sequence[Expression], cities: Sequence[City]) -> int:
    """How many expressions are after a building; boxes tell objects of several cities apart, ids do not."""
    boxes = {item.box for city in cities for item in city.objects if item.kind == "building"}
    return sum(e.box in boxes for e in expressions if e.box is not None)
