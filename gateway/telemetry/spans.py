"""Makes the spans of one finished request, as the bytes of an OTLP request.

The request's own span (`POST /v1/chat/completions`, kind server) has one child for each step of `gateway/lifecycle.py` that it came to,
and `choose` one for each wait in the queue. Calls to engines are children of `forward`, kind client, with the attributes of OpenTelemetry's
GenAI conventions (`gen_ai.*`, `server.*`, `error.type`); only they carry `gen_ai.usage.*`, so that a reader that sums over the spans of a
trace counts each token once. What the conventions have no word for is `tidegate.*`. No attribute holds a text of a prompt or an answer.

The messages are built from `opentelemetry.proto` alone: the SDK's objects, and their translation, take six times as long
(`docs/explanation/decisions/0027-spans-from-records.md`). A test compares the bytes with those of the SDK.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span, Status

from domain.ask import Endpoint
from domain.usage import Usage
from gateway.http.edge.reply_ids import reply_id
from gateway.record import Record
from gateway.request.trace_notes import AttemptNote, TraceNotes
from gateway.telemetry.traces import is_error

Value = str | bool | int | float | list[str]

SCOPE: Final = "tidegate"
HAS_IS_REMOTE: Final = 0x100
IS_REMOTE: Final = 0x200
"""Bits of a span's flags: whether its parent is of another process is known, and is so."""
MAX_CHARS: Final = 512
"""Characters kept of one attribute, as of a field of the access log."""

CHAT_PATHS: Final = frozenset({"/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/realtime"})
OPERATIONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(CHAT_PATHS, "chat"),
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
"""Values of `gen_ai.operation.name` that the conventions define; any other endpoint is named by its path."""
SPOKEN: Final = "/v1/audio/speech"


def operation_of(endpoint: str) -> str:
    """The value of `gen_ai.operation.name`."""
    return OPERATIONS.get(endpoint) or endpoint.removeprefix("/v1/").removeprefix("/").replace("/", "_")


class SpanMaker:
    """Makes the spans of Records.

    Args:
        resource: attributes of this process: `service.name`, `service.version`, and those of the settings.
        version: of this gateway.
        new_id: makes a span id of 16 hexadecimal digits; called in the exporter's thread.
        internals: whether spans name backends, pools and addresses, and the causes that are for operators.
    """

    def __init__(self, resource: Mapping[str, str], version: str, new_id: Callable[[], str], *, internals: bool) -> None:
        self._resource = dict(resource)
        self._version = version
        self._new_id = new_id
        self._internals = internals

    def encoded(self, record: Record) -> bytes:
        """The bytes of an `ExportTraceServiceRequest` with the spans of one Record that has notes."""
        notes = record.trace
        assert notes is not None
        request = ExportTraceServiceRequest()
        resource_spans = request.resource_spans.add()
        put(resource_spans.resource.attributes, self._resource)
        spans = resource_spans.scope_spans.add()
        spans.scope.name, spans.scope.version = SCOPE, self._version
        _OneTrace(record, notes, spans, self._new_id, internals=self._internals).fill()
        return bytes(request.SerializeToString())


def rejected_of(reply: bytes) -> tuple[int, str]:
    """How many spans a receiver left out, and what it says; nothing for a reply that cannot be read."""
    try:
        said = ExportTraceServiceResponse.FromString(reply).partial_success
    except Exception:  # noqa: BLE001 - some receivers answer with JSON or with text; protobuf's error has no public class
        return 0, ""
    return int(said.rejected_spans), said.error_message


def put(attributes: Any, values: Mapping[str, Value]) -> None:
    """Add attributes to a repeated field of `KeyValue`."""
    for key, value in values.items():
        into = attributes.add(key=key).value
        if isinstance(value, str):
            into.string_value = clean(value)
        elif isinstance(value, bool):  # before int, which it is too
            into.bool_value = value
        elif isinstance(value, int):
            into.int_value = value
        elif isinstance(value, float):
            into.double_value = value
        else:
            for item in value:
                into.array_value.values.add(string_value=clean(item))


def clean(text: str) -> str:
    """A text that protobuf takes: without halves of surrogate pairs, and not longer than `MAX_CHARS`."""
    text = text[:MAX_CHARS]
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


