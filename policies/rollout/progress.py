"""A rollout under way: what was reached, and what the next look makes of it.

A state is a value that can be stored; every event makes a new one. Times are wall-clock seconds, so that a rollout outlives the process
that watches it; a clock that goes back stands still here. A look goes on by one phase at most and never past a gate. However a rollout
stands, paused, held or at a gate, a canary that is worse goes back, and from there nothing leads on.
"""

from collections.abc import Iterable
from enum import Enum
from typing import Final

import msgspec

from policies.rollout.evidence import Evidence, no_evidence
from policies.rollout.plan import Needs, OnTimeout, Plan, Step
from policies.rollout.samples import Interval
from policies.rollout.verdict import Judgement, Verdict, judge


class Status(Enum):
    """How a rollout stands."""

    RUNNING = "running"
    PAUSED = "paused"
    AT_GATE = "at gate"
    HELD = "held"
    ROLLED_BACK = "rolled back"
    DONE = "done"


OVER: Final = frozenset({Status.ROLLED_BACK, Status.DONE})


class Outcome(Enum):
    """What a look came to."""

    STAY = "stay"
    GO_ON = "go on"
    WAIT = "wait for somebody"
    ROLL_BACK = "roll back"
    DONE = "done"


class NotNow(ValueError):
    """An event that this state has no room for; the text says why."""


class Shares(msgspec.Struct, frozen=True):
    """What the canary gets, 0 to 1."""

    live: float
    mirrored: float = 0.0


class State(msgspec.Struct, frozen=True):
    """One rollout, now."""

    evidence: Evidence
    entered_at: float
    """When this phase began."""
    seen_at: float
    """Of the last event."""
    status: Status = Status.RUNNING
    phase: int = 0
    """Place in `Plan.named`."""
    spent_s: float = 0.0
    """Running time of this phase."""
    before: int = 0
    """Requests counted when this phase began."""
    warming: int = 0
    """Requests of the canary in intervals that were left out."""
    warm: bool = False
    next_interval: int = 0
    """Older ones were counted already."""
    reason: str = ""
    """In words: of the last change."""


class Look(msgspec.Struct, frozen=True):
    """What an event came to."""

    state: State
    outcome: Outcome
    verdict: Verdict


