"""The placement step of `lifecycle.py`: the routing decision, and the wait in the queue where no backend has capacity, or none a slot
for the request's adapter.

Nothing is awaited between a routing decision and the reservation of the request's load, so two requests never take the same capacity: a
request that need not wait is sent right after the decision, and the load of a request that waited is reserved before its task is woken.
"""

from functools import partial
from typing import Final

import msgspec

from domain.ask import Ask
from domain.faults import Fault, Kind
from gateway.deps import Deps
from gateway.http.edge.attempt_faults import caller_gone
from gateway.http.edge.exchange import Exchange
from gateway.http.edge.relay import Heartbeat
from gateway.placement.decisions import decision
from gateway.placement.destination import backends_named
from gateway.placement.in_flight import InFlight, InFlightPair
from gateway.placement.place import Placement, decide, longest_context, prepare, routed
from gateway.queue import refusals
from gateway.queue.deadlines import HEADER as TIMEOUT_HEADER
from gateway.queue.deadlines import asked_wait_s, may_wait_s, place_of
from gateway.queue.waiter import Reserved, Waiter, WaitForecast
from gateway.record import RoutedPrompt
from gateway.request.degrade import HEADER as DEGRADE_HEADER
from gateway.request.degrade import descend, may_degrade
from gateway.request.guards_asked import applying_guards, with_guarded_steps
from gateway.request.look_up import may_hit
from gateway.request.lora import SlotWait
from gateway.request.permissions import sticky_key
from gateway.request.prefill import split_request
from gateway.request.reply_headers import reply_headers
from gateway.request.retry import refuse_deadly
from gateway.rollouts.dealing import deal, note_given_up
from gateway.story import Story
from policies.compile import ModelRule
from policies.rollout.in_force import in_words
from routing.fair_tier import QueuedRequest
from routing.output_length import PRIOR
from routing.ports import Held
from routing.room import FULL, NO_SLOT
from routing.schedule import place
from tenancy.estimate import likely_prompt
from tenancy.grant import Grant

HURRY_SHARE: Final = 0.5
"""Share of its longest wait that a request has left when it takes any backend with room instead of waiting for the best one."""
WAITING: Final = "waiting"
"""The word in `tidegate explain` for a request that still waits."""


def look_ahead(ask: Ask, rule: ModelRule, grant: Grant, exchange: Exchange, story: Story, deps: Deps) -> tuple[Ask, ModelRule]:
    """Refuse a request that would wait in vain, before its prompt is read or its limits are checked: in an overload a refusal has to cost
    next to nothing. Where the tenant's policy has a degradation ladder, the request is degraded first. Returns the Ask and the rule of the
    model that serves it.

    Raises:
        Fault: INVALID_VALUE for a bad `x-tidegate-timeout-s` or `x-tidegate-degrade`; OVERLOADED when its turn would come too late,
            or the queue is full.
    """
    if story.trace is not None:
        story.trace.begin("look_ahead", deps.clock())
    asked, headers = story.asked, exchange.head.headers
    caller, policy = asked.caller, asked.tenant_policy
    assert caller is not None
    assert policy is not None
    timeout = headers.get(TIMEOUT_HEADER)
    if timeout is not None:
        asked.asked_wait_s = min(asked.asked_wait_s, asked_wait_s(timeout))  # a fallback model has less time left
    queue = deps.queues[rule.pool]
    refused = None
    if (policy.degrade or DEGRADE_HEADER in headers) and may_degrade(ask, headers) and policy.degrade:
        sticky = sticky_key(ask, asked.user, story.own_id)
        ladder = with_guarded_steps(policy, asked.rule, ask, caller, headers)
        descent = descend(ask, rule, ladder, grant.rights, partial(_forecast, story, deps), deps.rng.random(), sticky)
        ask, refused = descent.ask, descent.refused
        asked.steps = descent.taken
        asked.passed_over = descent.passed_over
        if descent.rule is not rule:
            note_given_up(Kind.OVERLOADED, story, deps)
            asked.asked_model = asked.asked_model or rule.name
            rule = descent.rule
            asked.model = rule.name
            if policy.guards is not None:
                asked.guards = applying_guards(policy, rule.name, asked.rule, ask, caller, headers)
            if deps.live.rollouts.by_pool:
                rule = deal(rule, ask, caller.tenant, policy, headers, story, deps)
    elif queue.in_line:
        may_s = may_wait_s(story)
        refused = queue.refusal(_likely_entry(ask, rule, may_s, story, deps), may_s, read=False)
    if refused is not None:
        story.placed.queued, fault = refused
        story.placed.pool = rule.pool
        if not may_hit(ask, story, deps):
            raise fault
        story.placed.put_off = fault
    return ask, rule


