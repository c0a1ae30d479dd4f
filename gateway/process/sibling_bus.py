"""The channel between the workers of one gateway on one host: what one worker tells, all its siblings know within 50 ms.

Every worker listens on `bus-<number>-<pid>.sock` in the run directory and connects to every other worker's socket. A connection carries
messages one way, from the worker that made it; the first message says who that is, and a worker that hears from an unknown one connects
back, so that no worker ever looks for new siblings. The supervisor has no part in it, and a worker without news does nothing.

What is told are topics (`SiblingTopic`). A topic calls `SiblingBus.tell_soon`; within `BATCH_S` the bus asks every topic for its bytes
(`batch`) and sends them in one write per sibling. So a topic may gather many events in one message, or tell only the last value of what
changed often.

    connection = frame, frame, ...        the first one is a hello: kind 0, with VERSION, the worker's number and its process id
    frame      = length of the payload (4 bytes, little endian), kind (1 byte), payload

Bounds: each topic has its own bytes a second, what it may send at once is a quarter of that, and `batch` is told what is left. A sibling
that does not read while `MAX_BEHIND_BYTES` wait for it misses whole messages, which are counted in `missed`. A topic whose messages
build on each other tells a sibling everything when it `joined`, and repeats what must not be missed.

Topics that are `between_hosts` are told to the workers of other hosts too, where the gateways share a store
(`gateway.process.host_channel`).
"""

import asyncio
import contextlib
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol, cast

import structlog

from domain.clock import Clock

BATCH_S: Final = 0.025
"""Longest time for which news is gathered before it is sent. With the time on the socket and a busy sibling's loop, siblings know it
within 50 ms."""
MAX_FRAME_BYTES: Final = 1 << 20
"""Largest payload; a connection that announces more is closed."""
MAX_BEHIND_BYTES: Final = 4 << 20
"""Bytes that may wait for one sibling to read; it misses what is told beyond that."""
MAX_SIBLINGS: Final = 256
"""Most siblings: at most 64 workers, each with a predecessor that drains."""
CONNECT_WITHIN_S: Final = 1.0
"""Longest wait for the connections to the siblings that are there at the start, all together."""
VERSION: Final = 1
"""Workers of another version, of a gateway before a hot restart, are not told anything and not listened to."""

_HEAD: Final = struct.Struct("<IB")
_HELLO: Final = struct.Struct("<IIQ")
_HELLO_KIND: Final = 0

log = structlog.get_logger("tidegate.siblings")


class Sibling(NamedTuple):
    """Another worker process. During a restart two processes of a host have one number."""

    number: int
    pid: int
    host: int = 0
    """0 for this host; those of others are drawn at random."""


class SiblingTopic(Protocol):
    """One topic that workers tell each other of. All methods are called in the loop and must not block."""

    @property
    def kind(self) -> int:
        """The number of the topic on the wire, 1 to 255; one of `TopicNumber`."""
        ...

    @property
    def max_bytes_per_s(self) -> int:
        """The bound of what this worker tells each sibling."""
        ...

    @property
    def between_hosts(self) -> bool:
        """Whether workers of other hosts are told too. They cannot be told alone (`SiblingBus.send`)."""
        ...

    def batch(self, max_bytes: int) -> bytes:
        """What is to be told since the last call, at most so many bytes; empty for nothing. What does not fit is dropped by the topic,
        which counts it, or kept for the next call after another `tell_soon`."""
        ...

    def received(self, sibling: Sibling, payload: bytes) -> None:
        """Take a message, which may come before its sibling `joined`. Raises ValueError where it cannot be read: it is counted."""
        ...

    def joined(self, sibling: Sibling) -> None:
        """A sibling can be told things from now on (`SiblingBus.send`)."""
        ...

    def left(self, sibling: Sibling) -> None:
        """A sibling has ended, or closed its connection: nothing comes from it any more."""
        ...


class TopicNumber:
    """The topics' numbers on the wire."""

    DISPATCHES: Final = 1
    """Which prompts were sent to which backend (`gateway.placement.shared_dispatches`)."""
    LOAD: Final = 2
    """The load that each worker has in flight."""
    BREAKERS: Final = 3
    """The states of circuit breakers (`gateway.fleet.shared_breakers`)."""
    SIGNALS: Final = 4
    """Readings of engines' metrics (`gateway.fleet.shared_signals`)."""
    SERVICE: Final = 5
    """What tenants were served from queues (`gateway.queue.shared_service`)."""
    POLLS: Final = 6
    """Results of polls of engines (`gateway.fleet.shared_polls`)."""


