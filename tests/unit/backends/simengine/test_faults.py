import random

import pytest

from backends.simengine.faults import FAULTS, FaultPlan, FaultRule, parse_rule


def test_rules_are_read_as_they_are_written() -> None:
    assert parse_rule("crash_mid_stream:p=0.5,after=7") == FaultRule("crash_mid_stream", p=0.5, after=7)
    assert parse_rule("frozen") == FaultRule("frozen")


@pytest.mark.parametrize("text", ["crash", "frozen:after", "frozen:after=x", "frozen:afterwards=3", "frozen:after=1.5"])
def test_mistakes_are_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"frozen|after|crash_mid_stream"):
        parse_rule(text)


def test_the_requests_own_fault_comes_before_the_queue_and_that_before_standing_rules() -> None:
    plan = FaultPlan([FaultRule("status_500")], random.Random(1))
    plan.enqueue([FaultRule("status_503")])
    assert plan.next(FaultRule("frozen")) == FaultRule("frozen")
    assert plan.next(None) == FaultRule("status_503")
    assert plan.next(None) == FaultRule("status_500")
    plan.stand([])
    assert plan.next(None) is None


def test_every_first_and_probability() -> None:
    every = FaultPlan([FaultRule("frozen", every=3)], random.Random(1))
    assert [every.next(None) is not None for _ in range(6)] == [False, False, True, False, False, True]
    first = FaultPlan([FaultRule("frozen", first=2)], random.Random(1))
    assert [first.next(None) is not None for _ in range(4)] == [True, True, False, False]
    chance = FaultPlan([FaultRule("frozen", p=0.25)], random.Random(1))
    assert 200 < sum(chance.next(None) is not None for _ in range(1000)) < 300


def test_every_fault_says_what_it_does() -> None:
    assert all(len(text) > 15 for text in FAULTS.values())
