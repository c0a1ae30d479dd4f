import random

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from backends.breaker import (
    CALM_S,
    FAILED_SHARE,
    IN_A_ROW,
    JITTER,
    LONGEST_COOL_S,
    OPEN_FIRST_S,
    OPEN_LONGEST_S,
    PROBE_S,
    SAMPLES,
    VERDICTS,
    WINDOW_S,
    AttemptVerdict,
    Breaker,
    BreakerState,
)
from domain.faults import SOURCE, Kind, Source


class Dice:
    """Always the same throw."""

    def __init__(self, throw: float = 0.5) -> None:
        self.throw = throw

    def random(self) -> float:
        return self.throw

    def randrange(self, _stop: int, /) -> int:
        return 0


MIDDLE = Dice()


def tripped(now: float = 0.0, dice: Dice = MIDDLE) -> Breaker:
    breaker = Breaker()
    for _ in range(IN_A_ROW):
        breaker.ended(AttemptVerdict.FAILURE, "old", now, dice, "reset")
    assert breaker.state(now) is BreakerState.OPEN
    return breaker


@pytest.mark.req("ROUTERS-19")
def test_what_each_end_says_of_a_backend() -> None:
    assert VERDICTS[None] is AttemptVerdict.SUCCESS
    assert VERDICTS[Kind.ENGINE_BUSY] is AttemptVerdict.BUSY
    failures = {Kind.CONNECT_FAILED, Kind.RESET_BEFORE_REPLY, Kind.ENGINE_ERROR, Kind.FIRST_TOKEN_TIMEOUT, Kind.BROKEN_STREAM}
    assert {VERDICTS[kind] for kind in failures} == {AttemptVerdict.FAILURE}
    for kind in Kind:
        if SOURCE[kind] is Source.CALLER and kind not in (Kind.CLIENT_GONE, Kind.SLOW_READER, Kind.KEY_REVOKED):
            assert VERDICTS[kind] is AttemptVerdict.SUCCESS
        if SOURCE[kind] is Source.GATEWAY:
            assert VERDICTS[kind] is AttemptVerdict.NEUTRAL
    assert VERDICTS[Kind.CLIENT_GONE] is VERDICTS[Kind.WRONG_MODEL] is AttemptVerdict.NEUTRAL


@pytest.mark.req("ROUTERS-19")
@given(st.lists(st.sampled_from([AttemptVerdict.SUCCESS, AttemptVerdict.BUSY, AttemptVerdict.NEUTRAL]), max_size=100))
def test_refusals_and_mistakes_never_open_it(ends: list[AttemptVerdict]) -> None:
    breaker = Breaker()
    for at, end in enumerate(ends):
        breaker.ended(end, at, at / 10, MIDDLE)
    assert breaker.shut(100.0) == ""


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 3.0)), max_size=200))
def test_it_opens_when_the_window_or_the_row_says_so_and_not_otherwise(ends: list[tuple[bool, float]]) -> None:
    breaker, now, seen, row = Breaker(), 0.0, [], 0
    for failed, pause in ends:
        now += pause
        seen.append((int(now), failed))
        row = row + 1 if failed else 0
        breaker.ended(AttemptVerdict.FAILURE if failed else AttemptVerdict.SUCCESS, "x", now, MIDDLE, "reset")
        window = [bad for at, bad in seen if at > int(now) - WINDOW_S]
        due = failed and (row >= IN_A_ROW or (len(window) >= SAMPLES and sum(window) >= FAILED_SHARE * len(window)))
        assert (breaker.state(now) is BreakerState.OPEN) is due
        if due:
            break


def test_a_backend_that_fails_one_request_in_ten_stays() -> None:
    breaker = Breaker()
    for n in range(1000):
        breaker.ended(AttemptVerdict.FAILURE if n % 10 == 0 else AttemptVerdict.SUCCESS, n, n / 100, MIDDLE)
    assert breaker.state(10.0) is BreakerState.CLOSED


def test_half_open_lets_one_request_through_and_its_first_token_closes() -> None:
    breaker = tripped()
    assert "5 requests in a row failed, the last one: reset" in breaker.shut(4.9)
    assert breaker.shut(5.0) == ""
    assert [breaker.enter(who, 5.0) for who in "abca"] == [True, False, False, True]
    assert "one request tries it" in breaker.shut(5.0)
    assert not breaker.begun("b", 5.1)
    assert breaker.begun("a", 5.2)
    assert (breaker.state(5.2), breaker.closed_at, breaker.shut(5.2)) == (BreakerState.CLOSED, 5.2, "")


