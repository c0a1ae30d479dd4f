"""The port to an engine's transport, as three small Protocols.

`Upstream` sends one call to one backend; the reply comes back through callbacks on a `ReplySink`, because a relay that
awaited every event would pay a task hop for each (measured: `docs/explanation/decisions/0001-own-relay.md`). Two adapters exist
(`backends/clients/`), and both pass `tests/contract/test_upstream.py`.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Protocol

import msgspec


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

    def dispatch(self, call: Call, sink: ReplySink) -> Flight:
        """Send `call`; never blocks and never raises for the network's sake: losses go to the sink, later."""
        ...

    async def close(self) -> None:
        """Abort what is in flight and close every connection."""
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
