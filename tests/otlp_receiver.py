"""A small OTLP receiver (http/protobuf) on a free loopback port: keeps what it is sent, and answers as a test wants."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse


class Seen(msgspec.Struct):
    """A span, with its attributes and times as Python values."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    state: str
    begin_ns: int
    end_ns: int
    status: int
    message: str
    attributes: dict[str, Any]
    events: list[str]
    resource: dict[str, Any]


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return None if kind is None else getattr(value, kind)


def attributes_of(message: Any) -> dict[str, Any]:
    """The attributes of a message."""
    found = {entry.key: _value(entry.value) for entry in message.attributes}
    assert len(found) == len(message.attributes), "an attribute comes twice"
    return found


def spans_of(body: bytes) -> list[Seen]:
    """The spans of an encoded request."""
    spans = []
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        of_all = attributes_of(resource.resource)
        for scope in resource.scope_spans:
            for span in scope.spans:
                spans.append(
                    Seen(
                        span.name,
                        span.kind,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        span.trace_state,
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                        span.status.code,
                        span.status.message,
                        attributes_of(span),
                        [event.name for event in span.events],
                        of_all,
                    )
                )
    return spans


class OtlpReceiver:
    """What was received, and what is answered next."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.log_bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.statuses: list[int] = []
        """The statuses of the next answers; 200 behind them."""
        self.rejects = 0
        """Spans that each answer says were left out."""
        self.port = 0

    @property
    def url(self) -> str:
        """The endpoint for traces."""
        return f"http://127.0.0.1:{self.port}/v1/traces"

    @property
    def spans(self) -> list[Seen]:
        """Every span of the posts that were taken."""
        return [span for body in list(self.bodies) for span in spans_of(body)]

    @property
    def logs(self) -> list[Any]:
        """Every log record of the posts that were taken."""
        requests = [ExportLogsServiceRequest.FromString(body) for body in list(self.log_bodies)]
        scopes = [scope for request in requests for resource in request.resource_logs for scope in resource.scope_logs]
        return [record for scope in scopes for record in scope.log_records]

    def trace(self, trace_id: str) -> dict[str, Seen]:
        """The spans of a trace by their names; of several with one name the last."""
        return {span.name: span for span in self.spans if span.trace_id == trace_id}


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """A receiver that ends with the context."""
    receiver = OtlpReceiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            status = receiver.statuses.pop(0) if receiver.statuses else 200
            receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
            said = ExportTraceServiceResponse()
            if status == 200:
                (receiver.log_bodies if self.path.startswith("/v1/logs") else receiver.bodies).append(body)
                if receiver.rejects and body:
                    said.partial_success.rejected_spans, said.partial_success.error_message = receiver.rejects, "too old"
            answer = said.SerializeToString()
            self.send_response(status)
            if status == 429:
                self.send_header("retry-after", "7")
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
