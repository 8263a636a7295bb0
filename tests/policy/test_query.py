"""Sentences taken apart: the target, what singles it out, and how it stands to what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wayfix.policy.query import COLORS, Description, Query, Relation, describe, parse_query
from wayfix.synth.expressions import Expression

ANY = Description(None)


def car(color: str = "", category: str = "car") -> Description:
    return Description("car", category, color)


def building(color: str = "") -> Description:
    return Description("building", "", color)


def near(name: str = "", anchor: Description | None = None) -> Relation:
    return Relation("near", "", name, anchor)


def beside(anchor: Description | None = None, name: str = "") -> Relation:
    return Relation("next", "", name, anchor)


def towards(direction: str, name: str = "", anchor: Description | None = None) -> Relation:
    return Relation("direction", direction, name, anchor)


def side(direction: str, name: str) -> Relation:
    return Relation("side", direction, name)


SENTENCES = {
    # attributes
    "the white car": Query(car("white")),
    "The only gray truck.": Query(car("grey", "truck")),
    "Where is the silver bus?": Query(car("silver", "bus")),
    "a blue vehicle": Query(car("blue", "")),
    "the building with a red roof": Query(building("red")),
    "Where is the orange-roofed house?": Query(building("orange")),
    "please find the green van": Query(car("green", "van")),
    # neighbours
    "the white car next to the orange car": Query(car("white"), relations=(beside(car("orange")),)),
    "the black lorry parked beside the brown house": Query(
        car("black", "truck"), relations=(beside(building("brown")),)
    ),
    "the house near the tower": Query(building(), relations=(near(anchor=building()),)),
    # places
    "the red van south of Hartamhol Cottage": Query(
        car("red", "van"), relations=(towards("south", "Hartamhol Cottage"),)
    ),
    "the car to the left of Red Hall": Query(car(), relations=(towards("west", "Red Hall"),)),
    "the car to the right of the Red Hall": Query(car(), relations=(towards("east", "Red Hall"),)),
    "the grey sedan northeast of Red Hall": Query(car("grey"), relations=(towards("north-east", "Red Hall"),)),
    "the grey sedan to the south-west of Red Hall": Query(car("grey"), relations=(towards("south-west", "Red Hall"),)),
    "the tower above the Belfilnor Guest House": Query(
        building(), relations=(towards("north", "Belfilnor Guest House"),)
    ),
    "the tower above Belfilnor Guest House": Query(building(), relations=(towards("north", "Belfilnor Guest House"),)),
    "the truck below Mercury": Query(car(category="truck"), relations=(towards("south", "Mercury"),)),
    "the car near the Kento Pharmacy building": Query(car(), relations=(near("Kento Pharmacy"),)),
    "the car in the vicinity of kento pharmacy": Query(car(), relations=(near("kento pharmacy"),)),
    "the white car by the river": Query(car("white"), relations=(near("river"),)),
    "the car inside Mercury Park": Query(car(), relations=(Relation("in", "", "Mercury Park"),)),
    "the van in the Car Park of Kento Pharmacy": Query(
        car(category="van"), relations=(Relation("in", "", "Car Park of Kento Pharmacy"),)
    ),
    # roads
    "Where is the blue van along the east side of Brolin Avenue?": Query(
        car("blue", "van"), relations=(side("east", "Brolin Avenue"),)
    ),
    "the car on the left-hand side of Mill Road": Query(car(), relations=(side("west", "Mill Road"),)),
    "the house at the northern side of Mill Road": Query(building(), relations=(side("north", "Mill Road"),)),
    "the car on Mill Road": Query(car(), relations=(Relation("on", "", "Mill Road"),)),
    # chains
    "the white car next to the orange car left of the police station": Query(
        car("white"), relations=(beside(car("orange")), towards("west", "police station"))
    ),
    "the blue van beside the green vehicle below Windan Bakery": Query(
        car("blue", "van"), relations=(beside(car("green", "")), towards("south", "Windan Bakery"))
    ),
    "the car on Mill Road near Red Hall north of Mercury": Query(
        car(), relations=(Relation("on", "", "Mill Road"), near("Red Hall"), towards("north", "Mercury"))
    ),
    # ordinals
    "the first blue car from the south along Sorsel Drive": Query(
        car("blue"), ordinal=1, ordinal_from="south", relations=(Relation("on", "", "Sorsel Drive"),)
    ),
    "The second car from the left in the Car Park of Kento Pharmacy": Query(
        car(), ordinal=2, ordinal_from="west", relations=(Relation("in", "", "Car Park of Kento Pharmacy"),)
    ),
    "the 3rd van counting from the top": Query(car(category="van"), ordinal=3, ordinal_from="north"),
    "the 12th car from the eastern end": Query(car(), ordinal=12, ordinal_from="east"),
    # extremes
    "the tallest building": Query(building(), superlative="tallest"),
    "the highest": Query(building(), superlative="tallest"),
    "the biggest house near Red Hall": Query(building(), superlative="largest", relations=(near("Red Hall"),)),
    "the shortest truck": Query(car(category="truck"), superlative="shortest"),
    "the northernmost car": Query(car(), superlative="north"),
    "the leftmost car": Query(car(), superlative="west"),
    "the building furthest to the right": Query(building(), superlative="east"),
    "the largest house with the brown roof below Windan Bakery": Query(
        building("brown"), superlative="largest", relations=(towards("south", "Windan Bakery"),)
    ),
    # names
    "Hardor Heights": Query(ANY, "Hardor Heights"),
    "Windan Bakery.": Query(ANY, "Windan Bakery"),
    "Where is Windan Bakery?": Query(ANY, "Windan Bakery"),
    "where is windan bakery": Query(ANY, "windan bakery"),
    "Show me the Café Bleu!": Query(ANY, "Café Bleu"),
    "the Car Park of Kento Pharmacy": Query(ANY, "Car Park of Kento Pharmacy"),
    "Find the Kento Pharmacy building": Query(building(), "Kento Pharmacy"),
    "Red Hall": Query(building("red"), "Red Hall"),
    "the police station": Query(ANY, "police station"),
    # odd
    "": Query(ANY),
    "   ": Query(ANY),
    "?!.": Query(ANY),
    "  the   white\tcar \n": Query(car("white")),
    "THE WHITE CAR": Query(car("white")),
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_sentence_is_taken_apart_as_it_is_meant(sentence: str) -> None:
    assert parse_query(sentence) == SENTENCES[sentence]


@pytest.mark.parametrize(
    "sentence", ["next to Mercury", "left of", "near near near", "of of of", "first from the left"]
)
def test_a_sentence_without_a_target_is_taken_apart_without_an_error(sentence: str) -> None:
    assert parse_query(sentence).target.kind is None


@given(st.text(max_size=200))
def test_any_text_can_be_taken_apart(text: str) -> None:
    query = parse_query(text)
    assert query.ordinal >= 0
    assert all(query.names)


RELATIONS = ("next to", "left of", "on the east side of", "in", "above", "of", "north")
CHOICES = ("first", "12th", "from the left", "tallest", "furthest")
words = st.sampled_from(
    (*RELATIONS, *CHOICES, "the", "white", "car", "house", "Red Hall", "police station", "Where is", ",", "?", ".", "-")
)


@given(st.lists(words, max_size=12).map(" ".join))
def test_any_words_of_the_grammar_in_any_order_can_be_taken_apart(text: str) -> None:
    query = parse_query(text)
    assert all(relation.name or relation.anchor is not None for relation in query.relations)
    assert all(query.names)


@pytest.mark.parametrize("digits", [20, 5000])
def test_an_absurd_ordinal_can_be_taken_apart(digits: int) -> None:
    assert parse_query(f"the {'9' * digits}th car from the left").target == car()


def test_names_to_look_up_are_told_once_each_and_in_the_order_of_the_sentence() -> None:
    query = parse_query("the car near Red Hall left of Mercury next to Red Hall")
    assert query.names == ("Red Hall", "Mercury")
    assert parse_query("the white car next to the red car").names == ()
    assert parse_query("Windan Bakery").names == ("Windan Bakery",)


@pytest.mark.parametrize("color", COLORS)
def test_every_colour_word_is_known_for_cars_and_for_roofs(color: str) -> None:
    assert parse_query(f"the {color} car").target == car(COLORS[color])
    assert parse_query(f"the house with the {color} roof").target == building(COLORS[color])


def test_a_car_park_is_no_car() -> None:
    assert describe("the car park") == ANY
    assert describe("the white car in the parking lot") == car("white")


def test_the_sentences_of_the_synthetic_city_name_the_class_that_is_meant(
    small_city_expressions: list[Expression],
) -> None:
    for expression in small_city_expressions:
        query = parse_query(expression.query)
        assert query.target.kind is not None or query.name, expression.query
        if expression.landmark is not None:
            assert expression.landmark in query.names or query.name, expression.query
