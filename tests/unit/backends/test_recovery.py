import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.recovery import BURST_S, LEAST, LONGEST_S, OUTAGE_S, START, Recovery

LOOK_S = 0.5
PROMPT = 200.0


def served(recovery: Recovery, tokens_per_s: float, since: float, seconds: float) -> float:
    """The pool works at this rate; when that ends."""
    now = since
    while now < since + seconds:
        recovery.sent_tokens += tokens_per_s * LOOK_S
        now += LOOK_S
        recovery.look(up=True, queued_s=0.0, now=now)
    return now


def after_outage(tokens_per_s: float, outage_s: float = 60.0) -> tuple[Recovery, float]:
    recovery = Recovery()
    recovery.look(up=True, queued_s=0.0, now=0.0)
    now = served(recovery, tokens_per_s, 0.0, 60.0)
    recovery.look(up=False, queued_s=0.0, now=now)
    now += outage_s
    recovery.look(up=False, queued_s=0.0, now=now)
    recovery.look(up=True, queued_s=0.0, now=now)
    return recovery, now


@pytest.mark.req("R51")
def test_a_crowd_after_an_outage_gets_a_tenth_at_first_twice_as_much_every_two_seconds_and_all_within_ten() -> None:
    good = 10_000.0
    recovery, back_at = after_outage(good)
    now, looked, sent = back_at, back_at, []
    while recovery.rate < float("inf"):
        while not recovery.must_wait(now):  # a thousand wait
            recovery.sent_tokens += PROMPT
            sent.append(now - back_at)
        now += 0.05
        if now >= looked + LOOK_S:
            recovery.look(up=True, queued_s=0.1, now=now)
            looked = now
    assert 6.0 <= now - back_at <= 10.0
    for second in range(int(now - back_at)):
        there = sum(second <= at < second + 1 for at in sent) * PROMPT
        assert there <= START * 2 ** ((second + 1) / 2) * good * (1 + BURST_S) + PROMPT
        assert there <= 1.5 * good
    assert sum(sent_at < 2 for sent_at in sent) * PROMPT >= START * good, "and not nothing either"


@pytest.mark.req("R51")
def test_it_does_not_speed_up_while_prompts_are_late_and_ends_all_the_same() -> None:
    recovery, back_at = after_outage(10_000.0)
    now = back_at
    for _ in range(int(LONGEST_S / LOOK_S) - 1):
        now += LOOK_S
        recovery.look(up=True, queued_s=5.0, now=now)
        assert recovery.rate == pytest.approx(1000.0, rel=0.05)
    recovery.look(up=True, queued_s=5.0, now=now + LOOK_S)
    assert recovery.rate == float("inf")


@pytest.mark.parametrize(("tokens_per_s", "outage_s"), [(0.0, 60.0), (10_000.0, 0.9 * OUTAGE_S)])
def test_nothing_is_held_back_after_a_blink_or_where_nothing_was_before(tokens_per_s: float, outage_s: float) -> None:
    recovery, now = after_outage(tokens_per_s, outage_s)
    assert not recovery.must_wait(now)
    assert recovery.rate == float("inf")


def test_a_pool_that_was_nearly_idle_begins_with_something() -> None:
    recovery, now = after_outage(1.0)
    assert recovery.rate == START * LEAST
    assert not recovery.must_wait(now)


def test_another_outage_meanwhile_begins_again_from_the_same_rate() -> None:
    recovery, now = after_outage(10_000.0)
    good = recovery.good
    recovery.look(up=True, queued_s=0.0, now=now + 4.0)
    assert recovery.rate > START * good
    recovery.look(up=False, queued_s=0.0, now=now + 5.0)
    assert recovery.rate == float("inf"), "nobody is there to be spared"
    recovery.look(up=True, queued_s=0.0, now=now + 10.0)
    assert (recovery.rate, recovery.good) == (START * good, good)


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 5), st.floats(0.01, 5), st.floats(0, 1e5)), max_size=200))
def test_it_never_holds_anybody_for_longer_than_its_longest_time(steps: list[tuple[bool, float, float, float]]) -> None:
    recovery, now, held_since = Recovery(), 0.0, None
    for up, queued_s, pause, tokens in steps:
        now += pause
        before = held_since
        recovery.look(up=up, queued_s=queued_s, now=now)
        recovery.sent_tokens += tokens
        if recovery.rate == float("inf"):
            held_since = None
            assert not recovery.must_wait(now)
        else:
            held_since = now if before is None else before
            assert now - held_since < LONGEST_S
