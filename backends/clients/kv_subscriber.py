"""The transport of one engine's KV events: a ZeroMQ subscription, replay requests, and the state of the connection.

vLLM and SGLang publish `[topic, number, batch]` and answer a replay request `["", number]` with one `["", (topic,) number,
batch]` per batch they keep and a last one numbered -1. The engine binds when its endpoint has a wildcard; otherwise it connects and
the gateway binds.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from backends.clients.zmq import TURN_S, Inbox, frame_number, subscriber
from backends.kv.events import MAX_BATCH_BYTES
from backends.kv.stream import KvStream
from domain.clock import Clock

HIGH_WATER: Final = 64
"""Unread batches of one engine in the subscription's queue. Further batches stay in the engine's queue, 100,000 long by default, so this
bounds memory (64 MiB with the largest batches) and loses nothing."""
REPLAY_HIGH_WATER: Final = 128
"""Unread batches of a replay. The engine drops batches that fit neither here nor in its own queue of 1,000, and the next replay continues
there."""
MAX_REPLAY_BYTES: Final = 256 * 1024 * 1024
"""Longest replay; the batches recorded of real engines have 0.3 to 2.5 KB, and engines keep 10,000."""
SETTLE_S: Final = 0.2
"""Time from a connection to the first replay request: by then the engine has the subscription, so no batch is lost between the two."""
REPLAY_SILENCE_S: Final = 2.0
"""Longest wait for the next batch of a replay; vLLM looks for requests ten times a second."""
REPLAY_WITHIN_S: Final = 30.0
"""Longest replay; 10,000 batches take about a second."""
CHECK_AFTER_S: Final = 10.0
"""Silence after which a replay is requested, in case there is a newer batch: the last batch can be lost without a gap that shows it."""
FORGET_AFTER_S: Final = 30.0
"""How long the blocks of an engine that is not connected are kept, in case only the network failed."""
END: Final = -1
"""Sequence number of a replay's end."""

_UP: Final = zmq.EVENT_CONNECTED | zmq.EVENT_ACCEPTED
_DOWN: Final = zmq.EVENT_DISCONNECTED


