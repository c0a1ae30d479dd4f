from typing import Annotated, Literal

import pytest
from pydantic import Field, field_validator

from domain.strict import Strict
from policies.yaml.located import parse_yaml
from policies.yaml.problems import ConfigError
from policies.yaml.validate import checked, validated


class Inner(Strict):
    url: str = Field(default="", pattern="^[a-z]*$")
    count: int = 1


class Thing(Strict):
    name: str
    rate_s: float = 1.0
    on: bool = False
    kind: Literal["a", "b"] = "a"
    parts: list[Inner] = Field(default=[])
    few: list[int] = Field(default=[1], min_length=1, max_length=1)
    inner: Inner | None = None
    api_key: Inner | None = None

    @field_validator("name")
    @classmethod
    def _no_x(cls, name: str) -> str:
        if "x" in name:
            raise ValueError("has an x; leave it out")
        return name


def located(text, environ=None):
    return parse_yaml(text.encode(), "a.yaml", environ)


def messages(text, environ=None):
    value, problems = checked(Thing, located(text, environ))
    assert value is None
    return [str(problem) for problem in problems]


def test_a_sound_file_is_a_frozen_model():
    thing, problems = checked(Thing, located("name: a\nparts: [{count: 2}]\n"))
    assert problems == []
    assert thing == validated(Thing, located("name: a\nparts: [{count: 2}]\n")) == Thing(name="a", parts=[Inner(count=2)])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nam: a\n", ["a.yaml:1:1: name: is missing; write it", "a.yaml:1:1: nam: is no known key; did you mean name?"]),
        ("name: x\n", ["a.yaml:1:1: name: has an x; leave it out"]),
        ("name: 5\n", ["a.yaml:1:1: name: must be text, not 5; put it in quotes"]),
        ("name: a\ninner: {zzz: 1}\n", ["a.yaml:2:9: inner.zzz: is no known key; known here: count, url"]),
        ("name: a\nparts: [{}, {ulr: b}]\n", ["a.yaml:2:14: parts[1].ulr: is no known key; did you mean url?"]),
        ("name: a\nrate_s: 5s\n", ["a.yaml:2:1: rate_s: must be a number, not '5s'; write a number without quotes or unit"]),
        ("name: a\non: yes\n", ["a.yaml:2:1: on: must be true or false, not 'yes'; write true or false"]),
        ("name: a\nfew: [1, 2]\n", ["a.yaml:2:1: few: has 2 entries; at most 1 can stand here"]),
        ("name: a\nfew: []\n", ["a.yaml:2:1: few: has 0 entries; at least 1 can stand here"]),
        ("name: a\nkind: c\n", ["a.yaml:2:1: kind: must be 'a' or 'b', not 'c'"]),
    ],
)
def test_each_kind_of_mistake_says_what_to_write(text, expected):
    assert messages(text) == expected


def test_containers_are_not_repeated_in_messages():
    assert "not a mapping" in messages("name: {a: secretly}\n")[0]
    assert "not a list" in messages("name: a\ninner: [secretly]\n")[0]


def test_values_from_the_environment_are_shown_as_written():
    [message] = messages("name: a\ninner: {url: '${PW}'}\n", {"PW": "S3CRET"})
    assert "S3CRET" not in message
    assert "not '${PW}'" in message


def test_values_below_keys_that_name_secrets_are_not_shown():
    [message] = messages("name: a\napi_key: {url: S3CRET}\n")
    assert "S3CRET" not in message


def test_what_the_reader_complained_about_is_said_once():
    value, problems = checked(Thing, located("name: a\nrate_s: ${R}\non: 3\n", {}))
    assert value is None
    assert [(p.line, p.path) for p in problems] == [(2, "rate_s"), (3, "on")]


def test_a_readers_problem_alone_refuses_too():
    with pytest.raises(ConfigError, match="written twice"):
        validated(Thing, located("name: a\nname: b\n"))


class _Words(Strict):
    kind: Literal["words"]
    words: list[str] = Field(min_length=1)


class _Other(Strict):
    kind: Literal["other"]
    words: int = 1


class _Rules(Strict):
    rules: list[Annotated[_Words | _Other, Field(discriminator="kind")]]


@pytest.mark.parametrize(
    ("rule", "place"),
    [
        ("{kind: words, words: []}", "1:23: rules[0].words: has 0 entries"),
        ("{kind: words}", "1:9: rules[0].words: "),
        ("{kind: words, words: [1]}", "1:31: rules[0].words[0]: "),
        ("{kind: words, words: [a], other: 1}", "1:35: rules[0].other: is no known key"),
        ("{kind: other, words: x}", "1:23: rules[0].words: "),
    ],
)
def test_the_kind_that_chooses_a_model_is_no_part_of_a_path_even_where_a_key_has_its_name(rule, place):
    _, problems = checked(_Rules, located(f"rules: [{rule}]"))
    assert len(problems) == 1
    assert str(problems[0]).startswith(f"a.yaml:{place}")
