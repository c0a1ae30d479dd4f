"""What is written down of verdicts: counts by rule and kind, who refused, and never a text."""

import pytest

from gateway.guards.facts import MAX_COUNTS, GuardCount, GuardFacts
from guardrails.verdict import GuardVerdict, Noted

MAIL = Noted(3, 9, "people", "email", "redact")


def test_findings_are_counted_by_rule_kind_mode_and_direction() -> None:
    facts = GuardFacts()
    facts.note("input", GuardVerdict(findings=(MAIL, MAIL), text="x"))
    facts.note("output", GuardVerdict(findings=(MAIL,), failed=("slow",), text="x"))
    record = facts.record("0123456789abcdef" * 4)
    assert record.counts == (
        GuardCount("people", "email", "redact", "input", 2),
        GuardCount("people", "email", "redact", "output", 1),
    )
    assert (record.word, record.failed, record.version) == ("flagged", ("slow",), "0123456789abcdef")


def test_the_first_refusal_counts() -> None:
    facts = GuardFacts()
    facts.note("input", GuardVerdict(ended="block", by="keys", cut=3))
    facts.note("output", GuardVerdict(ended="unavailable", by="model"))
    assert (facts.word, facts.by, facts.direction) == ("block", "keys", "input")


def test_rules_on_trial_make_no_flag() -> None:
    facts = GuardFacts()
    facts.note("input", GuardVerdict(findings=(Noted(0, 1, "new", "word", "shadow"),)))
    assert facts.word == "passed"
    facts.changed = True
    assert facts.word == "changed"


def test_counts_are_bounded() -> None:
    facts = GuardFacts()
    facts.note("input", GuardVerdict(findings=tuple(Noted(n, n + 1, "many", f"kind{n}", "flag") for n in range(2 * MAX_COUNTS))))
    assert len(facts.counts) == MAX_COUNTS


@pytest.mark.req("R37")
def test_a_type_that_a_caller_made_up_is_not_written_down() -> None:
    facts = GuardFacts(unread=("image_url", "my secret", "my other secret"))
    assert facts.record("").unread == ("image_url", "unknown")


def test_a_record_in_one_line() -> None:
    facts = GuardFacts(unread=("image_url",))
    facts.note("input", GuardVerdict(findings=(MAIL, MAIL), failed=("slow",), text="x"))
    facts.note("output", GuardVerdict(ended="block", by="keys", cut=3))
    assert facts.record("").sentence == ("block by keys in output; found people:email:redact:input=2; failed: slow; not read: image_url")
    assert GuardFacts().record("").sentence == "passed"
    facts.late = True
    assert "block by keys in output; after the text had been sent; found" in facts.record("").sentence
