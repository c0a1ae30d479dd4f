"""The port to an engine's transport, as three small Protocols, and TLS towards engines.

`Upstream` sends one call to one backend; the reply comes back through callbacks on a `ReplySink`, because a relay that
awaited every event would pay a task hop for each (measured: `docs/explanation/decisions/0001-own-relay.md`). Two adapters exist
(`backends/clients/`), and both pass `tests/contract/test_upstream.py`.
"""

import ssl
from collections.abc import Mapping
from enum import Enum
from typing import Protocol, runtime_checkable
from weakref import WeakSet

import msgspec


class RetiresConnections(Protocol):
    """What keeps connections for further calls."""

    def retire(self) -> None:
        """Give no further call to a connection that is open now; calls in flight go on to their end."""


class EngineTls:
    """TLS towards engines: `context` is what new connections take. It is replaced when certificates are rotated: connections that were
    made before carry no further calls.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context
        self._users: WeakSet[RetiresConnections] = WeakSet()

    def used_by(self, user: RetiresConnections) -> None:
        """Tell `user` of every replacement, as long as it lives."""
        self._users.add(user)

    def replace(self, context: ssl.SSLContext) -> None:
        """Take another context."""
        self.context = context
        for user in list(self._users):
            user.retire()


class Call(msgspec.Struct, frozen=True, gc=False):
    """One request to an engine. The adapter adds only the connection's own headers (`backends.clients.endpoint`)."""

    method: str
    path: str
    body: bytes
    request_id: str
    traceparent: bytes | None = None
    tracestate: bytes | None = None
    content_type: bytes = b""
    """The type of the body; empty for JSON."""


class Loss(Enum):
    """How a call was lost on the way, from the transport's point of view."""

    CONNECT = "connect"
    """No connection: refused, unreachable, name not found, TLS refused, or not within the connect time-out."""
    CAPACITY = "capacity"
    """The adapter's own connection cap for this backend is reached; nothing was sent."""
    NO_REPLY = "no_reply"
    """The connection ended after the request was sent and before a complete reply head came."""
    CUT = "cut"
    """The connection ended inside the reply's body."""
    GARBLED = "garbled"
    """The bytes are not HTTP, or break the adapter's limits."""


class ReplySink(Protocol):
    """Where a reply goes. Calls come in this order: `on_head`, `on_data`*, then exactly one of `on_end` or `on_loss`.

    `on_loss` may come at any point and is the last call. No call comes after `Flight.abort`, and none from inside
    `Upstream.dispatch`.
    """

    def on_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """The reply head; header names are lower case, 1xx heads are not reported."""
        ...

    def on_data(self, data: bytes) -> None:
        """Body bytes, transfer coding removed, as they came off the socket; never empty."""
        ...

    def on_end(self) -> None:
        """The message is complete by its own framing, or by close where it had none."""
        ...

    def on_loss(self, loss: Loss, detail: str) -> None:
        """The reply will not be completed; `detail` is for operators only."""
        ...


class Flight(Protocol):
    """A call under way."""

    def abort(self) -> None:
        """Give the call up and close its connection, so that the engine notices at once. Idempotent; no more callbacks."""
        ...

    def pause(self) -> None:
        """Stop reading the reply (the caller's side is full)."""
        ...

    def resume(self) -> None:
        """Read on."""
        ...


class Upstream(Protocol):
    """The transport client of one backend."""

    @property
    def server(self) -> tuple[str, int]:
        """Host and port of the backend, for traces."""
        ...

    def dispatch(self, call: Call, sink: ReplySink) -> Flight:
        """Send `call`; never blocks and never raises for the network's sake: losses go to the sink, later."""
        ...

    async def close(self) -> None:
        """Abort what is in flight and close every connection."""
        ...


class SessionSink(Protocol):
    """Where the events of a session with an engine go. First comes `on_open`, `on_refused` or `on_loss`; exactly one of `on_refused`,
    `on_closed` and `on_loss` is the last call. None comes after the flight's `close` or `abort`, and none from inside `open_session`."""

    def on_open(self) -> None:
        """The engine has taken the session."""
        ...

    def on_refused(self, status: int, body: bytes, retry_after: str | None) -> None:
        """The engine answered the handshake with another status than 101."""
        ...

    def on_bytes(self) -> None:
        """Bytes came, of a message or of a control frame: the engine is alive."""
        ...

    def on_message(self, message: bytes) -> None:
        """A whole text message; nobody has checked that it is UTF-8."""
        ...

    def on_closed(self, code: int) -> None:
        """The engine closed the session in order, with this code."""
        ...

    def on_loss(self, loss: Loss, detail: str) -> None:
        """The session is lost; `detail` is for operators only."""
        ...

    def on_full(self) -> None:
        """The engine reads too slowly: stop sending."""
        ...

    def on_drained(self) -> None:
        """There is room again."""
        ...


class SessionFlight(Flight, Protocol):
    """A session with an engine under way."""

    def send(self, message: bytes) -> None:
        """Send a text message."""
        ...

    def ping(self) -> None:
        """Ask for a sign of life, which is told by `SessionSink.on_bytes`."""
        ...

    def close(self, code: int) -> None:
        """Close in order; no more callbacks."""
        ...


@runtime_checkable
class OpensSessions(Protocol):
    """The transport client of a backend to which sessions (WebSocket) can be opened."""

    def open_session(self, call: Call, sink: SessionSink, most_bytes: int) -> SessionFlight:
        """Open a session; never blocks and never raises for the network's sake. `most_bytes` bounds a message of the engine."""
        ...


class PollResult(msgspec.Struct, frozen=True):
    """The result of one poll of a backend."""

    reason: str
    """Why the backend is not up, in words for an operator; empty when it is."""
    names: frozenset[str] = frozenset()
    """The models it lists; replies to requests for the pool's model may carry any of these names."""
    wrong: bool = False
    """Whether the engine lists models and the pool's is not among them: another model is behind the port."""
    silent: bool = False
    """Whether the poll failed only because no answer came in time, as from a busy engine."""
    loras: frozenset[str] | None = None
    """The adapters it lists; None when it has not answered with a list."""
    context_tokens: int | None = None
    """The longest prompt and answer together that it takes; None where it does not say."""
    unproven: str = ""
    """Why it does not prove the revision that its pool is pinned to, where it is used nevertheless; empty otherwise."""
