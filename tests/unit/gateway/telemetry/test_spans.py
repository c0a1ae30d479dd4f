"""The spans of a Record: their form as OpenTelemetry's own SDK would write it, their names, times and bounds."""

from itertools import count
from typing import Any

import msgspec
import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import (
    client_attributes,
    error_attributes,
    http_attributes,
    server_attributes,
    url_attributes,
    user_agent_attributes,
)
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.span import TraceState

from domain.ask import Endpoint
from domain.faults import Fault, Kind
from domain.usage import Usage
from gateway.record import Record
from gateway.request.trace_notes import AttemptNote, TraceNotes, TraceTerms
from gateway.story import AttemptFacts
from gateway.telemetry.spans import MAX_CHARS, OPERATIONS, SpanMaker, operation_of, rejected_of
from tests.otlp_receiver import Seen, spans_of

TRACE, SPAN, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "00000000000000aa"


def notes(**fields: Any) -> TraceNotes:
    made = TraceNotes(TRACE, SPAN, 100.0, PARENT, terms=TraceTerms(1.0, 60.0, 5.0), settled=True, sampled=True)
    made.steps = [("interpret", 100.001), ("admit", 100.002), ("choose", 100.003), ("forward", 100.01)]
    made.steps.append(("settle", 101.0))
    return msgspec.structs.replace(made, **fields)


def record(trace: TraceNotes, **fields: Any) -> Record:
    made = Record("req-1", 1_700_000_000.0, "ok", 200, 1.5, 0.001, tenant="acme", endpoint="/v1/chat/completions", model="m", trace=trace)
    return msgspec.structs.replace(made, **fields)


def attempt(**fields: Any) -> AttemptNote:
    facts = AttemptFacts(
        first_event_at=100.2, usage=Usage(7, 4, cached_tokens=3, reasoning_tokens=1), finish_reasons={1: "length", 0: "stop"}
    )
    made = AttemptNote("00000000000000bb", "e0", ("10.0.0.1", 8000), "vllm", "m", "req-1", 100.01, "engine-m", facts, ended_at=100.9)
    return msgspec.structs.replace(made, **fields)


def maker(*, internals: bool = True) -> SpanMaker:
    return SpanMaker({"service.name": "tidegate"}, "1.0", (f"{at:016x}" for at in count(1)).__next__, internals=internals)


def spans(record_: Record, *, internals: bool = True) -> dict[str, Seen]:
    return {span.name: span for span in spans_of(maker(internals=internals).encoded(record_))}


def test_the_bytes_are_those_of_the_sdk() -> None:
    told = record(notes(attempts=(attempt(),), state="a=b", waits=((100.004, 100.005, "served", 12),)), outcome="internal", detail="why")
    ours = maker().encoded(told)
    resource, scope = Resource({"service.name": "tidegate"}), InstrumentationScope("tidegate", "1.0")
    theirs = []
    kinds = {1: SpanKind.INTERNAL, 2: SpanKind.SERVER, 3: SpanKind.CLIENT}
    for span in ExportTraceServiceRequest.FromString(ours).resource_spans[0].scope_spans[0].spans:
        seen = next(one for one in spans_of(ours) if one.span_id == span.span_id.hex())
        parent = SpanContext(int(TRACE, 16), int(seen.parent_id, 16), is_remote=seen.parent_id == PARENT)
        theirs.append(
            ReadableSpan(
                span.name,
                SpanContext(int(TRACE, 16), int(seen.span_id, 16), False, TraceFlags(1), TraceState([("a", "b")])),
                parent,
                resource,
                seen.attributes,
                [Event(event.name, timestamp=event.time_unix_nano) for event in span.events],
                kind=kinds[span.kind],
                status=Status(StatusCode(seen.status), seen.message or None),
                start_time=seen.begin_ns,
                end_time=seen.end_ns,
                instrumentation_scope=scope,
            )
        )
    assert ExportTraceServiceRequest.FromString(ours) == encode_spans(theirs)


def test_every_name_is_one_of_the_conventions_or_our_own() -> None:
    modules = (gen_ai_attributes, client_attributes, error_attributes, http_attributes, server_attributes, url_attributes)
    known = {value for module in (*modules, user_agent_attributes) for value in vars(module).values() if isinstance(value, str)}
    known |= {"http.request.body.size"}  # of the incubating attributes of HTTP
    told = record(notes(attempts=(attempt(fault=Fault(Kind.ENGINE_ERROR, "no")),), max_tokens=9, choices=2), stream=True, client="::1")
    used = {key for span in spans(told).values() for key in span.attributes}
    assert {key for key in used if not key.startswith("tidegate.")} <= known
    required = {"operation.name", "provider.name", "request.model", "response.model", "response.finish_reasons"}
    assert {f"gen_ai.{name}" for name in required} | {"server.address", "server.port", "error.type"} <= used
    operations = {value.value for value in gen_ai_attributes.GenAiOperationNameValues}
    assert set(OPERATIONS.values()) <= operations


