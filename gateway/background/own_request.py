"""A request that the gateway makes itself: it goes through the whole lifecycle for a caller, over a connection in memory.

Limits, guard rules, routing, explanations, metrics and the ledger are those of any other request in the class `batch`.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import msgspec

from domain.ask import Endpoint
from gateway.deps import Deps
from gateway.http.edge.connections import EdgeLimits
from gateway.http.edge.exchange import Exchange, OwnRequest
from gateway.http.edge.head import RequestHead
from gateway.http.translations import TRANSLATED, Translations
from gateway.lifecycle import serve
from gateway.record import Record
from gateway.request.permissions import CLASS_HEADER

NO_HEADERS: Final[Mapping[bytes, bytes]] = MappingProxyType({})


class _NoPort:
    """The part of a listening port that an exchange needs. Nothing is counted in it: bodies of lines have the usual size."""

    date_line = b""
    draining = False
    limits = EdgeLimits()
    large_bodies = 0

    def __init__(self) -> None:
        self.large_bodies_of: dict[str, int] = {}


class _MemoryConnection:
    """Stands in for a caller's connection (`gateway.http.edge.connection`): keeps what is written."""

    # the reply is not framed then
    speaks_1_0 = True

    def __init__(self) -> None:
        self.connections = _NoPort()
        self.written: list[bytes] = []
        self.broken = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def closes_after(self, _exchange: Exchange) -> bool:
        return False

    def allow_body(self, _exchange: Exchange, _allowed: object) -> None:
        pass

    def exchange_over(self, *, close: bool) -> None:
        pass

    def abort(self) -> None:
        self.broken = True


class OwnReply(msgspec.Struct, frozen=True):
    """What came of a request that the gateway made."""

    record: Record
    status: int
    body: bytes


async def send_own(own: OwnRequest, path: str, body: bytes, deps: Deps, headers: Mapping[bytes, bytes] = NO_HEADERS) -> OwnReply:
    """Send a request, which nobody observes but the caller of this function, and copies for canaries.

    Args:
        own: for whom it is made.
        body: the request in JSON.
        headers: further ones.
    """
    connection: Any = _MemoryConnection()
    sent = {b"content-type": b"application/json", CLASS_HEADER: b"batch", **headers}
    head = RequestHead("POST", path, sent, len(body), chunked=False, keep_alive=True)
    translation = Translations(deps.salt_secret, deps.wall, deps.new_id).of(head)
    exchange = Exchange(connection, head, received=body, complete=True, own=own, translation=translation)
    records: list[Record] = []

    def observe(record: Record) -> None:
        (deps.observe if record.shadow else records.append)(record)

    endpoint = Endpoint.CHAT if path in TRANSLATED else Endpoint(path)
    await serve(exchange, endpoint, replace(deps, observe=observe))
    _, _, written = b"".join(connection.written).partition(b"\r\n\r\n")
    return OwnReply(records[-1], records[-1].status, written)
