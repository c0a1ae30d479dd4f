"""The progress of a rollout: its state, and the next state after a look at the evidence or an operator's action.

A state is a value that can be stored; every event makes a new one. Times are wall-clock seconds, so that a rollout outlives the process
that watches it; a clock that goes back counts as standing still. A look advances a rollout by one phase at most, and never past a gate.
A canary that is worse is rolled back in every state, even paused, held or at a gate, and a rollback is final.
"""

from collections.abc import Iterable
from enum import Enum
from math import inf
from typing import Final

import msgspec

from policies.rollout.evidence import Evidence, no_evidence
from policies.rollout.plan import OnTimeout, RolloutPlan, RolloutStep, StepNeeds
from policies.rollout.samples import Interval
from policies.rollout.verdict import Judgement, Verdict, judge


class Status(Enum):
    """The status of a rollout."""

    RUNNING = "running"
    PAUSED = "paused"
    AT_GATE = "at gate"
    HELD = "held"
    ROLLED_BACK = "rolled back"
    DONE = "done"


OVER: Final = frozenset({Status.ROLLED_BACK, Status.DONE})


class LookOutcome(Enum):
    """The outcome of a look."""

    STAY = "stay"
    GO_ON = "go on"
    WAIT = "wait for somebody"
    ROLL_BACK = "roll back"
    DONE = "done"


class NotNow(ValueError):
    """An event that is not allowed in this state; the text says why."""


class Shares(msgspec.Struct, frozen=True):
    """The canary's shares of the traffic, 0 to 1: of conversations answered, and of requests mirrored."""

    live: float
    mirrored: float = 0.0


class RolloutState(msgspec.Struct, frozen=True):
    """The state of one rollout, as it is stored."""

    evidence: Evidence
    entered_at: float
    """When this phase began."""
    seen_at: float
    """When the last event was."""
    status: Status = Status.RUNNING
    phase: int = 0
    """Index into `RolloutPlan.named`."""
    spent_s: float = 0.0
    """Seconds that this phase has run, without pauses and gates."""
    before: int = 0
    """Requests of the canary that were counted before this phase began."""
    warming: int = 0
    """Requests of the canary in intervals that were left out."""
    warm: bool = False
    next_interval: int = 0
    """Index of the first interval that was not processed yet."""
    reason: str = ""
    """The reason of the last change, as text."""


class EventResult(msgspec.Struct, frozen=True):
    """The result of an event: the new state, the outcome, and the verdict behind it."""

    state: RolloutState
    outcome: LookOutcome
    verdict: Verdict


