from collections.abc import Callable
from math import log
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.rollout.plan import OnTimeout, RolloutPlan, RolloutStep, StepNeeds
from policies.rollout.progress import (
    OVER,
    EventResult,
    LookOutcome,
    NotNow,
    RolloutState,
    Shares,
    Status,
    abort,
    begin,
    close,
    only_judged,
    pause,
    promote,
    resume,
    sent_back,
    shares,
    tick,
)
from policies.rollout.samples import ArmSums, Interval, Tally
from policies.rollout.verdict import ComparisonTerms

TERMS = ComparisonTerms(margins={"itl": 0.05})
STEPS = (RolloutStep(0.1, 10, 60, 600), RolloutStep(0.5, 10, 60, 7200, StepNeeds.GOOD_ENOUGH), RolloutStep(1.0))
PLAN = RolloutPlan("r1", STEPS, terms=TERMS, warm_up_s=30, warm_up_requests=5, settle_s=20)


def interval(index: int, times: float = 1.0, requests: int = 20, rng: Random | None = None) -> Interval:
    noise = (rng or Random(index)).gauss(0, 0.03)
    canary = ArmSums(requests, {"itl": Tally(requests, requests * (log(0.010 * times) + noise))} if requests else {})
    return Interval(index, canary, ArmSums(200, {"itl": Tally(200, 200 * log(0.010))}))


def watch(plan: RolloutPlan, state: RolloutState, until: int, times: float = 1.0, requests: int = 20, start: int = 0) -> EventResult:
    """Ticks every interval until the state changes its status or phase."""
    was = state.status, state.phase
    for index in range(start, until):
        look = tick(plan, state, (index + 1) * 10.0, [interval(index, times, requests)])
        state = look.state
        if (state.status, state.phase) != was:
            break
    return look


def test_a_good_version_goes_on_step_by_step_until_it_has_everything() -> None:
    state, seen = begin(PLAN, 0.0), []
    for index in range(700):
        seen.append(shares(PLAN, state).live)
        look = tick(PLAN, state, (index + 1) * 10.0, [interval(index)])
        state = look.state
        if state.status in OVER:
            break
    assert look.outcome is LookOutcome.DONE
    assert state.reason == "50 %: passed"
    assert sorted(set(seen)) == [0.1, 0.5]
    assert seen == sorted(seen)
    assert shares(PLAN, state) == Shares(1.0)
    assert tick(PLAN, state, 1e6).state == state


def test_a_slow_version_goes_back_and_says_why() -> None:
    look = watch(PLAN, begin(PLAN, 0.0), 200, times=1.5)
    while look.state.status is Status.RUNNING:
        look = watch(PLAN, look.state, 200, times=1.5, start=look.state.next_interval)
    assert look.outcome is LookOutcome.ROLL_BACK
    assert shares(PLAN, look.state) == Shares(0.0)
    assert "inter-token latency" in look.state.reason
    assert "% worse" in look.state.reason


def test_warming_up_is_left_out_by_time_and_by_requests() -> None:
    state = begin(PLAN, 0.0)
    for index in range(4):
        state = tick(PLAN, state, (index + 1) * 10.0, [interval(index, requests=1)]).state
    assert state.evidence.requests == 0  # 30 s have passed, 5 requests have not
    for index in range(4, 7):
        state = tick(PLAN, state, (index + 1) * 10.0, [interval(index, requests=1)]).state
    assert (state.warming, state.evidence.requests) == (5, 2)


def test_what_ended_right_after_a_change_of_share_is_left_out() -> None:
    state = promote(PLAN, begin(PLAN, 0.0), 100.0).state
    state = msgspec.structs.replace(state, warm=True)
    state = tick(PLAN, state, 130.0, [interval(i) for i in (9, 10, 11, 12)]).state
    assert state.evidence.requests == 20


def test_an_interval_counts_once() -> None:
    state = msgspec.structs.replace(begin(PLAN, 0.0), warm=True)
    late = [interval(5), interval(4), interval(5)]
    state = tick(PLAN, state, 70.0, late).state
    assert state.evidence.requests == 40
    assert tick(PLAN, state, 80.0, late).state.evidence == state.evidence


@pytest.mark.parametrize(
    ("on_timeout", "status", "outcome"),
    [(OnTimeout.ROLL_BACK, Status.ROLLED_BACK, LookOutcome.ROLL_BACK), (OnTimeout.HOLD, Status.HELD, LookOutcome.WAIT)],
)
def test_a_step_that_takes_too_long_ends_as_the_plan_says(on_timeout: OnTimeout, status: Status, outcome: LookOutcome) -> None:
    plan = msgspec.structs.replace(PLAN, on_timeout=on_timeout)
    look = watch(plan, begin(plan, 0.0), 100, requests=0)
    assert (look.state.status, look.outcome) == (status, outcome)
    assert look.state.reason == "10 %: no decision within 600 s (0 of 10 requests)"