def _forecast(story: Story, deps: Deps, ask: Ask, rule: ModelRule) -> WaitForecast | None:
    may_s = may_wait_s(story)
    return deps.queues[rule.pool].forecast(_likely_entry(ask, rule, may_s, story, deps), may_s)


def _likely_entry(ask: Ask, rule: ModelRule, may_s: float, story: Story, deps: Deps) -> QueuedRequest:
    """The request's queue entry, estimated before its prompt is read."""
    tokens = likely_prompt(ask, None)
    size_s = tokens * deps.queues[rule.pool].token_s
    return place_of(tokens + 2 * PRIOR.median * max(1, ask.sequences), 0, may_s, story, deps.clock(), size_s)


async def choose(ask: Ask, rule: ModelRule, exchange: Exchange, story: Story, deps: Deps) -> Placement:
    """Route the request on the current fleet; where no backend has capacity, or other requests wait already, it waits in the queue first.
    Otherwise suspends only while a long prompt is read.

    Raises:
        Fault: CRASHES_ENGINES for a request that engines have died of; NO_BACKEND when no backend of the pool can serve; CONTEXT_TOO_LONG;
            LORA_UNAVAILABLE for an adapter that the pool does not have;
            OVERLOADED, SHUTTING_DOWN or CLIENT_GONE when its wait ends without a dispatch.
    """
    if story.trace is not None:
        story.trace.begin("choose", deps.clock())
    placed = story.placed
    begun = deps.clock()
    if deps.live.suspects.guilty:
        assert story.asked.caller is not None
        refuse_deadly(ask, story.asked.caller.tenant, story, deps)
    placement = await prepare(ask, rule, exchange.head.headers, story, deps)
    pool, load_table = placement.pool, placement.pool_state.load_table
    route = place(placement.request, pool, load_table, placement.policy_instance, placement.circumstances, deps.rng)
    placement = msgspec.structs.replace(placement, route=route) if placement.adapter is None else routed(placement, route)
    if placement.destination and not story.asked.shadow:
        placement = _to_named(placement, exchange, deps)
    if placement.route.full and may_wait_s(story) <= 0:
        placement = decide(placement, deps, deps.rng, Held.SEND)
    placed.pool, placed.revision, placed.lora = pool.name, pool.revision, placement.request.lora
    if pool.has_roles or pool.name in deps.sharing:
        placement = _split(ask, placement, story, deps)
    _keep_decision(placement, story, deps)
    queue = deps.queues[pool.name]
    # who needs a slot that is free does not take it from those that wait for one
    if queue.in_line or not placement.route.ranked or (queue.waiting and _needs_load(placement)):
        if not placement.route.ranked and not _may_wait(placement, story, deps):
            if deps.observe_decision is not None:
                deps.observe_decision(placement.route, deps.clock() - begun)
            raise _no_backend(ask, placement, deps)
        took_s = deps.clock() - begun
        placement = await _in_queue(ask, placement, exchange, story, deps)
        _keep_decision(placement, story, deps)
        begun = deps.clock() - took_s
    if deps.observe_decision is not None:
        deps.observe_decision(placement.route, deps.clock() - begun)
    return placement


def _to_named(placement: Placement, exchange: Exchange, deps: Deps) -> Placement:
    """The placement on the engines that the endpoint picker in front has named, where it is trusted and they can take the request."""
    count = deps.count_destination
    if not exchange.from_picker:
        count("untrusted")
        return placement
    pool = deps.live.fleet.pools[placement.pool.name]
    named = backends_named(placement.destination, pool, deps.live.endpoints)
    if not named or pool.has_roles or pool.name in deps.sharing:
        # where two engines share a request, one name is not a pair
        count("passed_over" if named else "unknown")
        return placement
    placement = decide(msgspec.structs.replace(placement, named=named), deps, deps.rng)
    count("taken" if placement.route.ranked and placement.route.ranked[0][0].id in named else "passed_over")
    return placement


async def choose_again(ask: Ask, placement: Placement, exchange: Exchange, story: Story, deps: Deps) -> Placement:
    """Queue a request again that was preempted, or that no engine could be reached for, for the waiting time that it has left, until it is
    dispatched.

    Raises:
        Fault: OVERLOADED, NO_BACKEND, SHUTTING_DOWN or CLIENT_GONE when its wait ends without a dispatch.
    """
    if story.trace is not None:
        story.trace.begin("choose_again", deps.clock())
    placement = await _in_queue(ask, placement, exchange, story, deps)
    _keep_decision(placement, story, deps)
    return placement


