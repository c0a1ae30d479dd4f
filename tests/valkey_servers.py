"""Real Valkey servers for tests, from the package's own binary: one server, Sentinel over primary and replicas, a cluster.

All listen on free ports of 127.0.0.1, log into their own folder, and are ended by the pid they were started with.
"""

import asyncio
import contextlib
import ctypes
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hiredis

from tenancy.stores.valkey.topology import SLOTS
from tests.valkey_server import binary

WITHIN_S = 60.0
"""When a wait for a server is given up, so that a test ends that would hang; a server starts in milliseconds on an idle machine."""
SERVICE = "counters"
_libc = ctypes.CDLL(None)


def _end_with_us() -> None:
    _libc.prctl(1, signal.SIGTERM, 0, 0, 0)


def free_port() -> int:
    """A port that nobody has now; below the cluster bus's ceiling (port + 10,000)."""
    while True:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port: int = sock.getsockname()[1]
            if port < 55_000:
                return port


def until(found: Callable[[], Any], what: str, within_s: float = WITHIN_S) -> Any:
    give_up_at = time.monotonic() + within_s
    while time.monotonic() < give_up_at:
        with contextlib.suppress(OSError, hiredis.HiredisError):
            if result := found():
                return result
        time.sleep(0.02)
    raise AssertionError(f"not within {within_s} s: {what}")


def ask(port: int, *parts: bytes | str | int) -> Any:
    """One command to one server, over a connection of its own. Raises hiredis.ReplyError for an error reply."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
        sock.sendall(hiredis.pack_command(parts))
        reader = hiredis.Reader()
        while (reply := reader.gets()) is False:
            if not (data := sock.recv(65_536)):
                raise ConnectionError("closed")
            reader.feed(data)
    if isinstance(reply, hiredis.ReplyError):
        raise reply
    return reply


@dataclass
class Server:
    """One server process; its files stay where they are when it is started again."""

    folder: Path
    port: int = field(default_factory=free_port)
    options: dict[str, str] = field(default_factory=dict)
    config: str = ""
    sentinel: bool = False
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> "Server":
        self.folder.mkdir(parents=True, exist_ok=True)
        options = {"port": str(self.port), "bind": "127.0.0.1", "dir": str(self.folder), "save": "", "repl-diskless-sync-delay": "0"}
        options |= self.options
        file = self.folder / "server.conf"
        if not file.exists():  # sentinels and promoted replicas write their own state into it
            lines = "" if self.sentinel else "".join(f'{name} "{value}"\n' for name, value in options.items())
            file.write_text(self.config or lines)
        command = [binary(), str(file), *(["--sentinel"] if self.sentinel else [])]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=_end_with_us)  # noqa: PLW1509 - one C call
        until(lambda: ask(self.port, "PING"), f"server on {self.port} answers")
        return self

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(how)
            self.process.wait(WITHIN_S)
            self.process = None

    def pause(self) -> None:
        """Alive and silent, as a machine that swaps or a network that drops."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"


@dataclass
class SentinelSet:
    """A primary, a replica, and three Sentinels that agree quickly."""

    data: list[Server]
    sentinels: list[Server]

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(f'127.0.0.1:{s.port}' for s in self.sentinels)}/{SERVICE}"

    @property
    def primary(self) -> Server:
        """Whom the first Sentinel names."""
        port = int(ask(self.sentinels[0].port, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])
        return next(server for server in self.data if server.port == port)


