import math

import pytest

from policies.yaml.located import MAX_FILLED_CHARS, filled, resolved


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None), ("~", None), ("null", None), ("true", True), ("False", False), ("12", 12), ("-3", -3), ("010", 10), ("0x1F", 31),
        ("0o17", 15), ("1.5", 1.5), (".5", 0.5), ("1e3", 1000.0), ("4.", 4.0),
    ],
)  # fmt: skip
def test_words_of_the_core_schema(text, value):
    assert resolved(text) == value
    assert type(resolved(text)) is type(value)


@pytest.mark.parametrize("text", ["yes", "no", "on", "off", "12:30", "1_000", ".inf", ".nan", "2024-01-01", "0x", "1" * 400, "١٢", "a"])
def test_everything_else_is_text(text):
    assert resolved(text) == text


def test_a_number_too_large_becomes_infinity_for_the_reader_to_refuse():
    assert math.isinf(resolved("1e999"))


def told(text, environ):
    complaints = []
    return filled(text, environ, lambda message, hint: complaints.append(message)), complaints


def test_variables_are_replaced_once():
    assert told("a-${X}-${Y}", {"X": "1", "Y": "${X}"}) == ("a-1-${X}", [])


def test_two_dollars_stand_for_one():
    assert told("$${X} ${X} $5", {"X": "1"}) == ("${X} 1 $5", [])


@pytest.mark.parametrize(
    ("text", "environ", "complaint"),
    [
        ("${X}", {}, "the environment variable X is not set"),
        ("${X}", None, "${X} is not replaced in this file"),
        ("${X:-1}", {"X": "1"}, "names no variable"),
        ("${", {}, "names no variable"),
    ],
)
def test_variables_that_cannot_be_replaced(text, environ, complaint):
    assert complaint in told(text, environ)[1][0]


def test_a_value_cannot_grow_beyond_its_bound():
    out, complaints = told("${X}" * 1000, {"X": "x" * 1000})
    assert len(out) <= MAX_FILLED_CHARS
    assert "has more than" in complaints[0]
