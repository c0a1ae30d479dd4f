"""ZeroMQ sockets on the event loop, and the subscription to the load reports that one engine pushes.

`Inbox` reads a socket without a task or a future per message: no turn of the loop takes more than `TURN_S` and one message.

`LoadSubscriber` has one subscription per data-parallel rank. SGLang publishes `[b"load", number, report]`, rank n at its first port plus n,
and always binds itself. ZeroMQ reconnects by itself, but not after a message that it refuses, so a silent socket is opened anew.
`CONFLATE`, which would keep the newest message only, tears messages of several frames apart; so a small queue is read to its end at every
turn, and the last report counts. KV events have a transport of their own, `backends.clients.kv_subscriber`.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import zmq

from backends.load_reports import MAX_REPORT_BYTES
from domain.clock import Clock

TURN_S: Final = 0.002
"""Longest time that one socket is read in one turn of the loop, seconds; callers' streams wait meanwhile."""
MAX_PER_TURN: Final = 64
"""Most messages read from one socket in one turn of the loop."""


def subscriber(context: zmq.Context[zmq.Socket[bytes]], high_water: int, max_bytes: int) -> zmq.Socket[bytes]:
    """A subscription socket for one engine's messages, not connected yet: it reconnects by itself, notices a peer that vanished, and takes
    no message above `max_bytes`. It subscribes to every topic: there should be only one, and any other is worth a complaint."""
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.IPV6, 1)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVHWM, high_water)
    socket.setsockopt(zmq.MAXMSGSIZE, max_bytes)
    socket.setsockopt(zmq.RECONNECT_IVL, 200)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 5_000)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 5_000)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 15_000)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    return socket


class Inbox:
    """Passes a socket's messages to `take` as they come, a bounded number in one turn of the loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, socket: zmq.Socket[bytes], take: Callable[[list[bytes]], None]
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._socket = socket
        self._take = take
        self._closed = self._paused = False
        self._fd = int(socket.getsockopt(zmq.FD))
        self._more: asyncio.Handle | None = None
        loop.add_reader(self._fd, self.read)
        # libzmq signals changes only: messages that are there already would never be announced
        self._more = loop.call_soon(self.read)

    def read(self) -> None:
        """Read the waiting messages, up to the bounds of one turn; the rest in the loop's next turn."""
        until = self._clock() + TURN_S
        for _ in range(MAX_PER_TURN):
            # checked first, because `recv_multipart` on an empty socket raises, which costs five times as much
            if self._closed or self._paused or not int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                return
            self._take(self._socket.recv_multipart(zmq.NOBLOCK))
            if self._clock() > until:
                break
        if not self._closed:
            if self._more is not None:
                self._more.cancel()
            self._more = self._loop.call_soon(self.read)

    def pause(self, *, paused: bool) -> None:
        """Leave messages in the socket, or read them again."""
        if self._paused and not paused and not self._closed:
            # messages that came meanwhile were announced then, and are not announced again
            self._more = self._loop.call_soon(self.read)
        self._paused = paused

    def close(self) -> None:
        """Stop. May be called from inside `take`."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._fd)
        if self._more is not None:
            self._more.cancel()
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disable_monitor()
        self._socket.close(0)


def frame_number(frames: list[bytes]) -> int | None:
    """The number in a message's last frame but one; None when that frame holds none."""
    return int.from_bytes(frames[-2], "big", signed=True) if len(frames) >= 2 and len(frames[-2]) == 8 else None


LOAD_HIGH_WATER: Final = 8
"""Unread reports of one rank in the subscription's queue, as many as SGLang keeps on its side."""
LOAD_REOPEN_S: Final = 10.0
"""Silence after which a socket is opened anew. libzmq gives a connection up for good when its peer sends more than `MAXMSGSIZE`."""


class LoadSubscriber:
    """The subscriptions to one backend's reports, handed to `take` as (rank, number or None, report).

    Args:
        endpoints: where each rank publishes, in their order.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoints: Sequence[str],
        take: Callable[[int, int | None, bytes], None],
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.trouble = ""
        """Why a rank has no socket, in words; empty when each has one."""
        self._context = context
        self._endpoints = tuple(endpoints)
        self._take = take
        self._clock = clock
        self._loop = loop
        self._inboxes: dict[int, Inbox] = {}
        self._heard_at: dict[int, float] = {}

    def tick(self) -> None:
        """Open the sockets that are not open, and reopen those silent for `LOAD_REOPEN_S`; to be called about once a second."""
        self.trouble = ""
        now = self._clock()
        for rank, endpoint in enumerate(self._endpoints):
            if rank in self._inboxes and now - self._heard_at[rank] > LOAD_REOPEN_S:
                self._inboxes.pop(rank).close()
            if rank not in self._inboxes:
                self._heard_at[rank] = now
                self._open(rank, endpoint)

    def close(self) -> None:
        """Close every socket. Idempotent."""
        for inbox in self._inboxes.values():
            inbox.close()
        self._inboxes.clear()

    def _open(self, rank: int, endpoint: str) -> None:
        socket = subscriber(self._context, LOAD_HIGH_WATER, MAX_REPORT_BYTES)
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.trouble = f"cannot connect to {endpoint}: {zmq.strerror(error.errno or 0)}"
            socket.close(0)
            return
        self._inboxes[rank] = Inbox(self._loop, self._clock, socket, partial(self._on_frames, rank))

    def _on_frames(self, rank: int, frames: list[bytes]) -> None:
        self._heard_at[rank] = self._clock()
        self._take(rank, frame_number(frames), frames[-1])
