import pytest

from backends.signals import PrefillRate, Signals
from domain.faults import Kind
from gateway.http.edge.timeouts import MIN_RATE_AFTER_S, AttemptTimeouts, Timeouts, deadline_of, too_slow
from gateway.story import AttemptFacts

LIMITS = Timeouts(10, 2000, 120, token_gap_s=30, plain_timeout_s=600, heartbeat_s=15, slow_reader_s=30)


@pytest.mark.req("R3")
@pytest.mark.parametrize(("prompt_bytes", "expected_s"), [(0, 10.0), (8_000, 11.0), (800_000, 110.0), (8_000_000, 120.0)])
def test_the_first_token_deadline_grows_with_the_prompt_to_a_cap(prompt_bytes: int, expected_s: float) -> None:
    assert LIMITS.of_attempt(prompt_bytes).first_token_s == expected_s


@pytest.mark.req("R3")
def test_an_engine_that_prefills_slowly_is_given_its_time_and_a_fast_one_no_less_than_configured() -> None:
    reading = Signals(read_at=0.0)
    assert LIMITS.of_attempt(8_000, PrefillRate(reading, 200.0)).first_token_s == 20.0
    assert LIMITS.of_attempt(8_000, PrefillRate(reading, 50_000.0)).first_token_s == 11.0
    assert LIMITS.of_attempt(8_000, PrefillRate(reading)).first_token_s == 11.0
    assert LIMITS.of_attempt(8_000, PrefillRate(reading, 1e-9)).first_token_s == 120.0


def told(*, events: int, last: float, paused_s: float = 0.0) -> tuple[float, str]:
    answer = AttemptFacts()
    answer.note_event(100.0)
    answer.events = events
    at, fault = too_slow(LIMITS, answer, last=last, paused_s=paused_s)
    assert fault.kind is Kind.TOKEN_GAP_TIMEOUT
    return at, fault.message


def test_silence_ends_a_stream_and_so_does_less_than_one_event_a_second() -> None:
    assert told(events=5, last=105.0) == (135.0, "The engine was silent for 30 s.")
    assert told(events=5, last=155.0) == (100.0 + MIN_RATE_AFTER_S, "The engine answered too slowly to go on.")
    assert told(events=90, last=185.0) == (190.0, "The engine answered too slowly to go on.")


def test_time_in_which_a_slow_caller_was_waited_for_is_not_held_against_the_engine() -> None:
    assert told(events=5, last=155.0, paused_s=20.0)[0] == 180.0


def test_a_plain_reply_has_its_own_timeout_and_a_drained_backend_is_waited_for_no_longer_than_a_first_token_takes() -> None:
    assert LIMITS.of_attempt(8_000, stream=False) == AttemptTimeouts(first_token_s=11.0, first_event_s=600.0)
    assert LIMITS.of_attempt(8_000, stream=True) == AttemptTimeouts(first_token_s=11.0, first_event_s=11.0)


def test_what_the_prefill_engine_took_is_off_both_timeouts_of_the_decode_engine() -> None:
    assert AttemptTimeouts(11.0, 600.0).less(8.0, least_s=5.0) == AttemptTimeouts(5.0, 592.0)


@pytest.mark.req("R3")
def test_the_first_token_is_waited_for_from_the_attempts_begin_and_every_later_one_from_the_last_or_from_the_resumption() -> None:
    answer = AttemptFacts()
    timeouts = AttemptTimeouts(11.0, 11.0)
    at, fault = deadline_of(LIMITS, timeouts, answer, started_at=100.0, resumed_at=0.0, paused_s=0.0)
    assert (at, fault.kind) == (111.0, Kind.FIRST_TOKEN_TIMEOUT)
    answer.note_event(105.0)
    at, fault = deadline_of(LIMITS, timeouts, answer, started_at=100.0, resumed_at=0.0, paused_s=0.0)
    assert (at, fault.kind) == (135.0, Kind.TOKEN_GAP_TIMEOUT)
    at, _ = deadline_of(LIMITS, timeouts, answer, started_at=100.0, resumed_at=120.0, paused_s=10.0)
    assert at == 150.0
