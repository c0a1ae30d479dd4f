import re
from pathlib import Path

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from policies.conditions import MAX_CHARS, VARIABLES, Alternatives, ConditionError, ConditionLoops, ConditionNeeds, activation, condition

FACTS = {"model": "chat", "prompt_tokens": 500, "stream": True, "headers": {"x-team": "red"}, "metadata": {}}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("true", True),
        ('model == "chat" && prompt_tokens > 400', True),
        ("!stream", False),
        ('headers["x-team"] == "red"', True),
        ('headers["x-other"] == "red"', None),
        ('"x-other" in headers && headers["x-other"] == "red"', False),
        ('headers["x-other"] == "red" || stream', True),
        ('has(metadata.job) && metadata.job.matches("^n")', False),
        ("prompt_tokens / (prompt_tokens - 500) > 1", None),
    ],
)
def test_what_holds(text: str, holds: bool | None) -> None:
    assert condition(text).holds(activation(FACTS)) is holds


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("modle == 'x'", "undeclared reference to 'modle', at line 1, column 1"),
        ("stream &&\n  prompt_tokens", "found no matching overload for '_&&_'"),
        ("model ==", "Syntax error"),
        ("", "Syntax error"),
        ("modle == 'x'", "of the condition; did you mean model?"),
        ('header["x"] == "y"', "; did you mean headers?"),
        ('user.startWith("a")', "; did you mean startsWith?"),
        ('user.zzz("a")', "there are: startsWith, endsWith"),
        ("zzz == 1", "there are: model, endpoint"),
        ("model == 5", "== does not take string and int, at line 1, column 7 of the condition; write texts in quotes, and numbers without"),
        ("stream && prompt_tokens", "; combine conditions that are yes or no, with && and ||"),
        ("model ==", "the condition ends too early, at line 1, column 9 of the condition; write what is compared"),
        ("stream and tools", "Syntax error at 'and', at line 1, column 8 of the condition; write &&"),
        ("not stream", "write ! for not"),
        ('model = "x"', "; write == to compare"),
        ("prompt_tokens + 1", "is a int, no yes or no"),
        ("model.matches('(')", "invalid regular expression"),
        ("now.getHours('Mars/Olympus') == 1", "Invalid timezone"),
        ("(" * 100 + "true" + ")" * 100, "recursion"),
        ("true" + " " * MAX_CHARS, "characters"),
    ],
)
def test_what_says_nothing_is_refused_with_words(text: str, words: str) -> None:
    with pytest.raises(ConditionError, match=re.escape(words)):
        condition(text)


def test_time_is_bounded_whatever_a_condition_asks() -> None:
    headers = {f"h{n}": "x" for n in range(64)}
    cubed = "headers.all(a, headers.all(b, headers.all(c, a + b + c != '!')))"
    assert condition(cubed).holds(activation({"headers": headers})) is None


def test_only_what_is_asked_for_is_needed() -> None:
    assert condition('model == "x" || headers["y"] == "prompt_tokens"').needs.variables == {"model", "headers", "prompt_tokens"}
    assert Alternatives(["stream", "choices > 1"]).needs == ConditionNeeds(frozenset({"stream", "choices"}), frozenset())


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('headers["x-a"] == "1" && "x-b" in headers && has(headers.c)', {"x-a", "x-b", "c"}),
        ("headers['x-a'].startsWith('q')", {"x-a"}),
        ('headers.exists(name, name == "x")', None),
        ("size(headers) > 3", None),
        ('headers[model] == "1" || headers["x-a"] == "2"', None),
        ("stream", set()),
    ],
)
def test_headers_are_told_by_name_or_all_are_needed(text: str, names: set[str] | None) -> None:
    assert condition(text).needs.headers == names


