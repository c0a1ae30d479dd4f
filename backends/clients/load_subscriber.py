"""The transport of the load reports that one engine pushes: a ZeroMQ subscription per data-parallel rank.

SGLang publishes `[b"load", number, report]`, rank n at its first port plus n, and always binds itself. ZeroMQ reconnects by itself, but
not after a message that it refuses, so a silent socket is opened anew. `CONFLATE`, which would keep the newest message only, tears
messages of several frames apart; so a small queue is read to its end at every turn, and the last report counts.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import zmq

from backends.clients.zmq_inbox import Inbox, frame_number, subscriber
from backends.load_reports import MAX_REPORT_BYTES
from domain.clock import Clock

HIGH_WATER: Final = 8
"""Unread reports of one rank in the subscription's queue, as many as SGLang keeps on its side."""
REOPEN_S: Final = 10.0
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
        """Open the sockets that are not open, and reopen those silent for `REOPEN_S`; to be called about once a second."""
        self.trouble = ""
        now = self._clock()
        for rank, endpoint in enumerate(self._endpoints):
            if rank in self._inboxes and now - self._heard_at[rank] > REOPEN_S:
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
        socket = subscriber(self._context, HIGH_WATER, MAX_REPORT_BYTES)
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
