import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.simengine.json_values import MAX_ITEMS, Draw, UnsupportedSchema, satisfies, text_for, value_for

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 3, "maxLength": 20},
        "age": {"type": "integer", "minimum": 18, "exclusiveMaximum": 20},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "minItems": 2, "maxItems": 3, "uniqueItems": True},
        "home": {"$ref": "#/$defs/address"},
        "mail": {"type": "string", "format": "email"},
        "nick": {"anyOf": [{"type": "string", "pattern": "^[a-z]{3,5}-\\d+$"}, {"type": "null"}]},
    },
    "required": ["name", "age", "tags", "home", "mail", "nick"],
    "additionalProperties": False,
    "$defs": {"address": {"type": "object", "properties": {"zip": {"type": "string", "pattern": "\\d{5}"}}, "required": ["zip"]}},
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"value": {"type": "number"}, "left": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["value", "left"],
        }
    },
}
SCHEMAS: list[Any] = [
    PERSON,
    TREE,
    {},
    True,
    {"const": {"a": [1, None]}},
    {"type": ["string", "null"]},
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"type": "object", "required": ["x"], "minProperties": 3},
    {"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 6}], "multipleOf": 3},
    {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 1000}]},
    {"type": "integer", "not": {"minimum": 50}},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.001},
    {"type": "number", "multipleOf": 0.25, "minimum": 1, "maximum": 1.3},
    {"type": "array", "prefixItems": [{"const": 1}, {"type": "boolean"}], "items": False, "minItems": 2},
    {"type": "array", "minItems": 5, "items": {"type": "integer", "maximum": -7}},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "minLength": 40},
    {"properties": {"a": {"type": "null"}}, "required": ["a"]},
]


def draw(seed: int = 0) -> Draw:
    return Draw(seed.to_bytes(4, "big"))


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:60])
def test_every_value_satisfies_its_schema_and_is_the_same_again(schema: Any) -> None:
    checker = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    for seed in range(20):
        value = value_for(schema, draw(seed))
        checker.validate(value)
        assert value == value_for(schema, draw(seed))
        assert json.loads(json.dumps(value)) == value


def test_values_vary_with_the_seed() -> None:
    assert len({json.dumps(value_for(PERSON, draw(seed))) for seed in range(20)}) > 10


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "nosuch"}, "Invalid type: nosuch"),
        (False, "no value satisfies"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "bounds"),
        ({"$ref": "https://example.com/schema"}, "does not point into the schema"),
        ({"$ref": "#/$defs/nowhere"}, "defs"),
        ({"$ref": "#"}, "no value of finite depth"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "no value of finite depth"),
        ({"type": "array", "contains": {"type": "integer"}}, "contains"),
        ({"type": "array", "minItems": MAX_ITEMS + 1}, "items"),
        ({"type": "string", "minLength": 10**9}, "characters"),
        ({"type": "string", "pattern": "("}, "invalid pattern"),
        ({"enum": []}, "nothing to choose from"),
        ({"anyOf": []}, "nothing to choose from"),
        ({"allOf": [{"const": 1}, {"const": 2}]}, "combination of keywords"),
    ],
)
def test_a_schema_without_a_value_is_refused_by_name(schema: Any, named: str) -> None:
    with pytest.raises(UnsupportedSchema, match=re.escape(named)):
        value_for(schema, draw())


@pytest.mark.parametrize(
    "pattern",
    [
        "[a-z]+",
        "(yes|no)",
        "\\d{3}-\\w{2}",
        "^a?b*c+$",
        "[^a-y]",
        "(ab){2,4}",
        "\\S \\s?",
        "x{5}",
        "(?:1|22|333)\\.",
        "[A-F0-9]{2}(:[A-F0-9]{2}){5}",
    ],
)
def test_texts_match_the_whole_pattern(pattern: str) -> None:
    for seed in range(30):
        assert re.fullmatch(pattern, text_for(pattern, draw(seed)))


@pytest.mark.parametrize("pattern", ["(", "a(?=b)c", "x{20000}"])
def test_a_pattern_beyond_the_generator_is_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedSchema):
        text_for(pattern, draw())


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-3, 3) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def schemas(some: st.DrawFn, depth: int = 3) -> Any:
    kind = some(st.sampled_from(["string", "integer", "number", "boolean", "null", "enum", "object", "array", "anyOf"]))
    if depth == 0 and kind in ("object", "array", "anyOf"):
        return {}
    if kind == "enum":
        return {"enum": some(st.lists(VALUES, min_size=1, max_size=3))}
    if kind == "anyOf":
        return {"anyOf": some(st.lists(schemas(depth - 1), min_size=1, max_size=3))}
    schema: dict[str, Any] = {"type": kind}
    if kind in ("integer", "number"):
        low = some(st.integers(-50, 50))
        schema |= {"minimum": low, "maximum": low + some(st.integers(0, 9))}
    elif kind == "string":
        least = some(st.integers(0, 9))
        schema |= {"minLength": least, "maxLength": least + some(st.integers(0, 9))}
    elif kind == "array":
        least = some(st.integers(0, 3))
        schema |= {"items": some(schemas(depth - 1)), "minItems": least, "maxItems": least + some(st.integers(0, 3))}
    elif kind == "object":
        names = some(st.lists(st.sampled_from("abcd"), unique=True))
        schema |= {"properties": {name: some(schemas(depth - 1)) for name in names}, "required": names[:2], "additionalProperties": False}
    return schema


@given(schema=schemas(), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_any_schema_that_has_a_value_gets_one(schema: Any, seed: int) -> None:
    jsonschema.validate(value_for(schema, draw(seed)), schema)


@given(value=VALUES, schema=schemas())
@settings(max_examples=150, deadline=None)
def test_the_check_agrees_with_jsonschema(value: Any, schema: Any) -> None:
    assert satisfies(value, schema, schema) == jsonschema.Draft202012Validator(schema).is_valid(value)