class BusFigures(NamedTuple):
    """What the bus has counted since the start."""

    siblings: int
    """Workers of this host and of others that can be told things."""
    sent_bytes: int
    """Payload bytes handed over for sending, once per sibling of this host and once for all of others."""
    received_bytes: int
    missed: int
    """Messages not sent to a sibling that was behind."""
    unreadable: int
    """Messages that could not be read."""


def bus_socket(run_dir: Path, number: int, pid: int) -> Path:
    """The path of the bus socket of worker `number` in process `pid`; never longer than that of its `worker_link.worker_socket`."""
    return run_dir / f"bus-{number}-{pid}.sock"


class Hosts(Protocol):
    """The workers of other hosts (`gateway.process.host_channel`)."""

    @property
    def siblings(self) -> tuple[Sibling, ...]:
        """The workers of other hosts that are there."""
        ...

    def start(self, bus: "SiblingBus") -> None:
        """Begin to tell and hear, for a bus."""
        ...

    def tell(self, frames: bytes) -> bool:
        """Tell all of them frames; False when they are dropped."""
        ...

    async def close(self) -> None:
        """Tell the other hosts that this worker ends, and close the channel."""
        ...


class SiblingBus:
    """One worker's end of the channel.

    Args:
        run_dir: of the gateway.
        me: this worker.
        topics: what is told; each kind once.
        hosts: the channel to other hosts, where there is one; it begins and ends with the bus.

    Raises:
        ValueError: two topics have one kind, or a kind is out of range.
    """

    def __init__(self, run_dir: Path, me: Sibling, topics: Iterable[SiblingTopic], clock: Clock, hosts: Hosts | None = None) -> None:
        self._run_dir = run_dir
        self._me = me
        self._hosts = hosts
        self._path = bus_socket(run_dir, me.number, me.pid)
        self._clock = clock
        self._topics: dict[int, _TopicBudget] = {}
        for topic in topics:
            if topic.kind in self._topics or not 0 < topic.kind < 256:
                raise ValueError(f"topic {topic.kind}: its number is used already or not in 1 to 255")
            self._topics[topic.kind] = _TopicBudget(topic, clock())
        self._server: asyncio.AbstractServer | None = None
        self._out: dict[Sibling, _Out] = {}
        self._in: set[_In] = set()
        self._connecting: dict[Sibling, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._sent_bytes = self._received_bytes = self._missed = self._unreadable = 0

    @property
    def siblings(self) -> tuple[Sibling, ...]:
        """The siblings that can be told things now, those of other hosts among them."""
        return (*self._out, *(self._hosts.siblings if self._hosts is not None else ()))

    def figures(self) -> BusFigures:
        """What was counted since the start."""
        return BusFigures(len(self.siblings), self._sent_bytes, self._received_bytes, self._missed, self._unreadable)

    async def start(self) -> None:
        """Listen, and connect to the siblings that are there; returns after `CONNECT_WITHIN_S` at the latest. Raises OSError when the
        socket cannot be made."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _In(self), path=str(self._path))
        self._path.chmod(0o600)
        for path in sorted(self._run_dir.glob("bus-*.sock"))[:MAX_SIBLINGS]:
            with contextlib.suppress(ValueError):
                _, number, pid = path.stem.split("-")
                self._connect(Sibling(int(number), int(pid)))
        if self._hosts is not None:
            self._hosts.start(self)
        if self._connecting:
            await asyncio.wait(list(self._connecting.values()), timeout=CONNECT_WITHIN_S)

    async def close(self) -> None:
        """Tell what is left to tell, close every connection and remove the socket; safe to call twice and before `start`."""
        if self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._tell()
        self._closed = True
        if self._hosts is not None:
            await self._hosts.close()
        server, self._server = self._server, None
        if server is not None:
            server.close()
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
        for task in list(self._connecting.values()):
            task.cancel()
        await asyncio.gather(*self._connecting.values(), return_exceptions=True)
        transports = [out.transport for out in self._out.values()] + [come.transport for come in self._in]
        for transport in filter(None, transports):
            # what a sibling has not read by now would keep the connection open as long as it likes
            behind = transport.get_write_buffer_size() > MAX_FRAME_BYTES
            transport.abort() if behind else transport.close()

    def tell_soon(self) -> None:
        """Ask the topics for their news within `BATCH_S`. Costs nothing where that is due already; without siblings nobody is asked."""
        if self._timer is None and not self._closed and (self._out or (self._hosts is not None and self._hosts.siblings)):
            self._timer = asyncio.get_running_loop().call_later(BATCH_S, self._tell)

    def send(self, sibling: Sibling, kind: int, payload: bytes) -> bool:
        """Tell one sibling of this host alone, at once; False when it has left, is behind, or the payload is too large. Such messages are
        for siblings that joined; they are not counted against the topic's bytes a second."""
        connection = self._out.get(sibling)
        return connection is not None and len(payload) <= MAX_FRAME_BYTES and self._write(connection, _frame(kind, payload))

    def _tell(self) -> None:
        self._timer = None
        hosts = self._hosts if self._hosts is not None and self._hosts.siblings else None
        if not self._out and hosts is None:
            return
        now = self._clock()
        told = [(budget.topic.between_hosts, budget.frame(now)) for budget in self._topics.values()]
        if frames := b"".join([frame for _, frame in told]):
            for connection in self._out.values():
                self._write(connection, frames)
        if hosts is not None and (frames := b"".join([frame for between_hosts, frame in told if between_hosts])):
            if hosts.tell(frames):
                self._sent_bytes += len(frames)
            else:
                self._missed += 1

    def _write(self, connection: "_Out", frames: bytes) -> bool:
        transport = connection.transport
        if transport is None or transport.is_closing():
            return False
        if transport.get_write_buffer_size() > MAX_BEHIND_BYTES:
            self._missed += 1
            return False
        self._sent_bytes += len(frames)
        transport.write(frames)
        return True

    def _connect(self, sibling: Sibling) -> None:
        if sibling == self._me or sibling in self._out or sibling in self._connecting or self._closed:
            return
        if len(self._out) + len(self._connecting) < MAX_SIBLINGS:
            task = self._connecting[sibling] = asyncio.get_running_loop().create_task(self._connected(sibling))
            task.add_done_callback(lambda _: self._connecting.pop(sibling, None))

    async def _connected(self, sibling: Sibling) -> None:
        path = bus_socket(self._run_dir, sibling.number, sibling.pid)
        connection = _Out(self, sibling)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: connection, str(path))
        except ConnectionRefusedError:
            _remove_if_gone(path, sibling.pid)
        except OSError:
            pass  # the sibling has just ended; it would connect to this worker otherwise

    # --- called by the connections ---

    def opened(self, connection: "_Out") -> None:
        """A connection to a sibling is open: introduce this worker, then tell things."""
        if self._closed or connection.transport is None:
            return
        connection.transport.write(_frame(_HELLO_KIND, _HELLO.pack(VERSION, self._me.number, self._me.pid)))
        self._out[connection.sibling] = connection
        for told in self._topics.values():
            told.topic.joined(connection.sibling)
        self.tell_soon()

    def lost(self, connection: "_Out") -> None:
        """A sibling has closed: it has ended, or it is of another version."""
        if self._out.pop(connection.sibling, None) is not None:
            for told in self._topics.values():
                told.topic.left(connection.sibling)

    def came(self, connection: "_In") -> bool:
        """Somebody has connected; False to refuse."""
        if self._closed or len(self._in) >= MAX_SIBLINGS:
            return False
        self._in.add(connection)
        return True

    def went(self, connection: "_In") -> None:
        """A connection from a sibling is closed."""
        self._in.discard(connection)

    def hello(self, payload: bytes) -> Sibling | None:
        """The sibling that introduces itself; None when it cannot be understood."""
        try:
            version, number, pid = _HELLO.unpack(payload)
        except struct.error:
            return None
        if version != VERSION:
            return None
        sibling = Sibling(number, pid)
        self._connect(sibling)
        return sibling

    def arrived(self, sibling: Sibling) -> None:
        """A worker of another host is there."""
        for told in self._topics.values():
            if told.topic.between_hosts:
                told.topic.joined(sibling)
        self.tell_soon()

    def departed(self, sibling: Sibling) -> None:
        """A worker of another host has left."""
        for told in self._topics.values():
            if told.topic.between_hosts:
                told.topic.left(sibling)

    def message(self, sibling: Sibling, kind: int, payload: bytes, *, of_host: bool = False) -> None:
        """Hand a message to its topic; kinds that this worker does not know, or does not hear of other hosts, are ignored."""
        self._received_bytes += len(payload)
        told = self._topics.get(kind)
        if told is None or (of_host and not told.topic.between_hosts):
            return
        try:
            told.topic.received(sibling, payload)
        except ValueError as error:
            self._unreadable += 1
            log.warning("a message of a sibling cannot be read", worker=sibling.number, host=sibling.host, topic=kind, reason=str(error))


