"""Verdicts from memory: the same as anew, of nobody else's text, and bounded."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.guards.remembered import MAX_FINDINGS, RememberedVerdicts
from guardrails.chain import ChainRule
from tests.guard_doubles import Failing, chain, rule

MAILS = chain(rule("redact", "[a-z]+@[a-z]+", None, kind="email"), rule("flag", "bird", 4), rule("block", "secret", 6))
ACME = {"tenant": "acme", "version": "1", "direction": "input"}


@given(st.lists(st.sampled_from(["ann@corp", "bird", " and ", "secret", "x"]), max_size=8).map("".join))
def test_a_remembered_verdict_is_the_one_that_the_rules_give_and_makes_the_same_text(text: str) -> None:
    remembered = RememberedVerdicts(b"k")
    for _ in range(2):
        verdict = remembered.judge(MAILS, text, **ACME)
        anew = MAILS.judge(text)
        assert verdict == msgspec.structs.replace(anew, text=None)
        if not verdict.refused:
            assert MAILS.changed(text, verdict.findings) == anew.text
    assert (remembered.judged, remembered.found) == (1, 1)


@pytest.mark.parametrize("other", [{"tenant": "bolt"}, {"version": "2"}, {"direction": "output"}])
def test_another_tenant_other_rules_and_another_direction_are_judged_anew(other: dict[str, str]) -> None:
    remembered = RememberedVerdicts(b"k")
    remembered.judge(MAILS, "a text of acme's", **ACME)
    remembered.judge(MAILS, "a text of acme's", **(ACME | other))
    assert (remembered.judged, remembered.found) == (2, 0)


def test_the_parts_of_a_key_do_not_run_into_each_other() -> None:
    remembered = RememberedVerdicts(b"k")
    remembered.judge(MAILS, "c", tenant="a", version="b", direction="input")
    remembered.judge(MAILS, "c", tenant="ab", version="", direction="input")
    assert remembered.found == 0


def test_two_generations_are_kept_and_what_is_used_stays() -> None:
    remembered = RememberedVerdicts(b"k", most=4)
    for number in range(40):
        remembered.judge(MAILS, "used each time", **ACME)
        remembered.judge(MAILS, f"text {number}", **ACME)
    assert remembered.judged == 41, "the one that is used was scanned once"
    remembered.judge(MAILS, "text 0", **ACME)
    assert remembered.judged == 42, "what was not asked for in two generations is forgotten"


def test_a_failure_and_a_text_full_of_findings_are_not_remembered() -> None:
    remembered = RememberedVerdicts(b"k")
    failing = chain(rule("flag", "bird", 4))
    for text in ("bird " * (MAX_FINDINGS + 1),):
        remembered.judge(failing, text, **ACME)
        remembered.judge(failing, text, **ACME)
    assert remembered.found == 0
    broken = chain(ChainRule(Failing("f"), "flag"))
    for _ in range(2):
        assert remembered.judge(broken, "boom", **ACME).failed == ("f",)
    assert remembered.found == 0
