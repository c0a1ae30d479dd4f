"""Calls of tools: names by patterns, arguments by schema, and a name alone while nothing else is known."""

import time
from typing import Any

import pytest

from guardrails.rules.tools import Tools

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
RULE = Tools("t", ["weather", "search_*", "*.read", "list"], {"weather": CITY, "list": {"type": "object"}})


def _found(name: str, arguments: str | None, rule: Tools = RULE) -> list[tuple[str, int, int]]:
    return [(one.kind, one.begin, one.end) for one in rule.scan_call(name, arguments)]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("weather", '{"city": "Bergen"}'),
        ("weather", None),
        ("search_", "anything"),
        ("search_web", "{"),
        ("files.read", '{"path": "/"}'),
        ("list", ""),
        ("list", " "),
        ("list", "{}"),
    ],
)
def test_what_is_allowed_has_no_finding(name: str, arguments: str | None) -> None:
    assert _found(name, arguments) == []


@pytest.mark.parametrize(
    "name", ["", "Weather", "weather2", "xweather", "search", "read", "files.reads", "we\u0430ther", "weather\u200b", "weather\n", "a|b"]
)
@pytest.mark.parametrize("arguments", [None, "{}", "{"])
def test_another_name_is_found_as_soon_as_it_is_known(name: str, arguments: str | None) -> None:
    assert _found(name, arguments) == [("tool_not_allowed", 0, len(name))]


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ("{}", "arguments_schema"),
        ("", "arguments_schema"),
        ('{"city": 1}', "arguments_schema"),
        ('{"city": "a", "to": "b"}', "arguments_schema"),
        ('{"city": "a"', "arguments_not_json"),
        ('{"city": "a", "city": "b"}', "arguments_not_json"),
        ("city: a", "arguments_not_json"),
    ],
)
def test_arguments_are_judged_by_the_schema_of_their_tool(arguments: str, kind: str) -> None:
    assert _found("weather", arguments) == [(kind, 0, len(arguments))]


def test_without_a_list_every_tool_may_be_called_and_with_an_empty_one_none() -> None:
    assert _found("any", "{", Tools("t", None, {"weather": CITY})) == []
    assert _found("weather", "{}", Tools("t", None, {"weather": CITY})) == [("arguments_schema", 0, 2)]
    assert _found("any", None, Tools("t", [], {})) == [("tool_not_allowed", 0, 3)]
    assert _found("any", None, Tools("t", ["*"], {})) == []


def test_signs_of_expressions_in_names_are_themselves() -> None:
    assert _found("a.b", None, Tools("t", ["a.b", "c[d]"], {})) == []
    assert _found("axb", None, Tools("t", ["a.b"], {})) != []
    assert _found("c[d]", None, Tools("t", ["a.b", "c[d]"], {})) == []


def test_a_long_name_and_many_stars_take_linear_time() -> None:
    rule = Tools("t", ["*a" * 90 + "b"], {})
    begun = time.process_time()
    assert _found("a" * 100_000, None, rule) == [("tool_not_allowed", 0, 100_000)]
    assert time.process_time() - begun < 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"other": CITY}, "arguments has a schema for other, which allow leaves out"),
        ({"weather": {"type": "text"}}, "arguments of weather: the schema is none"),
        ({"weather": {"$ref": "https://example.com/x"}}, "arguments of weather: the \\$ref at"),
    ],
)
def test_schemas_that_cannot_be_are_told_with_their_tool(arguments: dict[str, dict[str, Any]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Tools("t", ["weather"], arguments)
