"""Reading a ZeroMQ socket from the event loop, without a task or a future per message.

No turn of the loop takes more than `TURN_S` and one message.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import zmq

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
