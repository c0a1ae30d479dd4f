"""JSON and JSON Schemas within bounds: what is JSON, what a schema may be, and what a check may cost."""

import json
import sys
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from guardrails.rules.schemas import MAX_DEPTH, MAX_SCHEMA_BYTES, NotJson, Schema, TooMuchWork, parsed

values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([1.0, 2.5]) | st.text("ab1", max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "b", "x1"]), inner, max_size=3),
    max_leaves=8,
)
simple = st.one_of(
    st.builds(dict, type=st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null"])),
    st.builds(dict, minLength=st.integers(0, 3)),
    st.builds(dict, pattern=st.sampled_from(["^a", "b$", "1"])),
    st.builds(dict, uniqueItems=st.booleans()),
    st.builds(dict, enum=st.lists(values, min_size=1, max_size=3)),
    st.booleans(),
)
schemas = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.builds(dict, properties=st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2), additionalProperties=inner),
        st.builds(dict, patternProperties=st.dictionaries(st.sampled_from(["^a", "1$"]), inner, max_size=2), additionalProperties=inner),
        st.builds(dict, items=inner, uniqueItems=st.booleans()),
        st.builds(dict, anyOf=st.lists(inner, min_size=1, max_size=3)),
        st.builds(dict, oneOf=st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda one: {"not": one}, inner),
    ),
    max_leaves=6,
).filter(lambda schema: isinstance(schema, dict))


@given(schemas, values)
def test_a_value_fits_where_the_library_says_so(schema: dict[str, Any], value: Any) -> None:
    assert Schema(schema).fits(value, 1000) is Draft202012Validator(schema).is_valid(value)


@given(values)
def test_what_is_written_as_json_is_read(value: Any) -> None:
    assert parsed(f" {json.dumps(value)}\n") == value


@pytest.mark.parametrize(
    "text",
    ["", "x", "{'a': 1}", '{"a": 1,}', '{"a": 1, "a": 2}', "[NaN]", "[-Infinity]", "1e999", "[1] [2]", '"a', "[" * 100_000, "9" * 5000],
)
def test_what_readers_may_differ_about_is_no_json(text: str) -> None:
    with pytest.raises(NotJson):
        parsed(text)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (
            {"$ref": "https://example.com/a.json"},
            "the \\$ref at /\\$ref is 'https://example.com/a.json'; a \\$ref leads into the schema itself",
        ),
        ({"properties": {"a": {"$ref": "other.json"}}}, "the \\$ref at /properties/a/\\$ref is 'other.json'"),
        ({"items": {"$ref": "#/$defs/none"}}, "leads to #/\\$defs/none, where no schema stands"),
        ({"$ref": "#"}, "refers to itself without end"),
        ({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}, "refers to itself without end"),
        ({"$dynamicRef": "#"}, "has \\$dynamicRef at /\\$dynamicRef, which is not supported; write \\$ref"),
        ({"unevaluatedProperties": False}, "write additionalProperties"),
        ({"properties": {"a": {"$id": "x"}}}, "has a \\$id at /properties/a/\\$id"),
        ({"pattern": "a(?=b)"}, "RE2 refuses the pattern 'a\\(\\?=b\\)'"),
        ({"patternProperties": {"(a)\\1": True}}, "RE2 refuses the pattern"),
        ({"pattern": "(a{1,100}){1,100}"}, "the pattern .* is too large|RE2 refuses"),
        ({"type": "text"}, "the schema is none: 'text' is not valid"),
        ({"minimum": "3"}, "the schema is none: .*, at /minimum"),
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, "\\$schema is .*draft-04.*; known are"),
        ({"description": "x" * MAX_SCHEMA_BYTES}, f"at most {MAX_SCHEMA_BYTES} can stand here"),
        ({"const": float("nan")}, "cannot be written as JSON"),
    ],
)
def test_a_schema_that_cannot_be_is_told(schema: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Schema(schema)


def test_schemas_and_texts_have_a_depth() -> None:
    deep: dict[str, Any] = {}
    for _ in range(40):
        deep = {"items": deep}
    with pytest.raises(ValueError, match="deeper than 32 levels"):
        Schema(deep)
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = [value]
    assert Schema({}).fits(value, 1000)
    assert Schema({"type": ["array", "integer"], "items": {"$ref": "#"}}).fits(value, 1000)
    assert not Schema({}).fits([value], 1000)


def test_what_stands_in_a_constant_is_no_schema() -> None:
    schema = Schema({"const": {"$ref": "x", "pattern": "("}, "properties": {"pattern": {"type": "string"}}})
    assert schema.fits({"$ref": "x", "pattern": "("}, 100)


def test_a_schema_may_lead_into_itself_below_its_members() -> None:
    tree = Schema({"$defs": {"t/x": {"properties": {"left": {"$ref": "#/$defs/t~1x"}}, "required": ["n"]}}, "$ref": "#/$defs/t~1x"})
    assert tree.fits({"n": 1, "left": {"n": 2, "left": {"n": 3}}}, 100)
    assert not tree.fits({"n": 1, "left": {"n": 2, "left": {}}}, 100)


def test_draft_7_is_read_where_the_schema_says_so() -> None:
    written = {"items": [{"type": "integer"}], "additionalItems": False}
    draft7 = Schema({"$schema": "http://json-schema.org/draft-07/schema#", "$id": "https://example.com/a", **written})
    assert [draft7.fits(value, 100) for value in ([1], ["1"], [1, 2])] == [True, False, False]


def test_unique_items_are_those_that_json_schema_tells_apart() -> None:
    unique = Schema({"uniqueItems": True})
    assert unique.fits([1, True, "1", [1], {"a": 1}], 100)
    assert not unique.fits([{"a": 1, "b": 2}, {"b": 2.0, "a": 1}], 100)


def test_a_check_of_too_many_steps_is_given_up() -> None:
    twice = {"anyOf": [{"properties": {"a": {"$ref": "#"}}, "required": ["z"]}, {"properties": {"a": {"$ref": "#"}}, "required": ["z"]}]}
    value: Any = 1
    for _ in range(40):
        value = {"a": value}
    begun = time.process_time()
    with pytest.raises(TooMuchWork):
        Schema(twice).fits(value, len(json.dumps(value)))
    assert time.process_time() - begun < 2


def test_an_expression_takes_linear_time() -> None:
    begun = time.process_time()
    assert not Schema({"pattern": "^(a+)+$", "patternProperties": {"^(a+)+$": False}}).fits("a" * 100_000 + "b", 100_000)
    assert Schema({"patternProperties": {"^(a+)+$": False}}).fits({"a" * 100_000 + "b": 1}, 100_000)
    assert time.process_time() - begun < 1


def test_without_its_package_a_schema_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(ValueError, match=r"needs a package that is not installed: pip install 'tidegate\[guards\]'"):
        Schema({})
