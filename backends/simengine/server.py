"""The simulated engine with its socket and clock (`SimEngine`): routes, the step loop, state for tests, and start and stop.

`control` answers the routes that are not inference: health, models, metrics, load, and the remote control of faults.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from backends.simengine import shapes
from backends.simengine.answering import Answer
from backends.simengine.batching import Batcher, EngineCounters, SimSequence
from backends.simengine.connection import SimConnection
from backends.simengine.disaggregation import KvTransfers, RequestRole
from backends.simengine.faults import FaultPlan, FaultRule, rule_of
from backends.simengine.instant import Instant
from backends.simengine.loras import Loras
from backends.simengine.pooling import KINDS, PATHS, pooled
from backends.simengine.reading import ErrorAnswer, own_fault, read_request
from backends.simengine.realtime import SESSION, SimSession, asks_for_session
from backends.simengine.settings import SimSettings
from backends.simengine.sound import SOUND_KINDS, SOUND_PATHS, answer_sound

if TYPE_CHECKING:
    from backends.simengine.publishers import KvPublisher, LoadPublisher


def control(engine: "SimEngine", connection: SimConnection) -> None:
    """Answer a request that is not for inference."""
    method = connection.method
    path = connection.path
    settings = engine.settings
    if engine.loras.order(connection) or engine.kv_transfers.order(connection):
        return
    if path in ("/health", "/ping", "/health_generate"):
        connection.reply(200, b"")
    elif path == "/version":
        connection.reply(200, b'{"version":"simulated"}')
    elif path == "/v1/models" or path.startswith("/v1/models/"):
        _models(engine, connection, path)
    elif path == "/metrics":
        engine.metrics_reads += 1
        values = _values(engine)
        body = shapes.metrics(
            settings.dialect, settings.models[0], values, settings.block_size, engine.batcher.kv.blocks, engine.started_unix
        )
        body += _lora_metrics(engine)
        connection.reply(200, body, "text/plain; version=0.0.4; charset=utf-8")
    elif path == "/load" and settings.dialect == "vllm":
        connection.reply(200, shapes.encode({"server_load": engine.in_flight}))
    elif path == "/v1/loads" and settings.dialect == "sglang":
        connection.reply(200, shapes.encode(_loads(engine)))
    elif path == "/sim/state":
        connection.reply(200, shapes.encode({"in_flight": engine.in_flight, "received": engine.count, **_values(engine)}))
    elif path == "/sim/drain" and method == "POST":
        engine.draining = True
        connection.reply(200, b"{}")
    elif path in ("/reset_prefix_cache", "/flush_cache") and method == "POST":
        _forget_prefixes(engine)
        connection.reply(200, b"")
    elif path == "/sim/faults" and method == "POST":
        _faults(engine, connection)
    else:
        connection.reply(404, b'{"detail":"Not Found"}')


def _forget_prefixes(engine: "SimEngine") -> None:
    """Clear the prefix cache, unless a sequence runs."""
    if not engine.batcher.kv.used:
        engine.batcher.kv.clear()
        if engine.kv_events is not None:
            engine.kv_events.cleared()
            engine.kv_events.flush()


def _models(engine: "SimEngine", connection: SimConnection, path: str) -> None:
    settings = engine.settings
    cards = [
        {
            "id": m,
            "object": "model",
            "created": int(engine.started_unix),
            "owned_by": settings.dialect,
            "max_model_len": settings.max_model_len,
        }
        for m in settings.models
    ]
    cards += engine.loras.cards()
    if path == "/v1/models":
        connection.reply(200, shapes.encode({"object": "list", "data": cards}))
        return
    model = next((card for card in cards if f"/v1/models/{card['id']}" == path), None)
    body = shapes.encode(model) if model else shapes.error(settings.dialect, 404, "The model does not exist.", "NotFoundError")
    connection.reply(200 if model else 404, body)


def _faults(engine: "SimEngine", connection: SimConnection) -> None:
    """`{"standing": [rules]}` replaces the standing rules, `{"next": [rules]}` gives one to each of the next requests."""
    try:
        faults = msgspec.json.decode(connection.body)
        standing = faults.get("standing")
        following = faults.get("next", [])
        if standing is not None:
            engine.misbehave([rule_of(rule) for rule in standing])
        engine.inject([rule_of(rule) for rule in following])
    except (ValueError, AttributeError, TypeError) as error:
        connection.reply(400, shapes.encode({"detail": str(error)}))
        return
    connection.reply(200, b"{}")


def _lora_metrics(engine: "SimEngine") -> bytes:
    """vLLM's series of adapters in use: names in labels, the time as the value."""
    settings = engine.settings
    if not settings.max_loras or settings.dialect != "vllm":
        return b""
    running = ",".join(sorted(engine.models_in_use & engine.loras.loaded.keys()))
    labels = f'max_lora="{settings.max_loras}",running_lora_adapters="{running}",waiting_lora_adapters=""'
    return f"vllm:lora_requests_info{{{labels}}} {time.time()}\n".encode()