def _split(ask: Ask, placement: Placement, story: Story, deps: Deps) -> Placement:
    return msgspec.structs.replace(placement, route=split_request(ask, placement, story, deps, deps.rng))


def _keep_decision(placement: Placement, story: Story, deps: Deps) -> None:
    """Record the decision for `tidegate explain`; the decision after a wait replaces the decision before it."""
    asked, placed = story.asked, story.placed
    placed.route = placement.route
    held = placement.circumstances.match.blocks
    placed.routed = RoutedPrompt(placement.request, int(max(held.values())) if held else 0)
    gateway_id = story.gateway_id
    ids = (gateway_id,) if story.own_id == gateway_id else (gateway_id, story.own_id)
    entry = placed.decision = decision(placement.route, placement.request, ids, story.at_unix, asked.model, placement.pool.name)
    if placed.shared is not None:
        entry.split = placed.shared.split
    if placement.rested_s:
        entry.rested_s = placement.rested_s
    if story.request_id != gateway_id:
        entry.caller_id = story.request_id
    deps.decisions.keep(entry)
    entry.asked_model = asked.asked_model
    entry.steps = asked.steps
    entry.passed_over = asked.passed_over
    entry.rule = asked.rule
    if story.fell_back:
        entry.fell_back = tuple([step.words for step in story.fell_back])
    if asked.dealt is not None or asked.dealt_prompt is not None:
        entry.rollout = in_words(asked.dealt, asked.dealt_prompt)
    if placed.queued:
        _note_wait(story)


def _note_wait(story: Story) -> None:
    placed = story.placed
    if placed.decision is not None:
        placed.decision.queued = placed.queued
        placed.decision.queued_s = story.queue_s
        placed.decision.queued_ahead = placed.queued_ahead


async def _in_queue(ask: Ask, placement: Placement, exchange: Exchange, story: Story, deps: Deps) -> Placement:
    """Wait until the queue dispatches the request; its load is reserved on its backend then."""
    if exchange.gone:
        raise caller_gone()  # while the limits were asked, say: nobody would tell the queue any more
    queue, place, facts = deps.queues[placement.pool.name], _queue_entry(placement, story, deps), story.placed
    may_s = round(place.deadline - deps.clock(), 1) if place.back else may_wait_s(story)
    slots = SlotWait(placement, deps, lacking=placement.route.lacks_slot or (_needs_load(placement) and not queue.in_line))

    def again() -> Placement | None:
        if slots.lacking and not slots.may_be_over():
            return None
        hurries = place.deadline - deps.clock() < HURRY_SHARE * may_s
        routed_now = decide(placement, deps, deps.rng, Held.ELSEWHERE if hurries else Held.WAIT)
        if routed_now.pool.has_roles or routed_now.pool.name in deps.sharing:
            routed_now = _split(ask, routed_now, story, deps)
        slots.lacking = routed_now.route.lacks_slot
        if slots.lacking and _goes_elsewhere(story):
            raise _no_backend(ask, routed_now, deps)
        if routed_now.route.ranked:
            return routed_now
        if routed_now.route.full or not routed_now.pool.up:
            return None  # backends that are away may be back in time
        raise _no_backend(ask, routed_now, deps)

    def reserve(routed_now: Placement) -> Placement:
        return msgspec.structs.replace(routed_now, reserved=_reserved(ask, routed_now, story, deps))

    # a preempted request was on a backend in vain: that time counts as waiting, too
    since = story.dispatched_at if story.dispatched_at is not None else deps.clock()
    story.dispatched_at = None
    waited_s = story.queue_s
    facts.queued = WAITING
    _note_wait(story)

    def head() -> bytes:
        story.queue_s = waited_s + deps.clock() - since  # until now, and so no time of the gateway's own
        return reply_headers(exchange, story, None, deps, stream=True)

    heartbeat = Heartbeat(
        exchange,
        head,
        deps.timeouts.heartbeat_s if ask.stream else 0.0,
        deps.clock(),
    )
    waiter = Waiter(place, may_s, again, reserve, heartbeat.beat, deps.loop, partial(_lacking, placement, deps))
    waiter.lacks_slot = slots.lacks
    exchange.listener = waiter
    try:
        dispatched = await queue.wait(waiter)
    finally:
        now = deps.clock()
        story.queue_s = waited_s + now - since
        facts.queued, facts.queued_ahead = waiter.word, waiter.ahead
        if story.trace is not None:
            story.trace.waits += ((since, now, waiter.word, waiter.ahead),)
        _note_wait(story)
    facts.queue_place, facts.on_used = place, partial(queue.used, place, for_slot=waiter.for_slot)
    return dispatched


