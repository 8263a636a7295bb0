from __future__ import annotations

import pytest

from wayfix.synth.city import City, CityConfig, build_city
from wayfix.synth.expressions import Expression, make_expressions


@pytest.fixture(scope="session")
def cities() -> list[City]:
    """Cities of all splits at a coarse gsd: where things stand does not depend on it."""
    splits = ("train", "val", "test", "train", "val", "test")
    return [
        build_city(CityConfig(seed, gsd_m=0.25, split=split, points_per_m2=1.0))
        for seed, split in enumerate(splits, 20)
    ]


@pytest.fixture(scope="session")
def city() -> City:
    """One city in full."""
    return build_city(CityConfig(3))


@pytest.fixture(scope="session")
def expressions(cities: list[City]) -> list[list[Expression]]:
    """Sixty expressions of each of the cities."""
    return [make_expressions(city, 60, 1) for city in cities]
