"""Records on their way to a receiver: batches, answers, retries, bounds, the end."""

from collections.abc import Callable, MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.record import Record
from gateway.telemetry.otlp import (
    ADVICE,
    COMPLAIN_EVERY_S,
    GIVEN_UP_AFTER_S,
    ITS_OWN_LOG,
    LONGEST_PAUSE_S,
    MAX_BATCH_BYTES,
    NO_REDIRECT,
    REPEAT_EVERY_S,
    TOO_SLOW,
    TRIED_AGAIN,
    BatchExporter,
    OtlpSender,
)
from gateway.telemetry.spans import rejected_of
from tests.otlp_receiver import OtlpReceiver, otlp_receiver


def record(name: str) -> Record:
    return Record(name, 0.0, "ok", 200, 1.0, 0.0)


class Time:
    """A clock, and a stop event whose waits pass at once."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []
        self.stopped = False

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.now += seconds
        return self.stopped

    def is_set(self) -> bool:
        return self.stopped

    def set(self) -> None:
        self.stopped = True


def made(
    receiver: OtlpReceiver, *, encode: Callable[[Record], bytes] | None = None, most: int = 100, url: str = "", compress: bool = True
) -> tuple[BatchExporter, Time]:
    passing = Time()
    secret, clock = {"authorization": "secret"}, passing.clock
    sender = OtlpSender(url or receiver.url, secret, timeout_s=5.0, compress=compress, rejected_of=rejected_of, clock=clock)
    exporter = BatchExporter("main", encode or encoded, sender, max_pending=most, clock=passing.clock)
    exporter._stop = passing  # type: ignore[assignment]
    return exporter, passing


def encoded(record_: Record) -> bytes:
    """A field of another number, which a reader of requests skips."""
    name = record_.request_id.encode()
    return b"\x7a" + bytes([len(name)]) + name


@pytest.mark.parametrize("compress", [True, False])
def test_records_are_posted_together_in_their_order(compress: bool) -> None:
    with otlp_receiver() as receiver:
        exporter, _ = made(receiver, compress=compress)
        for name in ("a", "b", "c"):
            exporter.add(record(name))
        exporter.turn()
        assert receiver.bodies == [encoded(record("a")) + encoded(record("b")) + encoded(record("c"))]
        assert exporter.figures() == (3, 0, 0, 0)
        assert ("content-encoding" in receiver.headers[0]) is compress
        assert receiver.headers[0]["authorization"] == "secret"
        exporter.turn()
        assert len(receiver.bodies) == 1, "nothing is sent when nothing has come"


def test_a_batch_has_a_largest_size() -> None:
    with otlp_receiver() as receiver:
        part = b"\x7a\x80\x80\x40" + bytes(1 << 20)
        exporter, _ = made(receiver, encode=lambda _: part)
        for _ in range(5):
            exporter.add(record("a"))
        exporter.turn()
        assert [len(body) for body in receiver.bodies] == [2 * len(part), 2 * len(part), len(part)]
        assert 2 * len(part) >= MAX_BATCH_BYTES


def test_what_the_receiver_may_take_later_is_tried_again_and_what_it_refuses_is_not(caplog: pytest.LogCaptureFixture) -> None:
    with otlp_receiver() as receiver:
        exporter, passing = made(receiver)
        for statuses, figures, waits in (
            ([503, 502, 504], (1, 0, 0, 0), [1.0, 2.0, 4.0]),
            ([429], (2, 0, 0, 0), [7.0]),  # the receiver's own word
            ([400], (2, 0, 0, 1), []),
            ([401], (2, 0, 0, 2), []),
        ):
            receiver.statuses = statuses
            passing.waits.clear()
            exporter.add(record("a"))
            exporter.turn()
            assert exporter.figures() == figures
            assert passing.waits == waits


def test_a_receiver_that_is_away_costs_a_batch_after_a_minute_and_memory_up_to_the_bound() -> None:
    with otlp_receiver() as receiver:
        exporter, passing = made(receiver, url="http://127.0.0.1:9/v1/traces", most=3)
        for _ in range(5):
            exporter.add(record("a"))
        assert exporter.figures() == (0, 2, 0, 0)
        exporter.turn()
        assert exporter.figures() == (0, 2, 0, 3)
        assert sum(passing.waits) <= GIVEN_UP_AFTER_S
        assert max(passing.waits) <= LONGEST_PAUSE_S
        exporter.add(record("a"))
        assert exporter.figures() == (0, 2, 0, 3), "there is room again"


def complaints(logged: list[MutableMapping[str, Any]]) -> list[str]:
    return [line["advice"] for line in logged if line["log_level"] == "warning"]


def test_a_complaint_comes_once_until_the_reason_changes_or_an_hour_has_passed() -> None:
    with otlp_receiver() as receiver, capture_logs() as logged:
        exporter, passing = made(receiver)

        def sent(status: int) -> None:
            receiver.statuses = [status] * (status != 200)
            exporter.add(record("a"))
            exporter.turn()
            passing.now += 10.0

        for _ in range(20):
            sent(401)
        assert complaints(logged) == [ADVICE[401]]
        for _ in range(7):
            sent(404)
        assert complaints(logged) == [ADVICE[401], ADVICE[404]]
        passing.now += REPEAT_EVERY_S
        sent(404)
        assert complaints(logged) == [ADVICE[401], ADVICE[404], ADVICE[404]]
        sent(200)
        for _ in range(3):
            sent(404)
        assert len(complaints(logged)) == 3, "not more than once a minute, whatever it does in between"
        passing.now += COMPLAIN_EVERY_S
        sent(404)
        assert len(complaints(logged)) == 4
        assert [line["event"] for line in logged if line["log_level"] == "info"] == ["the OTLP receiver answers again"]


@pytest.mark.parametrize(
    ("status", "advice"), [*ADVICE.items(), (301, NO_REDIRECT), (500, ITS_OWN_LOG), (503, ITS_OWN_LOG)], ids=lambda word: str(word)[:12]
)
def test_each_status_has_its_advice(status: int, advice: str) -> None:
    with otlp_receiver() as receiver:
        receiver.statuses = [status]
        sender = OtlpSender(receiver.url, {}, timeout_s=5.0, compress=True, rejected_of=rejected_of, clock=lambda: 0.0)
        answered = sender.send(b"")
        sender.close()
    assert answered.reason.startswith(f"status {status}")
    assert answered.advice == advice
    assert (answered.again_s is not None) is (status in TRIED_AGAIN)


def test_an_answer_that_does_not_end_is_given_up_in_time() -> None:
    times = iter([0.0, 6.0])
    with otlp_receiver() as receiver:
        receiver.rejects = 1  # so that the answer has a body
        sender = OtlpSender(receiver.url, {}, timeout_s=5.0, compress=True, rejected_of=rejected_of, clock=lambda: next(times))
        late = sender.send(encoded(record("a")))
        sender.close()
    assert (late.taken, late.again_s, late.advice) == (False, 0.0, TOO_SLOW)


def test_a_part_that_the_receiver_left_out_is_counted() -> None:
    with otlp_receiver() as receiver:
        receiver.rejects = 1
        exporter, _ = made(receiver)
        exporter.add(record("a"))
        exporter.add(record("b"))
        exporter.turn()
        assert exporter.figures() == (1, 0, 1, 0)


def test_one_record_that_cannot_be_encoded_costs_itself_only() -> None:
    def encode(record_: Record) -> bytes:
        if record_.request_id == "b":
            raise ValueError("text of a caller")
        return encoded(record_)

    with otlp_receiver() as receiver:
        exporter, _ = made(receiver, encode=encode)
        for name in ("a", "b", "c", "b"):
            exporter.add(record(name))
        exporter.turn()
        assert receiver.bodies[0] == encoded(record("a")) + encoded(record("c"))
        assert exporter.figures() == (2, 0, 0, 2) or receiver.bodies[1:]


def test_the_end_sends_what_is_left_and_waits_for_nobody_for_long() -> None:
    with otlp_receiver() as receiver:
        exporter, _ = made(receiver)
        exporter.add(record("a"))
        exporter.close()
        exporter.add(record("b"))
        exporter.run()
        assert receiver.bodies == [b"", encoded(record("a"))], "the first post asks whether the receiver is there"
        assert exporter.figures() == (1, 1, 0, 0)
        away, passing = made(receiver, url="http://127.0.0.1:9/v1/traces")
        away.add(record("a"))
        away.close()
        away.run()
        assert away.figures() == (0, 0, 0, 1)
        assert passing.waits == []


def test_the_thread_sends_by_itself() -> None:
    with otlp_receiver() as receiver:
        sender = OtlpSender(receiver.url, {}, timeout_s=5.0, compress=True, rejected_of=rejected_of, clock=lambda: 0.0)
        exporter = BatchExporter("main", encoded, sender, max_pending=10, clock=lambda: 0.0)
        exporter.start()
        exporter.add(record("a"))
        exporter.close()
        assert receiver.bodies[-1] == encoded(record("a"))
