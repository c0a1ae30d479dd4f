import msgspec
import pytest

from domain.faults import Fault, Kind
from gateway.http.faults import render
from gateway.queue import refusals
from routing.fair_queue import QueueBounds

DICE = (0.0, 0.3, 0.999)


def after_s(fault: Fault) -> float:
    assert fault.retry.should
    assert fault.retry.after_s is not None
    return fault.retry.after_s


def test_every_bound_of_the_queue_has_words() -> None:
    assert set(refusals.BOUNDS) == set(msgspec.structs.asdict(QueueBounds()))
    assert len(set(refusals.REFUSALS)) == len(refusals.REFUSALS)


@pytest.mark.parametrize("bound", refusals.BOUNDS)
def test_callers_are_told_to_come_back_and_spread(bound: str) -> None:
    told = [after_s(refusals.full(bound, 0.0, dice)) for dice in DICE]
    assert told[0] == 1.0
    assert told == sorted(told)
    assert told[-1] < 5.0
    assert 20.0 <= after_s(refusals.full(bound, 20.0, 0.5)) <= 30.0
    assert all(after_s(refusals.full(bound, 1e9, dice)) <= 90.0 for dice in DICE)


def test_a_refusal_says_how_long_the_wait_would_be_and_comes_with_both_headers() -> None:
    fault = refusals.too_long(42.0, 10.0, 0.5)
    assert "about 42 s" in fault.message
    assert "may wait 10 s" in fault.message
    assert 32.0 <= after_s(fault) <= 48.0
    reply = render(fault, "r")
    headers = dict(reply.headers)
    assert (reply.status, headers[b"x-should-retry"]) == (503, b"true")
    assert int(headers[b"retry-after-ms"]) == pytest.approx(after_s(fault) * 1000, abs=1)
    assert int(headers[b"retry-after"]) * 1000 >= int(headers[b"retry-after-ms"])


@pytest.mark.parametrize("fault", [refusals.asleep("It starts", 12.0, 0.3, "count"), refusals.timed_out(10.0, 12.0, 0.3)])
def test_the_sentence_names_the_seconds_of_the_header(fault: Fault) -> None:
    told = dict(render(fault, "r").headers)[b"retry-after"].decode()
    assert fault.message.endswith(f"Try again in {told} s.")


def test_one_that_may_not_wait_is_told_so() -> None:
    assert "may not wait" in refusals.too_long(0.0, 0.0, 0.5).message


def test_the_others() -> None:
    assert refusals.timed_out(10.0, 0.0, 0.5).kind is refusals.displaced(0.0, 0.5).kind is Kind.OVERLOADED
    assert refusals.stopping().kind is Kind.SHUTTING_DOWN
    assert refusals.nobody(0.5, "why").kind is Kind.NO_BACKEND