def _needs_load(placement: Placement) -> bool:
    """Whether the request's adapter would have to be loaded where it is to go."""
    adapters, ranked = placement.circumstances.adapters, placement.route.ranked
    return adapters is not None and ranked != () and ranked[0][0].id not in adapters.there


def _lacking(placement: Placement, deps: Deps) -> dict[str, float]:
    """The backends that lack only capacity for the request, by id, each with the uncached tokens of its prompt there."""
    routed_now = decide(placement, deps, deps.rng)
    prompt = placement.request.prompt_tokens
    return {
        backend.id: prompt - routed_now.held_tokens(backend.id)
        for backend in routed_now.route.excluded
        if backend.reason.startswith(FULL) and not backend.reason.startswith(NO_SLOT)
    }


def _queue_entry(placement: Placement, story: Story, deps: Deps) -> QueuedRequest:
    """The request's queue entry: a new one, or the one that was made when the request returned to the queue."""
    facts = story.placed
    if facts.queue_place is not None and facts.queue_place.back:
        return facts.queue_place
    request = placement.request
    held = max([placement.held_tokens(backend.id) for backend in placement.pool.up], default=0.0) if request.chain else 0.0
    cost = request.prompt_tokens - int(held) + 2 * request.output_tokens
    return place_of(cost, int(held), may_wait_s(story), story, deps.clock(), _size_s(placement))


def _size_s(placement: Placement) -> float:
    """Seconds to compute the part of the prompt that is not cached, on the backend where that takes least."""
    load_table, tokens = placement.pool_state.load_table, placement.request.prompt_tokens
    rows = [(load_table.row_of[backend.id], placement.held_tokens(backend.id)) for backend in placement.pool.up]
    return min([(tokens - held) * load_table.prefill_s_token[row] for row, held in rows], default=0.0)


def _reserved(ask: Ask, placement: Placement, story: Story, deps: Deps) -> Reserved:
    """Reserve the request's load on the first backend of its route, before the next request in the queue is routed."""
    first = placement.route.ranked[0][0]
    if deps.live.breakers.troubled:
        deps.live.breakers.enter(first.id, placement.served, story.own_id, deps.clock())
    shared = story.placed.shared
    prefills = shared.split.prefills_for(first) if shared is not None else ()
    if prefills and shared is not None:
        return InFlightPair(shared, prefills[0], first, deps.clock())
    return InFlight(placement, first.id, deps, stream=ask.stream)


def _may_wait(placement: Placement, story: Story, deps: Deps) -> bool:
    """Whether a request that no backend takes now waits: for capacity, or for a backend that went away a moment ago. Not in an outage where
    its policy names another model for that case."""
    pool, now = placement.pool, deps.clock()
    if not pool.up and deps.queues[pool.name].waking is not None:
        return _is_held(placement, story, deps)
    out = not pool.up or deps.live.contacts.none_left(pool.up_ids)
    if not out:
        return placement.route.full and not (placement.route.lacks_slot and _goes_elsewhere(story))
    if _goes_elsewhere(story) or may_wait_s(story) <= 0:
        return False
    if pool.up:
        return placement.route.full
    healths = [deps.live.health[backend.id] for backend in pool.backends if backend.id in deps.live.health]
    return any([health.lately_lost(now) for health in healths]) and not longest_context(placement)


def _goes_elsewhere(story: Story) -> bool:
    """Whether the request's policy names another model for when no engine can serve this one."""
    chain = story.asked.chain
    return chain is not None and chain.has_for(Kind.NO_BACKEND)


def _is_held(placement: Placement, story: Story, deps: Deps) -> bool:
    """Whether a request waits for the first engine of a pool that may have none: not where its policy names another model for that case.

    Raises:
        Fault: NO_BACKEND with the time after which an engine is expected, where it cannot be held.
    """
    queue = deps.queues[placement.pool.name]
    waking = queue.waking
    assert waking is not None
    waking.asked()
    if _goes_elsewhere(story):
        return False
    story.placed.held_s = waking.wait_s
    queue.refuse_asleep(_queue_entry(placement, story, deps), may_wait_s(story))
    return True


def _no_backend(ask: Ask, placement: Placement, deps: Deps) -> Fault:
    """The fault of a request that no backend of the pool can serve, busy or not."""
    longest = longest_context(placement)
    if not longest:
        return refusals.nobody(deps.rng.random(), placement.route.explanation().sentence())
    about = "" if placement.request.exact else "about "
    return Fault(
        Kind.CONTEXT_TOO_LONG,
        f"This model's context is {longest:,} tokens, the prompt has {about}{placement.request.prompt_tokens:,}. Send less text.",
        param=ask.prompt_field,
    )
