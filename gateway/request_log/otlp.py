"""Finished requests as log records of OpenTelemetry, for a receiver that keeps logs (`gateway.request_log.collector.RequestSink`).

A record has the time, the trace, the outcome as its severity, one sentence as its body, and every field of the line of the access log as an
attribute: those that OpenTelemetry's conventions have a word for under it, all others as `tidegate.…`. It holds no text of a prompt or
an answer, whatever a policy keeps. Encoding, retries and bounds are those of traces (`gateway/telemetry/otlp.py`).
"""

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse

from domain.faults import SOURCE, Kind, Source
from gateway.record import OK
from gateway.request_log.collector import entry_of
from gateway.telemetry.access_log import AccessLogEntry
from gateway.telemetry.otlp import BatchExporter
from gateway.telemetry.spans import SCOPE, operation_of, put
from tenancy.request_log import LoggedRequest

EVENT: Final = "tidegate.request"
INFO, WARN, ERROR = 9, 13, 17
"""Severities of OpenTelemetry."""
SEVERITIES: Final = {INFO: "INFO", WARN: "WARN", ERROR: "ERROR"}
WORDS: Final[Mapping[str, str]] = {
    "endpoint": "http.route",
    "status": "http.response.status_code",
    "method": "http.request.method",
    "path": "url.path",
    "client": "client.address",
    "user_agent": "user_agent.original",
    "model": "gen_ai.request.model",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
    "session": "gen_ai.conversation.id",
}
"""Fields of the access log that the conventions have a word for."""
ELSEWHERE: Final = frozenset({"at", "trace_id"})


def severity_of(outcome: str) -> int:
    """INFO for an answer, WARN for a refusal that its caller caused, ERROR for any other failure."""
    if outcome == OK:
        return INFO
    known = outcome in Kind._value2member_map_
    return WARN if known and SOURCE[Kind(outcome)] is Source.CALLER else ERROR


def sentence(entry: AccessLogEntry) -> str:
    """The body of a record."""
    model = f" of {entry.model}" if entry.model else ""
    return f"{entry.endpoint or entry.method or 'request'}{model}: {entry.outcome}, {entry.status}, {entry.duration_us / 1000:.0f} ms"


class LogRecordMaker:
    """Makes the bytes of an `ExportLogsServiceRequest` of one request.

    Args:
        resource: attributes of this process.
        version: of this gateway.
    """

    def __init__(self, resource: Mapping[str, str], version: str) -> None:
        self._resource = dict(resource)
        self._version = version

    def encoded(self, request: LoggedRequest) -> bytes:
        """The bytes. Raises msgspec.DecodeError: a line that is not of the access log."""
        entry = entry_of(request)
        message = ExportLogsServiceRequest()
        resource_logs = message.resource_logs.add()
        put(resource_logs.resource.attributes, self._resource)
        scope_logs = resource_logs.scope_logs.add()
        scope_logs.scope.name, scope_logs.scope.version = SCOPE, self._version
        severity = severity_of(entry.outcome)
        begun_ns = request.at_us * 1000
        record = scope_logs.log_records.add(
            time_unix_nano=begun_ns,
            observed_time_unix_nano=begun_ns + request.duration_us * 1000,
            severity_number=severity,
            severity_text=SEVERITIES[severity],
            event_name=EVENT,
        )
        record.body.string_value = sentence(entry)
        if entry.trace_id:
            record.trace_id = bytes.fromhex(entry.trace_id)
        found = {name: value for name, value in msgspec.structs.asdict(entry).items() if name not in ELSEWHERE and value not in ("", None)}
        put(record.attributes, {WORDS.get(name, f"tidegate.{name}"): value for name, value in found.items()})
        if entry.endpoint:
            put(record.attributes, {"gen_ai.operation.name": operation_of(entry.endpoint)})
        return bytes(message.SerializeToString())


def rejected_of(reply: bytes) -> tuple[int, str]:
    """How many records a receiver left out, and what it says; nothing for a reply that cannot be read."""
    try:
        said = ExportLogsServiceResponse.FromString(reply).partial_success
    except Exception:  # noqa: BLE001 - as `gateway.telemetry.spans.rejected_of`
        return 0, ""
    return int(said.rejected_log_records), said.error_message


class OtlpRequests:
    """Sends finished requests as log records."""

    def __init__(self, exporter: BatchExporter[LoggedRequest]) -> None:
        self.name = "otlp"
        self._exporter = exporter

    def figures(self) -> tuple[int, int, int, int]:
        """Requests since the start, by `gateway.telemetry.otlp.RESULTS`."""
        return self._exporter.figures()

    async def add(self, requests: list[LoggedRequest]) -> None:
        """Take requests; a thread sends them soon."""
        for request in requests:
            self._exporter.add(request)

    async def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        await asyncio.to_thread(self._exporter.close)