def begin(plan: Plan, now: float) -> State:
    """A rollout that starts now."""
    return State(no_evidence(plan.terms.margins), now, now, next_interval=int(now // plan.terms.interval_s), reason="started")


def shares(plan: Plan, state: State) -> Shares:
    """What the canary gets in this state."""
    if state.status is Status.ROLLED_BACK:
        return Shares(0.0)
    _, step = plan.named()[state.phase]
    return Shares(0.0, step.share) if plan.shadow and not state.phase else Shares(step.share)


def tick(plan: Plan, state: State, now: float, intervals: Iterable[Interval] = ()) -> Look:
    """One look.

    Args:
        intervals: those that have closed since the last look, of all gateways together; older ones are passed over.
    """
    if state.status in OVER:
        outcome = Outcome.DONE if state.status is Status.DONE else Outcome.ROLL_BACK
        return Look(state, outcome, judge(plan.terms, state.evidence))
    state = _counted(plan, _timed(state, now), intervals)
    verdict = judge(plan.terms, state.evidence)
    if verdict.judgement is Judgement.WORSE and plan.acts:
        return Look(_rolled_back(state, verdict.words), Outcome.ROLL_BACK, verdict)
    if state.status is not Status.RUNNING:
        return Look(state, Outcome.STAY if state.status is Status.PAUSED else Outcome.WAIT, verdict)
    name, step = plan.named()[state.phase]
    if _passed(step, state, verdict):
        if step.gate:
            result = "passed, waits to be promoted" if plan.acts else f"{verdict.judgement.value}: {verdict.words}"
            waiting = msgspec.structs.replace(state, status=Status.AT_GATE, reason=f"{name}: {result}")
            return Look(waiting, Outcome.WAIT, verdict)
        return _onward(plan, state, now, f"{name}: passed", verdict)
    if state.spent_s < step.max_s:
        return Look(state, Outcome.STAY, verdict)
    why = f"{name}: no decision within {step.max_s:,.0f} s ({_lacking(step, state, verdict)})"
    if plan.on_timeout is OnTimeout.ROLL_BACK:
        return Look(_rolled_back(state, why), Outcome.ROLL_BACK, verdict)
    return Look(msgspec.structs.replace(state, status=Status.HELD, reason=why), Outcome.WAIT, verdict)


def pause(state: State, now: float) -> State:
    """The share stays; time does not count.

    Raises:
        NotNow: unless it runs.
    """
    if state.status is not Status.RUNNING:
        already = "; its time stands still already" if state.status in (Status.AT_GATE, Status.HELD) else ""
        raise NotNow(f"a rollout that is {state.status.value} cannot be paused{already}")
    return msgspec.structs.replace(_timed(state, now), status=Status.PAUSED, reason="paused")


def resume(state: State, now: float) -> State:
    """On from a pause.

    Raises:
        NotNow: unless it is paused.
    """
    if state.status is not Status.PAUSED:
        instead = "; promote it or abort it" if state.status in (Status.AT_GATE, Status.HELD) else ""
        raise NotNow(f"a rollout that is {state.status.value} cannot be resumed{instead}")
    return msgspec.structs.replace(_timed(state, now), status=Status.RUNNING, reason="resumed")


def promote(plan: Plan, state: State, now: float) -> Look:
    """On to the next phase, whatever this one lacks: past its gate, out of a hold or a pause, or before its time.

    Raises:
        NotNow: of a rollout that is over.
    """
    _not_over(state, "promoted")
    name, _ = plan.named()[state.phase]
    return _onward(plan, _timed(state, now), now, f"{name}: promoted", judge(plan.terms, state.evidence))


def abort(plan: Plan, state: State, now: float, why: str) -> Look:
    """Back to the baseline.

    Raises:
        NotNow: of a rollout that is over.
    """
    _not_over(state, "aborted")
    return Look(_rolled_back(_timed(state, now), f"aborted: {why}"), Outcome.ROLL_BACK, judge(plan.terms, state.evidence))


def close(plan: Plan, state: State) -> State:
    """The end of one that reached all of the traffic, or of an experiment that found something; nobody is on the canary afterwards.

    Raises:
        NotNow: of one that still runs, or was rolled back, which ends by itself.
    """
    if state.status is Status.DONE or (not plan.acts and state.status in (Status.AT_GATE, Status.HELD)):
        return msgspec.structs.replace(state, reason=f"closed; {state.reason}")
    if state.status is Status.ROLLED_BACK:
        raise NotNow("a rollout that is rolled back is closed already")
    raise NotNow(f"a rollout that is {state.status.value} cannot be closed; promote it until it is done, or abort it")


def _not_over(state: State, event: str) -> None:
    if state.status in OVER:
        raise NotNow(f"a rollout that is {state.status.value} cannot be {event}; start another")


def _timed(state: State, now: float) -> State:
    passed = max(0.0, now - state.seen_at)
    spent = state.spent_s + (passed if state.status is Status.RUNNING else 0.0)
    return msgspec.structs.replace(state, seen_at=max(now, state.seen_at), spent_s=spent)


def _counted(plan: Plan, state: State, intervals: Iterable[Interval]) -> State:
    evidence, warming, warm, following = state.evidence, state.warming, state.warm, state.next_interval
    for interval in sorted(intervals, key=lambda interval: interval.index):
        if interval.index < following:
            continue
        following = interval.index + 1
        age = interval.index * plan.terms.interval_s - state.entered_at
        warm = warm or (age >= plan.warm_up_s and warming >= plan.warm_up_requests)
        if not warm or (state.phase and age < plan.settle_s):
            warming += interval.canary.requests
        else:
            evidence = evidence.fold(interval)
    return msgspec.structs.replace(state, evidence=evidence, warming=warming, warm=warm, next_interval=following)


def _passed(step: Step, state: State, verdict: Verdict) -> bool:
    enough = state.spent_s >= step.min_s and state.evidence.requests - state.before >= step.min_requests
    # whoever is worse and still here is so in an experiment, of which that is an end as well
    return enough and (step.needs is Needs.NOT_WORSE or verdict.judgement is not Judgement.UNDECIDED)


def _lacking(step: Step, state: State, verdict: Verdict) -> str:
    counted = state.evidence.requests - state.before
    if counted < step.min_requests:
        return f"{counted:,} of {step.min_requests:,} requests"
    return verdict.words


def _onward(plan: Plan, state: State, now: float, why: str, verdict: Verdict) -> Look:
    following = state.phase + 1
    done = following == len(plan.named()) - 1
    state = State(
        state.evidence,
        entered_at=max(now, state.seen_at),
        seen_at=max(now, state.seen_at),
        status=Status.DONE if done else Status.RUNNING,
        phase=following,
        before=state.evidence.requests,
        warming=state.warming,
        warm=state.warm,
        next_interval=state.next_interval,
        reason=why,
    )
    return Look(state, Outcome.DONE if done else Outcome.GO_ON, verdict)


def _rolled_back(state: State, why: str) -> State:
    return msgspec.structs.replace(state, status=Status.ROLLED_BACK, reason=why)
