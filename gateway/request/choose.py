"""The placement step of `lifecycle.py`: where a request goes, and the wait in the queue where no backend has capacity.

Between a decision and the place that the request takes nothing is awaited, so no two requests take one place: on the plain way the attempt
follows at once, and a request that waited has its place already when it is woken.
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
from gateway.placement.in_flight import InFlight, InFlightPair
from gateway.placement.place import Placement, decide, longest_context, prepare, routed
from gateway.queue import refusals
from gateway.queue.deadlines import HEADER, asked_wait_s, may_wait_s, place_of
from gateway.queue.waiter import Reserved, Waiter, WaitForecast
from gateway.request.degrade import HEADER as NO_STEPS
from gateway.request.degrade import descend, may_degrade
from gateway.request.permissions import sticky_key
from gateway.request.prefill import split_request
from gateway.request.reply_headers import reply_headers
from gateway.request.retry import refuse_deadly
from gateway.rollouts.dealing import deal, note_given_up
from gateway.story import Story
from policies.compile import ModelRule
from policies.rollout.in_force import in_words
from routing.output_length import PRIOR
from routing.room import FULL
from routing.schedule import place
from tenancy.estimate import likely_prompt
from tenancy.fair_tier import QueuedRequest
from tenancy.grant import Grant

WAITING: Final = "waiting"


def look_ahead(ask: Ask, rule: ModelRule, grant: Grant, exchange: Exchange, story: Story, deps: Deps) -> tuple[Ask, ModelRule]:
    """Refuse what would only wait in vain, before its prompt is read or its limits are asked: what is refused in an overload has to
    cost next to nothing. Where the tenant's policy has a ladder for it, the request goes down that first: what comes back is what is
    served, by which model.

    Raises:
        Fault: INVALID_VALUE for a bad `x-tidegate-timeout-s` or `x-tidegate-degrade`; OVERLOADED when its turn would come too late,
            or there is no room to wait.
    """
    asked, headers = story.asked, exchange.head.headers
    caller, policy = asked.caller, asked.tenant_policy
    assert caller is not None
    assert policy is not None
    given = headers.get(HEADER)
    if given is not None:
        asked.asked_wait_s = min(asked.asked_wait_s, asked_wait_s(given))  # of a fallback less is left
    queue = deps.queues[rule.pool]
    refused = None
    if (policy.degrade or NO_STEPS in headers) and may_degrade(ask, headers) and policy.degrade:
        sticky = sticky_key(ask, asked.user, story.own_id)
        descent = descend(ask, rule, policy, grant.rights, partial(_outlook, story, deps), deps.rng.random(), sticky)
        ask, refused = descent.ask, descent.refused
        asked.steps = descent.taken
        asked.passed_over = descent.passed_over
        if descent.rule is not rule:
            note_given_up(Kind.OVERLOADED, story, deps)
            asked.asked_model = asked.asked_model or rule.name
            rule = descent.rule
            asked.model = rule.name
            if deps.live.rollouts.by_pool:
                rule = deal(rule, ask, caller.tenant, policy, headers, story, deps)
    elif queue.waiting:
        may_s = may_wait_s(story)
        refused = queue.refusal(_likely_place(ask, may_s, story, deps), may_s, read=False)
    if refused is not None:
        story.placed.queued, fault = refused
        story.placed.pool = rule.pool
        raise fault
    return ask, rule


def _outlook(story: Story, deps: Deps, ask: Ask, rule: ModelRule) -> WaitForecast | None:
    may_s = may_wait_s(story)
    return deps.queues[rule.pool].outlook(_likely_place(ask, may_s, story, deps), may_s)


def _likely_place(ask: Ask, may_s: float, story: Story, deps: Deps) -> QueuedRequest:
    """Its place in the queue, estimated before its prompt is read."""
    return place_of(likely_prompt(ask, None) + 2 * PRIOR.median * max(1, ask.sequences), 0, may_s, story, deps.clock())


async def choose(ask: Ask, rule: ModelRule, exchange: Exchange, story: Story, deps: Deps) -> Placement:
    """Place the Ask on the Fleet as it is now; where no backend has room, or others wait already, wait for its turn first. Suspends beyond
    that only for a prompt that is worth reading and long.

    Raises:
        Fault: CRASHES_ENGINES for a request that engines have died of; NO_BACKEND when no backend of the pool can serve; CONTEXT_TOO_LONG;
            OVERLOADED, SHUTTING_DOWN or CLIENT_GONE when its turn does not come.
    """
    placed = story.placed
    begun = deps.clock()
    if deps.live.suspects.guilty:
        assert story.asked.caller is not None
        refuse_deadly(ask, story.asked.caller.tenant, story, deps)
    placement = await prepare(ask, rule, exchange.head.headers, story, deps)
    pool, load_table = placement.pool, placement.pool_state.load_table
    route = place(placement.request, pool, load_table, placement.policy_instance, placement.circumstances, deps.rng)
    placement = msgspec.structs.replace(placement, route=route) if placement.adapter is None else routed(placement, route)
    placed.pool, placed.revision, placed.lora = pool.name, pool.revision, placement.request.lora
    if pool.has_roles or pool.name in deps.sharing:
        placement = _split(ask, placement, story, deps)
    _keep(placement, story, deps)
    if deps.queues[pool.name].waiting or not placement.route.ranked:
        if not placement.route.ranked and not placement.route.full:
            if deps.observe_decision is not None:
                deps.observe_decision(placement.route, deps.clock() - begun)
            raise _nobody(ask, placement, deps)
        took_s = deps.clock() - begun
        placement = await _in_queue(ask, placement, exchange, story, deps)
        _keep(placement, story, deps)
        begun = deps.clock() - took_s
    if deps.observe_decision is not None:
        deps.observe_decision(placement.route, deps.clock() - begun)
    return placement


async def choose_again(ask: Ask, placement: Placement, exchange: Exchange, story: Story, deps: Deps) -> Placement:
    """Another turn for a request that gave its place on a backend to a more urgent one, within what is left of its time.

    Raises:
        Fault: OVERLOADED, NO_BACKEND, SHUTTING_DOWN or CLIENT_GONE when its turn does not come.
    """
    if exchange.gone:
        raise caller_gone()
    placement = await _in_queue(ask, placement, exchange, story, deps)
    _keep(placement, story, deps)
    return placement


def _split(ask: Ask, placement: Placement, story: Story, deps: Deps) -> Placement:
    return msgspec.structs.replace(placement, route=split_request(ask, placement, story, deps, deps.rng))


def _keep(placement: Placement, story: Story, deps: Deps) -> None:
    """Keep the decision for `tidegate explain`; the decision after a wait takes the place of the one before."""
    asked, placed = story.asked, story.placed
    placed.route = placement.route
    ids = (story.request_id,) if story.own_id == story.request_id else (story.request_id, story.own_id)
    kept = placed.decision = decision(placement.route, placement.request, ids, story.at_unix, asked.model, placement.pool.name)
    kept.split = placed.shared.split if placed.shared is not None else None
    deps.decisions.keep(kept)
    kept.asked_model, kept.steps, kept.passed_over, kept.rule = asked.asked_model, asked.steps, asked.passed_over, asked.rule
    if story.fell_back:
        kept.fell_back = tuple([step.words for step in story.fell_back])
    if asked.dealt is not None or asked.dealt_prompt is not None:
        kept.rollout = in_words(asked.dealt, asked.dealt_prompt)
    if placed.queued:
        _note_wait(story)


def _note_wait(story: Story) -> None:
    placed = story.placed
    if placed.decision is not None:
        placed.decision.queued = placed.queued
        placed.decision.queued_s = story.queue_s
        placed.decision.queued_ahead = placed.queued_ahead


async def _in_queue(ask: Ask, placement: Placement, exchange: Exchange, story: Story, deps: Deps) -> Placement:
    """Wait until there is room and it is the request's turn. Its place on the backend is taken then."""
    queue, place, waiting = deps.queues[placement.pool.name], _place(placement, story, deps), story.placed
    may_s = round(place.deadline - deps.clock(), 1) if waiting.pulled_back else may_wait_s(story)

    def again() -> Placement | None:
        placed = decide(placement, deps, deps.rng)
        if placed.pool.has_roles or placed.pool.name in deps.sharing:
            placed = _split(ask, placed, story, deps)
        if placed.route.ranked:
            return placed
        if placed.route.full or not placed.pool.up:
            return None  # backends that are away may be back in time
        raise _nobody(ask, placed, deps)

    def reserve(placed: Placement) -> Placement:
        return msgspec.structs.replace(placed, reserved=_staked(ask, placed, story, deps))

    # the time on a backend that the request was taken back from was waiting, too
    since = story.dispatched_at if story.dispatched_at is not None else deps.clock()
    story.dispatched_at = None
    waited_s = story.queue_s
    waiting.queued = WAITING
    _note_wait(story)
    heartbeat = Heartbeat(
        exchange,
        lambda: reply_headers(exchange, story, None, deps, stream=True),
        deps.timeouts.heartbeat_s if ask.stream else 0.0,
        deps.clock(),
    )
    waiter = Waiter(place, may_s, again, reserve, heartbeat.beat, deps.loop, partial(_lacking, placement, deps))
    exchange.listener = waiter
    try:
        placed = await queue.wait(waiter)
    finally:
        story.queue_s = waited_s + deps.clock() - since
        waiting.queued, waiting.queued_ahead = waiter.word, waiter.ahead
        _note_wait(story)
    waiting.queue_place, waiting.on_used = place, lambda usage: queue.used(place, usage)
    return placed


