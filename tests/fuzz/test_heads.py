"""Request heads: judged the same however they are cut, and nothing of them reaches an engine but what was checked (R31)."""

import asyncio
import re
from pathlib import Path
from typing import Any, cast

import pytest

from backends.clients.endpoint import endpoint
from backends.clients.http1 import RelayFlight, RelayUpstream, _Connection
from backends.ports import Call, ReplySink
from domain.faults import Fault
from gateway.http.edge.connection import EdgeConnection
from gateway.http.edge.connections import Connections, EdgeLimits
from gateway.http.edge.exchange import Exchange
from tests.fuzz.mutation import MAX_BYTES, Target, cut
from tests.wire.edge_server import Wire

PIECES = [
    b"\r\n",
    b"\n",
    b"\r",
    b"\r\n\r\n",
    b": ",
    b":",
    b" ",
    b"\t",
    b"\0",
    b"\x0b",
    b"\x7f",
    b"\xff",
    b",",
    b";",
    b"chunked",
    b"close",
    b"Content-Length: 3\r\n",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Host: b\r\n",
    b"Connection: close\r\n",
    b"Connection: Upgrade\r\n",
    b"Upgrade: h2c\r\n",
    b"X-Request-Id: a\r\n",
    b"X-Request-Id: \r\n",
    b"Expect: 100-continue\r\n",
    b"Traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n",
    b"Tracestate: x=y\r\n",
    b"Tracestate: \xc3\xa9\r\n",
    b"X_Under: 1\r\n",
    b"0\r\n\r\n",
    b"3\r\nabc\r\n",
    b"HTTP/1.0",
    b"HTTP/1.1",
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"A: b\r\n" * 70,
]
HEADS = Target("heads", PIECES)
TO_ENGINES = {
    b"host",
    b"user-agent",
    b"accept",
    b"content-type",
    b"authorization",
    b"x-request-id",
    b"content-length",
    b"traceparent",
    b"tracestate",
}
"""Every header that an engine may be sent."""


def asked(chunks: list[bytes]) -> tuple[Exchange | None, str, list[BaseException]]:
    """The exchange that these reads open, and how they were refused."""
    exchanges: list[Exchange] = []
    faults: list[str] = []
    defects: list[BaseException] = []

    def refuse(fault: Fault, _head: object) -> bytes:
        faults.append(fault.kind.name)
        return b"HTTP/1.1 400 Refused\r\n\r\n"

    connections = Connections(
        EdgeLimits(max_body_bytes=4096, max_header_bytes=2 * MAX_BYTES),
        lambda: 0.0,
        lambda: 0.0,
        serve=exchanges.append,
        refuse=refuse,
        log_defect=lambda error, _: defects.append(error),
    )
    connection, wire = EdgeConnection(connections), Wire()
    connection.connection_made(wire)
    for chunk in chunks:
        if not wire.closed:
            connection.data_received(chunk)
    assert len(exchanges) <= 1, "what is pipelined is never opened"
    assert not (exchanges and faults), "served, or refused"
    if exchanges and exchanges[0].refusal is not None:
        faults.append(exchanges[0].refusal.kind.name)
    return exchanges[0] if exchanges else None, " ".join(faults), defects


def seen(exchange: Exchange | None, refused: str) -> object:
    """All that the steps behind can see of it."""
    if exchange is None:
        return bool(refused)
    head = exchange.head
    body = b"" if exchange.refusal is not None else bytes(exchange.received)
    return head.method, head.path, head.headers, head.content_length, head.chunked, exchange.complete, bool(refused), body


def heads(data: bytes) -> str:
    exchange, refused, defects = asked([data])
    whole = seen(exchange, refused)
    for chunks in cut(data):
        again, refused_again, more = asked(chunks)
        assert seen(again, refused_again) == whole
        defects += more
    assert defects == []
    if exchange is None:
        return f"refused {refused}"
    to_engine(exchange)
    return f"ok {exchange.head.method} {sorted(exchange.head.headers)} {exchange.complete} {refused}"


def to_engine(exchange: Exchange) -> None:
    """What the call for this head writes to an engine is one request with known headers only."""
    head = exchange.head
    own_id, (parent, state) = head.request_id(), head.trace()
    assert own_id is None or re.fullmatch(r"[A-Za-z0-9._:-]{1,64}", own_id)
    written = engine_bytes(Call("POST", "/v1/chat/completions", b"{}", own_id or "req-1", parent, state))
    lines, end, body = written.partition(b"\r\n\r\n")
    assert (end, body) == (b"\r\n\r\n", b"{}")
    first, *rest = lines.split(b"\r\n")
    assert first == b"POST /v1/chat/completions HTTP/1.1"
    names = [line.partition(b": ")[0] for line in rest]
    assert len(set(names)) == len(names)
    assert set(names) <= TO_ENGINES
    assert re.fullmatch(rb"[\x20-\x7e\r\n]+", lines), "nothing that a reader could take for the end of a line"
    assert lines.count(b"\n") == lines.count(b"\r") == len(rest)


UPSTREAM = RelayUpstream(endpoint("http://127.0.0.1:9"), lambda: 0.0, cast(asyncio.AbstractEventLoop, None))  # it never connects


def engine_bytes(call: Call) -> bytes:
    wire, connection = Wire(), _Connection(UPSTREAM)
    connection.connection_made(wire)
    connection.start(RelayFlight(UPSTREAM, call, cast(ReplySink, None)), reused=False)  # nothing answers
    return wire.out


@pytest.mark.req("R31")
@pytest.mark.parametrize("path", HEADS.corpus, ids=lambda p: p.stem)
def test_corpus(path: Path) -> None:
    heads(path.read_bytes())


@pytest.mark.req("R31")
def test_heads_are_judged_the_same_however_they_are_cut(record_property: Any) -> None:
    record_property("figure", HEADS.run(heads, 1_500))
