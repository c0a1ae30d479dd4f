"""Conditions as Python functions agree with CEL, errors included."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from policies.conditions import KINDS, Alternatives, ConditionError, activation, compiled_predicate, condition
from policies.predicates import CHUNK, MAX_KEPT, KeptAnswers, first_of, kept, predicate

TEXTS = ("", "a", "red", "robot-7", "-", "ä", "x\n", "A")
NUMBERS = (0, 1, 2, 3000, 2**40)
MAPS = ("headers", "metadata", "key_tags")
NAMES = ("x", "team", "x-team", "job")

strings = st.sampled_from(TEXTS).filter(lambda text: "\n" not in text).map(lambda text: f'"{text}"')
members = st.builds(lambda of, name: f'{of}["{name}"]', st.sampled_from(MAPS), st.sampled_from(NAMES)) | st.builds(
    lambda of, name: f"{of}.{name}", st.sampled_from(MAPS), st.sampled_from(("x", "team", "job"))
)
texts = strings | members | st.sampled_from(("model", "project", "user", "session"))
numbers = st.sampled_from(NUMBERS).map(str) | st.sampled_from(("prompt_tokens", "choices", "media", "-1"))
atoms = st.one_of(
    st.builds("{} {} {}".format, texts, st.sampled_from(("==", "!=", "<", "<=", ">", ">=")), texts),
    st.builds("{} {} {}".format, numbers, st.sampled_from(("==", "!=", "<", "<=", ">", ">=")), numbers),
    st.builds("{} in [{}]".format, texts, st.lists(strings, min_size=1, max_size=3).map(", ".join)),
    st.builds("{} in [{}]".format, numbers, st.lists(st.sampled_from(NUMBERS).map(str), min_size=1, max_size=3).map(", ".join)),
    st.builds("{} in {}".format, strings, st.sampled_from(MAPS)),
    st.builds("{}.{}({})".format, texts, st.sampled_from(("startsWith", "endsWith", "contains", "matches")), strings),
    st.builds("{}.{}({})".format, texts, st.sampled_from(("startsWith", "endsWith", "contains")), texts),
    st.builds("has({}.{})".format, st.sampled_from(MAPS), st.sampled_from(("x", "team"))),
    st.sampled_from(
        (
            "true",
            "false",
            "stream",
            "tools",
            "stream == true",
            "1 / 0 == 1",
            "now.getHours() == 8",
            "size(metadata) > 1",
            "choices + 1 == 2",
        )
    ),
)
conditions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.builds("({}) && ({})".format, inner, inner),
        st.builds("{} || {}".format, inner, inner),
        st.builds("({}) || ({}) || {}".format, inner, inner, inner),
        st.builds("!({})".format, inner),
        st.builds("({}) ? ({}) : ({})".format, inner, inner, inner),
        st.builds("({}) // why".format, inner).map(lambda text: f"{text}\n"),
    ),
    max_leaves=6,
)
maps = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(TEXTS), max_size=3)
values = st.fixed_dictionaries(
    {
        **{name: st.sampled_from(TEXTS) for name, kind in KINDS.items() if kind == "string"},
        **{name: st.booleans() for name, kind in KINDS.items() if kind == "bool"},
        **{name: st.sampled_from(NUMBERS) for name, kind in KINDS.items() if kind == "int"},
        **dict.fromkeys(MAPS, maps),
        "now": st.sampled_from((0, 1_800_000_000, 1_800_030_000)).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
    }
)


@for_all(conditions, values)
def test_a_function_says_what_cel_says(text: str, facts: dict[str, Any]) -> None:
    try:
        compiled = condition(text)
    except ConditionError:
        return  # no condition: operands of different types, say
    made = compiled_predicate(text)
    if made is not None:
        assert made(facts) is compiled.holds(activation(facts)), text


@for_all(st.lists(conditions, max_size=6), values)
def test_together_those_hold_that_cel_says_hold(several: list[str], facts: dict[str, Any]) -> None:
    try:
        compiled = [condition(text) for text in several]
    except ConditionError:
        return
    alone = [at for at, one in enumerate(compiled) if one.holds(activation(facts))]
    assert list(Alternatives(several).holding(facts)) == alone


def nothing_in_cel(_: str) -> None:
    return None


@pytest.mark.parametrize(
    "text",
    [
        'headers["x-team"] == "red"',
        '"x" in headers && !stream',
        "prompt_tokens > 30000 || max_output_tokens >= -1",
        'user.startsWith("robot-") && !(user.endsWith(session) || project in ["a", \'b\'])',
        'has(metadata.job) && metadata.job.contains("night") // jobs',
        "!!stream == tools || (false)",
        "tools && stream",
    ],
)
def test_usual_conditions_need_no_cel(text: str) -> None:
    if text.startswith("!!"):
        assert predicate(text, KINDS, nothing_in_cel) is None, "a comparison of a negation stays CEL"
    else:
        assert predicate(text, KINDS, nothing_in_cel) is not None


@pytest.mark.parametrize(
    "text",
    [
        'model.matches("^a")',
        'now.getHours("Europe/Berlin") == 25',
        "choices + 1 > 2",
        'user == "a\\n"',
        "stream ? tools : false",
        "size(user) > 3",
        "user == r'a'",
        'user == """a"""',
        "metadata.exists(name, name == 'a')",
        "(" * 60 + "stream" + ")" * 60,
        "prompt_tokens > 1.5",
        'dyn(user) == "a"',
        "[stream][0]",
    ],
)
def test_what_is_not_read_here_stays_cel(text: str) -> None:
    assert predicate(text, KINDS, nothing_in_cel) is None


def test_no_text_of_a_condition_becomes_source_code() -> None:
    text = 'user == "__import__(\'os\')" || headers["v[0]"] == "c0"'
    made = predicate(text, KINDS, nothing_in_cel)
    assert made is not None
    assert made({"user": "__import__('os')", "headers": {}}) is True
    assert made({"user": "", "headers": {"v[0]": "c0"}}) is True


def test_a_part_in_cel_that_reads_few_values_is_evaluated_once_for_each() -> None:
    evaluated: list[Any] = []

    def evaluate(facts: Any) -> bool:
        evaluated.append(facts)
        return len(evaluated) % 2 == 1

    part = kept("model.matches('a')", frozenset({"model"}), evaluate)
    assert [part({"model": name}) for name in ("a", "b", "a", "a", "b")] == [True, False, True, True, False]
    assert len(evaluated) == 2


def test_the_hour_of_the_clock_is_evaluated_once_a_minute() -> None:
    evaluated: list[Any] = []
    part = kept("now.getHours() == 8", frozenset({"now"}), lambda facts: bool(evaluated.append(facts)))
    for seconds in (0, 59, 60, 61, 119, 86_400):
        part({"now": datetime.fromtimestamp(1_800_000_000 + seconds, UTC)})
    assert len(evaluated) == 3


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("user.matches('a')", {"user"}),
        ("now > timestamp('2026-01-01T00:00:00Z')", {"now"}),
        ("now.getSeconds() == 3", {"now"}),
        ("now.getHours() == 3 && now.getMilliseconds() == 1", {"now"}),
    ],
)
def test_a_part_with_many_values_is_evaluated_each_time(text: str, reads: set[str]) -> None:
    def evaluate(_: Any) -> bool:
        return True

    assert kept(text, frozenset(reads), evaluate) is evaluate


def test_kept_answers_have_a_bound() -> None:
    evaluated: list[Any] = []
    part = KeptAnswers(lambda facts: bool(evaluated.append(facts)), ("model",), by_minute=False)
    for number in range(MAX_KEPT + 1):
        part({"model": str(number)})
    part({"model": str(MAX_KEPT)})
    part({"model": "0"})
    assert len(evaluated) == MAX_KEPT + 2


def test_many_conditions_are_several_functions() -> None:
    made = first_of([f"choices == {number}" for number in range(CHUNK + 1)], KINDS, nothing_in_cel)
    assert len(made) == 2
    assert [bool(any_holds({"choices": CHUNK})) for any_holds in made] == [False, True]