def test_the_attributes_of_an_answered_call() -> None:
    trace = notes(attempts=(attempt(),), max_tokens=64, choices=2)
    (span,) = [span for span in spans(record(trace, stream=True)).values() if span.kind == 3]
    assert span.name == "chat m"
    assert span.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "m",
        "gen_ai.request.max_tokens": 64,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.stream": True,
        "gen_ai.output.type": "text",
        "gen_ai.response.model": "engine-m",
        "gen_ai.response.id": "chatcmpl-req-1",
        "gen_ai.response.time_to_first_chunk": pytest.approx(0.19),
        "gen_ai.response.finish_reasons": ["stop", "length"],
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.reasoning.output_tokens": 1,
        "server.address": "10.0.0.1",
        "server.port": 8000,
        "tidegate.backend": "e0",
    }


def test_times_are_those_of_the_wall_clock_and_no_span_ends_before_it_begins() -> None:
    seen = spans(record(notes(attempts=(attempt(ended_at=None),))))
    root = seen["POST /v1/chat/completions"]
    assert (root.begin_ns, root.end_ns) == (1_700_000_000 * 10**9, 1_700_000_001_500_000_000)
    assert (seen["admit"].begin_ns - root.begin_ns) / 1e6 == pytest.approx(2.0)
    assert (seen["admit"].end_ns - seen["admit"].begin_ns) / 1e6 == pytest.approx(1.0)
    assert seen["chat m"].end_ns == seen["settle"].end_ns == root.end_ns
    assert all(span.begin_ns <= span.end_ns for span in seen.values())


def test_the_step_that_failed_says_so_and_a_callers_mistake_is_no_error() -> None:
    seen = spans(record(notes(), outcome="overloaded", status=503, detail="queue full"))
    assert {name for name, span in seen.items() if span.status == 2} == {"POST /v1/chat/completions", "forward"}
    assert seen["forward"].attributes["error.type"] == "overloaded"
    assert seen["forward"].message == "queue full"
    mistaken = spans(record(notes(), outcome="invalid_value", status=400))
    assert {span.status for span in mistaken.values()} == {0}


def test_a_call_that_was_given_up_is_no_error_and_one_that_failed_is() -> None:
    lost, won = attempt(cancelled=True, facts=AttemptFacts()), attempt(span_id="00000000000000cc", backend="e1")
    calls = [
        span
        for span in spans_of(
            maker().encoded(
                record(
                    notes(
                        attempts=(
                            lost,
                            won,
                        )
                    )
                )
            )
        )
        if span.kind == 3
    ]
    assert [(span.status, span.attributes.get("tidegate.cancelled")) for span in calls] == [(0, True), (0, None)]
    assert "gen_ai.usage.input_tokens" not in calls[0].attributes
    failed = attempt(fault=Fault(Kind.ENGINE_ERROR, "no", detail="status 500"), facts=AttemptFacts())
    (call,) = [span for span in spans(record(notes(attempts=(failed,)), outcome="engine_error", status=502)).values() if span.kind == 3]
    assert (call.status, call.message, call.attributes["error.type"]) == (2, "status 500", "engine_error")


def test_without_internals_no_span_names_what_is_inside() -> None:
    failed = attempt(fault=Fault(Kind.ENGINE_ERROR, "no", detail="10.0.0.1 said 500"), backend="engine-zero")
    told = record(
        notes(attempts=(failed,)), outcome="engine_error", status=502, detail="10.0.0.1 said 500", backend="engine-zero", pool="chat-pool"
    )
    told = msgspec.structs.replace(told, failed=("engine-zero",), policy="digest", revision="rev-7")
    body = maker(internals=False).encoded(told)
    for inside in (b"10.0.0.1", b"engine-zero", b"chat-pool", b"engine-m", b"vllm", b"digest", b"rev-7"):
        assert inside not in body
    assert b"engine_error" in body


def test_hostile_texts_are_cut_and_readable() -> None:
    told = record(notes(), user_agent="\ud800" + "x" * 5000, client="\0")
    root = spans(told)["POST /v1/chat/completions"]
    assert len(root.attributes["user_agent.original"]) == MAX_CHARS
    unknown = spans(record(notes(), endpoint="", method="GET", path="/v1/" + "é" * 1000))["GET"]
    assert len(unknown.attributes["url.path"]) == MAX_CHARS


@pytest.mark.parametrize("endpoint", list(Endpoint))
def test_every_endpoint_has_an_operation(endpoint: Endpoint) -> None:
    assert operation_of(endpoint.value).replace("_", "").isalnum()


def test_an_answer_of_a_receiver_that_is_no_message_says_nothing() -> None:
    assert rejected_of(b"") == (0, "")
    assert rejected_of(b"{}") == (0, "")
    assert rejected_of(b"\x0a\x08\x08\x02\x12\x04late") == (2, "late")