def test_a_step_does_not_pass_before_anything_could_be_judged() -> None:
    plan = RolloutPlan("r1", STEPS, terms=ComparisonTerms(margins={"itl": 0.05}, min_samples=500), warm_up_s=0, warm_up_requests=0)
    state = begin(plan, 0.0)
    look = watch(plan, state, 24)  # 240 s and 480 requests, where the step asks for 60 s and 10
    assert (look.outcome, look.state.evidence.requests) == (LookOutcome.STAY, 480)
    look = watch(plan, look.state, 60, start=24)
    assert (look.outcome, look.state.reason) == (LookOutcome.GO_ON, "10 %: passed")
    starved = watch(plan, state, 61, requests=2)
    assert (starved.outcome, starved.state.spent_s) == (LookOutcome.ROLL_BACK, 600.0)
    assert "no metric has 500 samples of the canary (min_samples)" in starved.state.reason


def test_one_gateway_alone_only_sends_a_worse_version_back() -> None:
    state = begin(PLAN, 0.0)
    good, why = only_judged(PLAN, state, [interval(index) for index in range(60)])
    assert (good.status, good.phase, good.evidence.requests > 1000, why) == (Status.RUNNING, 0, True, "")  # tick would have gone on
    bad, why = only_judged(PLAN, state, [interval(index, times=1.5) for index in range(60)])
    assert (bad.status, "inter-token latency" in why) == (Status.RUNNING, True)
    back = sent_back(bad, why)
    assert (back.status, back.reason) == (Status.ROLLED_BACK, f"while the database was away or busy: {why}")
    assert only_judged(PLAN, back, [interval(61, times=1.5)]) == (back, "")
    assert sent_back(back, "again") == back


def test_who_is_held_stays_until_somebody_promotes() -> None:
    plan = msgspec.structs.replace(PLAN, on_timeout=OnTimeout.HOLD)
    held = watch(plan, begin(plan, 0.0), 100, requests=0).state
    later = tick(plan, held, 5000.0, [interval(100)])
    assert (later.outcome, shares(plan, later.state)) == (LookOutcome.WAIT, Shares(0.1))
    assert shares(plan, promote(plan, later.state, 5010.0).state) == Shares(0.5)


def test_a_gate_waits_and_still_goes_back_for_a_worse_version() -> None:
    plan = msgspec.structs.replace(PLAN, steps=(msgspec.structs.replace(STEPS[0], gate=True), *STEPS[1:]))
    look = watch(plan, begin(plan, 0.0), 100)
    assert (look.outcome, look.state.status) == (LookOutcome.WAIT, Status.AT_GATE)
    assert look.state.reason == "10 %: passed, waits to be promoted"
    start = look.state.next_interval
    assert watch(plan, look.state, start + 200, start=start).state.status is Status.AT_GATE
    assert watch(plan, look.state, start + 200, times=2.0, start=start).outcome is LookOutcome.ROLL_BACK
    assert promote(plan, look.state, 1e4).outcome is LookOutcome.GO_ON


def test_time_stands_still_in_a_pause_and_when_the_clock_goes_back() -> None:
    state = pause(begin(PLAN, 0.0), 50.0)
    look = tick(PLAN, state, 5000.0)
    assert (look.outcome, look.state.spent_s) == (LookOutcome.STAY, 50.0)
    state = tick(PLAN, resume(look.state, 6000.0), 5990.0).state
    assert (state.spent_s, state.seen_at) == (50.0, 6000.0)


def test_a_shadow_comes_first_and_gets_no_answers_to_give() -> None:
    plan = msgspec.structs.replace(PLAN, shadow=RolloutStep(0.3, 10, 60, 600))
    state = begin(plan, 0.0)
    assert shares(plan, state) == Shares(0.0, mirrored=0.3)
    look = watch(plan, state, 100)
    assert (look.outcome, look.state.reason) == (LookOutcome.GO_ON, "shadow: passed")
    assert shares(plan, look.state) == Shares(0.1)


def test_an_abort_says_why_and_is_final() -> None:
    state = abort(PLAN, begin(PLAN, 0.0), 10.0, "wrong weights").state
    assert (state.status, state.reason) == (Status.ROLLED_BACK, "aborted: wrong weights")
    for event in EVENTS[1:]:
        with pytest.raises(NotNow, match="rolled back"):
            event(PLAN, state, 20.0)
    assert tick(PLAN, state, 30.0, [interval(3)]).state == state


