"""ZeroMQ publishers of the simulated engine: its KV events and its load. Imported only when an engine publishes one of them.

`KvPublisher`: blocks stored and evicted, in one batch per step that changed the cache, kept for replays as vLLM does.
`LoadPublisher`: a load report at each change and once a second, as SGLang 0.5.23 sends it.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import zmq

from backends.simengine.batching import Batcher
from backends.simengine.settings import SimSettings

REPLAY_END: Final = (-1).to_bytes(8, "big", signed=True)
KV_TOPIC: Final = b"kv@sim"


class KvPublisher:
    """A PUB socket, and a ROUTER for replays. An endpoint with `*` or `::`, or of kind ipc, is bound; another is connected to.

    Raises:
        OSError: an endpoint cannot be used.
    """

    def __init__(self, settings: SimSettings, loop: asyncio.AbstractEventLoop) -> None:
        assert settings.kv_events is not None
        self._block_size = settings.block_size
        self._events: list[dict[str, Any]] = []
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=settings.kv_buffer)
        self._seq = 0
        self._losing = 0
        self._loop = loop
        self._context = zmq.Context()
        self._publisher = self._context.socket(zmq.PUB)
        self._publisher.setsockopt(zmq.SNDHWM, 100_000)
        self._router = self._context.socket(zmq.ROUTER)
        try:
            at = settings.kv_events
            (self._publisher.bind if "*" in at or "::" in at or at.startswith("ipc:") else self._publisher.connect)(at)
            if settings.kv_replay is not None:
                self._router.bind(settings.kv_replay)
        except zmq.ZMQError as error:
            self._context.destroy(0)
            raise OSError(error.errno, f"KV events: {zmq.strerror(error.errno or 0)}") from None
        self.endpoint = self._publisher.getsockopt_string(zmq.LAST_ENDPOINT)
        """The endpoint at which it publishes, with a number in place of a port `*`."""
        self.replay_endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._fd = int(self._router.getsockopt(zmq.FD))
        loop.add_reader(self._fd, self._answer)

    def stored(self, parent: bytes | None, hashes: Sequence[bytes], tokens: Sequence[int], salt: str) -> None:
        """Add an event: these blocks of a sequence can be found from now on."""
        keys = [[salt] if salt and parent is None and not at else None for at in range(len(hashes))]
        self._events.append(
            {
                "type": "BlockStored",
                "block_hashes": [_short(block) for block in hashes],
                "parent_block_hash": None if parent is None else _short(parent),
                "token_ids": list(tokens),
                "block_size": self._block_size,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
                "extra_keys": keys,
                "group_idx": 0,
            }
        )

    def removed(self, block: bytes) -> None:
        """Add an event: the block was evicted."""
        self._events.append({"type": "BlockRemoved", "block_hashes": [_short(block)], "medium": "GPU", "group_idx": 0})

    def cleared(self) -> None:
        """Add an event: the cache was cleared."""
        self._events.append({"type": "AllBlocksCleared"})

    def flush(self) -> None:
        """Publish the events since the last batch as one batch."""
        if not self._events:
            return
        number = self._seq.to_bytes(8, "big")
        payload = msgspec.msgpack.encode([time.time(), self._events, 0])
        self._seq += 1
        self._events = []
        self._kept.append((number, payload))
        if self._losing:
            self._losing -= 1
        else:
            self._publisher.send_multipart([KV_TOPIC, number, payload], zmq.NOBLOCK)

    def lose(self, batches: int) -> None:
        """Do not send the next `batches` batches to subscribers; replays have them."""
        self._losing = batches

    def restart(self) -> None:
        """Begin as a new process: batches are numbered from 0, none is kept."""
        self._seq = 0
        self._events = []
        self._kept.clear()

    def close(self) -> None:
        """Close the sockets."""
        self._loop.remove_reader(self._fd)
        self._context.destroy(0)

    def _answer(self) -> None:
        while True:
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) != 3:
                continue
            peer, _, start = frames
            for number, payload in self._kept:
                if number >= start:
                    self._router.send_multipart([peer, b"", KV_TOPIC, number, payload])
            self._router.send_multipart([peer, b"", KV_TOPIC, REPLAY_END, b""])


def _short(block: bytes) -> int:
    """The part of a hash that vLLM sends: its low 64 bits."""
    return int.from_bytes(block[-8:], "big")


LOAD_TOPIC: Final = b"load"
HEARTBEAT_S: Final = 1.0
"""Seconds after which an unchanged report is repeated."""
LOAD_HIGH_WATER: Final = 8


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
        self._socket.setsockopt(zmq.SNDHWM, LOAD_HIGH_WATER)
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
        self._socket.send_multipart([LOAD_TOPIC, number, msgspec.msgpack.encode(report)], zmq.NOBLOCK)

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
