import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.health import (
    AWAITED,
    DISTRUST_S,
    FAILURES_TO_GO_DOWN,
    MISREPORTS_TO_EJECT,
    MISREPORTS_WITHIN_S,
    PROBE_LONGEST_S,
    PROBES_WITHOUT_COUNTERS,
    Health,
    HealthState,
    ProbeOutcome,
    ProbeResult,
    may_eject,
)
from backends.ports import PollResult
from domain.faults import Kind

GOOD = PollResult("", frozenset({"m"}))
REFUSED = PollResult("/health: connect: refused")
LATE = PollResult("/health: no answer within 2 s", silent=True)
SILENCE_S = 10.0


def up(now: float = 0.0) -> Health:
    health = Health(SILENCE_S)
    health.polled(GOOD, now)
    health.idle(now)
    return health


def down(now: float = 0.0) -> Health:
    health = Health(SILENCE_S)
    health.polled(REFUSED, now)
    return health


def test_the_first_poll_decides_alone_and_costs_no_slow_start() -> None:
    assert (up().standing, up().reason, up().up_since) == (HealthState.UP, "", None)
    assert (down().standing, down().reason) == (HealthState.DOWN, REFUSED.reason)


def test_one_failed_poll_takes_nothing_out_and_some_in_a_row_do() -> None:
    health = up()
    for n in range(1, FAILURES_TO_GO_DOWN):
        health.polled(REFUSED, float(n))
    health.polled(GOOD, 5.0)
    for n in range(1, FAILURES_TO_GO_DOWN + 1):
        health.polled(REFUSED, 5.0 + n)
        assert health.standing is (HealthState.DOWN if n == FAILURES_TO_GO_DOWN else HealthState.UP)
    assert health.reason == REFUSED.reason


@pytest.mark.req("ROUTERS-20")
def test_while_tokens_flow_a_poll_without_an_answer_says_only_busy_and_a_refusal_says_more() -> None:
    for poll, standing in ((LATE, HealthState.UP), (REFUSED, HealthState.DOWN)):
        health = up()
        for n in range(20):
            health.progressed(float(n))
            health.polled(poll, n + 0.5)
        assert health.standing is standing
    health = up()
    for n in range(FAILURES_TO_GO_DOWN):
        health.polled(LATE, 100.0 + n)  # nothing flows
    assert health.standing is HealthState.DOWN


def test_an_idle_backend_that_stops_answering_goes_down_though_it_owes_nothing() -> None:
    health = up()
    for n in range(FAILURES_TO_GO_DOWN):
        health.idle(float(n))
        health.polled(LATE, float(n))
    assert health.standing is HealthState.DOWN


@pytest.mark.req("R3")
def test_what_was_down_comes_back_with_a_token_only() -> None:
    health = down()
    assert not health.wants_probe(1.0)  # nobody there to ask
    health.polled(GOOD, 1.0)
    assert (health.standing, health.reason) == (HealthState.DOWN, AWAITED)
    assert health.wants_probe(1.0)
    health.probing()
    assert not health.wants_probe(1.0)
    health.probed(ProbeResult(ProbeOutcome.FAILED, "no answer within 10 s"), 11.0)
    assert health.standing is HealthState.DOWN
    assert "no answer within 10 s" in health.reason
    assert health.wants_probe(13.0)
    health.probed(ProbeResult(ProbeOutcome.TOKEN), 13.0)
    assert (health.standing, health.reason, health.up_since) == (HealthState.UP, "", 13.0)


def test_a_token_counts_for_nothing_when_the_engine_has_left_since() -> None:
    health = down()
    health.polled(GOOD, 1.0)
    health.polled(REFUSED, 2.0)
    health.probed(ProbeResult(ProbeOutcome.TOKEN), 2.5)
    assert health.standing is HealthState.DOWN


def test_probes_come_less_and_less_often() -> None:
    health, now, waits = up(), 0.0, []
    health.quarantine("wrong model", now)
    for _ in range(8):
        began = now
        while not health.wants_probe(now):
            now += 0.5
        waits.append(now - began)
        health.probed(ProbeResult(ProbeOutcome.FAILED, "x"), now)
    assert waits == [1.0, 1.0, 2.0, 4.0, 8.0, 16.0, PROBE_LONGEST_S, PROBE_LONGEST_S]


def test_an_engine_that_cannot_be_asked_comes_back_in_the_end() -> None:
    health, now = up(), 0.0
    health.quarantine("5 failures in a row", now)
    while health.standing is HealthState.EJECTED:
        now += 0.5
        if health.wants_probe(now):
            health.probed(ProbeResult(ProbeOutcome.NO_WAY, "/v1/embeddings answers 404"), now)
        assert now < 200
    assert now > 30


# --- suspicion ------------------------------------------------------------------------------------------------------


def late(health: Health, *times: float) -> Health:
    for at in times:
        health.ended(Kind.FIRST_TOKEN_TIMEOUT, at)
    return health


@pytest.mark.req("R3")
def test_three_late_first_tokens_make_suspect_unless_something_moves() -> None:
    assert late(up(), 10.0, 12.0).suspicion == ""
    assert late(up(), 10.0, 12.0, 14.0).frozen
    assert late(up(), 10.0, 30.0, 50.0).suspicion == ""  # not within the window

    moving = late(up(), 10.0, 12.0)
    moving.progressed(13.0)
    assert late(moving, 14.0).suspicion == ""

    counting = up()
    counting.counted((1, 1), 9.0)
    late(counting, 10.0, 12.0)
    counting.counted((1, 2), 13.0)
    assert late(counting, 14.0).suspicion == ""