def test_a_state_can_be_stored() -> None:
    state = watch(PLAN, begin(PLAN, 0.0), 12).state
    assert msgspec.json.decode(msgspec.json.encode(state), type=RolloutState) == state


def ticks(times: float, requests: int) -> Callable[[RolloutPlan, RolloutState, float], RolloutState]:
    def event(plan: RolloutPlan, state: RolloutState, now: float) -> RolloutState:
        first = state.next_interval
        return tick(plan, state, now, [interval(i, times, requests) for i in range(first, min(first + 40, int(now // 10)))]).state

    return event


EVENTS: list[Callable[[RolloutPlan, RolloutState, float], RolloutState]] = [
    ticks(1.0, 20),
    lambda plan, state, now: pause(state, now),
    lambda plan, state, now: resume(state, now),
    lambda plan, state, now: promote(plan, state, now).state,
    lambda plan, state, now: abort(plan, state, now, "said so").state,
]
ALL_EVENTS = {
    **dict(zip(["tick", "pause", "resume", "promote", "abort"], EVENTS, strict=True)),
    "bad": ticks(3.0, 20),
    "silent": ticks(1.0, 0),
}


@given(
    st.lists(st.tuples(st.sampled_from(["tick"] * 4 + list(ALL_EVENTS)), st.floats(-50, 600)), max_size=40),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.booleans(),
    st.sampled_from(OnTimeout),
)
def test_whatever_happens(events: list[tuple[str, float]], gates: list[bool], shadow: bool, on_timeout: OnTimeout) -> None:
    steps = tuple(RolloutStep(share, 10, 60, 600, gate=gate) for share, gate in zip((0.1, 0.3, 0.6), gates, strict=True))
    plan = RolloutPlan("r1", (*steps, RolloutStep(1.0)), RolloutStep(0.2) if shadow else None, TERMS, 30, 5, 20, on_timeout)
    state, now = begin(plan, 0.0), 0.0
    for name, passed in events:
        now += passed
        before = state
        try:
            state = ALL_EVENTS[name](plan, state, now)
        except NotNow:
            assert state is before
            continue
        # one phase at a time, and never past a gate by itself
        assert before.phase <= state.phase <= before.phase + 1
        if state.phase > before.phase and name != "promote":
            assert not plan.named()[before.phase][1].gate
            assert before.status is Status.RUNNING
        # what is over is over, and what failed has no share
        if before.status in OVER:
            assert state == before
        if state.status is Status.ROLLED_BACK:
            assert shares(plan, state) == Shares(0.0)
        # nothing but going on changes a share
        elif state.phase == before.phase:
            assert shares(plan, state) == shares(plan, before)
        assert shares(plan, state).live < 1 or state.status is Status.DONE
        assert state.seen_at >= before.seen_at


@pytest.mark.parametrize(("times", "found"), [(1.3, "worse: inter-token latency"), (1.0, "good enough: inter-token latency")])
def test_an_experiment_says_what_it_found_and_changes_nothing(times: float, found: str) -> None:
    plan = RolloutPlan(
        "e1", (RolloutStep(0.5, 10, 0, 7200, StepNeeds.GOOD_ENOUGH, gate=True), RolloutStep(1.0)), terms=TERMS, warm_up_s=30, acts=False
    )
    look = watch(plan, begin(plan, 0.0), 700, times)
    assert look.state.status is Status.AT_GATE
    assert found in look.state.reason
    assert shares(plan, look.state) == Shares(0.5)


@given(st.integers(0, 300), st.sampled_from([0.8, 1.0, 1.3]))
def test_what_is_stored_is_what_was(intervals: int, times: float) -> None:
    state = begin(PLAN, 0.0)
    for index in range(intervals):
        state = tick(PLAN, state, (index + 1) * 10.0, [interval(index, times)]).state
    assert msgspec.json.decode(msgspec.json.encode(state), type=RolloutState) == state


def test_only_what_came_to_its_end_is_closed() -> None:
    state = begin(PLAN, 0.0)
    for wrong, said in (
        (state, "running cannot be closed"),
        (pause(state, 1.0), "paused"),
        (abort(PLAN, state, 1.0, "x").state, "already"),
    ):
        with pytest.raises(NotNow, match=said):
            close(PLAN, wrong)
    done = promote(PLAN, promote(PLAN, state, 1.0).state, 2.0).state
    assert close(PLAN, done).status is Status.DONE
    at_gate = msgspec.structs.replace(state, status=Status.AT_GATE)
    with pytest.raises(NotNow, match="promote it until it is done, or abort it"):
        close(PLAN, at_gate)
    experiment = msgspec.structs.replace(PLAN, acts=False)
    assert close(experiment, at_gate).reason == "closed; started"