class _OneTrace:
    """The spans of one request, while they are made."""

    def __init__(self, record: Record, notes: TraceNotes, spans: ScopeSpans, new_id: Callable[[], str], *, internals: bool) -> None:
        self._record = record
        self._notes = notes
        self._spans = spans.spans
        self._new_id = new_id
        self._internals = internals
        self._trace_id = bytes.fromhex(notes.trace_id)
        self._root_id = bytes.fromhex(notes.span_id)
        self._begun_ns = int(record.at_unix * 1e9)
        self._end = notes.started_at + record.duration_s
        self._failed = is_error(record)

    def fill(self) -> None:
        """Make the spans."""
        self._request()
        by_step: dict[str, list[tuple[float, float, bytes]]] = {}
        steps = [("authenticate", self._notes.started_at), *self._notes.steps, ("", self._end)]
        failing = next((at for at in range(len(steps) - 2, -1, -1) if steps[at][0] != "settle"), None) if self._failed else None
        for at, ((step, begin), (_, end)) in enumerate(pairwise(steps)):
            span = self._span(step, self._root_id, begin, end)
            by_step.setdefault(step, []).append((begin, end, span.span_id))
            put(span.attributes, dict(self._of_step(step)))
            if at == failing:
                self._fail(span, self._record.outcome, self._record.detail)
        chosen = by_step.get("choose", []) + by_step.get("choose_again", [])
        for begin, end, word, ahead in self._notes.waits:
            span = self._span("queue", self._parent(chosen, begin), begin, end)
            put(span.attributes, {"tidegate.queue.result": word, "tidegate.queue.tokens_ahead": ahead})
        forwarded = by_step.get("forward", [])
        for note in self._notes.attempts:
            self._attempt(note, self._parent(forwarded, note.began_at))

    def _parent(self, steps: list[tuple[float, float, bytes]], at: float) -> bytes:
        """The step that was under way; the request itself where none was noted."""
        return next((span_id for begin, end, span_id in steps if begin <= at <= end), self._root_id)

    def _ns(self, at: float) -> int:
        return self._begun_ns + max(0, int((at - self._notes.started_at) * 1e9))

    def _span(self, name: str, parent: bytes, begin: float, end: float, *, kind: int = Span.SPAN_KIND_INTERNAL, span_id: str = "") -> Any:
        return self._spans.add(
            trace_id=self._trace_id,
            span_id=bytes.fromhex(span_id or self._new_id()),
            parent_span_id=parent,
            trace_state=self._notes.state,
            name=name,
            kind=kind,
            start_time_unix_nano=self._ns(begin),
            end_time_unix_nano=self._ns(max(begin, end)),
            flags=HAS_IS_REMOTE,
            status=Status(),
        )

    def _fail(self, span: Span, kind: str, detail: str) -> None:
        span.status.code = Status.STATUS_CODE_ERROR
        if self._internals and detail:
            span.status.message = clean(detail)
        put(span.attributes, {"error.type": kind})

    def _request(self) -> None:
        """The span of the whole request."""
        record, notes = self._record, self._notes
        method = record.method or ("GET" if record.endpoint == Endpoint.REALTIME.value else "POST")
        name = f"{method} {record.endpoint}" if record.endpoint else method
        parent = bytes.fromhex(notes.parent_id)
        span = self._span(name, parent, notes.started_at, self._end, kind=Span.SPAN_KIND_SERVER, span_id=notes.span_id)
        if parent:
            span.flags |= IS_REMOTE
        found: dict[str, Value] = {"http.request.method": method, "http.response.status_code": record.status}
        found.update((key, value) for key, value in self._known() if value)
        found["tidegate.overhead_s"] = record.overhead_s
        put(span.attributes, found)
        if self._failed:
            self._fail(span, record.outcome, record.detail)

    def _known(self) -> Iterator[tuple[str, Value]]:
        """Attributes of the request's span; those that are empty say nothing and are left out."""
        record, usage = self._record, self._record.usage
        yield "http.route", record.endpoint
        yield "url.path", record.path
        yield "client.address", record.client
        yield "user_agent.original", record.user_agent
        yield "tidegate.request_id", record.gateway_id or record.request_id
        yield "tidegate.caller_request_id", record.request_id if record.request_id != record.gateway_id else ""
        yield "tidegate.outcome", record.outcome
        yield "tidegate.tenant", record.tenant
        yield "tidegate.project", record.project
        yield "tidegate.key_id", record.key_id
        yield "tidegate.model", record.model
        yield "tidegate.asked_model", record.asked_model
        yield "tidegate.prompt", record.prompt
        yield "tidegate.stream", record.stream
        yield "tidegate.priority_class", record.priority_class
        yield "tidegate.rule", record.rule
        yield "tidegate.cache", record.cache
        yield "tidegate.fell_back", [step.words for step in record.fell_back]
        yield "tidegate.steps", list(record.steps)
        yield "tidegate.input_tokens", usage.prompt_tokens
        yield "tidegate.output_tokens", usage.completion_tokens
        yield "tidegate.cached_tokens", usage.cached_tokens
        yield "tidegate.cost_nanousd", record.cost_nanousd
        yield "tidegate.ttft_s", record.caller_ttft_s or record.ttft_s or 0.0
        yield "tidegate.queue_s", record.queue_s
        yield "tidegate.missed", [level for level, met in record.promises if not met]
        if record.guards is not None:
            yield "tidegate.guard", record.guards.word
        if self._internals:
            yield "tidegate.pool", record.pool
            yield "tidegate.revision", record.revision
            yield "tidegate.backend", record.backend
            yield "tidegate.attempts", record.attempts
            yield "tidegate.failed", list(record.failed)
            yield "tidegate.hedged", list(record.hedged)
            yield "tidegate.continued", record.continued
            yield "tidegate.policy", record.policy
            yield "tidegate.degraded", record.degraded
            dealt = [assignment for assignment in (record.dealt, record.dealt_prompt) if assignment is not None]
            yield "tidegate.rollout", [assignment.running.name for assignment in dealt]
            yield "tidegate.arm", [assignment.arm.value for assignment in dealt]

    def _of_step(self, step: str) -> Iterator[tuple[str, Value]]:
        record = self._record
        if step == "interpret":
            yield "http.request.body.size", record.request_bytes
        elif step == "admit" and record.soft_limits:
            yield "tidegate.soft_limits", list(record.soft_limits)
        elif step == "guard_input" and record.guards is not None:
            yield "tidegate.guard", record.guards.word
            yield "tidegate.guard_by", record.guards.by
        elif step == "look_up" and record.cache:
            yield "tidegate.cache", record.cache
        elif step == "forward" and record.lora_wait_s:
            yield "tidegate.lora_wait_s", record.lora_wait_s
        elif step == "settle" and record.closing:
            yield "tidegate.closing", record.closing

    def _attempt(self, note: AttemptNote, parent: bytes) -> None:
        """The span of one call to an engine, which the engine's own spans are children of."""
        record, facts = self._record, note.facts
        operation = operation_of(record.endpoint)
        end = self._end if note.ended_at is None else note.ended_at
        name = f"{operation if facts is not None else 'prefill'} {note.model}".strip()
        span = self._span(name, parent, note.began_at, end, kind=Span.SPAN_KIND_CLIENT, span_id=note.span_id)
        found: dict[str, Value] = {"gen_ai.operation.name": operation, "gen_ai.request.model": note.model}
        if self._internals:
            found |= {"gen_ai.provider.name": note.dialect, "server.address": note.server[0], "server.port": note.server[1]}
            found["tidegate.backend"] = note.backend
        else:
            found["gen_ai.provider.name"] = SCOPE
        if self._notes.max_tokens is not None:
            found["gen_ai.request.max_tokens"] = self._notes.max_tokens
        if self._notes.choices != 1:
            found["gen_ai.request.choice.count"] = self._notes.choices
        if record.stream:
            found["gen_ai.request.stream"] = True
        if record.routed is not None and record.routed.request.session:
            found["gen_ai.conversation.id"] = f"{record.routed.request.session & (1 << 64) - 1:016x}"
        if operation in ("chat", "text_completion"):
            found["gen_ai.output.type"] = "text"
        elif record.endpoint == SPOKEN:
            found["gen_ai.output.type"] = "speech"
        put(span.attributes, found | dict(self._answered(note)))
        if facts is not None and facts.first_event_at is not None:
            span.events.add(name="first_token", time_unix_nano=self._ns(facts.first_event_at))
        if note.cancelled:
            put(span.attributes, {"tidegate.cancelled": True})
        elif note.fault is not None:
            self._fail(span, note.fault.kind.value, note.fault.detail or "")

    def _answered(self, note: AttemptNote) -> Iterator[tuple[str, Value]]:
        """The attributes of the answer, as far as it came."""
        facts, record = note.facts, self._record
        if facts is None:
            return
        last = note is self._notes.attempts[-1]
        usage: Usage | None = facts.usage
        if usage is None and last and note.fault is None and not note.cancelled:
            usage = record.usage  # the engine reported none, and the caller is charged for this
        if facts.first_event_at is not None:
            if record.stream:
                yield "gen_ai.response.time_to_first_chunk", max(0.0, facts.first_event_at - note.began_at)
            yield "gen_ai.response.model", note.engine_model if self._internals else note.model
            if record.endpoint == Endpoint.CHAT.value or record.endpoint == Endpoint.COMPLETIONS.value:
                yield "gen_ai.response.id", reply_id(Endpoint(record.endpoint), note.own_id)
        if facts.finish_reasons:
            yield "gen_ai.response.finish_reasons", [reason for _, reason in sorted(facts.finish_reasons.items())]
        if usage is not None:
            yield "gen_ai.usage.input_tokens", usage.prompt_tokens
            yield "gen_ai.usage.output_tokens", usage.completion_tokens
            if usage.cached_tokens:
                yield "gen_ai.usage.cache_read.input_tokens", usage.cached_tokens
            if usage.reasoning_tokens:
                yield "gen_ai.usage.reasoning.output_tokens", usage.reasoning_tokens
