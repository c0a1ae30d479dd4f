"""The gateway's own steps of one request, without engines and sockets, for callers with different numbers of limits.

`steps` is everything between the request's last byte and the choice of a backend, and everything after the reply's last: caller, request,
permissions, limits, usage and Record. `placed` adds the choice: reading the prompt, the decision, the record that explains it, the load in
flight on the backend until the request ends, its first token, and the calibration by its answer. Every prompt is a new one behind its first
half; engines have reported.
"""

import itertools
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any, Final

from domain.ask import Endpoint
from domain.usage import Usage
from gateway.deps import Deps
from gateway.placement.in_flight import InFlight, learn
from gateway.placement.place import Placement
from gateway.request.admit import admit
from gateway.request.authenticate import authenticate
from gateway.request.choose import choose, look_ahead
from gateway.request.interpret import interpret
from gateway.request.reply_headers import common_headers
from gateway.request.settle import open_story, settle
from gateway.story import Story
from gateway.telemetry.metrics import Metrics
from gateway.wiring.requests import deps_for
from policies.compile import compiled
from policies.schema import PolicyDocument
from routing.fleet import Availability, Backend
from routing.schedule import ALONE
from tenancy.keys import ENTROPY_BYTES, KeyRecord, digest_of, mint
from tenancy.limits import MAX_AMOUNT, MAX_RATE, Level, Limit, Meter, Scope, Window
from tests.gateway_harness import PEPPER, directory, settings_for

COUNTS: Final = (0, 4, 16)
PLACED: Final = ((1, 1), (2, 1), (16, 1), (1, 16), (2, 16), (16, 16))
"""Backends, and KB of prompt."""
_KEY: Final = mint("test", b"\1" * ENTROPY_BYTES)
_SCOPES: Final = [Scope(Level.TENANT, "acme"), Scope(Level.PROJECT, "acme/default"), Scope(Level.KEY, _KEY.id), Scope(Level.USER, "acme")]
_LIMITS: Final = [
    (Meter.REQUESTS, Window.MINUTE, MAX_RATE),
    (Meter.TOKENS, Window.MINUTE, MAX_RATE),
    (Meter.CONCURRENT_REQUESTS, Window.NOW, 100_000),
    (Meter.COST_NANOUSD, Window.MONTH, MAX_AMOUNT),
]


def step_cases(body: bytes, large: bytes) -> dict[str, Callable[[], object]]:
    """Name to what is timed; both bodies are chats with the model `sim`, of 1 and 16 KB. Call it inside a running loop."""
    cases: dict[str, Callable[[], object]] = {}
    for count in COUNTS:
        run, story, deps = _prepared(body, count)
        cases[f"all steps of one request, {count} limits"] = run
        if count:
            exchange: Any = SimpleNamespace(head=SimpleNamespace(headers={}))
            cases[f"header lines, {count} limits"] = _headers(exchange, story, deps)
    cases["all steps of one request, 0 limits, 16 KB"] = _prepared(large, 0)[0]
    for backends, kb in PLACED:
        cases[f"placed as well, {backends} backends, {kb} KB"] = _prepared(body if kb == 1 else large, 0, backends)[0]
    return cases


def _prepared(body: bytes, count: int, backends: int = 0) -> tuple[Callable[[], object], Story, Any]:
    limits = [Limit(scope, meter, window, amount) for scope in _SCOPES for meter, window, amount in _LIMITS][:count]
    record = KeyRecord(_KEY.id, "acme", "default", PEPPER.kid, (digest_of(PEPPER.secret, _KEY.secret),))  # type: ignore[arg-type]  # NewTypes
    policies = compiled([PolicyDocument.model_validate({"tenant": "*", "models": [{"name": "sim", "pool": "chat"}]})])
    settings = settings_for(["http://127.0.0.1:1"])
    metrics = Metrics(["sim"])
    deps = deps_for(
        settings,
        policies,
        directory([record], limits),
        PEPPER,
        observe=_ignored,
        log_defect=_ignored,
        observe_decision=metrics.observe_decision,
        count_prefix=metrics.count_prefix,
    )
    _join(deps, backends)
    bodies = _varied(body) if backends else itertools.repeat(body)
    headers = {b"authorization": f"Bearer {_KEY.text}".encode(), b"content-type": b"application/json"}
    head = SimpleNamespace(headers=headers, request_id=lambda: None)

    async def read() -> bytes:
        return next(bodies)

    exchange: Any = SimpleNamespace(head=head, body=read)

    async def one() -> Story:
        story = open_story(exchange, deps)
        caller = await authenticate(exchange, story, deps)
        ask, rule, grant = await interpret(Endpoint.CHAT, exchange, caller, story, deps)
        ask, rule = look_ahead(ask, rule, grant, exchange, story, deps)
        ask, hold = await admit(caller, ask, rule, grant, story, deps)
        if backends:
            placement = await choose(ask, rule, exchange, story, deps)
            _served(ask, placement, story, deps)
        story.attempt.usage = Usage(300, 20)
        await settle(hold, story, deps)
        deps.budget.active -= 1
        story.close(deps.clock())
        return story

    return lambda: _driven(one()), _driven(one()), deps


def _join(deps: Deps, backends: int) -> None:
    """Every backend is up and has just told of its load."""
    up = tuple([Backend(f"e{at}", "chat", Availability.UP, "") for at in range(backends)])
    deps.live.fleet = deps.live.fleet.with_backends("chat", up)
    load_table, now = deps.pool_states["chat"].load_table, deps.clock()
    for at, one in enumerate(up):
        deps.pool_states.add("chat", one.id)
        deps.pool_states.capacity(one.id, 440_000)
        load = {"running": at % 5, "waiting": 0, "queued_tokens": 0, "kv_usage": 0.05 * (at % 7), "kv_capacity": 440_000}
        load_table.report(one.id, **load, read_at=now, asked_at=now)


def _varied(body: bytes) -> Iterator[bytes]:
    """Prompts that share their first half, none of them twice."""
    at = body.index(b"aaaa") + len(body) // 2
    return (b"%b%08d%b" % (body[:at], number % 10**8, body[at + 8 :]) for number in itertools.count())


def _served(ask: Any, placement: Placement, story: Story, deps: Deps) -> None:
    """What `forward` does for placement around one good attempt, without the attempt."""
    in_flight = InFlight(placement, placement.route.backends[0].id, deps, stream=True)
    if placement.route.why != ALONE:
        story.attempt.on_begun = in_flight.begun
    story.tried.backend = in_flight.backend
    story.attempt.note_event(deps.clock())
    story.attempt.usage, story.attempt.cached = Usage(300, 20), int(placement.held_tokens(in_flight.backend))
    learn(ask, placement, in_flight, story, deps)
    story.attempt.on_begun = None
    in_flight.over()


def _headers(exchange: Any, story: Story, deps: Any) -> Callable[[], object]:
    return lambda: common_headers(exchange, story, deps)


def _driven(steps: Coroutine[Any, Any, Story]) -> Story:
    """Run to its end what never waits."""
    try:
        steps.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # the coroutine's
    raise RuntimeError("a step waits for something; its time would not be its own")


def _ignored(*_: object) -> None:
    pass