class KvSubscriber:
    """The subscription to one backend's events, fed to `stream`.

    Args:
        endpoint: where the engine publishes, `tcp://host:port` or `ipc:///path`.
        replay: where the engine answers replay requests; None when it does not.
        bind: bind to `endpoint` instead of connecting, for an engine that connects.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        stream: KvStream,
        endpoint: str,
        replay: str | None,
        *,
        bind: bool,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.stream = stream
        self.trouble = ""
        """Why there is no socket, in words; empty when there is one."""
        self._context = context
        self._endpoint = endpoint
        self._replay_endpoint = replay
        self._bind = bind
        self._clock = clock
        self._loop = loop
        self._batches: Inbox | None = None
        self._monitor: Inbox | None = None
        self._replay: _Replay | None = None
        self._peers: set[int] = set()
        self._settled: asyncio.TimerHandle | None = None
        self._rest: asyncio.Handle | None = None
        self._heard_at = self._gone_at = clock()

    def tick(self) -> None:
        """Open the socket on the first call, and check the time-outs; to be called about once a second."""
        if self._batches is None:
            self._open()
        now = self._clock()
        if not self._peers:
            if now - self._gone_at > FORGET_AFTER_S:
                self._gone_at = now
                self.stream.gone()
        elif now - self._heard_at > CHECK_AFTER_S:
            self._heard_at = now
            self.stream.check()
            self._follow()

    def close(self) -> None:
        """Close every socket. Idempotent."""
        for handle in (self._settled, self._rest):
            if handle is not None:
                handle.cancel()
        for closable in (self._replay, self._batches, self._monitor):
            if closable is not None:
                closable.close()
        self._replay = self._batches = self._monitor = None

    def _open(self) -> None:
        socket = subscriber(self._context, HIGH_WATER, MAX_BATCH_BYTES)
        monitor = socket.get_monitor_socket(_UP | _DOWN | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        try:
            (socket.bind if self._bind else socket.connect)(self._endpoint)
        except zmq.ZMQError as error:
            self.trouble = f"cannot {'listen on' if self._bind else 'connect to'} {self._endpoint}: {zmq.strerror(error.errno or 0)}"
            socket.disable_monitor()
            monitor.close(0)
            socket.close(0)
            return
        self.trouble = ""
        self._monitor = Inbox(self._loop, self._clock, monitor, self._on_monitor)
        self._batches = Inbox(self._loop, self._clock, socket, self._on_batch)

    def _on_monitor(self, frames: list[bytes]) -> None:
        news = parse_monitor_message(frames)
        kind = int(news["event"])
        peer = int(news["value"])
        if kind & _UP:
            self._peers.add(peer)
        elif kind & _DOWN:
            self._peers.discard(peer)
            if not self._peers:
                self._gone_at = self._clock()
                self._stop_replay()
                self.stream.disconnected()
        else:  # the handshake is done: batches may come from now on
            self._heard_at = self._clock()
            self.stream.connected()
            if self._settled is not None:
                self._settled.cancel()
            self._settled = self._loop.call_later(SETTLE_S, self._settle)

    def _settle(self) -> None:
        self._settled = None
        self._follow()

    def _on_batch(self, frames: list[bytes]) -> None:
        if self._monitor is not None:
            self._monitor.read()  # the event of a new connection must be handled before its batches
        seq = frame_number(frames)
        if seq is None or seq < 0:
            return  # not a batch; if it stands for one, the next number shows a gap
        self._heard_at = self._clock()
        self.stream.batch(seq, frames[-1])
        self._follow()

    def _follow(self) -> None:
        """Request the replay that the stream needs, if it needs one."""
        if self._settled is not None or self._replay_endpoint is None:
            return
        start = self.stream.next_replay()
        if start is not None:
            self._stop_replay()
            self._replay = _Replay(self._context, self._replay_endpoint, start, self._on_replayed, self._clock, self._loop)

    def _on_replayed(self, seq: int, payload: bytes, failed: str) -> None:
        if seq >= 0:
            self.stream.replayed(seq, payload)
            return
        self._stop_replay()
        self.stream.replay_over(failed)
        self._go_on()

    def _go_on(self) -> None:
        """Apply the batches that came during the replay, those beyond `TURN_S` in the loop's next turn. Newer batches stay in the socket
        meanwhile: they would wait behind these anyway."""
        self._rest = None
        until = self._clock() + TURN_S
        while more := self.stream.go_on():
            if self._clock() > until:
                self._rest = self._loop.call_soon(self._go_on)
                break
        if self._batches is not None:
            self._batches.pause(paused=more)
        self._follow()

    def _stop_replay(self) -> None:
        if self._replay is not None:
            self._replay.close()
            self._replay = None


class _Replay:
    """One replay over a socket of its own, so that replies to an older request never mix with it."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        start: int,
        take: Callable[[int, bytes, str], None],
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._take = take
        self._clock = clock
        self._loop = loop
        self._begun_at = self._heard_at = clock()
        self._bytes = 0
        self._inbox: Inbox | None = None
        self._timer = loop.call_later(REPLAY_SILENCE_S, self._look)
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, REPLAY_HIGH_WATER)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_BATCH_BYTES)
        try:
            socket.connect(endpoint)
            socket.send_multipart([b"", start.to_bytes(8, "big")], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            socket.close(0)
            self._timer.cancel()
            self._timer = loop.call_later(
                REPLAY_SILENCE_S, take, END, b"", f"cannot connect to {endpoint}: {zmq.strerror(error.errno or 0)}"
            )
            return
        self._inbox = Inbox(loop, clock, socket, self._on_frames)

    def _on_frames(self, frames: list[bytes]) -> None:
        self._heard_at = self._clock()
        self._bytes += sum(map(len, frames))
        if self._bytes > MAX_REPLAY_BYTES:
            self._take(END, b"", f"it has more than {MAX_REPLAY_BYTES:,} bytes")
            return
        seq = frame_number(frames)
        if seq is not None:
            self._take(max(seq, END), frames[-1], "")

    def _look(self) -> None:
        now = self._clock()
        if now - self._begun_at > REPLAY_WITHIN_S:
            self._take(END, b"", f"it was not over after {REPLAY_WITHIN_S:g} s")
        elif now - self._heard_at >= REPLAY_SILENCE_S:
            self._take(END, b"", f"no answer within {REPLAY_SILENCE_S:g} s")
        else:
            self._timer = self._loop.call_later(REPLAY_SILENCE_S / 4, self._look)

    def close(self) -> None:
        self._timer.cancel()
        if self._inbox is not None:
            self._inbox.close()
