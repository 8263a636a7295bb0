from __future__ import annotations

import re

import pytest

from wayfix.geo.boxes import WorldBox, gap
from wayfix.geo.relations import NEAR_GAP_M, NEXT_TO_GAP_M, SAME_DIRECTION, direction_angle, point_to_line, road_side
from wayfix.synth.catalogue import CityObject
from wayfix.synth.city import City
from wayfix.synth.expressions import Expression, make_expressions
from wayfix.synth.statistics import hardness

Pairs = list[tuple[City, Expression]]

WORDS = "white|black|silver|red|blue|yellow|green|orange|brown|gr[ea]y"
CAR = rf"(?:(?P<color>{WORDS}) )?(?P<category>car|van|truck|bus|vehicle)"
ROOF = rf"(?:(?P<roof1>{WORDS})-roofed )?(?P<what>building|house|tower)(?: with (?:the|an?) (?P<roof2>{WORDS}) roof)?"
NOUN = rf"(?:{CAR}|{ROOF})"


@pytest.fixture(scope="session")
def pairs(cities: list[City], expressions: list[list[Expression]]) -> Pairs:
    return [(city, e) for city, found in zip(cities, expressions, strict=True) for e in found]


def bare(query: str) -> str:
    """The noun phrase of a query, without what frames it."""
    query = re.sub(r"^(Find|Show me|Locate|Where is) ", "", query).rstrip(".?")
    return re.sub(r"^The ", "the ", query)


def items_named(city: City, words: str) -> list[CityObject]:
    """What a noun means, read from its words alone."""
    found = re.fullmatch(NOUN, words)
    assert found, words
    if found["category"]:
        return [
            item
            for item in city.objects
            if item.kind == "car"
            and (found["category"] == "vehicle" or item.category == found["category"])
            and (not found["color"] or item.color == found["color"])
        ]
    color = (found["roof1"] or found["roof2"] or "").replace("gray", "grey")
    return [
        item
        for item in city.objects
        if item.kind == "building"
        and (found["what"] == "building" or item.category == found["what"])
        and (not color or item.color == color)
    ]


def place(city: City, e: Expression) -> CityObject:
    return next(item for item in city.objects if item.name == e.landmark)


def anchor(item: CityObject, target: WorldBox) -> WorldBox:
    if item.kind != "road":
        return item.box
    _, x, y = point_to_line(*target.center, item.corners)
    return WorldBox(x, y, x, y)


def test_the_same_seed_gives_the_same_expressions(cities: list[City], expressions: list[list[Expression]]) -> None:
    assert make_expressions(cities[0], 60, 1) == expressions[0]
    assert make_expressions(cities[0], 60, 2) != expressions[0]


def test_a_scene_gives_sixty_different_sentences(expressions: list[list[Expression]]) -> None:
    for found in expressions:
        assert len({e.query for e in found}) == len({e.id for e in found}) == 60


def test_a_target_is_told_with_its_box_and_its_rivals(pairs: Pairs) -> None:
    for city, e in pairs:
        assert e.candidates == tuple(item.id for item in city.objects if item.kind in ("building", "car"))
        if e.target_id is None:
            assert e.kind == "absent" and e.box is None and e.landmark_distance_m is None
            continue
        target = city.objects[e.target_id]
        assert e.box == target.box and e.box.min_z is not None and e.target_id in e.candidates
        (x, y), same = target.box.center, [o for o in city.objects if o.kind == target.kind and o.id != target.id]
        assert e.distractors_50m == sum(((o.box.center[0] - x) ** 2 + (o.box.center[1] - y) ** 2) <= 2500 for o in same)


def test_landmark_distances_are_from_centre_to_centre_or_to_the_nearest_point_of_a_road(pairs: Pairs) -> None:
    for city, e in pairs:
        if e.landmark is not None and e.box is not None:
            x, y = anchor(place(city, e), e.box).center
            away = ((e.box.center[0] - x) ** 2 + (e.box.center[1] - y) ** 2) ** 0.5
            assert e.landmark_distance_m == pytest.approx(away)


def test_an_attribute_fits_its_target_only(pairs: Pairs) -> None:
    checked = 0
    for city, e in pairs:
        if e.kind == "attribute":
            noun = re.sub(r"^the (only )?", "", bare(e.query))
            assert [item.id for item in items_named(city, noun)] == [e.target_id]
            checked += 1
    assert checked >= 10