def begin(plan: RolloutPlan, now: float) -> RolloutState:
    """The state of a rollout that starts at `now`."""
    return RolloutState(no_evidence(plan.terms.margins), now, now, next_interval=int(now // plan.terms.interval_s), reason="started")


def shares(plan: RolloutPlan, state: RolloutState) -> Shares:
    """The canary's shares in this state."""
    if state.status is Status.ROLLED_BACK:
        return Shares(0.0)
    _, step = plan.named()[state.phase]
    return Shares(0.0, step.share) if plan.shadow and not state.phase else Shares(step.share)


def tick(plan: RolloutPlan, state: RolloutState, now: float, intervals: Iterable[Interval] = ()) -> EventResult:
    """Look at the evidence and move the rollout on, hold it, or roll it back.

    Args:
        intervals: the intervals closed since the last look, summed over all gateways; intervals already processed are skipped.
    """
    if state.status in OVER:
        outcome = LookOutcome.DONE if state.status is Status.DONE else LookOutcome.ROLL_BACK
        return EventResult(state, outcome, judge(plan.terms, state.evidence))
    state = _with_intervals(plan, _with_time(state, now), intervals)
    verdict = judge(plan.terms, state.evidence)
    if verdict.judgement is Judgement.WORSE and plan.acts:
        return EventResult(_rolled_back(state, verdict.words), LookOutcome.ROLL_BACK, verdict)
    if state.status is not Status.RUNNING:
        return EventResult(state, LookOutcome.STAY if state.status is Status.PAUSED else LookOutcome.WAIT, verdict)
    name, step = plan.named()[state.phase]
    if _passed(step, state, verdict):
        if step.gate:
            result = "passed, waits to be promoted" if plan.acts else f"{verdict.judgement.value}: {verdict.words}"
            waiting = msgspec.structs.replace(state, status=Status.AT_GATE, reason=f"{name}: {result}")
            return EventResult(waiting, LookOutcome.WAIT, verdict)
        return _onward(plan, state, now, f"{name}: passed", verdict)
    if state.spent_s < step.max_s:
        return EventResult(state, LookOutcome.STAY, verdict)
    why = f"{name}: no decision within {step.max_s:,.0f} s ({_lacking(plan, step, state, verdict)})"
    if plan.on_timeout is OnTimeout.ROLL_BACK:
        return EventResult(_rolled_back(state, why), LookOutcome.ROLL_BACK, verdict)
    return EventResult(msgspec.structs.replace(state, status=Status.HELD, reason=why), LookOutcome.WAIT, verdict)


def only_judged(plan: RolloutPlan, state: RolloutState, intervals: Iterable[Interval]) -> tuple[RolloutState, str]:
    """Look at the evidence of one gateway while the database is away, so that a canary that is worse goes back all the same. No step is
    passed, held or timed out: other gateways on the database have evidence of their own.

    Returns:
        The state with the evidence, and why the canary is worse; empty while it is not found worse.
    """
    if state.status in OVER:
        return state, ""
    state = _with_intervals(plan, state, intervals)
    verdict = judge(plan.terms, state.evidence)
    return state, verdict.words if verdict.judgement is Judgement.WORSE and plan.acts else ""


def sent_back(state: RolloutState, why: str) -> RolloutState:
    """The state of a rollout whose canary was found worse while the database was away or busy."""
    return state if state.status in OVER else _rolled_back(state, f"while the database was away or busy: {why}")


def pause(state: RolloutState, now: float) -> RolloutState:
    """Pause a rollout: the share stays, and the time does not count.

    Raises:
        NotNow: unless the rollout is running.
    """
    if state.status is not Status.RUNNING:
        already = "; its time stands still already" if state.status in (Status.AT_GATE, Status.HELD) else ""
        raise NotNow(f"a rollout that is {state.status.value} cannot be paused{already}")
    return msgspec.structs.replace(_with_time(state, now), status=Status.PAUSED, reason="paused")


def resume(state: RolloutState, now: float) -> RolloutState:
    """Resume a paused rollout.

    Raises:
        NotNow: unless the rollout is paused.
    """
    if state.status is not Status.PAUSED:
        instead = "; promote it or abort it" if state.status in (Status.AT_GATE, Status.HELD) else ""
        raise NotNow(f"a rollout that is {state.status.value} cannot be resumed{instead}")
    return msgspec.structs.replace(_with_time(state, now), status=Status.RUNNING, reason="resumed")


def promote(plan: RolloutPlan, state: RolloutState, now: float) -> EventResult:
    """Move on to the next phase whatever this one lacks: past its gate, out of a hold or a pause, or early.

    Raises:
        NotNow: the rollout is over.
    """
    _not_over(state, "promoted")
    name, _ = plan.named()[state.phase]
    return _onward(plan, _with_time(state, now), now, f"{name}: promoted", judge(plan.terms, state.evidence))


def abort(plan: RolloutPlan, state: RolloutState, now: float, why: str) -> EventResult:
    """Roll back to the baseline.

    Raises:
        NotNow: the rollout is over.
    """
    _not_over(state, "aborted")
    return EventResult(_rolled_back(_with_time(state, now), f"aborted: {why}"), LookOutcome.ROLL_BACK, judge(plan.terms, state.evidence))


def close(plan: RolloutPlan, state: RolloutState) -> RolloutState:
    """Close a rollout that has reached all of the traffic, or an experiment that is finished; the canary gets no requests afterwards.

    Raises:
        NotNow: the rollout still runs, or was rolled back, which closes it already.
    """
    if state.status is Status.DONE or (not plan.acts and state.status in (Status.AT_GATE, Status.HELD)):
        return msgspec.structs.replace(state, reason=f"closed; {state.reason}")
    if state.status is Status.ROLLED_BACK:
        raise NotNow("a rollout that is rolled back is closed already")
    raise NotNow(f"a rollout that is {state.status.value} cannot be closed; promote it until it is done, or abort it")


def _not_over(state: RolloutState, event: str) -> None:
    if state.status in OVER:
        raise NotNow(f"a rollout that is {state.status.value} cannot be {event}; start another")


def _with_time(state: RolloutState, now: float) -> RolloutState:
    elapsed = max(0.0, now - state.seen_at)
    spent = state.spent_s + (elapsed if state.status is Status.RUNNING else 0.0)
    return msgspec.structs.replace(state, seen_at=max(now, state.seen_at), spent_s=spent)


def _with_intervals(plan: RolloutPlan, state: RolloutState, intervals: Iterable[Interval]) -> RolloutState:
    evidence = state.evidence
    warming = state.warming
    warm = state.warm
    next_interval = state.next_interval
    for interval in sorted(intervals, key=lambda interval: interval.index):
        if interval.index < next_interval:
            continue
        next_interval = interval.index + 1
        age = interval.index * plan.terms.interval_s - state.entered_at
        warm = warm or (age >= plan.warm_up_s and warming >= plan.warm_up_requests)
        if not warm or (state.phase and age < plan.settle_s):
            warming += interval.canary.requests
        else:
            evidence = evidence.fold(interval)
    return msgspec.structs.replace(state, evidence=evidence, warming=warming, warm=warm, next_interval=next_interval)


def _passed(step: RolloutStep, state: RolloutState, verdict: Verdict) -> bool:
    enough = state.spent_s >= step.min_s and state.evidence.requests - state.before >= step.min_requests
    if step.needs is StepNeeds.NOT_WORSE:
        # "no metric is worse" says nothing while every metric has too few samples to be judged; an experiment has no such step
        return enough and _is_evidence(verdict)
    # a canary that is worse gets here only in an experiment, where that verdict passes the step as well
    return enough and verdict.judgement is not Judgement.UNDECIDED


def _is_evidence(verdict: Verdict) -> bool:
    """Whether at least one metric has the samples that a judgement needs."""
    return any(finding.high < inf for finding in verdict.findings)


def _lacking(plan: RolloutPlan, step: RolloutStep, state: RolloutState, verdict: Verdict) -> str:
    counted = state.evidence.requests - state.before
    if counted < step.min_requests:
        return f"{counted:,} of {step.min_requests:,} requests"
    if not _is_evidence(verdict):
        return f"no metric has {plan.terms.min_samples:,} samples of the canary (min_samples); {verdict.words}"
    return verdict.words


def _onward(plan: RolloutPlan, state: RolloutState, now: float, why: str, verdict: Verdict) -> EventResult:
    next_phase = state.phase + 1
    done = next_phase == len(plan.named()) - 1
    state = RolloutState(
        state.evidence,
        entered_at=max(now, state.seen_at),
        seen_at=max(now, state.seen_at),
        status=Status.DONE if done else Status.RUNNING,
        phase=next_phase,
        before=state.evidence.requests,
        warming=state.warming,
        warm=state.warm,
        next_interval=state.next_interval,
        reason=why,
    )
    return EventResult(state, LookOutcome.DONE if done else LookOutcome.GO_ON, verdict)


def _rolled_back(state: RolloutState, why: str) -> RolloutState:
    return msgspec.structs.replace(state, status=Status.ROLLED_BACK, reason=why)