def _values(engine: "SimEngine") -> dict[str, float]:
    batcher = engine.batcher
    counters = batcher.counters
    used = batcher.kv.used * batcher.block_size
    return {
        "running": len(batcher.running),
        "waiting": len(batcher.waiting),
        "queued_tokens": batcher.queued_tokens,
        "kv_usage": batcher.kv_usage,
        "kv_used_tokens": used,
        "kv_tokens": batcher.kv.blocks * batcher.block_size,
        "hit_rate": counters.prefix_hits / counters.prefix_queries if counters.prefix_queries else 0.0,
        **{field: getattr(counters, field) for field in counters.__slots__},
        **engine.kv_transfers.values(),
    }


def _loads(engine: "SimEngine") -> dict[str, Any]:
    values = _values(engine)
    load = {
        "dp_rank": 0,
        "num_running_reqs": values["running"],
        "num_waiting_reqs": values["waiting"],
        "num_waiting_uncached_tokens": values["queued_tokens"],
        "num_used_tokens": values["kv_used_tokens"],
        "max_total_num_tokens": values["kv_tokens"],
        "max_running_requests": engine.settings.max_num_seqs,
        "token_usage": values["kv_usage"],
        "cache_hit_rate": values["hit_rate"],
        "total_prefill_uncached_tokens": values["prompt_tokens"] - values["prefix_hits"] - values["handed_tokens"],
        "total_prefill_busy_us": int(values["prefill_ms"] * 1000),
    }
    return {"version": "simulated", "loads": [load]}


INFERENCE_KINDS: Final = {
    dialect: {"/v1/chat/completions": "chat", "/v1/completions": "text", **paths, **SOUND_PATHS[dialect]}
    for dialect, paths in PATHS.items()
}
KEPT_REQUESTS: Final = 1000
"""Requests kept for tests to inspect."""


class Received(msgspec.Struct, frozen=True):
    """One inference request as it was received."""

    path: str
    headers: dict[bytes, bytes]
    body: bytes


