"""The forwarding step of `lifecycle.py`: one candidate after the other until an answer begins."""

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from backends.dialects import Dialect, body_for, fit, model_asked
from backends.ports import Call
from domain.ask import Ask
from domain.faults import Fault, Kind
from gateway.adapters import caller_gone, with_held
from gateway.deps import Deps
from gateway.fleet.health_watch import breaker_moved, note_outcome
from gateway.hedging import Race, RacingRelay, race_of
from gateway.http.edge.exchange import Exchange
from gateway.http.edge.relay import ReplyRelay
from gateway.http.edge.taps import PlainTap, RenameTap, StreamTap, Tap
from gateway.placing.lessons import learn
from gateway.placing.placing import Placing
from gateway.placing.salts import salted
from gateway.placing.stake import stake_for
from gateway.queueing.pulling import PulledBack
from gateway.reply_headers import reply_headers
from gateway.sharing import with_prefill
from gateway.story import Story
from gateway.tries import Tries
from routing.fleet import Backend
from routing.room import has_no_room
from routing.schedule import ALONE


async def forward(ask: Ask, placing: Placing, exchange: Exchange, story: Story, deps: Deps) -> bool:
    """Relay the reply of the first candidate that begins to answer. False when it was taken back from one for a more urgent request
    before that (`gateway.queueing.pulling`): it is to wait for another turn.

    Raises:
        Fault: a field that the pool's engines do not follow, or how the last attempt failed. Another candidate is tried only
            before the first byte and within the budget.
    """
    pool, adapter = placing.pool, placing.adapter
    asked = model_asked(deps.dialects[pool.name], pool.model, adapter.served if adapter else "")
    try:
        call = _call(ask, placing, asked, exchange, story, deps)
    except Fault:
        _give_back(placing)
        raise
    first_dispatch = deps.clock()
    story.dispatched_at = first_dispatch
    candidates = placing.route.backends
    fault: Fault | None = None
    tries: Tries | None = None
    race = race_of(ask, placing, exchange, story, deps)

    def times(backend: Backend) -> tuple[float, float]:
        begin_s = deps.patience.begin_s(ask.prompt_bytes, deps.live.prefill.get(backend.id))
        return begin_s if ask.stream else deps.patience.plain_timeout_s, begin_s

    def to(backend: Backend, race: Race | None = None) -> Coroutine[Any, Any, Fault | None]:
        one = partial(_attempt, backend, ask, placing, asked, exchange, story, deps, race)
        return _tried(backend, ask, call, placing, times(backend), exchange, story, deps, one, race)

    for at, backend in enumerate(candidates):
        try:
            fault = await (to(backend) if race is None or at else race.run(partial(to, race=race)))
        finally:
            if tries is not None:
                tries.over()
        if fault is None:
            story.status = 200
            if tries is not None:
                tries.answered()
            return True
        if isinstance(fault, PulledBack):
            return False
        candidates[at + 1 :] = _left(candidates[at + 1 :], placing, deps)
        tries = tries or Tries(ask, story, deps, first_dispatch)
        if not tries.another(fault, backend, candidates[at + 1 :], times(backend)[0]):
            break
    assert fault is not None  # `choose` leaves no empty route
    assert tries is not None
    raise tries.last_word(fault)


def _call(ask: Ask, placing: Placing, asked: str, exchange: Exchange, story: Story, deps: Deps) -> Call:
    """What engines are sent. Raises Fault: a field that the pool's engines do not follow."""
    pool, adapter = placing.pool, placing.adapter
    dialect = deps.dialects[pool.name]
    salt = salted(deps.salts, deps.salt_secret, placing.demand.tenant, pool, adapter).salt if dialect.salts(ask.endpoint) else None
    priority = _priority(dialect, pool.name, ask, story, deps)
    body = body_for(dialect, fit(dialect.fields, ask), asked, cache_salt=salt, priority=priority)
    traceparent, tracestate = exchange.head.trace()
    return Call("POST", ask.endpoint.value, body, story.own_id, traceparent, tracestate)


def _priority(dialect: Dialect, pool: str, ask: Ask, story: Story, deps: Deps) -> bytes:
    """How the engine is told how soon, where the pool says that its engines listen."""
    members = deps.priorities.get(pool)
    if members is None or dialect.priority is None or ask.endpoint not in dialect.priority.endpoints:
        return b""
    return members[story.priority_class] if story.priority_class is not None else b""


def _left(candidates: list[Backend], placing: Placing, deps: Deps) -> list[Backend]:
    """Those that are still there: those with room first, and last who began to fail others meanwhile.

    Where nobody has room a retry goes over the limit by one. It has waited its turn once, its first backend has one request less
    than was let through to it, and how many such there are is bounded by the retry budget.
    """
    left = [one for one in candidates if one.id in deps.upstreams]
    shut, board = deps.live.breakers.shut(placing.served, deps.clock()), placing.ground.board
    if board.limited:
        left.sort(key=lambda one: has_no_room(board, board.row_of[one.id], 1.0) != "")
    return sorted(left, key=lambda one: one.id in shut) if shut else left


