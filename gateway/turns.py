"""The placing step of `lifecycle.py`: where a request goes, and the wait for its turn where nobody has room.

Between a decision and the place that it takes nothing is awaited, so that no two requests take one place: on the plain way the
attempt follows at once, and who waited has its place when it is woken.
"""

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Final

import msgspec

from domain.ask import Ask
from domain.faults import Fault, Kind
from gateway.adapters import caller_gone
from gateway.admission import sticky_key
from gateway.deadly import refuse_deadly
from gateway.degrading import descend, may_degrade
from gateway.deps import Deps
from gateway.http.edge.exchange import Exchange
from gateway.http.edge.taps import HEARTBEAT
from gateway.placing.decisions import decision
from gateway.placing.placing import Placing, longest_context, place_again, place_ask
from gateway.placing.stake import PairStake, Stake
from gateway.queueing import refusals
from gateway.queueing.deadlines import HEADER, asked_wait_s
from gateway.queueing.places import may_wait_s, place_of
from gateway.queueing.waiter import Outlook, Staked, Waiter
from gateway.reply_headers import reply_headers
from gateway.rollouts.dealing import deal, gave_up
from gateway.sharing import shared
from gateway.story import Story
from policies.compile import ModelRule
from policies.rollout.in_force import in_words
from routing.output_length import PRIOR
from routing.room import FULL
from tenancy.estimate import likely_prompt
from tenancy.fair_row import Waiting
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
    caller, policy, headers = story.caller, story.placed_by, exchange.head.headers
    assert caller is not None
    assert policy is not None
    given = headers.get(HEADER)
    if given is not None:
        story.asked_wait_s = min(story.asked_wait_s, asked_wait_s(given))  # of a fallback less is left
    line = deps.lines[rule.pool]
    refused = None
    if may_degrade(ask, headers) and policy.degrade:
        sticky = sticky_key(ask, story.user, story.own_id)
        went = descend(ask, rule, policy, grant.rights, partial(_outlook, story, deps), deps.rng.random(), sticky)
        story.steps, story.passed_over, refused = went.taken, went.passed_over, went.refused
        if went.rule is not rule:
            gave_up(Kind.OVERLOADED, story, deps)
            story.asked_model, story.model = story.asked_model or rule.name, went.rule.name
        other, ask, rule = went.rule is not rule, went.ask, went.rule
        if other and deps.live.rollouts.by_pool:
            rule = deal(rule, ask, caller.tenant, policy, headers, story, deps)
    elif line.waiting:
        may_s = may_wait_s(story)
        refused = line.refusal(_likely_place(ask, may_s, story, deps), may_s, read=False)
    if refused is not None:
        story.queued, fault = refused
        story.pool = rule.pool
        raise fault
    return ask, rule


def _outlook(story: Story, deps: Deps, ask: Ask, rule: ModelRule) -> Outlook | None:
    may_s = may_wait_s(story)
    return deps.lines[rule.pool].outlook(_likely_place(ask, may_s, story, deps), may_s)


def _likely_place(ask: Ask, may_s: float, story: Story, deps: Deps) -> Waiting:
    """Before its prompt is read."""
    return place_of(likely_prompt(ask, None) + 2 * PRIOR.median * max(1, ask.sequences), 0, may_s, story, deps.clock())


async def choose(ask: Ask, rule: ModelRule, exchange: Exchange, story: Story, deps: Deps) -> Placing:
    """Place the Ask on the Fleet as it is now; where nobody has room, or others wait already, wait for its turn first. Suspends beyond
    that only for a prompt that is worth reading and long.

    Raises:
        Fault: CRASHES_ENGINES for what engines have died of; NO_BACKEND when nobody in the pool can serve; CONTEXT_TOO_LONG; OVERLOADED,
            SHUTTING_DOWN or CLIENT_GONE when its turn does not come.
    """
    caller, policy = story.caller, story.placed_by
    assert caller is not None
    assert policy is not None
    begun = deps.clock()
    if deps.live.suspects.guilty:
        refuse_deadly(ask, caller.tenant, story, deps)
    placing = await place_ask(ask, rule, policy, caller.tenant, exchange.head.headers, deps, deps.rng, story.prompt)
    pool = placing.pool
    story.pool, story.revision, story.lora = pool.name, pool.revision, placing.demand.lora
    if pool.halves or pool.name in deps.sharing:
        placing = _shared(ask, placing, story, deps)
    _keep(placing, story, deps)
    if deps.lines[pool.name].waiting or not placing.route.ranked:
        if not placing.route.ranked and not placing.route.full:
            deps.observe_decision(placing.route, deps.clock() - begun)
            raise _nobody(ask, placing, deps)
        took_s = deps.clock() - begun
        placing = await _in_line(ask, placing, exchange, story, deps)
        _keep(placing, story, deps)
        begun = deps.clock() - took_s
    deps.observe_decision(placing.route, deps.clock() - begun)
    return placing


async def choose_again(ask: Ask, placing: Placing, exchange: Exchange, story: Story, deps: Deps) -> Placing:
    """Another turn for one that gave its place on a backend to a more urgent one, within what is left of its time.

    Raises:
        Fault: OVERLOADED, NO_BACKEND, SHUTTING_DOWN or CLIENT_GONE when its turn does not come.
    """
    if exchange.gone:
        raise caller_gone()
    placing = await _in_line(ask, placing, exchange, story, deps)
    _keep(placing, story, deps)
    return placing