class SimEngine:
    """An engine in this process: `async with SimEngine(SimSettings(...)) as engine`, then call `engine.url`."""

    def __init__(self, settings: SimSettings) -> None:
        self.settings = settings
        self.port = 0
        self.received: deque[Received] = deque(maxlen=KEPT_REQUESTS)
        self.draining = False
        self._server: asyncio.Server | None = None
        self._connections: dict[SimConnection, None] = {}
        self.count = 0
        self.metrics_reads = 0
        """How often its metrics were read."""
        self.connections_made = 0
        self.kv_events: KvPublisher | None = None
        self.load_push: LoadPublisher | None = None
        self.kv_transfers = KvTransfers(self)
        self._restart()
        self._plan = FaultPlan(settings.faults, random.Random(settings.seed))

    def _restart(self) -> None:
        settings = self.settings
        self.started_unix = time.time()
        self._answers: dict[int, Answer] = {}
        self._owner: dict[int, Answer] = {}
        self._stepping = False
        self.kv_transfers.clear()
        self.sessions: dict[SimConnection, None] = {}
        """The connections that are realtime sessions."""
        self.loras = Loras(settings)
        self.batcher = Batcher(
            settings.timing, block_size=settings.block_size, max_num_seqs=settings.max_num_seqs, token_budget=settings.max_batched_tokens
        )
        if self.kv_events is not None:
            self.kv_events.restart()
            self.batcher.stored = self.kv_events.stored
            self.batcher.kv.evicted = self.kv_events.removed
        if self.load_push is not None:
            self.load_push.restart()

    @property
    def url(self) -> str:
        """The URL at which it listens."""
        return f"http://{self.settings.host}:{self.port}"

    @property
    def in_flight(self) -> int:
        """The number of requests in flight."""
        return len(self._answers) + len(self.sessions)

    @property
    def models_in_use(self) -> set[str]:
        """The models and adapters that requests in flight name."""
        return {answer.model for answer in self._answers.values()}

    @property
    def counters(self) -> EngineCounters:
        """The counters since the last start."""
        return self.batcher.counters

    def inject(self, rules: Iterable[FaultRule]) -> None:
        """Give one fault to each of the next requests."""
        self._plan.enqueue(rules)

    def misbehave(self, rules: Iterable[FaultRule]) -> None:
        """Replace the standing faults; an empty list removes them."""
        self._plan.stand(rules)

    async def __aenter__(self) -> "SimEngine":
        """Listen."""
        self._loop = asyncio.get_running_loop()
        self._instant = Instant(self.settings, self._loop) if self.settings.instant else None
        if self.settings.kv_events is not None:
            from backends.simengine.publishers import KvPublisher

            self.kv_events = KvPublisher(self.settings, self._loop)
            self._restart()
        if self.settings.load_push is not None:
            from backends.simengine.publishers import LoadPublisher

            self.load_push = LoadPublisher(self.settings, lambda: self.batcher, self._loop)
        self._server = await self._loop.create_server(self._accept, self.settings.host, self.settings.port, backlog=4096)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop listening and drop every connection."""
        assert self._server is not None
        self._server.close()
        self.kv_transfers.clear()
        self._owner.clear()
        for connection in list(self._connections):
            connection.on_gone = None
            connection.transport.abort()
        for publisher in (self.kv_events, self.load_push):
            if publisher is not None:
                publisher.close()
        self.kv_events = self.load_push = None
        await asyncio.sleep(0)

    async def drained(self) -> None:
        """Refuse new requests, and wait until the running ones are over."""
        self.draining = True
        while self._answers:
            await asyncio.sleep(0.01)

    def _accept(self) -> SimConnection:
        self.connections_made += 1
        return SimConnection(self._handle, self._connections)

    # --- requests -------------------------------------------------------------------------------------------------

    def _handle(self, connection: SimConnection) -> None:
        if self._instant is not None and connection.method == "POST" and connection.target in (b"/v1/chat/completions", b"/v1/completions"):
            self._instant.answer(connection)
            return
        if self.settings.dialect == "vllm" and asks_for_session(connection):
            self._infer(connection, SESSION)
            return
        kind = INFERENCE_KINDS[self.settings.dialect].get(connection.path)
        if kind is not None and connection.method == "POST":
            self._infer(connection, kind)
        else:
            control(self, connection)

    def _infer(self, connection: SimConnection, kind: str) -> None:
        self.count += 1
        self.received.append(Received(connection.path, dict(connection.headers), connection.body))
        try:
            key = self.settings.api_key
            if key is not None and connection.headers.get(b"authorization") != b"Bearer " + key.encode():
                connection.reply(401, b'{"error":"Unauthorized"}')
                return
            connection.fault = self._plan.next(own_fault(connection.body))
            if connection.fault is None or not self._before_reply(connection, kind):
                self._start(connection, kind)
        except ErrorAnswer as refusal:
            connection.reply(refusal.status, shapes.error(self.settings.dialect, refusal.status, str(refusal), refusal.kind, refusal.param))

    def _before_reply(self, connection: SimConnection, kind: str) -> bool:
        """Apply a fault that acts before the reply; True when it replaces or delays the whole answer."""
        fault = connection.fault
        assert fault is not None
        name = fault.name
        retry = f"retry-after: {fault.retry_after}\r\n" if fault.retry_after is not None else ""
        refusals = {
            "status_500": (500, "EngineCore encountered an issue. See stack trace.", "InternalServerError"),
            "status_503": (503, "The engine is currently busy and cannot accept new requests.", "Service Unavailable"),
            "status_429": (429, "Too many requests.", "TooManyRequests"),
        }
        if name in refusals:
            status, message, word = refusals[name]
            connection.reply(status, shapes.error(self.settings.dialect, status, message, word), extra=retry)
        elif name == "status_502":
            connection.reply(502, b"<html><h1>502 Bad Gateway</h1></html>", "text/html")
        elif name == "status_401":
            connection.reply(401, b'{"error":"Unauthorized"}')
        elif name == "half_open":
            connection.transport.pause_reading()
        elif name == "garbage_http":
            connection.transport.write(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
        elif name == "close_before_headers":
            connection.close()
        elif name == "reset_before_headers":
            connection.reset()
        elif name == "slow_start":
            self._loop.call_later(fault.delay_s, self._start_late, connection, kind)
        elif name == "restart_empty_kv":
            for open_connection in [candidate for candidate in self._connections if candidate is not connection]:
                open_connection.reset()
            self._restart()
            return False
        elif name == "lose_kv_events" and self.kv_events is not None:
            self.kv_events.lose(fault.after)
            return False
        elif name == "lose_load_reports" and self.load_push is not None:
            self.load_push.lose(fault.after)
            return False
        else:
            return name == "frozen"
        return True

    def _start_late(self, connection: SimConnection, kind: str) -> None:
        try:
            if connection in self._connections:  # its caller may have left meanwhile
                self._start(connection, kind)
        except ErrorAnswer as refusal:
            connection.reply(refusal.status, shapes.error(self.settings.dialect, refusal.status, str(refusal), refusal.kind, refusal.param))

    def _start(self, connection: SimConnection, kind: str) -> None:
        settings = self.settings
        if kind == SESSION:
            self.sessions[connection] = None
            SimSession(connection, settings, f"{self.count:x}", int(time.time()), lambda: self.sessions.pop(connection, None))
            return
        if kind in SOUND_KINDS:
            request_id = connection.headers.get(b"x-request-id", b"").decode("latin-1")
            answer_sound(connection, kind, settings, request_id or f"{self.count:x}", int(time.time()))
            return
        request = read_request(settings, self.loras, kind, connection.body)
        waiting = len(self.batcher.waiting) + len(self.batcher.running)
        if self.draining or (settings.max_queued is not None and waiting >= settings.max_queued):
            message = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
            raise ErrorAnswer(503, message, "Service Unavailable")
        request_id = connection.headers.get(b"x-request-id", b"").decode("latin-1")
        model = str(request.get("model", settings.models[0]))
        head = shapes.ids(settings.dialect, request_id or f"{self.count:x}", kind, int(time.time()), model)
        if kind in KINDS:
            self._pool(connection, kind, request, head)
            return
        role = self.kv_transfers.role_of(request)
        answer = Answer(settings, kind, request, connection, head, self._loop.call_later, self._over)
        answer.prepare(self.batcher, request)
        self._answers[id(answer)] = answer
        for sequence in answer.sequences:
            self._owner[id(sequence)] = answer
        connection.on_gone = lambda: self._abandon(answer, role)
        self.kv_transfers.start(role, answer, lambda: self._begin(answer))

    def _begin(self, answer: Answer) -> None:
        answer.begin()
        self._step()

    def _pool(self, connection: SimConnection, kind: str, request: dict[str, Any], head: shapes.Ids) -> None:
        fault = connection.fault.name if connection.fault else ""
        if fault == "wrong_model":
            head = msgspec.structs.replace(head, model="another-model")
        body, tokens = pooled(kind, self.settings.dialect, request, head, fault=fault, longest=self.settings.max_model_len)
        delay = self.batcher.timing.step_ms([(tokens, 0)], 0, 0) / 1000 / self.settings.speed
        self._loop.call_later(delay, connection.reply, 200, body)

    def _abandon(self, answer: Answer, role: RequestRole | None) -> None:
        answer.abort()
        self._over(answer)
        self.kv_transfers.abandoned(role, answer)

    def fail(self, answer: Answer, message: str) -> None:
        """End a request with the dialect's 500."""
        if not answer.gone:
            self._abandon(answer, None)
            answer.fail(message)

    def _over(self, answer: Answer) -> None:
        self._answers.pop(id(answer), None)
        for sequence in answer.sequences:
            self._owner.pop(id(sequence), None)

    # --- the step loop --------------------------------------------------------------------------------------------

    def _push_load(self) -> None:
        if self.load_push is not None:
            self.load_push.publish()

    def _step(self) -> None:
        if self._stepping:
            self._push_load()
            return
        step = self.batcher.begin()
        self._push_load()
        if step is None:
            return
        self._stepping = True
        self._loop.call_later(step.duration_ms / 1000 / self.settings.speed, self._end_step, self.batcher, step)

    def _end_step(self, batcher: Batcher, step: Any) -> None:
        if batcher is not self.batcher:
            return  # the engine restarted meanwhile
        self._stepping = False
        produced: list[SimSequence] = batcher.end(step)
        if self.kv_events is not None:
            self.kv_events.flush()
        for sequence in produced:
            answer = self._owner.get(id(sequence))
            if answer is not None:
                answer.token(sequence)
        self._step()