TEAM = 'headers["x-team"] == '
SOME = (
    "true", "false", "stream", "!stream", 'headers["no"] == "x"', "choices > 2", TEAM + '"red"', TEAM + '"red" && stream',
    TEAM + '"blue"', TEAM + '"blue" && stream || choices > 2', TEAM + '"blue" ? stream : !stream', TEAM + '"red" && 1 / 0 == 1',
    f'{TEAM}"red" && headers["no"] == "x"', f"!({TEAM}'blue')", TEAM + '"red" // and so on',
)  # fmt: skip


@for_all(st.lists(st.sampled_from(SOME), max_size=12), st.booleans(), st.sampled_from([{}, {"x-team": "red"}, {"x-team": "blue"}]))
def test_alternatives_hold_as_each_would_alone(texts: list[str], stream: bool, headers: dict[str, str]) -> None:
    values = {"stream": stream, "choices": 3, "headers": headers}
    alone = [at for at, text in enumerate(texts) if condition(text).holds(activation(values))]
    assert list(Alternatives(texts).holding(values)) == alone


def test_disjunctions_too_long_for_one_expression_are_looked_at_one_by_one() -> None:
    long = "stream || " * 150 + "choices == {}"
    assert len(long) < MAX_CHARS
    texts = [long.format(n) for n in range(80)]
    assert list(Alternatives(texts).holding({"stream": False, "choices": 70})) == [70]


def test_dear_conditions_of_a_request_have_a_bound_together() -> None:
    dear = "metadata.all(a, metadata.all(b, a.matches('^f[0-9]+$') && b != ''))"
    values = {"metadata": {f"f{n}": "x" for n in range(90)}, "headers": {"x-team": "red"}, "stream": True}
    assert condition(dear).holds(activation(values)), "90 + 90 x 90 steps: alone it holds"
    assert list(Alternatives([dear] * 200 + ["stream"]).holding(values)) == [*range(6), 200]
    of_a_team = TEAM + f'"red" && {dear}'
    assert list(Alternatives([of_a_team] * 200 + [TEAM + '"red"', "stream"]).holding(values)) == [*range(6), 200, 201]
    few = {**values, "metadata": {"f1": "x", "f2": "x"}}
    assert len(list(Alternatives([dear] * 200 + ["stream"]).holding(few))) == 201, "a usual request comes nowhere near"


@pytest.mark.parametrize(
    ("text", "depths"),
    [
        ("stream && (model == 'a' || (choices > 1))", ()),
        ("metadata.all(a, a != '') && headers . exists (h, h == 'x')", (1, 1)),
        ("metadata.all(a, (headers.exists(h, (h == a))) || metadata.exists_one(b, b == a)) && metadata.exists(c, c == '')", (1, 2, 2, 1)),
        ("metadata.all(a, a == ')' && a != r'\\)' && headers.exists(h, h == a))", (1, 2)),
        ('metadata.all(a, a == "\\")" && a != r\'\\)\' && headers.exists(h, h == a)) // ).all(', (1, 2)),
        ('metadata.all(a, a == """"))""" && headers.exists(h, h == a))', (1, 2)),
        ("model == '.all('", ()),
        ("[1, 2, 3].map(n, n + 1).exists(n, n == choices)", (1, 1)),
    ],
)
def test_loops_are_counted_with_their_depth(text: str, depths: tuple[int, ...]) -> None:
    condition(text)
    assert ConditionLoops.of(text).depths == depths


def test_the_estimate_is_no_less_than_the_steps() -> None:
    assert ConditionLoops.of("[1, 2, 3].all(n, n > 0)").most_steps(0) >= 3
    assert ConditionLoops.of("([1, 2, 3] + [4, 5, 6]).all(n, n > 0)").most_steps(0) >= 6
    assert ConditionLoops.of("metadata.all(a, metadata.all(b, true))").most_steps(20) >= 20 * 20 + 20


def test_a_comment_ends_with_its_condition() -> None:
    assert list(Alternatives(["false // never", "true // always"]).holding({})) == [1]


def test_every_variable_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/policies.md").read_text()
    for name, (kind, meaning) in VARIABLES.items():
        assert f"| `{name}` | {kind} | {meaning} |" in page