def _shared(ask: Ask, placing: Placing, story: Story, deps: Deps) -> Placing:
    route = shared(ask, placing.demand, placing.pool, placing.route, placing.ground.board, story, deps, deps.rng)
    return msgspec.structs.replace(placing, route=route)


def _keep(placing: Placing, story: Story, deps: Deps) -> None:
    """The decision, for those who ask about it; the one after a wait takes the place of the one before."""
    story.route = placing.route
    ids = (story.request_id,) if story.own_id == story.request_id else (story.request_id, story.own_id)
    split = story.shared.split if story.shared is not None else None
    made = story.decision = decision(placing.route, placing.demand, ids, story.at_unix, story.model, placing.pool.name, split)
    deps.decisions.keep(made)
    made.asked_model, made.steps, made.passed_over, made.rule = story.asked_model, story.steps, story.passed_over, story.rule
    if story.fell_back:
        made.fell_back = tuple([one.words for one in story.fell_back])
    if story.dealt is not None or story.dealt_prompt is not None:
        made.rollout = in_words(story.dealt, story.dealt_prompt)
    if story.queued:
        _note_wait(story)


def _note_wait(story: Story) -> None:
    made = story.decision
    if made is not None:
        made.queued, made.queued_s, made.queued_ahead = story.queued, story.queue_s, story.queued_ahead


async def _in_line(ask: Ask, placing: Placing, exchange: Exchange, story: Story, deps: Deps) -> Placing:
    """Wait until there is room and it is its turn. The place on the backend is taken then."""
    line, place = deps.lines[placing.pool.name], _place(placing, story, deps)
    may_s = round(place.deadline - deps.clock(), 1) if story.pulled_back else may_wait_s(story)

    def again() -> Placing | None:
        found = place_again(placing, deps, deps.rng)
        if found.pool.halves or found.pool.name in deps.sharing:
            found = _shared(ask, found, story, deps)
        if found.route.ranked:
            return found
        if found.route.full or not found.pool.up:
            return None  # whoever is away may be back in time
        raise _nobody(ask, found, deps)

    def stake(found: Placing) -> Placing:
        return msgspec.structs.replace(found, staked=_staked(ask, found, story, deps))

    # what it did on a backend that it was taken back from was waiting, too
    since = story.dispatched_at if story.dispatched_at is not None else deps.clock()
    story.dispatched_at = None
    waited_s = story.queue_s
    story.queued = WAITING
    _note_wait(story)
    beat = _beats(deps.patience.heartbeat_s if ask.stream else 0.0, exchange, story, deps)
    waiter = Waiter(place, may_s, again, stake, beat, deps.loop, partial(_lacking, placing, deps))
    exchange.listener = waiter
    try:
        found = await line.wait(waiter)
    finally:
        story.queue_s = waited_s + deps.clock() - since
        story.queued, story.queued_ahead = waiter.word, waiter.ahead
        _note_wait(story)
    story.place, story.on_used = place, lambda usage: line.used(place, usage)
    return found


def _beats(beats_s: float, exchange: Exchange, story: Story, deps: Deps) -> Callable[[float], float]:
    """What sends a heartbeat when it is due, and says when the next one is."""
    beat_at = deps.clock() + beats_s

    def beat(now: float) -> float:
        nonlocal beat_at
        if not beats_s:
            return inf
        if now >= beat_at:
            if not exchange.started:
                exchange.start(reply_headers(exchange, story, None, deps, stream=True))
            exchange.write(HEARTBEAT)
            beat_at = now + beats_s
        return beat_at

    return beat


def _lacking(placing: Placing, deps: Deps) -> dict[str, float]:
    """The backends that lack nothing but room for it, each with the tokens that it would have to compute there."""
    found = place_again(placing, deps, deps.rng)
    prompt = placing.demand.prompt_tokens
    return {one.id: prompt - found.held_tokens(one.id) for one in found.route.excluded if one.reason.startswith(FULL)}


def _place(placing: Placing, story: Story, deps: Deps) -> Waiting:
    """Its place in the line: a new one, or the one that it has kept."""
    if story.pulled_back and story.place is not None:
        return story.place
    demand = placing.demand
    held = max([placing.held_tokens(one.id) for one in placing.pool.up], default=0.0) if demand.chain else 0.0
    cost = demand.prompt_tokens - int(held) + 2 * demand.output_tokens
    return place_of(cost, int(held), may_wait_s(story), story, deps.clock())


def _staked(ask: Ask, placing: Placing, story: Story, deps: Deps) -> Staked:
    first = placing.route.ranked[0][0]
    deps.live.breakers.of(first.id, placing.served).enter(story.own_id, deps.clock())  # before the next one in the line is placed
    pair = story.shared.split.prefills_for(first) if story.shared is not None else ()
    if pair and story.shared is not None:
        return PairStake(story.shared, pair[0], first, deps.clock())
    return Stake(placing, first.id, deps, stream=ask.stream)


def _nobody(ask: Ask, placing: Placing, deps: Deps) -> Fault:
    longest = longest_context(placing)
    if not longest:
        return refusals.nobody(deps.rng.random(), placing.route.explanation().sentence())
    about = "" if placing.demand.exact else "about "
    return Fault(
        Kind.CONTEXT_TOO_LONG,
        f"This model's context is {longest:,} tokens, the prompt has {about}{placing.demand.prompt_tokens:,}. Send less text.",
        param=ask.endpoint.prompt_fields[0],
    )
