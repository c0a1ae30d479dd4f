"""The far end of the bus: what a worker tells those of other hosts, over one channel of the store that all of them share.

The bus (`gateway.process.sibling_bus`) gathers what is to be told and hands the frames of topics that are for other hosts too to
`HostChannel.tell`. Every worker of every host hears every message; those of its own host come over the bus's sockets and are ignored here.

    message = version (1 byte), flags (1 byte), host (8 bytes), worker (4 bytes), process (8 bytes), frame, frame, ...

A message without frames says that its sender is there; every worker sends one each `HELLO_EVERY_S`, and one with the flag `LEAVES` as it
ends. A worker that was not heard for `GONE_S` has left. Messages may be lost, when the store restarts for instance: topics tell sums and
whole states again and again (`SiblingTopic`), and a dispatch that was lost costs a match.
"""

import asyncio
import contextlib
import os
import secrets
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol

import structlog

from domain.clock import Clock
from gateway.process.sibling_bus import MAX_SIBLINGS, VERSION, Sibling, SiblingBus, frames_in

HELLO_EVERY_S: Final = 1.0
"""Between two messages of a worker that has nothing to tell."""
GONE_S: Final = 4.0
"""A worker of another host that was not heard for this long has left: three of its messages were lost, or it was killed."""
LEAVES: Final = 1
"""Flag of the last message of a worker."""
LEAVE_WITHIN_S: Final = 0.2
"""Longest time that the end of a worker waits for its last message to be sent."""

_HEAD: Final = struct.Struct("<BBQIQ")

log = structlog.get_logger("tidegate.siblings")


class BroadcastChannel(Protocol):
    """A channel on which every subscriber hears every message, its own ones too."""

    def publish(self, message: bytes) -> bool:
        """Send a message soon; False when too many wait, so that it is dropped."""
        ...

    async def sent(self) -> None:
        """Returns when no message waits."""
        ...

    async def run(self, heard: Callable[[bytes], None]) -> None:
        """Send and hear for ever, whether the store can be reached or not. `heard` must not raise."""
        ...


def host_id(run_dir: Path) -> int:
    """The number of this host among the gateways of a deployment: drawn at random for each run directory, and kept in it, so that all
    workers of a gateway have one and those of another container on the same machine another. Raises OSError."""
    path = run_dir / "host"
    with contextlib.suppress(FileExistsError):
        drawn = run_dir / f"host-{os.getpid()}"
        drawn.write_text(f"{secrets.randbits(63) | 1}\n", "ascii")
        try:
            os.link(drawn, path)  # appears whole, for the first worker that gets here
        finally:
            drawn.unlink()
    return int(path.read_text("ascii"))


class HostChannel:
    """One worker's end of the channel between hosts.

    Args:
        host: of this worker, from `host_id`.
        me: this worker, as its bus knows it.
    """

    def __init__(self, channel: BroadcastChannel, host: int, me: Sibling, clock: Clock) -> None:
        self._channel = channel
        self._host = host
        self._me = me
        self._clock = clock
        self._heard_at: dict[Sibling, float] = {}
        self._bus: SiblingBus | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def siblings(self) -> tuple[Sibling, ...]:
        """The workers of other hosts that are there."""
        return tuple(self._heard_at)

    def start(self, bus: SiblingBus) -> None:
        """Begin to tell and hear, for a bus."""
        self._bus = bus
        works: tuple[Awaitable[None], ...] = (self._channel.run(self._heard), self._greet())
        self._tasks = [asyncio.ensure_future(work) for work in works]
        for task in self._tasks:
            task.add_done_callback(_tell_defect)

    def tell(self, frames: bytes) -> bool:
        """Tell the other hosts frames of the bus; False when too much waits to be sent."""
        return self._channel.publish(self._message(0) + frames)

    async def close(self) -> None:
        """Tell the other hosts that this worker ends, if they can be told soon, and end the connection."""
        if not self._tasks:
            return
        self._channel.publish(self._message(LEAVES))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_WITHIN_S):
                await self._channel.sent()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _message(self, flags: int) -> bytes:
        return _HEAD.pack(VERSION, flags, self._host, self._me.number, self._me.pid)

    async def _greet(self) -> None:
        while True:
            began = self._clock()
            self._channel.publish(self._message(0))
            await asyncio.sleep(HELLO_EVERY_S)
            self.forget_silent(self._clock() - began)

    def forget_silent(self, since_last_s: float) -> None:
        """Forget the workers that were not heard for `GONE_S`. After a pause in which this process stood still, and could not hear, all
        have as long again.

        Args:
            since_last_s: since the last call.
        """
        now = self._clock()
        if since_last_s > 2 * HELLO_EVERY_S:
            self._heard_at = dict.fromkeys(self._heard_at, now)
        for sibling in [sibling for sibling, heard_at in self._heard_at.items() if now - heard_at > GONE_S]:
            self._left(sibling)

    def _heard(self, message: bytes) -> None:
        try:
            version, flags, host, number, pid = _HEAD.unpack_from(message)
        except struct.error:
            return  # not of a gateway
        bus = self._bus
        if host == self._host or version != VERSION or bus is None:
            return
        sibling = Sibling(number, pid, host)
        if flags & LEAVES:
            self._left(sibling)
            return
        if sibling not in self._heard_at:
            if len(self._heard_at) >= MAX_SIBLINGS:
                return
            self._heard_at[sibling] = self._clock()
            self._channel.publish(self._message(0))  # so that it knows this worker now
            bus.arrived(sibling)
        else:
            self._heard_at[sibling] = self._clock()
        for kind, payload in frames_in(memoryview(message)[_HEAD.size :]):
            bus.message(sibling, kind, payload, of_host=True)

    def _left(self, sibling: Sibling) -> None:
        if self._heard_at.pop(sibling, None) is not None and self._bus is not None:
            self._bus.departed(sibling)


def _tell_defect(task: asyncio.Future[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("defect: this worker and those of other hosts tell each other nothing any more", exc_info=error)