class _TopicBudget:
    """A topic and what is left of its bytes a second: at most a quarter of a second's bytes, so that bursts stay small."""

    __slots__ = ("_at", "_left", "topic")

    def __init__(self, topic: SiblingTopic, now: float) -> None:
        self.topic = topic
        self._at = now
        self._left = topic.max_bytes_per_s / 4

    def frame(self, now: float) -> bytes:
        per_s = self.topic.max_bytes_per_s
        self._left = min(per_s / 4, self._left + per_s * (now - self._at))
        self._at = now
        payload = self.topic.batch(min(MAX_FRAME_BYTES, max(0, int(self._left))))
        if not payload:
            return b""
        self._left -= len(payload)
        return _frame(self.topic.kind, payload)


class _Out(asyncio.Protocol):
    """A connection to one sibling, on which this worker tells; nothing is read but its end."""

    def __init__(self, bus: SiblingBus, sibling: Sibling) -> None:
        self._bus = bus
        self.sibling = sibling
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports are no subclass of it
        self.transport.set_write_buffer_limits(high=MAX_BEHIND_BYTES)
        self._bus.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._bus.lost(self)


class _TooLongFrame(Exception):
    """A frame announces more than `MAX_FRAME_BYTES`."""


class _In(asyncio.Protocol):
    """A connection from a sibling, on which it tells."""

    def __init__(self, bus: SiblingBus) -> None:
        self._bus = bus
        self._sibling: Sibling | None = None
        self._bytes = bytearray()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if not self._bus.came(self):
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._bus.went(self)

    def data_received(self, data: bytes) -> None:
        """Cut the stream into frames."""
        waiting = self._bytes
        waiting += data
        at = 0
        try:
            while self.transport is not None and (frame := _frame_at(waiting, at)) is not None:
                kind, payload = frame
                at += _HEAD.size + len(payload)
                self._frame(kind, payload)
        except _TooLongFrame:
            self._refuse("a message is too long")
            return
        del waiting[:at]

    def _frame(self, kind: int, payload: bytes) -> None:
        if self._sibling is not None:
            self._bus.message(self._sibling, kind, payload)
            return
        self._sibling = self._bus.hello(payload) if kind == _HELLO_KIND else None
        if self._sibling is None:
            self._refuse("its first message is not that of a worker of this version")

    def _refuse(self, why: str) -> None:
        log.warning("a connection of a sibling is closed", reason=why)
        transport, self.transport = self.transport, None
        if transport is not None:
            transport.abort()


def frames_in(data: memoryview) -> Iterator[tuple[int, bytes]]:
    """The kinds and payloads of whole frames; what is cut short or too long at the end is left out."""
    at = 0
    with contextlib.suppress(_TooLongFrame):
        while (frame := _frame_at(data, at)) is not None:
            at += _HEAD.size + len(frame[1])
            yield frame


def _frame_at(data: bytearray | memoryview, at: int) -> tuple[int, bytes] | None:
    """The kind and the payload of the frame that begins there; None while it is not whole. Raises _TooLongFrame."""
    if len(data) - at < _HEAD.size:
        return None
    size, kind = _HEAD.unpack_from(data, at)
    if size > MAX_FRAME_BYTES:
        raise _TooLongFrame
    begin = at + _HEAD.size
    return (kind, bytes(data[begin : begin + size])) if begin + size <= len(data) else None


def _frame(kind: int, payload: bytes) -> bytes:
    return _HEAD.pack(len(payload), kind) + payload


def _remove_if_gone(path: Path, pid: int) -> None:
    """Remove the socket of a killed process. The process is looked up first: a starting worker refuses connections too."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        path.unlink(missing_ok=True)
    except OSError:
        pass