def test_a_try_that_fails_opens_again_for_twice_as_long_and_one_that_says_nothing_lets_another_try() -> None:
    breaker, now, waits = tripped(), 0.0, []
    for _ in range(6):
        assert breaker.open_until is not None
        waits.append(breaker.open_until - now)
        now = breaker.open_until
        assert breaker.enter("caller left", now)
        assert not breaker.ended(AttemptVerdict.NEUTRAL, "caller left", now, MIDDLE)
        assert breaker.enter("fails", now)
        assert breaker.ended(AttemptVerdict.FAILURE, "fails", now, MIDDLE, "reset")
    assert waits == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]


def test_only_the_request_that_tries_is_heard_while_it_is_not_closed() -> None:
    breaker = tripped()
    for at in (1.0, 6.0):
        assert not breaker.ended(AttemptVerdict.SUCCESS, "sent before", at, MIDDLE)
        assert not breaker.ended(AttemptVerdict.FAILURE, "sent before", at, MIDDLE)
    assert breaker.state(6.0) is BreakerState.HALF_OPEN


def test_a_try_that_hangs_makes_room_for_another() -> None:
    breaker = tripped()
    assert breaker.enter("hangs", 5.0)
    assert not breaker.enter("next", 5.0 + PROBE_S - 0.1)
    assert breaker.enter("next", 5.0 + PROBE_S)
    assert breaker.ended(AttemptVerdict.SUCCESS, "next", 40.0, MIDDLE)


@pytest.mark.parametrize(("calm_s", "next_s"), [(CALM_S, OPEN_FIRST_S), (CALM_S - 1, 2 * OPEN_FIRST_S)])
def test_a_calm_minute_forgives(calm_s: float, next_s: float) -> None:
    breaker = tripped()
    breaker.enter("a", 5.0)
    breaker.begun("a", 5.0)
    for _ in range(IN_A_ROW):
        breaker.ended(AttemptVerdict.FAILURE, "b", 5.0 + calm_s, MIDDLE, "reset")
    assert breaker.open_until == 5.0 + calm_s + next_s


@pytest.mark.req("R51")
@given(st.integers(0, 2**32))
def test_times_are_jittered_by_a_fifth_both_ways(seed: int) -> None:
    rng = random.Random(seed)
    breaker = Breaker()
    for _ in range(IN_A_ROW):
        breaker.ended(AttemptVerdict.FAILURE, "x", 0.0, rng)
    assert breaker.open_until is not None
    assert JITTER >= 0.2
    assert OPEN_FIRST_S * (1 - JITTER) <= breaker.open_until <= OPEN_FIRST_S * (1 + JITTER)


def test_an_engine_that_asks_to_be_left_alone_is_and_not_for_ever() -> None:
    breaker = Breaker()
    breaker.cool(3.0, 0.0)
    breaker.cool(1.0, 0.0)
    assert "left alone for 3.0 s" in breaker.shut(0.0)
    assert breaker.shut(3.0) == ""
    breaker.cool(1000.0, 10.0)
    assert breaker.shut(10.0 + LONGEST_COOL_S) == ""


@given(st.lists(st.tuples(st.sampled_from(list(AttemptVerdict)), st.integers(0, 5), st.floats(0, 20)), max_size=300), st.integers(0, 2**32))
@hypothesis_settings(max_examples=50)
def test_at_most_one_tries_at_a_time_and_no_wait_is_longer_than_the_longest(
    steps: list[tuple[AttemptVerdict, int, float]], seed: int
) -> None:
    rng, breaker, now, trying = random.Random(seed), Breaker(), 0.0, {}
    for verdict, who, pause in steps:
        now += pause
        trying = {one: at for one, at in trying.items() if now - at < PROBE_S}
        if breaker.enter(who, now):
            assert breaker.state(now) is BreakerState.HALF_OPEN
            assert not trying or who in trying
            trying = trying or {who: now}
        elif breaker.ended(verdict, who, now, rng):
            trying = {}
        elif who in trying:
            del trying[who]
        if breaker.open_until is not None:
            assert breaker.open_until - now <= OPEN_LONGEST_S * (1 + JITTER)


@pytest.mark.req("GATEWAYS-19")
@given(
    st.lists(st.tuples(st.sampled_from(list(AttemptVerdict)), st.floats(0, 5), st.floats(0, 60), st.booleans()), max_size=200),
    st.integers(0, 2**32),
)
@hypothesis_settings(max_examples=50)
def test_no_further_failure_brings_the_end_of_a_pause_nearer(events: list[tuple[AttemptVerdict, float, float, bool]], seed: int) -> None:
    """Neither of one that the engine asked for nor, as long as the breaker is not closed, of an open breaker."""
    breaker, rng, now = Breaker(), random.Random(seed), 0.0
    for verdict, passed_s, cool_s, probes in events:
        now += passed_s
        cool_until, open_until = breaker.cool_until, breaker.open_until
        if probes:
            breaker.enter("x", now)
        breaker.ended(verdict, "x", now, rng)
        breaker.cool(cool_s, now)
        assert breaker.cool_until >= cool_until
        assert open_until is None or breaker.open_until is None or breaker.open_until >= open_until