async def _staked(
    backend: Backend,
    ask: Ask,
    placing: Placing,
    exchange: Exchange,
    story: Story,
    deps: Deps,
    attempt: Callable[[], Awaitable[Fault | None]],
    race: Race | None = None,
) -> Fault | None:
    """One attempt, counted on its backend for as long as it takes, loading an adapter included."""
    if exchange.gone:
        _give_back(placing)
        return caller_gone()
    if backend.id not in deps.upstreams:
        _give_back(placing)
        return _drained(backend)
    stake = stake_for(placing, backend.id, deps, stream=ask.stream)
    if placing.route.why != ALONE or stake.limiter is not None:
        story.on_begun = stake.begun  # where nobody else is up and nothing is limited, nobody looks how far it is
    if deps.live.breakers.of(backend.id, placing.served).enter(story.own_id, stake.at):
        story.on_begun = partial(_tried_out, backend, placing, story, deps, stake.begun)
    if race is not None:
        story.on_begun = race.hook(backend.id, story.on_begun)
    if story.decision is not None:
        story.decision.served_by = backend.id
    story.charge = stake.charge
    try:
        fault = await attempt()
        if fault is None:
            learn(ask, placing, stake, story, deps)
        return fault
    finally:
        if race is None:
            story.on_begun = None
        stake.over()


def _give_back(placing: Placing) -> None:
    """The place that it was let through to, if it waited: nothing will be sent there, or a stake of its own takes it at once."""
    if placing.staked is not None:
        placing.staked.over()


def _tried_out(backend: Backend, placing: Placing, story: Story, deps: Deps, begun: Callable[[], None]) -> None:
    """The first token of the request that tries a backend whose breaker is half open: others may follow."""
    now = deps.clock()
    if deps.live.breakers.begun(backend.id, placing.served, story.own_id, now):
        breaker_moved(deps.live, backend, now)
    begun()


def _drained(backend: Backend) -> Fault:
    return Fault(Kind.BACKEND_DRAINED, "The engine was taken out of service. Try again.", detail=f"{backend.id} has left the fleet")


async def _tried(
    backend: Backend,
    ask: Ask,
    call: Call,
    placing: Placing,
    within_s: tuple[float, float],
    exchange: Exchange,
    story: Story,
    deps: Deps,
    attempt: Callable[[Call, tuple[float, float]], Awaitable[Fault | None]],
    race: Race | None = None,
) -> Fault | None:
    """One candidate's turn, with what has to happen on it or elsewhere first."""

    def counted(call: Call, within_s: tuple[float, float], reserved: bool) -> Awaitable[Fault | None]:
        one = partial(attempt, call, within_s)
        return one() if reserved else _staked(backend, ask, placing, exchange, story, deps, one, race)

    prefills = story.shared.split.prefills_for(backend) if story.shared is not None else ()
    if prefills:
        _give_back(placing)  # nothing runs between this and the pair's own reservation
        return await with_prefill(prefills, backend, ask, call, within_s, exchange, story, deps, counted)
    story.prefill = ""  # of a pair that failed
    adapter = placing.adapter
    if adapter is None:
        return await counted(call, within_s, False)
    plain = partial(attempt, call, within_s)
    held = partial(with_held, adapter, backend, exchange, story, deps, plain)
    return await _staked(backend, ask, placing, exchange, story, deps, held)


async def _attempt(
    backend: Backend,
    ask: Ask,
    placing: Placing,
    asked: str,
    exchange: Exchange,
    story: Story,
    deps: Deps,
    race: Race | None,
    call: Call,
    within_s: tuple[float, float],
) -> Fault | None:
    """One call to one backend, which is asked for the pool's model or for an adapter; returns when its reply is over."""
    pool = placing.pool
    if exchange.gone:
        return caller_gone()
    way = deps.upstreams.get(backend.id)
    if way is None:
        return _drained(backend)  # while its adapter was loaded
    story.attempts += 1
    story.backend = backend.id
    story.last_event_at = story.first_event_at = story.answer_at = None
    tap: StreamTap | PlainTap
    names: frozenset[str] | None = None
    if deps.dialects[pool.name].answers_as_listed:
        names = deps.live.names.get(backend.id) if asked == pool.model else frozenset((asked,))
    if ask.stream:
        tap = StreamTap(story, deps.clock, choices=ask.choices, include_usage=ask.include_usage, names=names)
    else:
        tap = PlainTap(story, deps.clock, ask.endpoint, choices=ask.choices, names=names)
    # an engine with several names for its model answers in whichever it likes
    own_name_only = story.model == asked and (names is None or len(names) < 2)
    renamed: tuple[Tap, ...] = () if own_name_only else (RenameTap({asked, *(names or ())}, story.model),)
    relay = (ReplyRelay if race is None else RacingRelay)(
        exchange,
        story,
        tap,
        renamed,
        backend=backend.id,
        called=(ask.endpoint, (pool.model, story.lora)),
        headers=lambda: reply_headers(exchange, story, tap.usage, deps, stream=ask.stream),
        first_token_s=within_s[0],
        begin_s=within_s[1],
        patience=deps.patience,
        clock=deps.clock,
        loop=deps.loop,
    )
    exchange.listener = relay if race is None else race.with_one_more(relay)
    deps.watch.add(relay)
    try:
        relay.flight = way.dispatch(call, relay)
        fault = await relay.outcome
    finally:
        relay.outcome.cancel()  # of no effect once it is decided
        if relay.outcome.cancelled() and relay.flight is not None:
            relay.flight.abort()
            relay.flight = None
        deps.watch.forget(relay)
    if tap.usage is not None:
        story.usage = tap.usage
        story.usage_reported = True
    story.cached = tap.cached
    note_outcome(deps.live, backend, placing.served, fault, story.own_id, deps.clock(), deps.rng)
    return fault
