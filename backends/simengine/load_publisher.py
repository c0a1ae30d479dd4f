"""The simulated engine's load push: a report at each change and once a second, over ZeroMQ, as SGLang 0.5.23 sends it.

Imported only when an engine pushes its load.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
import zmq

from backends.simengine.batching import Batcher
from backends.simengine.settings import SimSettings

TOPIC: Final = b"load"
HEARTBEAT_S: Final = 1.0
"""Seconds after which an unchanged report is repeated."""
HIGH_WATER: Final = 8


class LoadPublisher:
    """The load push on a bound PUB socket. `publish` is called after each step; the heartbeat runs by itself.

    Args:
        batcher: returns the current scheduler, whose load is reported.

    Raises:
        OSError: the endpoint cannot be used.
    """

    def __init__(self, settings: SimSettings, batcher: Callable[[], Batcher], loop: asyncio.AbstractEventLoop) -> None:
        assert settings.load_push is not None
        self._batcher = batcher
        self._max_running = settings.max_num_seqs
        self._seq = 0
        self._last: tuple[int, ...] = ()
        self._loop = loop
        self._losing = 0
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.SNDHWM, HIGH_WATER)
        self._socket.setsockopt(zmq.LINGER, 0)
        try:
            self._socket.bind(settings.load_push)
        except zmq.ZMQError as error:
            self._context.destroy(0)
            raise OSError(error.errno, f"load push: {zmq.strerror(error.errno or 0)}") from None
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        """The endpoint at which it publishes, with a number in place of a port `*`."""
        self._timer = loop.call_soon(self._beat)

    def publish(self) -> None:
        """Send a report if the load changed since the last one."""
        now = self._counts()
        if now != self._last:
            self._send(now)

    def lose(self, reports: int) -> None:
        """Number the next `reports` reports, and do not send them."""
        self._losing = reports

    def restart(self) -> None:
        """Begin as a new process: reports are numbered from 0."""
        self._seq = 0
        self._last = ()

    def close(self) -> None:
        """Close the socket."""
        self._timer.cancel()
        self._context.destroy(0)

    def _beat(self) -> None:
        self._send(self._counts())
        self._timer = self._loop.call_later(HEARTBEAT_S, self._beat)

    def _send(self, counts: tuple[int, ...]) -> None:
        self._last = counts
        number = self._seq.to_bytes(8, "big")
        self._seq += 1
        if self._losing:
            self._losing -= 1
            return
        running, waiting, used, capacity, uncached, total, computed, busy_us = counts
        report = ["LoadStat", running, waiting, used, capacity, 0, uncached, total, self._max_running, computed, busy_us]
        self._socket.send_multipart([TOPIC, number, msgspec.msgpack.encode(report)], zmq.NOBLOCK)

    def _counts(self) -> tuple[int, ...]:
        batcher = self._batcher()
        counters = batcher.counters
        size = batcher.block_size
        used = batcher.kv.used * size
        queued = batcher.queued_tokens
        return (
            len(batcher.running),
            len(batcher.waiting),
            used,
            batcher.kv.blocks * size,
            queued,
            used + queued,
            counters.prompt_tokens - counters.prefix_hits,
            int(counters.prefill_ms * 1000),
        )
