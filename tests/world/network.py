"""Connections without sockets: ordered bytes with a delay, buffers that fill, ends that close, reset, or are never heard of again."""

import asyncio
import random
import socket
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

from tests.world.hosts import Host, here
from tests.world.loop import VirtualLoop

Address = tuple[str, int]
Factory = Callable[[], asyncio.Protocol]

KERNEL_BYTES = 2048
"""What the other side's kernel takes when nobody reads; small, so that slow readers are felt."""
SPLIT_SHARE = 0.1
"""Of deliveries, those that come in two pieces."""
AGAIN_S = 1.0
"""Between two tries to get bytes through where nothing gets through."""


class _Socket:
    """As much of a socket as is asked for."""

    family = socket.AF_UNIX

    def __init__(self, end: "End") -> None:
        self._end = end

    def setsockopt(self, *what: Any) -> None:
        if what[1] == socket.SO_LINGER:
            self._end.resets = True


class End(asyncio.Transport):
    """One end of a connection."""

    peer: "End"

    def __init__(self, network: "Network", protocol: asyncio.Protocol, host: Host, context: Context) -> None:
        super().__init__()
        self.network, self.protocol, self.host, self._context = network, protocol, host, context
        self.resets = False
        self.lost = False
        """The protocol was told that it is over, or never will be."""
        self._closing = False
        self._out: deque[bytes] = deque()
        self._out_bytes = 0
        self._due = False
        """A delivery to the peer is under way."""
        self._eof = False
        self._reading = True
        self._paused = False
        self._high = 65536
        self._broken: Exception | None = None

    # --- what protocols ask for -----------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return _Socket(self) if name == "socket" else default

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self.peer._hurry()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 65536 if high is None else high

    def get_write_buffer_size(self) -> int:
        return max(0, self._out_bytes - KERNEL_BYTES)

    def can_write_eof(self) -> bool:
        return True

    def write(self, data: Any) -> None:
        if self._closing or self._eof or self.lost:
            return
        if data:
            self._out.append(bytes(data))
            self._out_bytes += len(data)
            self._hurry()
            if not self._paused and self.get_write_buffer_size() > self._high:
                self._paused = True
                self.protocol.pause_writing()

    def write_eof(self) -> None:
        self._eof = True
        self._hurry()

    def close(self) -> None:
        if not self._closing:
            self._closing = self._eof = True
            self._hurry()

    def abort(self) -> None:
        """What left already arrives; a peer learns of a reset or an end."""
        if self.lost:
            return
        self._closing = self._eof = True
        while self._out_bytes > KERNEL_BYTES:
            self._out_bytes -= len(self._out.pop())
        if self.resets:
            self._out.clear()
            self._out_bytes = 0
            self._broken = _reset()
        self._hurry()
        self._lose(None)

    # --- bytes on their way ---------------------------------------------------------------------------------------

    def _hurry(self) -> None:
        if self._due or not (self._out or self._eof):
            return
        self._due = True
        network, loop = self.network, self.network.loop
        delay = network.delay(self.host, self.peer.host)
        loop.punctually(loop.now + delay, self._arrive, context=self.peer._context)

    def _arrive(self) -> None:
        self._due = False
        peer, network = self.peer, self.network
        if network.cut_off(self.host, peer.host):
            self._due = True  # sent again until it gets through
            network.loop.punctually(network.loop.now + AGAIN_S, self._arrive, context=peer._context)
        elif self._broken is not None:
            peer._lose(self._broken)
        elif peer.lost or (self._out and peer._closing):
            self._drop()
        elif self._out:
            if peer._reading:
                self._deliver(peer)
        elif self._eof:
            stays = peer.protocol.eof_received()
            if self._closing:
                self._lose(None)
            if not stays or self._closing:
                peer.close()

    def _deliver(self, peer: "End") -> None:
        data = self._out.popleft() if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        rng = self.network.rng
        if len(data) > 1 and rng.random() < SPLIT_SHARE:
            at = rng.randrange(1, len(data))
            self._out.append(data[at:])
            data = data[:at]
        self._out_bytes -= len(data)
        peer.protocol.data_received(data)
        if self._paused and self.get_write_buffer_size() <= self._high // 4 and self.host.alive and not self.lost:
            self._paused = False
            self.network.loop.call_soon(self.protocol.resume_writing, context=self._context)
        self._hurry()

    def _drop(self) -> None:
        """Nobody takes what is on its way."""
        self._out.clear()
        self._out_bytes = 0
        if self._closing:
            self._lose(None)

    def _lose(self, why: Exception | None) -> None:
        if self.lost:
            return
        self.lost = self._closing = True
        self.network.ends.pop(self, None)
        if self.host.alive:
            self.network.loop.call_soon(self.protocol.connection_lost, why, context=self._context)


