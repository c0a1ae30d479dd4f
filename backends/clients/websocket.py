"""The client's side of a WebSocket to an engine: one connection for one session, never pooled. Both adapters of the transport port open
sessions with it.

`websockets` makes and checks the handshake; the connection is dialled as any other one, so the rules about addresses, TLS and the time to
connect hold.
"""

import asyncio
import socket
from collections.abc import Coroutine
from typing import Any, Final, cast

from websockets.client import ClientProtocol
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import WebSocketURI

from backends.clients.endpoint import EngineEndpoint, dial, tune
from backends.ports import Call, Loss, SessionSink
from backends.websocket import SILENT, WebSocketStream

MAX_HANDSHAKE_BYTES: Final = 128 * 1024
"""Most bytes of an answer to the handshake; engines send under 1 KiB."""
WRITE_BUFFER_BYTES: Final = 256 * 1024
"""Unsent bytes at which the caller's side is not read any further."""
CLOSE_S: Final = 2.0
"""Longest wait, in seconds, for an engine to read what was written before the connection is dropped."""


class EngineSession(asyncio.Protocol):
    """One session with an engine; a `backends.ports.SessionFlight`. The sink hears of the connection's end exactly once, and of nothing
    after `abort`."""

    def __init__(self, target: EngineEndpoint, call: Call, sink: SessionSink, most_bytes: int) -> None:
        self._target = target
        self._sink: SessionSink | None = sink
        self._transport: asyncio.Transport | None = None
        self._open = False
        self._handshake_bytes = 0
        uri = WebSocketURI(target.tls is not None, target.host, target.port, f"{target.prefix}{call.path}", "", None, None)
        self._protocol = ClientProtocol(uri, max_size=most_bytes, logger=SILENT)
        self._stream = WebSocketStream(self._protocol)
        request = self._protocol.connect()
        request.headers["x-request-id"] = call.request_id
        request.headers["user-agent"] = "tidegate"
        if target.authorization is not None:
            request.headers["authorization"] = target.authorization.decode("ascii")
        for name, value in target.headers:
            request.headers[name] = value
        if call.traceparent is not None:
            request.headers["traceparent"] = call.traceparent.decode("ascii")
            if call.tracestate is not None:
                request.headers["tracestate"] = call.tracestate.decode("ascii")
        self._request = request
        self.task: asyncio.Task[None] | None = None

    def connect(self, loop: asyncio.AbstractEventLoop) -> Coroutine[Any, Any, None]:
        """Dial the engine and send the handshake; what goes wrong is told to the sink."""
        return self._connect(loop)

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> None:
        target = self._target
        try:
            async with asyncio.timeout(target.connect_timeout_s):
                await dial(target, loop, lambda: self)
        except TimeoutError:
            self._lose(Loss.CONNECT, f"no connection within {target.connect_timeout_s:g} s")
        except (OSError, ValueError) as error:  # ValueError: a name that cannot be encoded
            self._lose(Loss.CONNECT, f"{type(error).__name__}: {error}")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are no subclass of it
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            tune(sock)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        if self._sink is None:
            self._transport.abort()
            return
        self._protocol.send_request(self._request)
        self._flush()

    def data_received(self, data: bytes) -> None:
        sink = self._sink
        if sink is None:
            return
        if not self._open:
            self._handshake_bytes += len(data)
            if self._handshake_bytes > MAX_HANDSHAKE_BYTES and self._protocol.state is State.CONNECTING:
                self._lose(Loss.GARBLED, "a long answer to the handshake")
                return
        self._protocol.receive_data(data)
        if not self._open and not self._begin(sink):
            return
        sink.on_bytes()
        for message in self._stream.read():
            sink.on_message(message)
            if self._sink is None:
                return
        self._flush()
        if self._stream.closed is not None:
            self._end(sink)

    def _begin(self, sink: SessionSink) -> bool:
        """Look for the answer to the handshake; whether the session is open."""
        protocol = self._protocol
        if protocol.state is State.CONNECTING and protocol.handshake_exc is None:
            return False  # more of it is to come
        response = next((event for event in protocol.events if isinstance(event, Response)), None)
        if response is None:
            self._lose(Loss.GARBLED, f"its answer to the handshake is no HTTP: {type(protocol.handshake_exc).__name__}")
        elif response.status_code != 101:
            self._sink = None
            self._shut()
            sink.on_refused(response.status_code, bytes(response.body or b""), response.headers.get("retry-after"))
        elif protocol.handshake_exc is not None:
            self._lose(Loss.GARBLED, f"its answer to the handshake is wrong: {protocol.handshake_exc}")
        else:
            protocol.events.remove(response)
            self._open = True
            sink.on_open()
        return self._open and self._sink is not None

    def _end(self, sink: SessionSink) -> None:
        """The engine closed, or broke the protocol."""
        closed, error = self._stream.closed, self._protocol.parser_exc
        assert closed is not None
        self._sink = None
        self._shut()
        if error is not None:
            sink.on_loss(Loss.GARBLED, f"broke the WebSocket protocol: {type(error).__name__}")
        elif self._protocol.close_rcvd is None:
            sink.on_loss(Loss.GARBLED, f"sent {closed[1]}")
        else:
            sink.on_closed(closed[0])

    def connection_lost(self, exc: Exception | None) -> None:
        why = f"{type(exc).__name__}: {exc}" if exc else "closed by the engine"
        self._lose(Loss.CUT if self._open else Loss.NO_REPLY, why)

    def pause_writing(self) -> None:
        if self._sink is not None:
            self._sink.on_full()

    def resume_writing(self) -> None:
        if self._sink is not None:
            self._sink.on_drained()

    # --- the session's side ---------------------------------------------------------------------------------------

    def send(self, message: bytes) -> None:
        self._stream.send(message)
        self._flush()

    def ping(self) -> None:
        self._stream.ping()
        self._flush()

    def close(self, code: int) -> None:
        """Close in order, without waiting for the engine's answer. An engine that does not read is left after `CLOSE_S`."""
        self._sink = None
        self._stream.close(code, "")
        self._flush()
        if self._transport is not None:
            self._transport.close()
            asyncio.get_running_loop().call_later(CLOSE_S, self._transport.abort)
        elif self.task is not None:
            self.task.cancel()

    def abort(self) -> None:
        self._sink = None
        self._shut()

    def pause(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _flush(self) -> None:
        if self._transport is not None and not self._transport.is_closing() and (data := self._stream.out()):
            self._transport.write(data)

    def _shut(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        elif self.task is not None:
            self.task.cancel()

    def _lose(self, loss: Loss, detail: str) -> None:
        sink, self._sink = self._sink, None
        self._shut()
        if sink is not None:
            sink.on_loss(loss, detail)


def open_session(target: EngineEndpoint, call: Call, sink: SessionSink, most_bytes: int, loop: asyncio.AbstractEventLoop) -> EngineSession:
    """Begin to open a session; the sink hears how that went, never from inside this call."""
    session = EngineSession(target, call, sink, most_bytes)
    session.task = loop.create_task(session.connect(loop))
    return session