def test_a_direction_fits_its_target_only(pairs: Pairs) -> None:
    words = "left|right|west|east|north|south"
    pattern = re.compile(rf"the (?:only )?({NOUN}) (?:(?:to the )?(?P<way>{words}) of|(?P<map>above|below)) .*")
    checked = 0
    for city, e in pairs:
        found = pattern.fullmatch(bare(e.query))
        if e.kind != "landmark" or not found:
            continue
        way = found["way"] or found["map"]
        direction = SAME_DIRECTION.get(way, way)
        there = place(city, e)
        angles = {
            item.id: direction_angle(item.box, anchor(there, item.box), direction)
            for item in items_named(city, found[1])
            if item.id != there.id
        }
        assert e.target_id is not None and angles.pop(e.target_id) <= 45.0
        assert all(angle > 55.0 for angle in angles.values()), e.query
        checked += 1
    assert checked >= 40


def test_a_neighbour_fits_its_target_only(pairs: Pairs) -> None:
    pattern = re.compile(rf"the ({NOUN}) (?:parked )?(?:next to|beside|right beside|adjacent to) the (.*)")
    checked = 0
    for city, e in pairs:
        found = pattern.fullmatch(bare(e.query))
        if e.kind != "neighbour" or not found:
            continue
        anchors = items_named(city, found[found.lastindex or 0])
        gaps = {
            item.id: min(gap(item.box, other.box) for other in anchors if other.id != item.id)
            for item in items_named(city, found[1])
            if any(other.id != item.id for other in anchors)
        }
        assert e.target_id is not None and gaps.pop(e.target_id) <= NEXT_TO_GAP_M
        assert all(value > 1.6 * NEXT_TO_GAP_M for value in gaps.values()), e.query
        checked += 1
    assert checked >= 15


def test_near_fits_its_target_only(pairs: Pairs) -> None:
    pattern = re.compile(rf"the ({NOUN}) (?:near|close to|in the vicinity of) .*")
    checked = 0
    for city, e in pairs:
        found = pattern.fullmatch(bare(e.query))
        if e.kind != "landmark" or not found:
            continue
        there = place(city, e)
        gaps = {
            item.id: gap(item.box, anchor(there, item.box))
            for item in items_named(city, found[1])
            if item.id != there.id
        }
        assert e.target_id is not None and gaps.pop(e.target_id) <= NEAR_GAP_M
        assert all(value > NEAR_GAP_M for value in gaps.values()), e.query
        checked += 1
    assert checked >= 5


def test_a_road_side_fits_its_target_only(pairs: Pairs) -> None:
    pattern = re.compile(rf"the ({NOUN}) (?:on|along) the (?P<side>north|south|east|west) side of .*")
    checked = 0
    for city, e in pairs:
        found = pattern.fullmatch(bare(e.query))
        if e.kind != "road_side" or not found:
            continue
        line = place(city, e).corners
        on_side = [
            item.id
            for item in items_named(city, found[1])
            if (where := road_side(item.box, line))[0] == found["side"] and where[1] <= 14.0
        ]
        assert on_side == [e.target_id], e.query
        checked += 1
    assert checked >= 15


def test_what_is_absent_is_not_there(pairs: Pairs) -> None:
    pattern = re.compile(rf"the ({NOUN}) (?:near|close to|in the vicinity of) .*")
    for city, e in pairs:
        if e.kind != "absent":
            continue
        found = pattern.fullmatch(bare(e.query))
        if found and e.landmark is not None:
            there = place(city, e)
            same = [item for item in items_named(city, found[1]) if item.id != there.id]
            assert all(gap(item.box, anchor(there, item.box)) > 1.6 * NEAR_GAP_M for item in same)
        elif e.landmark is None and re.fullmatch(rf"the (only )?({NOUN})", bare(e.query)):
            assert not items_named(city, re.sub(r"^the (only )?", "", bare(e.query)))


def test_a_sample_is_hard_and_varied(cities: list[City], pairs: Pairs) -> None:
    sample = [e for _, e in pairs]
    numbers = hardness(sample, *cities)
    assert numbers["crowded"] >= 0.4
    assert numbers["far_landmark"] >= 0.28
    assert numbers["no_landmark"] >= 0.13
    assert 0.04 <= numbers["kind_absent"] <= 0.10
    assert 0.2 <= numbers["building_targets"] <= 0.5
    assert sum(e.landmark_distance_m == 0.0 for e in sample) / len(sample) < 0.08
    assert {e.kind for e in sample} == {
        "attribute", "neighbour", "landmark", "road_side", "ordinal", "extreme", "absent",
    }  # fmt: skip


def test_a_scene_that_runs_dry_gives_fewer(cities: list[City]) -> None:
    found = make_expressions(cities[0], 20_000, 1)
    assert 60 < len(found) < 20_000
    assert len({e.query for e in found}) == len(found)


def test_no_expressions_have_no_hardness() -> None:
    assert hardness([]) == {"expressions": 0}
