"""Finished requests as log records of OpenTelemetry."""

from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from domain.faults import SOURCE, Kind, Source
from domain.usage import Usage
from gateway.record import Record
from gateway.request_log.collector import logged_request
from gateway.request_log.otlp import ERROR, INFO, WARN, LogRecordMaker, OtlpRequests, rejected_of, severity_of
from gateway.request_log.ring import RingLine
from gateway.telemetry.access_log import AccessLogEntry, line_of
from gateway.telemetry.otlp import BatchExporter, OtlpSender
from tenancy.request_log import LoggedRequest
from tests.otlp_receiver import attributes_of, otlp_receiver

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def logged(**fields: Any) -> LoggedRequest:
    whole: dict[str, Any] = {"tenant": "acme", "endpoint": "/v1/chat/completions", "model": "m", "usage": Usage(7, 4), "trace_id": TRACE}
    record = Record("req-1", 1_700_000_000.5, fields.pop("outcome", "ok"), fields.pop("status", 200), 1.25, 0.001, **(whole | fields))
    return logged_request(RingLine(line_of(record)), 24.0)


def encoded(request: LoggedRequest) -> Any:
    message = ExportLogsServiceRequest.FromString(LogRecordMaker({"service.name": "tidegate"}, "1").encoded(request))
    (resource,) = message.resource_logs
    assert attributes_of(resource.resource) == {"service.name": "tidegate"}
    (scope,) = resource.scope_logs
    (record,) = scope.log_records
    return record


def test_a_request_is_one_record_with_its_trace_its_time_and_every_field() -> None:
    record = encoded(logged())
    assert record.trace_id.hex() == TRACE
    assert (record.time_unix_nano, record.observed_time_unix_nano) == (1_700_000_000_500_000_000, 1_700_000_001_750_000_000)
    assert (record.severity_number, record.severity_text, record.event_name) == (INFO, "INFO", "tidegate.request")
    assert record.body.string_value == "/v1/chat/completions of m: ok, 200, 1250 ms"
    found = attributes_of(record)
    expected = {
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 4,
        "tidegate.tenant": "acme",
        "tidegate.request_id": "req-1",
        "tidegate.outcome": "ok",
        "tidegate.duration_us": 1_250_000,
    }
    assert expected.items() <= found.items()
    assert len(found) > len(AccessLogEntry.__struct_fields__) / 3


@pytest.mark.parametrize("kind", list(Kind))
def test_the_severity_tells_a_callers_mistake_from_a_failure(kind: Kind) -> None:
    assert severity_of(kind.value) == (WARN if SOURCE[kind] is Source.CALLER else ERROR)
    assert severity_of("ok") == INFO
    assert severity_of("of a later version") == ERROR


def test_requests_are_sent_together_and_what_a_receiver_leaves_out_is_read() -> None:
    assert rejected_of(b"\x0a\x08\x08\x02\x12\x04late") == (2, "late")
    assert rejected_of(b"no message") == (0, "")


async def test_the_sink_sends_what_it_is_given_by_its_end() -> None:
    with otlp_receiver() as receiver:
        url = receiver.url.replace("/v1/traces", "/v1/logs")
        sender = OtlpSender(url, {}, timeout_s=5.0, compress=True, rejected_of=rejected_of, clock=lambda: 0.0)
        exporter = BatchExporter("request_log", LogRecordMaker({}, "1").encoded, sender, max_pending=10, clock=lambda: 0.0)
        exporter.start()
        sink = OtlpRequests(exporter)
        await sink.add([logged(), logged(outcome="overloaded", status=503)])
        await sink.add([])
        await sink.close()
        assert [record.severity_text for record in receiver.logs] == ["INFO", "ERROR"]
        assert exporter.figures() == (2, 0, 0, 0)
