"""Model fallback: the step of `lifecycle.py` between the failure of one model and the attempt with the next one.

Each model has its own Story and request id, so that an attempt that is still ending cannot write into the next model's Story, no engine
confuses the two requests, and each reservation is for one model at its price. There is still one Record: of the model that answered, or,
where no model could answer, of the model that was asked for.
"""

from typing import Final

from backends.poison import Suspicion
from domain.ask import Ask
from domain.faults import Fault, Kind
from domain.usage import NO_USAGE
from gateway.deps import Deps
from gateway.http.edge.exchange import Exchange
from gateway.queue.deadlines import may_wait_s
from gateway.record import Fell
from gateway.request.holds import OpenHold
from gateway.request.interpret import apply_policy
from gateway.rollouts.dealing import note_given_up
from gateway.story import Story
from gateway.uncancelled import uncancelled
from policies.compile import ModelRule
from tenancy.grant import Grant
from tenancy.limits import UNUSED

OVER: Final = frozenset(
    {Kind.CLIENT_GONE, Kind.SLOW_READER, Kind.DEADLINE_PASSED, Kind.SHUTTING_DOWN, Kind.CRASHES_ENGINES, Kind.KEY_REVOKED}
)
"""Faults that end the request itself, so that no other model is tried."""


def fall_back(fault: Fault, grant: Grant, exchange: Exchange, story: Story, deps: Deps) -> tuple[Ask, ModelRule, Story]:
    """The request for the next model of its chain, that model's rule, and its Story.

    All models share one waiting time: the next model has what is left of the wait that the first model's policy, class and caller allow,
    and once the caller's `x-tidegate-timeout-s` has passed no engine is called.

    Raises:
        Fault: `fault`, where no other model may answer: an answer has begun, engines were seen to die of the request, its caller has left,
            its time is over, or the policy names no model for this kind of failure. Where other models have failed as well, the fault of
            the model that was asked for: the caller knows that model, and can wait for it to return.
    """
    chain, first = story.asked.chain, story.first or story
    over = exchange.finished or exchange.gone or fault.kind in OVER
    if chain is None or story.attempt.begun or story.tried.suspicion is Suspicion.CONFIRMED or over:
        raise fault
    waited_s = deps.clock() - story.body_at
    in_time = waited_s < first.asked.asked_wait_s and deps.clock() < story.asked.end_at
    next_match = chain.after(fault.kind, story.asked.model) if in_time else None
    while next_match is not None:
        match, condition = next_match
        following = story.instead(deps.new_id(), deps.clock())
        following.asked.asked_wait_s = max(0.0, may_wait_s(first) - waited_s)
        following.fell_back = (
            *story.fell_back,
            Fell(story.asked.model, match.model.name, condition, fault.kind.value, story.guards_record),
        )
        try:
            ask, rule = apply_policy(match, chain.asked, grant, exchange, following, deps)
        except Fault as refusal:  # the first model's policy allows the request's parameters, and this model's does not
            next_match = chain.after(refusal.kind, match.model.name)
            continue
        _note_failure(fault, story, deps)
        return ask, rule, following
    if story.first is None or first.settled.fault is None:
        raise fault
    _note_failure(fault, story, deps)
    story.as_first(Fell(story.asked.model, "", "", fault.kind.value, story.guards_record))
    raise first.settled.fault


def _note_failure(fault: Fault, story: Story, deps: Deps) -> None:
    story.settled.fault = fault
    fault.drop_traceback()
    note_given_up(fault.kind, story, deps)


async def release_hold(hold: OpenHold | None, deps: Deps) -> None:
    """Close the hold of a failed model that another model answers for; nothing is charged, as if the request had never been sent."""
    if hold is None:
        return
    deps.holds.drop(hold)
    if hold.story.placed.on_used is not None:
        hold.story.placed.on_used(NO_USAGE)
    if not hold.hold.groups:
        return
    try:
        if deps.counters.in_process:
            await deps.counters.settle(hold.hold, UNUSED)
        else:
            await uncancelled(deps.counters.settle(hold.hold, UNUSED))
    except Exception as error:  # noqa: BLE001 - a defect of the counters: its lease ends the hold, and the request goes on
        deps.log_defect(error, hold.story.gateway_id)