@pytest.mark.req("R3")
def test_progress_after_a_suspicion_lifts_it() -> None:
    health = late(up(), 10.0, 12.0, 14.0)
    health.progressed(14.5)
    assert (health.suspicion, health.frozen) == ("", False)


@pytest.mark.req("R3")
def test_a_silent_backend_is_probed_and_suspect_when_no_token_comes() -> None:
    health = up()
    health.counted((5, 5), 0.0)
    assert not health.wants_probe(SILENCE_S - 0.1)
    assert health.wants_probe(SILENCE_S)
    health.probing()
    health.probed(ProbeResult(ProbeOutcome.FAILED, "no answer within 10 s"), 20.0)
    assert health.frozen
    assert "no token for 20 s" in health.suspicion


@pytest.mark.req("R3")
def test_a_backend_that_gets_one_request_at_a_time_and_answers_none_is_silent_all_the_while() -> None:
    health = up()
    health.counted((5, 5), 0.0)
    late(health, 10.0)
    health.idle(10.0)  # between two requests that wait in vain
    assert health.wants_probe(10.0)
    health.progressed(10.5)
    health.idle(11.0)
    assert not health.wants_probe(11.0 + SILENCE_S - 0.1)


def test_an_engine_whose_counters_nobody_sees_gets_more_probes_before_it_is_suspect() -> None:
    health = up()
    for n in range(1, PROBES_WITHOUT_COUNTERS + 1):
        health.probed(ProbeResult(ProbeOutcome.FAILED, "no answer within 10 s"), 20.0 * n)
        assert bool(health.suspicion) is (n == PROBES_WITHOUT_COUNTERS)


def test_a_token_or_an_idle_moment_ends_the_silence() -> None:
    probed, rested = up(), up()
    probed.probed(ProbeResult(ProbeOutcome.TOKEN), 20.0)
    rested.idle(20.0)
    for health in (probed, rested):
        assert not health.wants_probe(20.0 + SILENCE_S - 0.1)
        assert health.wants_probe(20.0 + SILENCE_S)


@pytest.mark.req("ROUTERS-19")
def test_failures_of_requests_say_nothing_of_its_tokens() -> None:
    health = up()
    for n, kind in enumerate(kind for kind in Kind if kind is not Kind.FIRST_TOKEN_TIMEOUT):
        health.ended(kind, float(n))
    assert health.suspicion == ""


def test_when_its_process_was_last_gone() -> None:
    health = up()
    health.polled(LATE, 1.0)  # busy, as far as anybody knows
    assert health.away_at == float("-inf")
    health.polled(REFUSED, 2.0)
    assert health.away_at == 2.0
    health.restarted(3.0)
    assert health.away_at == 3.0


@pytest.mark.req("R43")
def test_a_restart_starts_slowly_and_forgets_what_the_old_process_did() -> None:
    health = late(up(), 10.0, 12.0)
    health.restarted(13.0)
    assert health.up_since == 13.0
    assert late(health, 14.0).suspicion == ""


# --- the pool's say -------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(["fine", "suspect", "down"]), min_size=1, max_size=9))
def test_ejection_never_takes_the_last_one_nor_more_than_half(states: list[str]) -> None:
    healths = [down() if state == "down" else up() for state in states]
    suspects = [health for health, state in zip(healths, states, strict=True) if state == "suspect"]
    for health in suspects:
        late(health, 10.0, 11.0, 12.0)
        if may_eject(healths):
            health.eject(13.0)
    ejected = sum(health.standing is HealthState.EJECTED for health in healths)
    assert ejected <= max(1, len(healths) // 2)
    if any(state != "down" for state in states):
        assert any(health.standing is HealthState.UP for health in healths)
    if len(suspects) == 1 and states.count("fine"):
        assert ejected == 1


# --- counts of tokens -----------------------------------------------------------------------------------------------


def test_a_few_impossible_usages_make_a_backend_distrusted_and_progress_does_not_mend_that() -> None:
    health = up()
    for n in range(MISREPORTS_TO_EJECT):
        assert health.distrust(float(n)) == ""
        health.misreported("prompt 9", float(n), above=True)
        health.progressed(n + 0.5)
    assert "prompt 9" in health.distrust(3.0)
    assert health.suspicion == ""
    assert health.distrust(MISREPORTS_WITHIN_S) != ""
    assert health.distrust(MISREPORTS_WITHIN_S + 1.0) == ""


def test_a_usage_that_is_too_low_makes_nobody_distrusted() -> None:
    health = up()
    for n in range(10):
        health.misreported("prompt 0", float(n), above=False)
    assert health.distrust(10.0) == ""


def test_the_log_hears_of_a_misreport_once_a_minute() -> None:
    health = up()
    assert [at for at in range(0, 130, 10) if health.misreported("prompt 9", float(at), above=True)] == [0, 60, 120]


def test_a_backend_that_is_out_for_its_counts_is_probed_after_a_minute_and_starts_afresh() -> None:
    health = up()
    for n in range(MISREPORTS_TO_EJECT):
        health.misreported("prompt 9", float(n), above=True)
    health.eject(3.0)
    assert (health.standing, "prompt 9" in health.reason) == (HealthState.EJECTED, True)
    assert not health.wants_probe(3.0 + DISTRUST_S - 0.1)
    assert health.wants_probe(3.0 + DISTRUST_S)
    health.probed(ProbeResult(ProbeOutcome.TOKEN), 64.0)
    assert (health.standing, health.distrust(64.0)) == (HealthState.UP, "")
