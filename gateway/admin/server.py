"""The HTTP server of the admin port: uvicorn with bounds, so that nobody without a key can keep a probe from its answer.

`AdminConnection` gives every head, body and unread answer a deadline, bounds their bytes, and makes room for a new connection by closing
the one that has waited longest. `BoundedRequests` bounds the requests under way, the probes and `/metrics` excepted. `AdminServer` leaves
signals alone and reports ready.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from email.utils import formatdate
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.admin.guard import MAX_POLICIES_BYTES
from gateway.admin.problem import RETRY, error_reply

MAX_CONNECTIONS: Final = 256
"""Open connections of the admin port. Beyond it a new connection closes the one that has waited longest for its caller: for a request, for
the rest of a request, or for the answer to be read. Probes, a scraper and a few people need ten."""
MAX_REQUESTS: Final = 64
"""Requests of the API under way at once; beyond it they get a 503. Probes and `/metrics` are not counted."""
MAX_HEAD_BYTES: Final = 64 * 1024
"""Largest head of a request; uvicorn bounds none."""
MAX_RAW_BYTES: Final = 2 * MAX_POLICIES_BYTES
"""Most bytes of a request, framing included: twice the largest body."""
HEAD_S: Final = 10.0
"""Longest time from the first byte of a request to the end of its head, as on the data port."""
BODY_S: Final = 30.0
"""Longest time from the end of the head to the end of the body, as on the data port."""
UNREAD_S: Final = 30.0
"""Longest time that an answer may lie unread."""
IDLE_S: Final = 75
"""Longest time between two requests, or before the first one: above the 60 s at which common load balancers reuse connections."""
PROBES: Final = frozenset({"/livez", "/readyz", "/metrics"})
"""The paths that are always answered: a refused probe makes an orchestrator kill a healthy gateway."""


class AdminConnection(HttpToolsProtocol):
    """A connection of the admin port, with deadlines and bounds."""

    head_s = HEAD_S
    body_s = BODY_S
    unread_s = UNREAD_S
    idle_s = float(IDLE_S)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.waiting_since: float | None = None
        """Since when the connection waits for its caller; None while the caller waits for an answer."""
        self._begun = False
        """Whether bytes of a request have come whose answer is not over."""
        self._head_complete = False
        self._raw_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn declares it
        """Make room, and wait for a request."""
        super().connection_made(transport)
        self._wait(self.idle_s)
        if len(self.connections) > MAX_CONNECTIONS:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        self._served()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes of a request, within its bounds."""
        if not self._begun:
            self._begun = True
            self.server_state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
            self._head_complete = False
            self._raw_bytes = 0
            self._wait(self.head_s)
        self._raw_bytes += len(data)
        if self._raw_bytes > MAX_RAW_BYTES:
            self.transport.abort()
            return
        super().data_received(data)
        if self._raw_bytes > MAX_HEAD_BYTES and not self._head_complete and self._begun:
            self._refuse(b"431 Request Header Fields Too Large")

    def on_headers_complete(self) -> None:
        """Start the request, and the body's deadline."""
        self._head_complete = True
        self._wait(self.body_s)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Hand the body over: from here on the caller waits."""
        super().on_message_complete()
        if self.cycle.response_complete:
            self._begun = False  # the answer went out before the body was there
        self._served()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._begun = False
        self._wait(self.idle_s)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The caller does not read: the answer gets a deadline."""
        super().pause_writing()
        self._wait(self.unread_s)

    def resume_writing(self) -> None:
        """The caller reads again."""
        super().resume_writing()
        self._served()

    def _wait(self, most_s: float) -> None:
        """Wait for the caller, at most `most_s`."""
        self._served()
        self.waiting_since = self.loop.time()
        self._deadline = self.loop.call_later(most_s, self._expired)

    def _served(self) -> None:
        """The caller has done its part."""
        self.waiting_since = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expired(self) -> None:
        if self._begun and not self._head_complete:
            self._refuse(b"408 Request Timeout")
        else:
            self.transport.abort()

    def _refuse(self, status: bytes) -> None:
        self.transport.write(b"HTTP/1.1 %b\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % status)
        self.transport.close()

    def _make_room(self) -> None:
        """Close the connection that has waited longest for its caller; this one, where twice as many as allowed are being answered."""
        waiting = [
            (other.waiting_since, other)
            for other in self.connections
            if isinstance(other, AdminConnection) and other is not self and other.waiting_since is not None
        ]
        if waiting:
            min(waiting, key=lambda since_and_other: since_and_other[0])[1].transport.abort()
        elif len(self.connections) > 2 * MAX_CONNECTIONS:
            self.transport.abort()


class BoundedRequests:
    """An ASGI app that passes on at most `MAX_REQUESTS` requests at once, and the probes always."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or answer 503."""
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        if self._under_way >= MAX_REQUESTS:
            reply = error_reply(503, f"{MAX_REQUESTS} requests of the admin API are under way. Try again shortly.", "overloaded", RETRY)
            await reply(scope, receive, send)
            return
        self._under_way += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way -= 1


class AdminServer(uvicorn.Server):
    """uvicorn with three changes: it leaves signals alone, calls `ready` once the socket is served, and sleeps until it is told to end.

    uvicorn itself looks ten times a second whether it should, and writes the date for answers; connections of this server do that.
    """

    def __init__(self, app: ASGIApp, ready: Callable[[], None], connection: type[AdminConnection] = AdminConnection) -> None:
        self._told_to_end = asyncio.Event()
        super().__init__(
            uvicorn.Config(
                BoundedRequests(app),
                http=connection,
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,  # else a caller on this machine could say any address, and a key's networks would be no bound
                timeout_keep_alive=IDLE_S,
                timeout_graceful_shutdown=2,
            )
        )
        self._ready = ready

    @property
    def should_exit(self) -> bool:
        """Whether the server was told to end. Setting it, in the server's own thread, ends it."""
        return self._told_to_end.is_set()

    @should_exit.setter
    def should_exit(self, told: bool) -> None:
        (self._told_to_end.set if told else self._told_to_end.clear)()

    async def main_loop(self) -> None:
        """Serve until the server is told to end."""
        await self._told_to_end.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handlers: SIGTERM means drain here, not exit."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start serving, then report ready."""
        await super().startup(sockets)
        self._ready()