def _lacking(placement: Placement, deps: Deps) -> dict[str, float]:
    """The backends that lack nothing but room for the request, each with the tokens that it would have to compute there."""
    placed = decide(placement, deps, deps.rng)
    prompt = placement.request.prompt_tokens
    return {backend.id: prompt - placed.held_tokens(backend.id) for backend in placed.route.excluded if backend.reason.startswith(FULL)}


def _place(placement: Placement, story: Story, deps: Deps) -> QueuedRequest:
    """The request's place in the queue: a new one, or the one that it has kept."""
    waited = story.placed
    if waited.pulled_back and waited.queue_place is not None:
        return waited.queue_place
    request = placement.request
    held = max([placement.held_tokens(backend.id) for backend in placement.pool.up], default=0.0) if request.chain else 0.0
    cost = request.prompt_tokens - int(held) + 2 * request.output_tokens
    return place_of(cost, int(held), may_wait_s(story), story, deps.clock())


def _staked(ask: Ask, placement: Placement, story: Story, deps: Deps) -> Reserved:
    """Reserve the request's load on the first backend of its route, before the next one in the queue is placed."""
    first = placement.route.ranked[0][0]
    if deps.live.breakers.troubled:
        deps.live.breakers.of(first.id, placement.served).enter(story.own_id, deps.clock())
    shared = story.placed.shared
    prefills = shared.split.prefills_for(first) if shared is not None else ()
    if prefills and shared is not None:
        return InFlightPair(shared, prefills[0], first, deps.clock())
    return InFlight(placement, first.id, deps, stream=ask.stream)


def _nobody(ask: Ask, placement: Placement, deps: Deps) -> Fault:
    """Why no backend of the pool, busy or not, can serve the request."""
    longest = longest_context(placement)
    if not longest:
        return refusals.nobody(deps.rng.random(), placement.route.explanation().sentence())
    about = "" if placement.request.exact else "about "
    return Fault(
        Kind.CONTEXT_TOO_LONG,
        f"This model's context is {longest:,} tokens, the prompt has {about}{placement.request.prompt_tokens:,}. Send less text.",
        param=ask.endpoint.prompt_fields[0],
    )