class Listening:
    """What `create_server` returns."""

    def __init__(self, network: "Network", address: Address, factory: Factory) -> None:
        self.address, self.factory, self.host, self.context = address, factory, here(), copy_context()
        self._network = network
        self.sockets = (self,)

    def getsockname(self) -> Address:
        return self.address

    def close(self) -> None:
        there = self._network.listeners.get(self.address, [])
        if self in there:
            there.remove(self)

    async def wait_closed(self) -> None:
        return


class Network:
    """All connections of a world, and what is wrong with the way between two hosts."""

    def __init__(self, loop: VirtualLoop, rng: random.Random) -> None:
        self.loop, self.rng = loop, rng
        self.listeners: dict[Address, list[Listening]] = {}
        self.ends: dict[End, None] = {}
        self.slow_s: dict[str, float] = {}
        """Added to every way to and from a host, by its name."""
        self.silent: set[str] = set()
        """Names of hosts from and to which nothing gets through."""
        self._turn = 0
        self._ports = 40000
        loop.network = self

    def delay(self, one: Host, other: Host) -> float:
        """How long bytes take now."""
        slow = self.slow_s
        more = slow.get(one.name, 0.0) + slow.get(other.name, 0.0) if slow else 0.0
        return 0.0002 + 0.0015 * self.rng.random() + more

    def cut_off(self, one: Host, other: Host) -> bool:
        """Whether nothing gets through between two hosts."""
        return one.name in self.silent or other.name in self.silent

    def listen(self, factory: Factory, name: str, port: int) -> Listening:
        """Take connections; of several at one address each gets some."""
        if not port and "/" not in name:
            self._ports += 1
            port = self._ports
        made = Listening(self, (name, port), factory)
        self.listeners.setdefault(made.address, []).append(made)
        return made

    async def connect(self, factory: Factory, name: str, port: int) -> tuple[End, asyncio.Protocol]:
        """Raises OSError where nobody listens; waits for ever where nobody is heard."""
        mine, context = here(), copy_context()
        while name in self.silent or mine.name in self.silent:
            await asyncio.sleep(AGAIN_S)
        there = self.listeners.get((name, port))
        host = there[0].host if there else mine
        await asyncio.sleep(self.delay(mine, host))
        there = self.listeners.get((name, port))
        if not there:
            raise ConnectionRefusedError(111, f"Connect call failed {name, port}")
        self._turn += 1
        at = there[self._turn % len(there)]
        protocol = factory()
        near = End(self, protocol, mine, context)
        far = End(self, at.context.run(at.factory), at.host, at.context)
        near.peer, far.peer = far, near
        self.ends[near] = self.ends[far] = None
        at.context.copy().run(far.protocol.connection_made, far)
        protocol.connection_made(near)
        return near, protocol

    def end_power(self, host: Host) -> None:
        """Its connections are reset, for nobody answers any more."""
        for there in self.listeners.values():
            there[:] = [one for one in there if one.host is not host]
        for end in [one for one in self.ends if one.host is host]:
            self.ends.pop(end)
            end.lost = end._closing = True
            end._out.clear()
            peer = end.peer
            if not peer.lost and peer.host.alive:
                self.loop.punctually(self.loop.now + self.delay(host, peer.host), peer._lose, _reset(), context=peer._context)


def _reset() -> OSError:
    return ConnectionResetError(104, "Connection reset by peer")
