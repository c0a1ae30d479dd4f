"""Another model answers instead: the step of `lifecycle.py` between one model's failure and the next one's turn.

Each model has a Story and an id of its own, so that an attempt that still ends somewhere cannot reach into the next model's, no engine
can take one request for the other, and each reservation is for one model at its price. There is still one Record: that of the model that
answered, or of the model that was asked for where none could.
"""

from typing import Final

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

OVER: Final = frozenset({Kind.CLIENT_GONE, Kind.SLOW_READER, Kind.DEADLINE_PASSED, Kind.SHUTTING_DOWN})
"""Ends of the request itself, whichever model it was with."""


def fall_back(fault: Fault, grant: Grant, exchange: Exchange, story: Story, deps: Deps) -> tuple[Ask, ModelRule, Story]:
    """The request as it is for the next model of its chain, that model, and its Story.

    Time goes on: the next model's turn has to come within what is left of the wait that the first model's policy, class and caller
    allowed, and a request whose `x-tidegate-timeout-s` has passed gets no engine any more.

    Raises:
        Fault: `fault`, where no other model may answer: an answer has begun, engines die of the request, its caller has left, its time
            is over, or no model is named for this kind of failure. Where other models have failed as well, the fault of the model that
            was asked for: its caller knows that model, and can wait for it to return.
    """
    chain, first = story.asked.chain, story.first or story
    over = exchange.finished or exchange.gone or fault.kind in OVER
    if chain is None or story.attempt.events or story.tried.deadly or over:
        raise fault
    waited_s = deps.clock() - story.body_at
    in_time = waited_s < first.asked.asked_wait_s and deps.clock() < story.asked.end_at
    next_ = chain.after(fault.kind, story.asked.model) if in_time else None
    while next_ is not None:
        match, condition = next_
        following = story.instead(deps.new_id(), deps.clock())
        following.asked.asked_wait_s = max(0.0, may_wait_s(first) - waited_s)
        following.fell_back = (*story.fell_back, Fell(story.asked.model, match.model.name, condition, fault.kind.value))
        try:
            ask, rule = apply_policy(match, chain.asked, grant, exchange, following, deps)
        except Fault as refusal:  # the request asks for what it may have of the first model, and not of this one
            next_ = chain.after(refusal.kind, match.model.name)
            continue
        _failed(fault, story, deps)
        return ask, rule, following
    if story.first is None or first.settled.fault is None:
        raise fault
    _failed(fault, story, deps)
    story.as_first(Fell(story.asked.model, "", "", fault.kind.value))
    raise first.settled.fault


def _failed(fault: Fault, story: Story, deps: Deps) -> None:
    story.settled.fault = fault
    fault.drop_traceback()
    note_given_up(fault.kind, story, deps)


async def release_hold(hold: OpenHold | None, deps: Deps) -> None:
    """Close the hold of a model that another one answers for: as if the request had never been sent."""
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
        deps.log_defect(error, hold.story.request_id)
