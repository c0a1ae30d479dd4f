"""One worker's request path without sockets: engines that play a script for each call, and callers that keep what they are sent."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import msgspec

from backends.ports import Call, Loss, ReplySink
from domain.faults import Fault
from domain.identity import Caller, KeyId, ProjectId, TenantId
from gateway.deps import Deps
from gateway.http.edge.body_size import reserve_body
from gateway.http.edge.connections import EdgeLimits
from gateway.http.edge.exchange import Exchange
from gateway.http.edge.head import RequestHead
from gateway.http.edge.taps import DONE
from gateway.placement.place import Placement
from gateway.record import Record
from gateway.story import Story
from tenancy.accounts import DEFAULT_PROJECT
from tenancy.keys import ENTROPY_BYTES, KeyRecord, digest_of, mint
from tenancy.limits import Limit
from tests.gateway_harness import PEPPER, directory
from tests.placed import POOL, Worker
from tests.stories import with_facts

SSE: Mapping[bytes, bytes] = {b"content-type": b"text/event-stream"}
EVENT = b'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
LAST = EVENT.replace(b"null", b'"stop"')
KEY = mint("test", b"\7" * ENTROPY_BYTES)
CALLER = Caller(TenantId("acme"), ProjectId("default"), KeyId(KEY.id))

Script = Callable[[ReplySink], None]


def answers(sink: ReplySink) -> None:
    """A whole streamed answer of two events."""
    sink.on_head(200, SSE)
    sink.on_data(EVENT)
    sink.on_data(LAST + DONE)
    sink.on_end()


def resets(sink: ReplySink) -> None:
    """The connection ends before anything of a reply has come."""
    sink.on_loss(Loss.NO_REPLY, "reset")


def breaks_off(sink: ReplySink) -> None:
    """The connection ends behind the first event."""
    sink.on_head(200, SSE)
    sink.on_data(EVENT)
    sink.on_loss(Loss.CUT, "cut")


def is_silent(_sink: ReplySink) -> None:
    """Nothing ever comes."""


class _Flight:
    def __init__(self) -> None:
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass


class Engine:
    """A `backends.ports.Upstream`: the n-th call is answered by the n-th script, later ones by the last."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts: Sequence[Script] = scripts or (answers,)
        self.calls: list[Call] = []
        self.flights: list[_Flight] = []

    def dispatch(self, call: Call, sink: ReplySink) -> _Flight:
        script = self.scripts[min(len(self.calls), len(self.scripts) - 1)]
        self.calls.append(call)
        self.flights.append(_Flight())
        asyncio.get_running_loop().call_soon(script, sink)
        return self.flights[-1]

    async def close(self) -> None:
        pass


class Connection:
    """The caller's connection (`gateway.http.edge.connection`), as an exchange sees it."""

    speaks_1_0 = False

    class connections:
        date_line = b""
        limits = EdgeLimits()
        large_bodies = 0
        large_bodies_of: ClassVar[dict[str, int]] = {}

    def __init__(self) -> None:
        self.out = b""
        self.aborted = False
        self.closed: bool | None = None

    def closes_after(self, _exchange: Exchange) -> bool:
        return False

    def allow_body(self, exchange: Exchange, allowed: Collection[int | None]) -> None:
        refusal = reserve_body(exchange, allowed, self.connections)  # type: ignore[arg-type]  # all that it reads of them
        if refusal is not None:
            exchange.body_is_over(refusal)

    def write(self, data: bytes) -> None:
        self.out += data

    def exchange_over(self, *, close: bool) -> None:
        self.closed = close

    def abort(self) -> None:
        self.aborted = True


class Path:
    """A worker with engines. Must be made inside a running loop."""

    def __init__(self, limits: Sequence[Limit] = (), policy: Mapping[str, Any] | None = None, **engines: Engine) -> None:
        self.engines = engines
        self.worker = Worker(*engines, policy=policy)
        self.records: list[Record] = []
        self.defects: list[BaseException] = []
        self.deps: Deps = replace(
            self.worker.deps, observe=self.records.append, log_defect=lambda error, _request: self.defects.append(error)
        )
        digests = (digest_of(PEPPER.secret, KEY.secret),)
        self.deps.live.directory = directory([KeyRecord(KEY.id, TenantId("acme"), DEFAULT_PROJECT, PEPPER.kid, digests)], limits)
        self.deps.upstreams.update(engines)
        self.deps.budget.active += 1
        self.deps.budget.arrived += 1

    def in_flight(self) -> dict[str, int]:
        """Requests of this worker by backend."""
        load_table = self.deps.pool_states[POOL].load_table
        return {backend: load_table.in_flight(backend) for backend in self.engines}

    def calls(self) -> dict[str, int]:
        """Calls by backend."""
        return {backend: len(engine.calls) for backend, engine in self.engines.items()}

    def story(self, **facts: Any) -> Story:
        """The Story of a request that has been interpreted."""
        story = Story("theirs", self.worker.now, 0.0, self.worker.now, "req-own")
        known = {"caller": CALLER, "model": "sim", "stream": True, "tenant_policy": self.worker.policy}
        return with_facts(story, **{**known, **facts})


def caller(body: object = None, path: str = "/v1/chat/completions", **headers: bytes) -> tuple[Exchange, Connection]:
    """A request whose body has come, and the connection that its reply is written to."""
    named = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    connection: Any = Connection()
    exchange = Exchange(connection, RequestHead("POST", path, named, None, False, True))
    exchange.received = body if isinstance(body, bytes) else msgspec.json.encode(body)
    exchange.body_is_over(None)
    return exchange, connection


def only(placement: Placement, *ids: str) -> Placement:
    """The placement with these candidates, in this order."""
    ranked = {backend.id: (backend, scores) for backend, scores in placement.route.ranked}
    route = msgspec.structs.replace(placement.route, ranked=tuple([ranked[one] for one in ids]))
    return msgspec.structs.replace(placement, route=route)


async def turns(count: int = 3) -> None:
    """Let the loop go round: whatever is due is done, and no time passes."""
    for _ in range(count):
        await asyncio.sleep(0)


async def fault_of(work: Any) -> Fault:
    """The Fault that the work raises."""
    try:
        await work
    except Fault as fault:
        return fault
    raise AssertionError("nothing was refused")
