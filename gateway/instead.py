"""Another model answers instead: the step of `lifecycle.py` between one model's failure and the next one's turn.

Each model has a Story and an id of its own, so that nothing of an attempt that still ends somewhere can reach into the next one, no engine
can take one for the other, and each reservation is for one model at its price. There is still one Record: that of the model that
answered, or of the one that was asked for where none could.
"""

from typing import Final

from domain.ask import Ask
from domain.faults import Fault, Kind
from domain.usage import NO_USAGE
from gateway.coming_under import apply_policy
from gateway.deps import Deps
from gateway.http.edge.exchange import Exchange
from gateway.open_holds import OpenHold
from gateway.queueing.places import may_wait_s
from gateway.record import Fell
from gateway.rollouts.dealing import gave_up
from gateway.story import Story
from gateway.uncancelled import uncancelled
from policies.compile import ModelRule
from tenancy.grant import Grant
from tenancy.limits import UNUSED

OVER: Final = frozenset({Kind.CLIENT_GONE, Kind.SLOW_READER, Kind.DEADLINE_PASSED, Kind.SHUTTING_DOWN})
"""Ends of the request itself, whichever model it was with."""


def fall_back(fault: Fault, grant: Grant, exchange: Exchange, story: Story, deps: Deps) -> tuple[Ask, ModelRule, Story]:
    """The request as it is for the next model of its chain, that model, and its Story.

    Time goes on: the next model's turn has to come within what is left of the wait that the first one's policy, class and caller
    allowed, and who said with `x-tidegate-timeout-s` when it no longer needs an engine is not given one after that.

    Raises:
        Fault: this one, where nothing else may answer: an answer has begun, engines die of the request, its caller has left, its time
            is over, or no model is named for this. Where others have failed as well, that of the model that was asked for: it is the
            one that its caller knows, and whose return it can wait for.
    """
    chain, first = story.chain, story.first or story
    over = exchange.finished or exchange.gone or fault.kind in OVER
    if chain is None or story.events or story.deadly or over:
        raise fault
    waited_s = deps.clock() - story.body_at
    in_time = waited_s < first.asked_wait_s and deps.clock() < story.end_at
    next_ = chain.after(fault.kind, story.model) if in_time else None
    while next_ is not None:
        found, on = next_
        made = story.instead(deps.new_id(), deps.clock())
        made.asked_wait_s = max(0.0, may_wait_s(first) - waited_s)
        made.fell_back = (*story.fell_back, Fell(story.model, found.model.name, on, fault.kind.value))
        try:
            ask, rule = apply_policy(found, chain.asked, grant, exchange, made, deps)
        except Fault as other:  # it asks for what it may have of the first one, and not of this one
            next_ = chain.after(other.kind, found.model.name)
            continue
        _failed(fault, story, deps)
        return ask, rule, made
    if story.first is None or first.fault is None:
        raise fault
    _failed(fault, story, deps)
    story.as_first(Fell(story.model, "", "", fault.kind.value))
    raise first.fault


def _failed(fault: Fault, story: Story, deps: Deps) -> None:
    story.fault = fault
    fault.let_go()
    gave_up(fault.kind, story, deps)


async def let_go(hold: OpenHold | None, deps: Deps) -> None:
    """Close the hold of a model that another one answers for: as if it had never been sent."""
    if hold is None:
        return
    deps.holds.drop(hold)
    if hold.story.on_used is not None:
        hold.story.on_used(NO_USAGE)
    if not hold.hold.groups:
        return
    try:
        if deps.counters.in_process:
            await deps.counters.settle(hold.hold, UNUSED)
        else:
            await uncancelled(deps.counters.settle(hold.hold, UNUSED))
    except Exception as error:  # noqa: BLE001 - a defect of the counters: its lease ends the hold, and the request goes on
        deps.log_defect(error, hold.story.request_id)
