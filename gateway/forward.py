"""The forwarding step of `lifecycle.py`: one candidate after the other until an answer begins."""

from functools import partial

from backends.attempt import may_retry
from backends.dialects import body_for, fit, model_asked
from backends.loras import Adapter
from backends.ports import Call
from domain.ask import Ask
from domain.faults import NEVER, Fault, Kind
from gateway.adapters import ABOUT_ADAPTERS, caller_gone, with_held
from gateway.deps import Deps
from gateway.fleet.health_watch import note_outcome
from gateway.http.edge.exchange import Exchange
from gateway.http.edge.relay import ReplyRelay
from gateway.http.edge.taps import PlainTap, RenameTap, StreamTap, Tap
from gateway.reply_headers import reply_headers
from gateway.story import Story
from policies.compile import ModelRule
from routing.fleet import Backend, Pool
from routing.schedule import Route
from tenancy.isolation import cache_salt


async def forward(ask: Ask, rule: ModelRule, pool: Pool, route: Route, exchange: Exchange, story: Story, deps: Deps) -> None:
    """Relay the reply of the first candidate that begins to answer.

    Raises:
        Fault: a field that the pool's engines do not follow, or how the last attempt failed. Another candidate is tried only
            before the first byte and within the budget.
    """
    dialect = deps.dialects[pool.name]
    adapter = deps.loras.adapter(pool.name, rule.lora) if rule.lora else None
    salt = _salt(pool, adapter, story, deps) if dialect.salts(ask.endpoint) else None
    asked = model_asked(dialect, pool.model, adapter.served if adapter else "")
    body = body_for(dialect, fit(dialect.fields, ask), asked, cache_salt=salt)
    traceparent, tracestate = exchange.head.trace()
    call = Call("POST", ask.endpoint.value, body, story.own_id, traceparent, tracestate)
    first_dispatch = deps.clock()
    story.dispatched_at = first_dispatch
    budget, candidates = deps.budget, route.backends
    fault: Fault | None = None
    retries, retrying = 0, False
    for at, backend in enumerate(candidates):
        try:
            begin_s = deps.patience.begin_s(ask.prompt_bytes, deps.live.prefill.get(backend.id))
            first_token_s = begin_s if ask.stream else deps.patience.plain_timeout_s
            attempt = partial(_attempt, backend, ask, call, pool, asked, (first_token_s, begin_s), exchange, story, deps)
            fault = await (attempt() if adapter is None else with_held(adapter, backend, exchange, story, deps, attempt))
        finally:
            if retrying:
                budget.retrying -= 1
        retrying = False
        if fault is None:
            story.status = 200
            return
        # an adapter's load is bounded by a time of its own, and says nothing of how fast engines answer
        spent = (deps.clock() - first_dispatch - story.lora_wait_s) / first_token_s
        begun = story.events > 0
        candidates[at + 1 :] = [b for b in candidates[at + 1 :] if b.id in deps.upstreams]  # some may have left meanwhile
        if fault.kind is Kind.LORA_UNAVAILABLE and backend is not candidates[-1]:
            continue  # nothing was sent, so going on is no retry
        if backend is candidates[-1] or not may_retry(fault.kind, retries=retries, answer_begun=begun, spent_share=spent, budget=budget):
            break
        budget.retry()
        retries, retrying = retries + 1, True
        story.failed += (backend.id,)
    assert fault is not None  # `choose` leaves no empty route
    if retries and fault.kind not in (Kind.ENGINE_BUSY, Kind.LORA_UNAVAILABLE):
        # our own retry failed as well, so the caller's would only add to the trouble
        fault.retry, fault.message = NEVER, fault.message.removesuffix(" Try again.")
    raise fault


async def _attempt(
    backend: Backend,
    ask: Ask,
    call: Call,
    pool: Pool,
    asked: str,
    within_s: tuple[float, float],
    exchange: Exchange,
    story: Story,
    deps: Deps,
) -> Fault | None:
    """One call to one backend, which is asked for the pool's model or for an adapter; returns when its reply is over."""
    if exchange.gone:
        return caller_gone()
    way = deps.upstreams.get(backend.id)
    if way is None:
        return Fault(Kind.BACKEND_DRAINED, "The engine was taken out of service. Try again.", detail=f"{backend.id} has left the fleet")
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
        tap = PlainTap(story, deps.clock, choices=ask.choices, names=names)
    # an engine with several names for its model answers in whichever it likes
    own_name_only = story.model == asked and (names is None or len(names) < 2)
    renamed: tuple[Tap, ...] = () if own_name_only else (RenameTap({asked, *(names or ())}, story.model),)
    relay = ReplyRelay(
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
    exchange.listener = relay
    deps.watch.add(relay)
    try:
        deps.load.charge(backend.id)
        relay.flight = way.dispatch(call, relay)
        fault = await relay.outcome
    finally:
        if not relay.outcome.done() and relay.flight is not None:
            relay.flight.abort()  # cancelled while waiting
            relay.flight = None
        deps.load.release(backend.id)
        deps.watch.forget(relay)
    if tap.usage is not None:
        story.usage = tap.usage
        story.usage_reported = True
    if asked == pool.model or fault is None or fault.kind not in ABOUT_ADAPTERS:
        note_outcome(deps.live, backend, fault, deps.clock())
    return fault


def _salt(pool: Pool, adapter: Adapter | None, story: Story, deps: Deps) -> str:
    assert story.caller is not None
    pinned = (adapter.digest,) if adapter is not None else ()
    key = (story.caller.tenant, pool.name, *pinned)
    salt = deps.salts.get(key)
    if salt is None:
        salt = deps.salts[key] = cache_salt(deps.salt_secret, story.caller.tenant, pool.model, pool.revision, *pinned)
    return salt
