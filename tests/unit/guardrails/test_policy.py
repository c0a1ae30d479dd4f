"""The model of `guards`: what can be written, and what a mistake is told."""

import pytest

from guardrails.policy import MAX_RULES, MAX_WORDS, GuardPolicy, JsonSchemaRule, PatternRule, SecretsRule, WordsRule
from policies.yaml.located import parse_yaml
from policies.yaml.validate import checked

RULES = """
rules:
  - {id: keys, kind: secrets, mode: block, on: [input, output, tool_arguments]}
  - {id: people, kind: pii, types: [email, card], mode: redact, restore: true, on: [input]}
  - {id: house, kind: words, words: [project kestrel], mode: replace, replacement: a project}
  - {id: tickets, kind: pattern, pattern: 'T-[0-9]{4,8}', mode: flag}
  - {id: links, kind: links, allow: ["*.example.com"], mode: shadow, on: [output]}
  - {id: orders, kind: links, mode: block, on_error: open, on: [tool_results]}
"""


def read(text: str) -> GuardPolicy:
    policy, problems = checked(GuardPolicy, parse_yaml(text.encode(), "a.yaml", {}))
    assert problems == []
    assert policy is not None
    return policy


def mistakes(rule: str) -> list[str]:
    _, problems = checked(GuardPolicy, parse_yaml(f"rules:\n  - {{{rule}}}\n".encode(), "a.yaml", {}))
    return [f"{problem.message}; {problem.hint}" for problem in problems]


def test_each_kind_is_read_as_its_own_class() -> None:
    rules = read(RULES).rules
    assert [rule.kind for rule in rules] == ["secrets", "pii", "words", "pattern", "links", "links"]
    assert isinstance(rules[0], SecretsRule)
    assert isinstance(rules[2], WordsRule)
    assert isinstance(rules[3], PatternRule)


def test_the_rules_of_a_direction_keep_their_order() -> None:
    policy = read(RULES)
    assert [rule.id for rule in policy.on("output")] == ["keys", "house", "tickets", "links"]
    assert [rule.id for rule in policy.on("tool_results")] == ["orders"]
    assert [rule.id for rule in policy.on("tool_arguments")] == ["keys"]


def test_a_rule_that_changes_texts_fails_closed_unless_it_says_otherwise_and_others_never_refuse() -> None:
    assert {rule.id: rule.closed for rule in read(RULES).rules} == {
        "keys": True,
        "people": True,
        "house": True,
        "tickets": False,
        "links": False,
        "orders": False,
    }


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("id: a, kind: links, mode: replace", "has mode: replace without replacement; write replacement: TEXT"),
        (
            "id: a, kind: links, mode: block, replacement: x",
            "has a replacement and mode: block; write mode: replace, or remove the replacement",
        ),
        (
            "id: a, kind: links, mode: flag, on_error: closed",
            "has on_error: closed and mode: flag, which never refuses; remove on_error",
        ),
        ("id: a, kind: links, mode: block, restore: true", "has restore: true and mode: block; write mode: redact, or remove restore"),
        (
            "id: a, kind: pii, mode: redact, restore: true, on: [output]",
            "has restore: true and looks at no text that is sent to an engine; add input to on, or remove restore",
        ),
        (
            "id: a, kind: tools, mode: redact, allow: [x]",
            "has mode: redact, and a call has no part that could be cut out; write block, flag",
        ),
        ("id: a, kind: tools, mode: replace, replacement: x, allow: [x]", "has mode: replace, and a call has no part"),
        (
            "id: a, kind: tools, mode: block, allow: [x], on: [output]",
            "looks at other texts than calls of tools; write on: [tool_arguments]",
        ),
        ("id: a, kind: tools, mode: block", "has neither allow nor arguments, so it would find nothing; write one of them"),
        ("id: a, kind: repetition, mode: redact", "has mode: redact, and kind: repetition tells where a text has to end; write block"),
        (
            "id: a, kind: repetition, mode: block, max_times: 500",
            "looks at 500 times 200 characters; max_times times max_unit_chars is at most 20000",
        ),
        ("id: a, kind: json_schema, mode: block", "is missing"),
        ("id: a, kind: language, mode: block, allow: [english]", "must match"),
        ("id: a, kind: canary, mode: block, tokens: [short]", "must have at least 8"),
        ("id: a, kind: links, mode: block, allow: ['example.com/a?b']", "must match"),
        ("id: a, kind: pii, mode: redact, on: [input, input]", "names a direction twice in on; keep one of them"),
        (
            "id: a, kind: links, mode: block, sensitivity: 3",
            "is no known key; known here: allow, default_on, id, kind, mode, on",
        ),
        ("id: a, kind: words, mode: block, words: [x], whole: true", "is no known key"),
        (
            "id: a, kind: classifier, mode: redact",
            "has mode: redact, but a classifier judges passages and has no value; write mode: block, flag or shadow",
        ),
        ("id: a, kind: classifier, mode: replace, replacement: x", "has mode: replace, but a classifier judges passages"),
    ],
)
def test_a_mistake_is_told_with_what_to_write(rule: str, message: str) -> None:
    assert [found[: len(message)] for found in mistakes(rule)] == [message]


def test_an_unknown_kind_is_told_which_there_are() -> None:
    (message,) = mistakes("id: a, kind: secret, mode: block")
    assert "'secrets', 'pii', 'words', 'pattern', 'links', 'injection', 'classifier'" in message


def test_a_rule_over_calls_and_one_over_answers_look_at_these_alone_and_others_at_what_they_say() -> None:
    policy = read(
        """
rules:
  - {id: calls, kind: tools, mode: block, allow: ["a*"]}
  - {id: shape, kind: json_schema, mode: block, schema: {type: object, properties: {a: {const: null}}}}
  - {id: leak, kind: prompt_leak, mode: block}
  - {id: papers, kind: pii, mode: redact, restore: true, on: [documents]}
"""
    )
    assert [rule.id for rule in policy.on("tool_arguments")] == ["calls"]
    assert [rule.id for rule in policy.on("output")] == ["shape", "leak"]
    assert [rule.id for rule in policy.on("documents")] == ["papers"]
    shape = policy.rules[1]
    assert isinstance(shape, JsonSchemaRule)
    assert shape.json_schema == {"type": "object", "properties": {"a": {"const": None}}}


def test_ids_stand_once_and_words_and_rules_are_bounded() -> None:
    rule = {"kind": "links", "mode": "block"}
    with pytest.raises(ValueError, match="more than one rule with the id a; give each"):
        GuardPolicy.model_validate({"rules": [{"id": "a", **rule}, {"id": "a", **rule}]})
    words = {"kind": "words", "mode": "flag", "words": ["w"] * (MAX_WORDS // 2 + 1)}
    with pytest.raises(ValueError, match="10002 words in all its rules together; at most 10000"):
        GuardPolicy.model_validate({"rules": [{"id": "a", **words}, {"id": "b", **words}]})
    many = [{"id": f"a{number}", **rule} for number in range(MAX_RULES + 1)]
    assert len(GuardPolicy.model_validate({"rules": many[:-1]}).rules) == MAX_RULES
    with pytest.raises(ValueError, match="at most 100"):
        GuardPolicy.model_validate({"rules": many})
