"""The forwarding step of `lifecycle.py`: tries one candidate backend after the other until an answer begins."""

from collections.abc import Coroutine
from typing import Any

from backends.dialects import body_for, fit, form_for, model_asked
from backends.ports import Call
from domain.ask import Ask
from domain.faults import Fault
from gateway.deps import Deps
from gateway.http.edge.exchange import Exchange
from gateway.http.edge.head import RequestHead
from gateway.placement.place import Placement
from gateway.queue.preempt import Preempted
from gateway.request.attempt import Attempt
from gateway.request.continuation import continued, engines_left, goes_on, keeps
from gateway.request.hedge import hedged
from gateway.request.lora import with_adapter
from gateway.request.prefill import with_prefill
from gateway.request.retry import RetryState
from gateway.story import Story
from routing.fleet import Backend
from routing.room import has_no_room


async def forward(ask: Ask, placement: Placement, exchange: Exchange, story: Story, deps: Deps) -> bool:
    """Relay the reply of the first candidate that begins to answer. False when the request has to wait again:
    it was preempted before that (`gateway.queue.preempt`), or no engine could be reached or had a slot (`RetryState.returns_to_queue`).

    Raises:
        Fault: for a field that the pool's engines do not support, or the fault of the last attempt. Another candidate is tried only
            before the first byte and within the retry budget.
    """
    if story.trace is not None:
        story.trace.begin("forward", deps.clock())
        story.trace.max_tokens, story.trace.choices = ask.max_output_tokens, ask.choices
    adapter, pool = placement.adapter, placement.pool
    engine_model = pool.model if adapter is None else model_asked(deps.dialects[pool.name], pool.model, adapter.served)
    try:
        call = call_for(ask, placement, engine_model, exchange.head, story, deps)
    except Fault:
        placement.give_back()
        raise
    first_dispatch_at = story.dispatched_at = deps.clock()
    plain = adapter is None and story.placed.shared is None and pool.name not in deps.hedges
    candidates = placement.route.backends
    retry: RetryState | None = None
    events = 0
    cut: tuple[Attempt, Fault] | None = None
    while candidates:
        backend = candidates.pop(0)
        if cut is None:
            attempt = Attempt(ask, call, engine_model, placement, exchange, story, deps, backend)
            if deps.continuing:
                attempt.so_far = keeps(ask, placement, deps)
        else:
            attempt = continued(cut[0], backend)
        try:
            fault = await (attempt.counted(attempt.dispatch()) if plain else _wrapped(attempt, first=retry is None))
        finally:
            if retry is not None:
                retry.attempt_over()
        if fault is None:
            story.settled.status = story.settled.status or 200
            if retry is not None:
                retry.answered()
            return True
        if isinstance(fault, Preempted):
            return False
        candidates = _remaining(candidates, placement, deps)
        retry = retry or RetryState(ask, story, deps, first_dispatch_at)
        heard, events = events, story.attempt.events
        # where an engine that was to go on said nothing, the caller is told why the answer was cut
        told = fault if cut is None or events > heard else cut[1]
        cut = (attempt, told) if goes_on(attempt, fault) else None
        if cut is not None:
            candidates = _by_room(engines_left(attempt, candidates), placement, deps)
        if not retry.may_retry(fault, backend, candidates, attempt.timeouts.first_event_s, goes_on=cut is not None):
            if not exchange.gone and retry.returns_to_queue(fault, backend, placement):
                return False
            raise retry.final_fault(told)
    raise AssertionError("`choose` leaves no empty route, and nobody is tried after the last candidate")


def _wrapped(attempt: Attempt, *, first: bool) -> Coroutine[Any, Any, Fault | None]:
    """The attempt, wrapped in a separate prefill, the load of an adapter or hedging where the request needs it."""
    if attempt.prefills:
        return with_prefill(attempt)
    attempt.story.tried.prefill = ""  # clears the prefill backend of a pair that failed
    if attempt.placement.adapter is not None:
        return with_adapter(attempt)
    if first and not attempt.ask.endpoint.duplex and attempt.placement.pool.name in attempt.deps.hedges:
        return hedged(attempt)
    return attempt.run()


def call_for(ask: Ask, placement: Placement, engine_model: str, head: RequestHead, story: Story, deps: Deps) -> Call:
    """The call to send to the pool's engines. Raises Fault: a field or an endpoint that they do not support."""
    pool, adapter, endpoint = placement.pool, placement.adapter, ask.endpoint
    dialect = deps.dialects[pool.name]
    path = endpoint.path if endpoint.generates else dialect.path_of(ask)
    salt = None
    if dialect.isolation is not None and endpoint in dialect.isolation.endpoints:
        digest = adapter.digest if adapter is not None else ""
        salt = deps.salts[placement.request.tenant, pool.model, pool.revision, digest].salt
    # the body members that carry the request's class, for pools whose engines schedule by it
    priority = b""
    members, priority_class = deps.priorities.get(pool.name), story.asked.priority_class
    if members and priority_class is not None and dialect.priority is not None and endpoint in dialect.priority.endpoints:
        priority = members[priority_class]
    fields = ask.fields if dialect.fields.leaves(ask.names) else fit(dialect.fields, ask)
    traceparent, tracestate = head.trace()
    if endpoint.duplex:
        return Call("GET", path, b"", story.own_id, traceparent, tracestate)
    if endpoint.sound == "in":
        form, content_type = form_for(fields, engine_model, ask.upload)
        return Call("POST", path, form, story.own_id, traceparent, tracestate, content_type)
    body = body_for(dialect, fields, engine_model, cache_salt=salt, priority=priority)
    return Call("POST", path, body, story.own_id, traceparent, tracestate)


def _remaining(candidates: list[Backend], placement: Placement, deps: Deps) -> list[Backend]:
    """The candidates that are still in the fleet: backends with capacity first, backends whose breaker has opened meanwhile last.

    Where no backend has capacity, a retry exceeds a concurrency limit by one. The request has waited in the queue already, its first
    backend serves one request less than were dispatched to it, and the retry budget bounds the number of such requests.
    """
    return _by_room([backend for backend in candidates if backend.id in deps.upstreams], placement, deps)


def _by_room(remaining: list[Backend], placement: Placement, deps: Deps) -> list[Backend]:
    shut, load_table = deps.live.breakers.shut(placement.served, deps.clock()), placement.pool_state.load_table
    if load_table.limited:
        remaining.sort(key=lambda backend: has_no_room(load_table, load_table.row_of[backend.id], 1.0) != "")
    return sorted(remaining, key=lambda backend: backend.id in shut) if shut else remaining
