"""Messages of checks: they name the field and the bound, and clean what they repeat."""

import pytest

from domain.faults import Fault
from gateway.http.openai.checks import (
    Check,
    accepted_values,
    flag,
    integer,
    number,
    one_of,
    refuse_type,
    schema,
    shown,
)


@pytest.mark.parametrize(
    ("value", "name"),
    [(None, "null"), (True, "a boolean"), (1, "an integer"), (1.5, "a number"), ("x", "a string"), ([], "an array"), ({}, "an object")],
)
def test_types_are_named_as_in_json(value: object, name: str) -> None:
    with pytest.raises(Fault, match=f"expected X, got {name}"):
        refuse_type("X", value, "f")


def test_bounds_are_named() -> None:
    with pytest.raises(Fault, match="'f': 9 is not between 1 and 5"):
        integer(1, 5)(9, "f")
    with pytest.raises(Fault, match="'f': 0 is not above 0 and at most 1"):
        number(0, 1, low_open=True)(0, "f")
    with pytest.raises(Fault, match="'f': 'c' is not one of a, b"):
        one_of("a", "b")("c", "f")


def test_callers_strings_are_cut_and_cleaned() -> None:
    assert shown("a\r\n\x1b\u202eb") == "'a????b'"
    assert len(shown("x" * 10_000)) < 80


def test_schema_bounds_are_exact() -> None:
    def nested(depth: int) -> object:
        value: object = {}
        for _ in range(depth - 1):
            value = {"a": value}
        return value

    check = schema(1024, 32)
    check(nested(32), "s")
    check({"enum": [[1]] * 100}, "s")
    with pytest.raises(Fault, match=r"32 levels deep\. The policy of your tenant sets this bound \(caps\.schema_depth\)"):
        check(nested(33), "s")
    check({"a": "x" * (1024 - 8)}, "s")
    with pytest.raises(Fault, match=r"1025 bytes are too many, at most 1024 are allowed\. The policy .* \(caps\.schema_bytes\)"):
        check({"a": "x" * (1024 - 7)}, "s")


@pytest.mark.parametrize("check", [integer(0, 5), integer(1, 2**31 - 1), flag])
@pytest.mark.parametrize("value", [True, False, -1, 0, 1, 5, 6, 2**31 - 1, 2**31, 1.0, "1", [], {}])
def test_the_look_up_lets_pass_the_same_values_as_the_check(check: Check, value: object) -> None:
    kind, values = accepted_values({"f": check})["f"]
    passes = True
    try:
        check(value, "f")
    except Fault:
        passes = False
    assert (type(value) is kind and value in values) is passes


def test_only_flags_and_whole_numbers_are_looked_up() -> None:
    assert accepted_values({"a": number(0, 1), "b": one_of("x")}) == {}
