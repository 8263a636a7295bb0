"""Ranking by relations, in cases computed by hand; metres from a corner, x east and y north."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from wayfix.geo.boxes import WorldBox
from wayfix.policy.detection import Candidate
from wayfix.policy.query import Description, Query, Relation
from wayfix.policy.ranking import Place, rank

CAR = Description("car", "car")
RED = Description("car", "car", "red")
HALL = Place(WorldBox(-5, -5, 5, 5), None)
ROAD = Place(WorldBox(-100, -3, 100, 3), ((-100.0, 0.0), (0.0, 0.0), (100.0, 0.0)))


def thing(
    x: float, y: float, looks: float = 1.0, *, area: float = 4.0, length: float = 2.0, height: float | None = None
) -> Candidate:
    """A square of 2 m around a point."""
    return Candidate(WorldBox(x - 1, y - 1, x + 1, y + 1), looks, area, length, height)


def scores(
    query: Query,
    targets: Sequence[Candidate],
    places: dict[str, Place] | None = None,
    anchors: Sequence[Candidate] = (),
) -> list[float]:
    """The scores in the order of the targets; 0 for those that were dropped."""
    ranked = rank(query, targets, places or {}, lambda _: anchors)
    assert [r.score for r in ranked] == sorted((r.score for r in ranked), reverse=True)
    by_box = {r.candidate.box: r.score for r in ranked}
    return [by_box.get(t.box, 0.0) for t in targets]


def related(word: str, direction: str = "", name: str = "", anchor: Description | None = None) -> Query:
    return Query(CAR, relations=(Relation(word, direction, name, anchor),))  # type: ignore[arg-type]


def test_without_relations_looks_decide() -> None:
    assert scores(Query(CAR), [thing(0, 0, 0.3), thing(9, 9, 0.8)]) == [0.3, 0.8]


def test_nothing_is_ranked_among_nothing() -> None:
    for query in (Query(CAR), Query(CAR, superlative="tallest"), Query(CAR, ordinal=2, ordinal_from="west")):
        assert rank(query, [], {}, lambda _: []) == []


@pytest.mark.parametrize(
    ("direction", "x", "y", "score"),
    [
        ("west", -30, 0, 1.0),
        ("east", 30, 0, 1.0),
        ("north", 0, 30, 1.0),
        ("south", 0, -30, 1.0),
        ("west", -30, 30, 0.75),  # 45 degrees off
        ("west", -30, 30 * 0.4142135624, 0.875),  # 22.5 degrees off
        ("west", 0, 30, 0.0),
        ("west", 30, 0, 0.0),
        ("west", -30, 30 * 1.4281480067, 0.375),  # 55 degrees off: halfway between 45 and 65
        ("west", -10, 30, 0.0),  # 72 degrees off
        ("north-east", 30, 30, 1.0),
        ("north-east", 0, 30, 0.75),
        ("north-east", -30, 30, 0.0),
        ("north-east", -30, -30, 0.0),
    ],
)
def test_a_direction_from_a_place_is_full_straight_that_way_and_falls_with_the_angle(
    direction: str, x: float, y: float, score: float
) -> None:
    query = related("direction", direction, "Hall")
    assert scores(query, [thing(x, y)], {"Hall": HALL}) == [pytest.approx(score, abs=1e-6)]


def test_left_of_a_place_does_not_depend_on_how_far() -> None:
    query = related("direction", "west", "Hall")
    assert scores(query, [thing(-10, 0), thing(-90, 0)], {"Hall": HALL}) == [1.0, 1.0]


@pytest.mark.parametrize(("gap", "score"), [(0, 1.0), (4.0, 1.0), (6.0, 0.75), (8.0, 0.5), (12.0, 0.0), (50.0, 0.0)])
def test_next_to_is_full_within_four_metres_and_nothing_beyond_twelve(gap: float, score: float) -> None:
    # The hall ends at x = 5, the thing starts 1 m before its centre.
    assert scores(related("next", name="Hall"), [thing(5 + gap + 1, 0)], {"Hall": HALL}) == [pytest.approx(score)]


@pytest.mark.parametrize(("gap", "score"), [(4.0, 1.0), (40.0, 1.0), (60.0, 0.5), (80.0, 0.0), (500.0, 0.0)])
def test_near_is_full_within_forty_metres_and_nothing_beyond_eighty(gap: float, score: float) -> None:
    assert scores(related("near", name="Hall"), [thing(0, -5 - gap - 1)], {"Hall": HALL}) == [pytest.approx(score)]


def test_in_a_place_is_with_the_centre_within_a_metre_of_it() -> None:
    query = related("in", name="Hall")
    assert scores(query, [thing(0, 0), thing(5.9, 0), thing(6.1, 0)], {"Hall": HALL}) == [1.0, 1.0, 0.02]


@pytest.mark.parametrize(
    ("side", "x", "y", "score"),
    [
        ("north", 20, 8, 1.0),
        ("south", 20, 8, 0.05),
        ("south", 20, -8, 1.0),
        ("north", 20, -8, 0.05),
        ("north", 20, 14, 1.0),
        ("north", 20, 21, 0.5),
        ("north", 20, 28, 0.0),
        ("east", 20, 8, 0.05),
        ("north", 120, 8, 0.025 * (28 - (20**2 + 8**2) ** 0.5) / 7),  # beyond the end the side has no plain name
    ],
)
def test_a_side_of_a_road_is_told_by_its_line_and_reaches_fourteen_metres(
    side: str, x: float, y: float, score: float
) -> None:
    query = related("side", side, "Road")
    assert scores(query, [thing(x, y)], {"Road": ROAD}) == [pytest.approx(score, abs=1e-9)]


def test_the_side_of_a_road_that_runs_north_is_east_or_west() -> None:
    road = Place(WorldBox(-3, -100, 3, 100), ((0.0, -100.0), (0.0, 100.0)))
    query = related("side", "west", "Road")
    assert scores(query, [thing(-7, 40), thing(7, 40)], {"Road": road}) == [1.0, 0.05]


@pytest.mark.parametrize(("distance", "score"), [(0, 1.0), (14, 1.0), (21, 0.5), (28, 0.0)])
def test_on_a_road_is_within_fourteen_metres_of_its_line(distance: float, score: float) -> None:
    query = related("on", name="Road")
    assert scores(query, [thing(50, -distance)], {"Road": ROAD}) == [pytest.approx(score)]


def test_a_direction_from_a_road_is_from_its_nearest_point() -> None:
    query = related("direction", "north", "Road")
    # From the road's middle, 90 m and 30 m away, this would not be north.
    assert scores(query, [thing(90, 30), thing(90, -30)], {"Road": ROAD}) == [1.0, 0.0]


def test_a_place_that_was_not_found_does_not_count() -> None:
    assert scores(related("direction", "west", "Castle"), [thing(0, 0, 0.7)], {"Hall": HALL}) == [0.7]


def test_a_described_neighbour_counts_by_its_looks_and_by_the_best_of_them() -> None:
    query = related("next", anchor=RED)
    # 2 m from a poor red car, 6 m from a good one: the better product counts, 0.9 * 0.75.
    anchors = [thing(4, 0, 0.5), thing(-8, 0, 0.9)]
    assert scores(query, [thing(0, 0, 0.8)], anchors=anchors) == [pytest.approx(0.8 * 0.9 * 0.75)]


def test_nothing_is_its_own_neighbour() -> None:
    query = related("next", anchor=RED)
    alone = thing(0, 0)
    assert scores(query, [alone], anchors=[alone]) == [0.0]
    assert scores(query, [alone], anchors=[]) == [0.0]
    assert scores(query, [alone], anchors=[alone, thing(3, 0)]) == [1.0]


def test_left_of_a_described_neighbour() -> None:
    query = related("direction", "west", anchor=RED)
    assert scores(query, [thing(-20, 0), thing(20, 0)], anchors=[thing(0, 0)]) == [1.0, 0.0]


def test_an_anchor_of_no_known_class_does_not_count() -> None:
    assert scores(related("next", anchor=Description(None)), [thing(0, 0, 0.6)]) == [0.6]


def test_all_relations_count() -> None:
    query = Query(
        CAR,
        relations=(Relation("next", "", "", RED), Relation("direction", "west", "Hall"), Relation("near", "", "Hall")),
    )
    # Next to the red car at 0.5, west at 45 degrees, near.
    targets = [thing(-30, 30), thing(30, 30)]
    expected = 0.5 * 0.75 * 1.0
    assert scores(query, targets, {"Hall": HALL}, [thing(-30, 40)]) == [pytest.approx(expected), 0.0]


@pytest.mark.parametrize(
    ("superlative", "best"),
    [
        ("tallest", 1), ("lowest", 2), ("largest", 2), ("smallest", 0), ("longest", 0), ("shortest", 1),
        ("north", 2), ("south", 0), ("east", 1), ("west", 2),
    ],
)  # fmt: skip
def test_a_superlative_chooses_the_extreme_of_what_it_measures(superlative: str, best: int) -> None:
    targets = [
        thing(0, -50, area=10, length=9, height=8),
        thing(50, 0, area=20, length=3, height=30),
        thing(-50, 50, area=30, length=6, height=4),
    ]
    ranked = rank(Query(CAR, superlative=superlative), targets, {}, lambda _: [])
    assert ranked[0].candidate is targets[best]
    assert [r.score for r in ranked] == pytest.approx([1.0, 2 / 3, 4 / 9])


def test_the_tallest_is_the_largest_where_heights_are_not_known() -> None:
    targets = [thing(0, 0, area=10), thing(20, 0, area=90), thing(40, 0, area=50)]
    assert rank(Query(CAR, superlative="tallest"), targets, {}, lambda _: [])[0].candidate is targets[1]
    assert rank(Query(CAR, superlative="lowest"), targets, {}, lambda _: [])[0].candidate is targets[0]


def test_what_fits_badly_is_not_the_tallest() -> None:
    query = Query(CAR, superlative="tallest", relations=(Relation("near", "", "Hall"),))
    targets = [thing(10, 0, height=5), thing(500, 0, height=50), thing(20, 0, 0.4, height=40)]
    assert scores(query, targets, {"Hall": HALL}) == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("start", "ordinal", "expected"),
    [
        ("west", 1, [0.5, 1.0, 0.25]),
        ("west", 2, [1.0, 0.5, 0.5]),
        ("west", 3, [0.5, 0.25, 1.0]),
        ("east", 1, [0.5, 0.25, 1.0]),
        ("north", 1, [1.0, 0.25, 0.5]),
        ("south", 1, [0.25, 1.0, 0.5]),
        ("west", 4, [0.25, 0.125, 0.5]),
        ("", 1, [0.5, 1.0, 0.25]),
    ],
)
def test_an_ordinal_counts_from_its_side_and_halves_the_score_for_every_place_off(
    start: str, ordinal: int, expected: list[float]
) -> None:
    targets = [thing(10, 30), thing(0, 0), thing(20, 10)]
    assert scores(Query(CAR, ordinal=ordinal, ordinal_from=start), targets) == expected


def test_an_ordinal_counts_only_what_fits() -> None:
    query = Query(CAR, ordinal=2, ordinal_from="west", relations=(Relation("on", "", "Road"),))
    targets = [thing(0, 0), thing(5, 300), thing(10, 0)]
    assert scores(query, targets, {"Road": ROAD}) == [0.5, 0.0, 1.0]


@pytest.mark.parametrize("ordinal", [5000, pytest.param(10**400, id="10**400")])
def test_an_absurd_ordinal_fits_nothing(ordinal: int) -> None:
    assert scores(Query(CAR, ordinal=ordinal, ordinal_from="west"), [thing(0, 0), thing(9, 0)]) == [0.0, 0.0]
