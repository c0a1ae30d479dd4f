from math import exp, log
from typing import Any

import msgspec
import pytest

from domain.faults import Kind
from domain.usage import Usage
from gateway.record import Record
from gateway.rollouts.watch import KEPT_INTERVALS, IntervalSums, sample_of
from policies.rollout.assignment import Arm
from policies.rollout.in_force import AssignedArm, Running
from policies.rollout.samples import RequestSample

RUNNING = Running("ro_1", "v2", "chat", "chat-v2", 0.5, 0.0, counting=True, interval_s=10.0)


def record(outcome: str = "ok", dealt: AssignedArm | None = None, **fields: Any) -> Record:
    usage = Usage(prompt_tokens=100, completion_tokens=11, cached_tokens=60)
    said = {"stream": True, "ttft_s": 0.2, "decode_s": 0.5, "usage": usage, "dealt": dealt} | fields
    return Record("r", 0.0, outcome, 200, 1.0, 0.0, **said)


def test_a_whole_stream_has_every_value() -> None:
    found = sample_of(record(cost_nanousd=500))
    assert found == RequestSample(
        failed=False,
        broken=False,
        refused=False,
        ttft_s=0.2,
        uncached_tokens=40,
        itl_s=0.05,
        output_tokens=11,
        cost_nanousd=500,
    )


def test_a_plain_answers_times_are_no_first_tokens() -> None:
    found = sample_of(record(stream=False))
    assert found is not None
    assert (found.ttft_s, found.itl_s, found.broken, found.output_tokens) == (None, None, None, 11)


def test_a_stream_that_broke_is_failed_and_broken_and_has_no_length() -> None:
    found = sample_of(record(Kind.BROKEN_STREAM.value))
    assert found is not None
    assert (found.failed, found.broken, found.output_tokens, found.itl_s, found.refused) == (True, True, None, None, None)


def test_a_request_that_got_no_answer_is_failed_and_not_broken() -> None:
    found = sample_of(record(Kind.NO_BACKEND.value, ttft_s=None, decode_s=None))
    assert found is not None
    assert (found.failed, found.broken) == (True, None)


@pytest.mark.parametrize("kind", [Kind.CLIENT_GONE, Kind.TOKEN_LIMIT, Kind.SLOW_READER, Kind.SHUTTING_DOWN])
def test_what_is_nobodys_of_both_pools_is_no_sample(kind: Kind) -> None:
    assert sample_of(record(kind.value)) is None


def test_what_was_declined_is_refused() -> None:
    found = sample_of(record(declined=True))
    assert found is not None
    assert found.refused


def sums_after(*seen: tuple[Record, float]) -> dict[int, Any]:
    sums = IntervalSums()
    for one, at in seen:
        sums.observe(one, at)
    return dict(sums.unwritten()).get("ro_1", {})


def test_sums_are_kept_by_interval_and_arm() -> None:
    canary, baseline = AssignedArm(RUNNING, Arm.CANARY, counted=True), AssignedArm(RUNNING, Arm.BASELINE, counted=True)
    found = sums_after(
        (record(dealt=canary), 9.9), (record(dealt=baseline), 9.9), (record(dealt=canary), 10.0), (record(dealt=canary), 11.0)
    )
    assert sorted(found) == [0, 1]
    assert (found[0].canary.requests, found[0].baseline.requests, found[1].canary.requests) == (1, 1, 2)
    itl = found[1].canary.tallies["itl"]
    assert exp(itl.total / itl.n) == pytest.approx(0.05)
    assert itl.total == pytest.approx(2 * log(0.05))


def test_who_asked_for_an_arm_or_for_no_rollout_is_not_counted() -> None:
    assert sums_after((record(dealt=AssignedArm(RUNNING, Arm.CANARY, counted=False)), 1.0), (record(), 1.0)) == {}


def test_what_a_canary_that_is_away_could_not_answer_is_its_failure_alone() -> None:
    found = sums_after((record(dealt=AssignedArm(RUNNING, Arm.BASELINE, counted=False, away=True)), 1.0))[0]
    assert (found.canary.requests, found.baseline.requests) == (1, 0)
    assert found.canary.tallies["errors"].total == 1.0


def test_a_request_that_two_rollouts_are_about_is_counted_by_both() -> None:
    other = msgspec.structs.replace(RUNNING, id="ro_2", interval_s=5.0)
    both = msgspec.structs.replace(
        record(dealt=AssignedArm(RUNNING, Arm.CANARY, counted=True)), dealt_prompt=AssignedArm(other, Arm.BASELINE, counted=True)
    )
    sums = IntervalSums()
    sums.observe(both, 12.0)
    found = dict(sums.unwritten())
    assert (found["ro_1"][1].canary.requests, found["ro_2"][2].baseline.requests) == (1, 1)


def test_what_was_written_is_not_written_again_until_it_changes() -> None:
    sums, one = IntervalSums(), record(dealt=AssignedArm(RUNNING, Arm.CANARY, counted=True))
    sums.observe(one, 1.0)
    [(rollout, intervals)] = sums.unwritten()
    sums.observe(one, 2.0)  # while the first is on its way
    sums.wrote(rollout, intervals)
    [(rollout, intervals)] = sums.unwritten()
    assert intervals[0].canary.requests == 2
    sums.wrote(rollout, intervals)
    assert list(sums.unwritten()) == []


def test_what_cannot_be_written_for_long_is_bounded_and_what_is_over_is_dropped() -> None:
    sums = IntervalSums()
    for index in range(3 * KEPT_INTERVALS):
        sums.observe(record(dealt=AssignedArm(RUNNING, Arm.CANARY, counted=True)), index * 10.0)
    [(_, intervals)] = sums.unwritten()
    assert len(intervals) == KEPT_INTERVALS
    assert max(intervals) == 3 * KEPT_INTERVALS - 1
    sums.keep_only(set())
    assert list(sums.unwritten()) == []