@dataclass
class Cluster:
    """Three primaries with a third of the slots each."""

    nodes: list[Server]

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(f'127.0.0.1:{node.port}' for node in self.nodes)}"

    def owner(self, slot: int) -> Server:
        for begin, end, primary, *_ in ask(self.nodes[0].port, "CLUSTER", "SLOTS"):
            if begin <= slot <= end:
                return next(node for node in self.nodes if node.port == primary[1])
        raise AssertionError(f"nobody owns slot {slot}")

    def move(self, slot: int, to: Server) -> None:
        """Give a slot with everything in it to another node, as a cluster tool does."""
        source = self.owner(slot)
        source_id, to_id = (ask(node.port, "CLUSTER", "MYID") for node in (source, to))
        ask(to.port, "CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        ask(source.port, "CLUSTER", "SETSLOT", slot, "MIGRATING", to_id)
        while keys := ask(source.port, "CLUSTER", "GETKEYSINSLOT", slot, 100):
            ask(source.port, "MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS", *keys)
        for node in (to, source, *self.nodes):
            ask(node.port, "CLUSTER", "SETSLOT", slot, "NODE", to_id)


@contextlib.contextmanager
def single_server(folder: Path) -> Iterator[Server]:
    server = Server(folder).start()
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def sentinel_set(folder: Path) -> Iterator[SentinelSet]:
    with contextlib.ExitStack() as stack:
        primary = Server(folder / "primary")
        replica = Server(folder / "replica", options={"replicaof": f"127.0.0.1 {primary.port}"})
        sentinels = [Server(folder / f"sentinel-{i}", sentinel=True) for i in range(3)]
        for server in (primary, replica):
            stack.callback(server.stop, signal.SIGKILL)
            server.start()
        until(lambda: b"master_link_status:up" in ask(replica.port, "INFO", "replication"), "the replica follows")
        for sentinel in sentinels:
            sentinel.config = (
                f"port {sentinel.port}\nbind 127.0.0.1\ndir {sentinel.folder}\n"
                f"sentinel monitor {SERVICE} 127.0.0.1 {primary.port} 2\n"
                f"sentinel down-after-milliseconds {SERVICE} 500\nsentinel failover-timeout {SERVICE} 3000\n"
            )
            stack.callback(sentinel.stop, signal.SIGKILL)
            sentinel.start()
        for sentinel in sentinels:
            until(lambda port=sentinel.port: _agreed(port), "the Sentinels know each other and the replica")
        yield SentinelSet([primary, replica], sentinels)


def _agreed(port: int) -> bool:
    flat = ask(port, "SENTINEL", "MASTER", SERVICE)
    known = dict(zip(flat[::2], flat[1::2], strict=True))
    return known[b"num-slaves"] == b"1" and known[b"num-other-sentinels"] == b"2"


@contextlib.contextmanager
def cluster_of_three(folder: Path) -> Iterator[Cluster]:
    with contextlib.ExitStack() as stack:
        options = {"cluster-enabled": "yes", "cluster-node-timeout": "1000", "cluster-require-full-coverage": "no", "appendonly": "yes"}
        nodes = [Server(folder / f"node-{i}", options=dict(options)) for i in range(3)]
        for node in nodes:
            stack.callback(node.stop, signal.SIGKILL)
            node.start()
        third = SLOTS // 3
        for i, node in enumerate(nodes):
            ask(node.port, "CLUSTER", "ADDSLOTSRANGE", i * third, SLOTS - 1 if i == 2 else (i + 1) * third - 1)
            ask(node.port, "CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        for node in nodes[1:]:
            ask(nodes[0].port, "CLUSTER", "MEET", "127.0.0.1", node.port)
        for node in nodes:
            until(lambda port=node.port: _whole(port), "the cluster is whole")
        yield Cluster(nodes)


def _whole(port: int) -> bool:
    said = ask(port, "CLUSTER", "INFO")
    return b"cluster_state:ok" in said and b"cluster_slots_assigned:16384" in said and b"cluster_known_nodes:3" in said


class FaultProxy:
    """A TCP proxy, to a port or a unix socket, whose replies can be late, or never come. It stands for a network: it listens on an address
    of loopback that the gateway does not take for its own host (`tenancy.counter_url.LOOPBACK`)."""

    HOST = "127.0.0.2"

    def __init__(self, to: int | Path) -> None:
        self._to = to
        self.delay_s = 0.0
        self.port = 0
        self.scripts = 0
        """How many scripts clients have called through the proxy."""
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The URL of the counter store behind the proxy."""
        return f"redis://{self.HOST}:{self.port}"

    async def __aenter__(self) -> "FaultProxy":
        self._server = await asyncio.start_server(self._serve, self.HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if isinstance(self._to, Path):
            there_reader, there_writer = await asyncio.open_unix_connection(self._to)
        else:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._to)
        for source, sink, late in ((reader, there_writer, False), (there_reader, writer, True)):
            pump = asyncio.create_task(self._pump(source, sink, late))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, late: bool) -> None:
        try:
            while data := await source.read(65_536):
                if not late:
                    self.scripts += data.count(b"EVALSHA")
                elif self.delay_s:
                    await asyncio.sleep(self.delay_s)
                sink.write(data)
                await sink.drain()
        except ConnectionError:
            pass
        finally:
            sink.close()
