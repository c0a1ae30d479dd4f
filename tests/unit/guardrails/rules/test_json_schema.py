"""Answers that have to be JSON: what is none, what fits, what stands in a fence, and streams."""

import pytest

from guardrails.chain import Chain, ChainRule
from guardrails.rules.json_schema import JsonSchema
from guardrails.text import Text
from tests.guard_doubles import assert_streams_alike

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "pattern": "^[A-Z]"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"],
    "additionalProperties": False,
}
PLAIN = JsonSchema("j", SCHEMA)
FENCED = JsonSchema("j", SCHEMA, fenced=True)


def _kinds(rule: JsonSchema, text: str) -> list[str]:
    found = rule.scan(Text(text))
    assert all((one.begin, one.end) == (0, len(text)) for one in found)
    return [one.kind for one in found]


@pytest.mark.parametrize("text", ['{"city": "Bergen"}', ' {"city": "Bergen", "days": 3}\n', "", "  \n"])
def test_what_fits_has_no_finding(text: str) -> None:
    assert _kinds(PLAIN, text) == []
    assert _kinds(FENCED, text) == []


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"city": "Bergen"', "not_json"),
        ('Here it is: {"city": "Bergen"}', "not_json"),
        ('{"city": "Bergen", "city": "Oslo"}', "not_json"),
        ("[]", "schema"),
        ("{}", "schema"),
        ('{"city": "bergen"}', "schema"),
        ('{"city": "\u0412ergen"}', "schema"),
        ('{"city": "\u200bBergen"}', "schema"),
        ('{"city": "Bergen", "days": 0}', "schema"),
        ('{"city": "Bergen", "hours": 1}', "schema"),
    ],
)
def test_what_does_not_fit_is_found(text: str, kind: str) -> None:
    assert _kinds(PLAIN, text) == [kind]
    assert _kinds(FENCED, text) == [kind]


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ('```json\n{"city": "Bergen"}\n```', []),
        ('\n```\n{"city": "Bergen"}```  \n', []),
        ('```JSON\r\n{"city": "Bergen"}\r\n```', []),
        ("```json\n{}\n```", ["schema"]),
        ('```json\n{"city": "Bergen"}', ["not_json"]),
        ('Sure:\n```json\n{"city": "Bergen"}\n```', ["not_json"]),
        ("```json\n```", ["not_json"]),
        ("```\n``", ["not_json"]),
    ],
)
def test_a_fence_is_taken_off_where_the_rule_says_so(text: str, kinds: list[str]) -> None:
    assert _kinds(FENCED, text) == kinds
    assert _kinds(PLAIN, text) == ["not_json"]


@pytest.mark.parametrize("text", ['{"city": "Bergen"}', '{"city": "Berg', '{"city": 1}'])
def test_a_stream_is_held_whole_and_judged_alike(text: str) -> None:
    rules = Chain([ChainRule(PLAIN, "block")], Text)
    assert rules.needs_whole == ("j",)
    assert assert_streams_alike(rules, text).refused is (text != '{"city": "Bergen"}')


def test_a_schema_that_is_none_is_told() -> None:
    with pytest.raises(ValueError, match="the schema is none: 'text' is not valid"):
        JsonSchema("j", {"type": "text"})
