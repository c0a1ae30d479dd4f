"""A chain over whole texts: what overlapping findings become, and what a failure means."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrails.chain import CallRule, Chain, ChainRule, Spot, owned
from guardrails.ports import Finding
from guardrails.verdict import GuardVerdict, Noted
from tests.guard_doubles import Failing, chain, rule

spots = st.builds(lambda begin, length, at: Spot(begin, begin + length, at, "k"), st.integers(0, 30), st.integers(1, 12), st.integers(0, 3))


@given(st.lists(spots, max_size=12, unique=True), st.integers(0, 20), st.integers(0, 25))
def test_each_covered_character_belongs_to_the_longest_then_first_finding_and_each_finding_owns_one_run(
    found: list[Spot], begin: int, length: int
) -> None:
    end = begin + length
    runs = owned(found, begin, end)
    by_character = {at: run.spot for run in runs for at in range(run.begin, run.end)}
    assert len(by_character) == sum(run.end - run.begin for run in runs)
    assert len({run.spot for run in runs}) == len(runs)
    assert runs == sorted(runs, key=lambda run: run.begin)
    for at in range(begin, end):
        covering = [spot for spot in found if spot.begin <= at < spot.end]
        owner = min(covering, key=lambda spot: (spot.begin - spot.end, spot.begin, spot.at, spot.kind), default=None)
        assert by_character.get(at) == owner
    assert all(begin <= at < end for at in by_character)


def test_a_chain_without_rules_passes_everything() -> None:
    assert chain().judge("any") == GuardVerdict(text="any")


def test_redact_puts_a_mark_of_the_kind_and_replace_its_own_text() -> None:
    verdict = chain(rule("redact", "[a-z]+@[a-z]+", None, kind="email"), rule("replace", "kestrel", 7, replacement="it")).judge(
        "Mail ann@corp about KESTREL."
    )
    assert verdict.text == "Mail [EMAIL] about it."
    assert not verdict.refused
    assert [(noted.rule, noted.begin, noted.end) for noted in verdict.findings][-1] == ("kestrel", 20, 27)


def test_a_part_of_a_finding_that_a_longer_one_does_not_cover_does_not_stay() -> None:
    assert chain(rule("redact", "abcd", 4, kind="x"), rule("redact", "cdefgh", 6, kind="y")).judge("-abcdefgh-").text == "-[X][Y]-"


def test_the_first_finding_of_a_block_rule_cuts_and_what_stands_before_is_changed() -> None:
    rules = rule("redact", "one", 3, kind="n"), rule("block", "two", 3), rule("block", "o t", 3, id_="early"), rule("flag", "six", 3)
    verdict = chain(*rules).judge("one, two, one, two, six")
    assert (verdict.ended, verdict.by, verdict.cut, verdict.text) == ("block", "two", 5, "[N], ")
    assert [(noted.rule, noted.begin) for noted in verdict.findings] == [("one", 0), ("two", 5), ("six", 20)]


def test_a_block_inside_a_redacted_span_shows_no_character_of_it() -> None:
    verdict = chain(rule("redact", "[a-f]{6}", 6, kind="k"), rule("block", "cd", 2)).judge("--abcdef--")
    assert (verdict.cut, verdict.text) == (4, "--[K]")


def test_of_two_blocks_at_one_place_the_rule_that_stands_first_refuses() -> None:
    assert chain(rule("block", "ab", 2, id_="second"), rule("block", "abc", 3, id_="third")).judge("xabc").by == "second"


def test_flags_and_shadows_are_noted_and_change_nothing() -> None:
    verdict = chain(rule("flag", "a", 1), rule("shadow", "b", 1)).judge("ab")
    assert verdict.text == "ab"
    assert not verdict.refused
    assert verdict.findings == (Noted(0, 1, "a", "thing", "flag"), Noted(1, 2, "b", "thing", "shadow"))
    assert (verdict.found("flag"), verdict.found("shadow"), verdict.found("block")) == (("a",), ("b",), ())


def test_a_rule_that_fails_closed_refuses_and_nothing_passes() -> None:
    verdict = chain(ChainRule(Failing("net"), "redact")).judge("boom")
    assert (verdict.ended, verdict.by, verdict.text, verdict.failed) == ("unavailable", "net", "", ("net",))


def test_a_block_beside_a_failure_is_named_and_nothing_passes() -> None:
    verdict = chain(ChainRule(Failing("net"), "redact"), rule("block", "two", 3)).judge("boom two")
    assert (verdict.ended, verdict.by, verdict.text, verdict.failed) == ("block", "two", "", ("net",))


def test_a_rule_that_fails_open_and_a_flag_that_fails_let_the_text_pass() -> None:
    verdict = chain(ChainRule(Failing("net"), "block", closed=False), ChainRule(Failing("note"), "flag"), rule("redact", "m", 1)).judge(
        "boom"
    )
    assert (verdict.refused, verdict.text, verdict.failed) == (False, "boo[THING]", ("net", "note"))


def test_values_of_rules_that_restore_get_a_label_and_others_a_mark() -> None:
    rules = rule("redact", "ann", 3, kind="name", restore=True), rule("redact", "bob", 3, kind="name")
    assert chain(*rules).judge("Ann, Bob", lambda kind, value: f"<{kind} {value}>").text == "<name Ann>, [NAME]"
    assert chain(*rules).judge("Ann, Bob").text == "[NAME], [NAME]"


def test_rules_that_change_texts_and_have_no_bound_need_the_whole_text() -> None:
    rules = rule("block", "a+", None, id_="runs"), rule("flag", "b+", None), rule("redact", "c", 1)
    assert chain(*rules).needs_whole == ("runs",)


def test_a_span_in_a_folded_text_is_a_span_of_the_original() -> None:
    assert chain(rule("redact", "secret", 6, kind="w")).judge("a SE\u200bCR\u00adET b").text == "a [W] b"


@pytest.mark.req("R24")
def test_neither_the_evidence_nor_the_form_of_a_verdict_shows_the_text() -> None:
    verdict = chain(rule("block", "hunter2", 7, id_="passwords")).judge("my password is hunter2")
    assert (verdict.cut, verdict.text) == (15, "my password is ")
    shown = repr(verdict) + str(verdict.evidence())
    assert "passwords" in shown
    assert "my password is" not in shown
    assert "hunter2" not in shown


@given(st.text(alphabet="abc", max_size=30))
def test_the_same_text_has_the_same_verdict_each_time(text: str) -> None:
    judge = chain(rule("redact", "ab", 2), rule("block", "cca", 3), rule("replace", "bca?", 3, replacement="")).judge
    assert judge(text) == judge(text)


def test_findings_that_touch_get_one_mark_where_they_are_one_thing() -> None:
    text = "ababab ab"
    each, together = rule("redact", "ab", 2, kind="k"), ChainRule(rule("redact", "ab", 2, kind="k").scanner, "redact", joins=True)
    assert chain(each).judge(text).text == "[K][K][K] [K]"
    assert chain(together).judge(text).text == "[K] [K]"
    assert chain(rule("redact", "x", 1, kind="k"), together).judge("xabx").text == "[K][K][K]"
    assert [noted.begin for noted in chain(together).judge(text).findings] == [0, 2, 4, 7]


class Named:
    """Finds calls by the name of their tool, and fails where it is `boom`."""

    def __init__(self, id_: str, name: str) -> None:
        self.id = id_
        self._name = name

    def scan_call(self, name: str, arguments: str | None) -> Sequence[Finding]:
        if name == "boom":
            raise RuntimeError("failed")
        return [Finding(self.id, "named", 0, len(name))] if name == self._name else []


def calls(*rules: CallRule) -> Chain:
    return Chain([rule("block", "rm", 2)], chain().read, rules)


def test_calls_are_judged_by_their_own_rules_in_the_order_of_the_policy() -> None:
    rules = calls(
        CallRule(Named("second", "rm"), "block", 4), CallRule(Named("first", "rm"), "block", 1), CallRule(Named("note", "rm"), "flag", 0)
    )
    assert [one.scanner.id for one in rules.calls] == ["note", "first", "second"]
    verdict = rules.judge_call("rm", None)
    assert (verdict.ended, verdict.by, verdict.cut, verdict.text) == ("block", "first", None, None)
    assert [(noted.rule, noted.kind, noted.mode) for noted in verdict.findings] == [
        ("note", "named", "flag"),
        ("first", "named", "block"),
        ("second", "named", "block"),
    ]
    assert rules.judge_call("ls", "{}") == GuardVerdict(text=None)
    assert calls().judge_call("rm", "{}") == GuardVerdict(text=None)
    assert rules.judge("ls").text == "ls"


def test_a_call_is_refused_where_a_rule_fails_closed_and_not_where_it_fails_open() -> None:
    closed = calls(CallRule(Named("open", "x"), "block", 0, closed=False), CallRule(Named("net", "x"), "block", 1))
    verdict = closed.judge_call("boom", "{}")
    assert (verdict.ended, verdict.by, verdict.failed) == ("unavailable", "net", ("open", "net"))
    assert not calls(CallRule(Named("open", "x"), "block", 0, closed=False)).judge_call("boom", "{}").refused
    assert not calls(CallRule(Named("note", "x"), "flag", 0, closed=False)).judge_call("boom", "{}").refused


def test_a_flagged_call_is_noted_and_passes() -> None:
    verdict = calls(CallRule(Named("note", "rm"), "shadow", 0)).judge_call("rm", "{}")
    assert (verdict.refused, verdict.found("shadow")) == (False, ("note",))
