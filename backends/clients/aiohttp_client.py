"""The second adapter of the transport port, on aiohttp's client: an independent HTTP implementation.

It is chosen with `engines.client: aiohttp` and costs about three times the CPU of the relay per request
(`docs/explanation/decisions/0001-own-relay.md`). It serves setups that need a feature of aiohttp, and keeps the port independent of one
adapter. One task per call pumps the reply into the sink.
"""

import asyncio
import socket
from typing import Any, Final

import aiohttp
from aiohttp.abc import ResolveResult
from aiohttp.resolver import ThreadedResolver

from backends.clients.endpoint import EngineEndpoint, RefusedAddress, addresses_of, is_literal, tune
from backends.clients.http1 import STALE_WINDOW_S
from backends.ports import Call, Loss, ReplySink, SessionFlight, SessionSink
from domain.clock import Clock

_STALE: Final = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)


class AiohttpUpstream:
    """The transport client of one backend on one aiohttp session, made at the first call."""

    def __init__(self, target: EngineEndpoint, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._target = target
        self._clock = clock
        self._loop = loop
        self._busy = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None

    @property
    def server(self) -> tuple[str, int]:
        """Host and port of the backend."""
        return self._target.host, self._target.port

    def dispatch(self, call: Call, sink: ReplySink) -> "AiohttpFlight":
        flight = AiohttpFlight(sink)
        if self._busy >= self._target.max_connections:
            self._loop.call_soon(flight.lose, Loss.CAPACITY, f"{self._target.max_connections} connections are open already")
            return flight
        self._busy += 1
        task = flight.task = self._loop.create_task(self._pump(call, flight))
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return flight

    def open_session(self, call: Call, sink: SessionSink, most_bytes: int) -> SessionFlight:
        # imported only here, as in `RelayUpstream`
        from backends.clients.websocket import open_session

        return open_session(self._target, call, sink, most_bytes, self._loop)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._busy -= 1
        self._tasks.discard(task)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=0,
                keepalive_timeout=self._target.idle_s,
                socket_factory=_socket,
                resolver=_CheckedResolver(self._target, self._loop),
                # a name whose addresses are checked is looked up at every connect, as the relay does
                use_dns_cache=self._target.reach is None,
                ttl_dns_cache=5,
            )
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._target.connect_timeout_s, connect=None)
            trace = aiohttp.TraceConfig()
            trace.on_connection_reuseconn.append(_note_reuse)
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=timeout,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                trace_configs=[trace],
            )
        return self._session

    async def _pump(self, call: Call, flight: "AiohttpFlight") -> None:
        sent_at = self._clock()
        try:
            try:
                await self._once(call, flight)
            except _STALE as error:
                stale = flight.reused and not flight.head_seen and not isinstance(error, aiohttp.ClientConnectorError)
                if not stale or self._clock() - sent_at > STALE_WINDOW_S or flight.sink is None:
                    raise
                await self._once(call, flight)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, UnicodeError, RefusedAddress) as error:
            cause = error.__cause__ if isinstance(error.__cause__, RefusedAddress) else error
            flight.lose(Loss.CONNECT, f"{type(cause).__name__}: {cause}")
        except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError) as error:
            flight.lose(Loss.CUT if flight.head_seen else Loss.NO_REPLY, f"{type(error).__name__}: {error}")
        except (aiohttp.ClientError, ValueError) as error:
            flight.lose(Loss.GARBLED, f"{type(error).__name__}: {error}")
        except Exception as error:
            flight.lose(Loss.CUT, f"{type(error).__name__}: {error}")  # a defect of the sink, which is told of the end all the same
            raise

    async def _once(self, call: Call, flight: "AiohttpFlight") -> None:
        target = self._target
        if is_literal(target.host):
            await addresses_of(target, self._loop)  # the library resolves names only: an address in the URL is checked here
        scheme = "https" if target.tls else "http"
        async with self._opened().request(
            call.method,
            f"{scheme}://{target.host_header}{target.prefix}{call.path}",
            data=call.body,
            headers=_headers(call, target),
            ssl=target.tls.context if target.tls else True,
            allow_redirects=False,
            trace_request_ctx=flight,
        ) as reply:
            flight.head_seen = True
            sink = flight.sink
            if sink is not None:
                sink.on_head(reply.status, {k.lower(): v for k, v in reply.raw_headers})
            async for data in reply.content.iter_any():
                await flight.room.wait()
                if flight.sink is not None and data:
                    flight.sink.on_data(data)
        flight.end()


class AiohttpFlight:
    """One call in flight on aiohttp."""

    def __init__(self, sink: ReplySink) -> None:
        self.sink: ReplySink | None = sink
        self.task: asyncio.Task[None] | None = None
        self.head_seen = False
        self.reused = False
        self.room = asyncio.Event()
        self.room.set()

    def abort(self) -> None:
        """Cancelling the pump closes the connection, because the reply is unfinished."""
        self.sink = None
        if self.task is not None:
            self.task.cancel()

    def pause(self) -> None:
        """Stop pumping; aiohttp then stops reading the socket at its own buffer limit (64 KiB)."""
        self.room.clear()

    def resume(self) -> None:
        """Continue pumping."""
        self.room.set()

    def end(self) -> None:
        """The reply is complete."""
        sink, self.sink = self.sink, None
        if sink is not None:
            sink.on_end()

    def lose(self, loss: Loss, detail: str) -> None:
        """Report a loss, unless the call was given up before."""
        sink, self.sink = self.sink, None
        if sink is not None:
            sink.on_loss(loss, detail)


class _CheckedResolver(ThreadedResolver):
    """Resolves through `backends.clients.endpoint` where the endpoint's addresses are checked or its address is given."""

    def __init__(self, target: EngineEndpoint, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._target = target

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC) -> list[ResolveResult]:
        """The addresses that may be connected to. Raises RefusedAddress."""
        target = self._target
        if target.reach is None and not target.address:
            return await super().resolve(host, port, family)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in await addresses_of(target, self._loop)
        ]


async def _note_reuse(_session: aiohttp.ClientSession, context: Any, _parameters: object) -> None:
    context.trace_request_ctx.reused = True


def _headers(call: Call, target: EngineEndpoint) -> dict[str, str]:
    headers = {
        "host": target.host_header,
        "user-agent": "tidegate",
        "accept": "application/json, text/event-stream",
        "accept-encoding": "identity",
        "content-type": call.content_type.decode("ascii") or "application/json",
        "x-request-id": call.request_id,
    }
    if target.authorization is not None:
        headers["authorization"] = target.authorization.decode("ascii")
    headers.update(target.headers)
    if call.traceparent is not None:
        headers["traceparent"] = call.traceparent.decode("ascii")
        if call.tracestate is not None:
            headers["tracestate"] = call.tracestate.decode("ascii")
    return headers


def _socket(address: tuple[int, int, int, str, tuple[Any, ...]]) -> socket.socket:
    family, kind, proto, _, _ = address
    sock = socket.socket(family, kind, proto)
    sock.setblocking(False)
    tune(sock)
    return sock
