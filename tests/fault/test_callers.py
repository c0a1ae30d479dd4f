"""Callers that leave, do not read, say nothing or too much, against a gateway in a process of its own, as that has a memory to measure.

The limits are those of production, except that the short form has less patience. Good callers go on all the while.
"""

import asyncio
import contextlib
import os
import resource
import socket
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from backends.simengine import SimEngine, SimSettings
from tests.e2e.test_serve import SETTINGS, Served, serving
from tests.fault.test_silent_engines import EVENT
from tests.gateway_harness import chat, gateway
from tests.scale import LONG, scaled
from tests.scripted_server import Peer, scripted
from tests.timing import HANG_S, timely
from tests.wire.test_giant_bodies import bomb

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

Note = Callable[[str, object], None]
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]

MIB = 1024 * 1024
SLOW_READER_S, HEADER_S = (30.0, 10.0) if LONG else (1.0, 2.0)
BOUNDS = f"limits: {{{{slow_reader_s: {SLOW_READER_S}, header_timeout_s: {HEADER_S}}}}}"
LIMITS = SETTINGS.replace('0"}}', f'0", {BOUNDS}}}}}', 1)
FILES_LEFT = 2000
"""Open files kept for everything else than sockets of a test."""


class Target:
    """The gateway under attack."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self._opened: list[asyncio.StreamWriter] = []
        (ledger,) = (path for path in (served.home / "tidegate-ledger").iterdir() if path.is_dir())
        self.worker = int(ledger.name.partition("-")[0])

    def rss_mib(self, *, peak: bool = False) -> float:
        """Resident memory of the worker, in MiB."""
        name = "VmHWM" if peak else "VmRSS"
        status = Path(f"/proc/{self.worker}/status").read_text()
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith(name))) / 1024

    def outcomes(self) -> Counter[str]:
        """How the requests to an engine ended so far."""
        return Counter(str(line["outcome"]) for line in self.served.log_lines() if line.get("endpoint") == "/v1/chat/completions")

    def cpu_s(self) -> float:
        """Processor time of the worker so far."""
        fields = Path(f"/proc/{self.worker}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def forget_peak(self) -> None:
        """Measure the peak from now on."""
        Path(f"/proc/{self.worker}/clear_refs").write_text("5")

    def head(self, method: str, path: str, *lines: str) -> bytes:
        """The head of a request with a good key."""
        key = f"authorization: {self.served.headers['authorization']}"
        return "\r\n".join((f"{method} {path} HTTP/1.1", "host: a", key, *lines, "", "")).encode()

    async def open(self, receive: int | None = None) -> Ends:
        """A connection; `receive` bounds the kernel's buffer for what comes back."""
        sock = socket.socket()
        if receive is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.served.port))
        ends = await asyncio.open_connection(sock=sock, limit=receive or 65536)
        self._opened.append(ends[1])
        return ends

    def close(self) -> None:
        """Every connection that was opened."""
        for writer in self._opened:
            writer.close()
        self._opened.clear()

    async def asks_well(self, ends: Ends) -> float:
        """Seconds that a small good request takes, which must succeed."""
        begun = time.monotonic()
        ends[1].write(self.head("GET", "/v1/models"))
        assert (await asyncio.wait_for(ends[0].readuntil(b"\r\n"), HANG_S)).startswith(b"HTTP/1.1 200 ")
        size = next(int(line[15:]) for line in (await ends[0].readuntil(b"\r\n\r\n")).split(b"\r\n") if line.startswith(b"content-length"))
        await ends[0].readexactly(size)
        return time.monotonic() - begun

    @asynccontextmanager
    async def good_caller(self, per_s: float = 100.0) -> AsyncIterator[list[float]]:
        """Asks all the while; how long each answer took, in seconds."""
        took: list[float] = []
        ends = await self.open()

        async def asking() -> None:
            while True:
                took.append(await self.asks_well(ends))
                await asyncio.sleep(1 / per_s)

        task = asyncio.create_task(asking())
        try:
            yield took
            assert not task.done(), task.exception()
        finally:
            task.cancel()


async def for_ever(peer: Peer) -> None:
    """An engine whose answers never end: events of 16 KiB, four a second for each of 500 readers, as long as they are read."""
    while request := await peer.request():
        if request.startswith(b"POST"):
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
            while not peer.writer.is_closing():
                await peer.send(EVENT.replace(b'"x"', b'"' + b"x" * 16_384 + b'"', 1))
                await asyncio.sleep(0.25 if LONG else 0.01)
        models = b'{"data":[{"id":"sim"}]}'
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(models), models))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def attacked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Target]:
    async with scripted(for_ever) as engine, serving(tmp_path_factory.mktemp("callers"), engine.url, settings=LIMITS) as served:
        yield Target(served)


@pytest_asyncio.fixture(loop_scope="module")
async def target(attacked: Target) -> AsyncIterator[Target]:
    yield attacked
    attacked.close()
    await asyncio.sleep(0.01)


def p99_ms(took: list[float]) -> float:
    return 1000 * statistics.quantiles(took, n=100)[98]


@pytest.mark.fault("caller leaves")
@pytest.mark.req("R22")
async def test_all_callers_leave_at_once(record_property: Note) -> None:
    """A load balancer that restarts takes all of them with it."""
    count = scaled(60, 500)
    async with SimEngine(SimSettings(models=("sim",), speed=0.05, max_num_seqs=count)) as engine, gateway(engine.url) as running:
        async with running.client(limits=httpx.Limits(max_connections=count)) as client:
            client.timeout = httpx.Timeout(None)
            ask = chat(max_tokens=10_000, ignore_eos=True)
            calls = [asyncio.create_task(client.post("/v1/chat/completions", json=ask | {"stream": bool(n % 2)})) for n in range(count)]
            async with asyncio.timeout(60):
                while running.open_holds < count or not engine.in_flight:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)
            there = engine.in_flight  # the others wait for room
            left = time.monotonic()
            for connection in list(running.connections.open):
                connection.abort()
            async with asyncio.timeout(HANG_S):
                while engine.in_flight:
                    await asyncio.sleep(0.005)
            told_s = time.monotonic() - left
            await asyncio.gather(*calls, return_exceptions=True)
        await running.recorded(count)
        assert {r.outcome for r in running.records} == {"client_gone"}
        assert engine.counters.aborted >= there
        assert engine.counters.finished == running.open_holds == running.deps.pool_states.total() == 0
        timely(told_s, 1.0)
        record_property("figure", f"{count} at once, {there} of them on the engine: told of the last after {told_s * 1000:.0f} ms")


@pytest.mark.fault("slow reader")
@pytest.mark.req("R23")
async def test_slow_readers_cost_a_bounded_memory_and_are_cut(target: Target, record_property: Note) -> None:
    count = scaled(20, 500)
    body = b'{"model":"sim","messages":[{"role":"user","content":"x"}],"stream":true}'
    ask = target.head("POST", "/v1/chat/completions", "content-type: application/json", f"content-length: {len(body)}") + body

    async def reads_slowly(ends: Ends) -> None:
        with contextlib.suppress(ConnectionError):
            while await ends[0].read(1024):
                await asyncio.sleep(1.0)

    async with target.good_caller() as alone:
        await asyncio.sleep(scaled(1, 10))
    before = target.rss_mib()
    target.forget_peak()
    async with target.good_caller() as beside:
        slow = [await target.open(receive=2048) for _ in range(count)]
        readers = [asyncio.create_task(reads_slowly(ends)) for ends in slow]
        for _, writer in slow:
            writer.write(ask)
        async with asyncio.timeout(SLOW_READER_S + 200):
            while (ended := target.outcomes()).total() < count:
                await asyncio.sleep(0.5)
    grown = target.rss_mib(peak=True) - before
    for task in readers:
        task.cancel()
    assert ended == {"slow_reader": count}
    assert grown <= 150
    sent = [int(str(line["reply_bytes"])) for line in target.served.log_lines() if line.get("outcome") == "slow_reader"]
    others = f"p99 of others {p99_ms(beside):.1f} ms, {p99_ms(alone):.1f} ms without"
    record_property(
        "figure", f"{count} at 1 KiB/s: RSS +{grown:.0f} MiB, all cut with {statistics.mean(sent) / MIB:.1f} MiB under way; {others}"
    )


@pytest.mark.fault("slow or idle sockets")
@pytest.mark.req("R33")
async def test_slow_and_idle_sockets_do_not_keep_good_callers_out(target: Target, record_property: Note) -> None:
    slow, idle = scaled(200, 5_000), scaled(400, 10_000)
    if slow + idle > (room := resource.getrlimit(resource.RLIMIT_NOFILE)[0] - FILES_LEFT):
        pytest.skip(f"{slow + idle:,} sockets are to be open, and a process may have {room:,} here; raise `ulimit -n`")
    async with target.good_caller() as alone:
        await asyncio.sleep(scaled(1, 10))
    opened = [await target.open() for _ in range(slow + idle)]
    for _, writer in opened[:slow]:
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: ")
    async with target.good_caller() as beside:
        await asyncio.sleep(scaled(1, 5))
        for _, writer in opened[:slow]:
            writer.write(b"a")  # a byte now and then
        rss_mib = target.rss_mib()
        async with asyncio.timeout(HANG_S):  # each is sent away when its head takes too long
            answers = await asyncio.gather(*(reader.read(13) for reader, _ in opened[:slow]))
    assert set(answers) == {b"HTTP/1.1 408 "}
    assert not any(reader.at_eof() for reader, _ in opened[slow:]), "those may be idle for longer"
    assert rss_mib <= 500
    others = f"{len(beside)} of {len(beside)} good calls, p99 {p99_ms(beside):.1f} ms, {p99_ms(alone):.1f} ms without"
    record_property("figure", f"{slow:,} slow and {idle:,} idle ones: {others}, RSS {rss_mib:.0f} MiB")


@pytest.mark.fault("giant body")
@pytest.mark.req("R32")
async def test_a_giant_body_is_not_read_to_its_end(target: Target, record_property: Note) -> None:
    block = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    ends = await target.open()
    before = target.rss_mib()
    target.forget_peak()
    ends[1].write(target.head("POST", "/v1/chat/completions", "content-type: application/json", "transfer-encoding: chunked"))
    answer = asyncio.create_task(ends[0].readuntil(b"\r\n"))
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < 1024 * MIB and not answer.done():
            ends[1].write(block)
            await ends[1].drain()
            await asyncio.sleep(0)
            sent += len(block)
    assert (await answer).startswith(b"HTTP/1.1 413 ")
    async with asyncio.timeout(HANG_S):
        while not target.outcomes()["body_too_large"]:
            await asyncio.sleep(0.05)
    grown = target.rss_mib(peak=True) - before
    assert grown <= 16
    record_property("figure", f"1 GiB in chunks: 413 when {sent / MIB:.0f} MiB had been sent, RSS +{grown:.0f} MiB")


@pytest.mark.fault("compression bomb")
@pytest.mark.req("R32")
@pytest.mark.parametrize("framing", ["content-length", "chunked"])
async def test_a_compression_bomb_of_10_gib_is_not_even_read_whole(framing: str, target: Target, record_property: Note) -> None:
    """It is packed in more than the 8 MiB that a body may have."""
    packed = bomb(10)
    if framing == "chunked":
        line = "transfer-encoding: chunked"
        sent = b"".join(b"10000\r\n%b\r\n" % packed[at : at + 65_536] for at in range(0, len(packed) - 65_535, 65_536))
    else:
        line, sent = f"content-length: {len(packed)}", packed
    ends = await target.open()
    before = target.rss_mib()
    target.forget_peak()
    ends[1].write(target.head("POST", "/v1/chat/completions", "content-type: application/json", "content-encoding: gzip", line))
    with contextlib.suppress(ConnectionError):
        for at in range(0, len(sent), 65_536):
            ends[1].write(sent[at : at + 65_536])
            await ends[1].drain()
            await asyncio.sleep(0)
    assert (await asyncio.wait_for(ends[0].readuntil(b"\r\n"), HANG_S)).startswith(b"HTTP/1.1 413 ")
    grown = target.rss_mib(peak=True) - before
    assert grown <= 16
    record_property("figure", f"10 GiB in {len(packed) / MIB:.1f} MiB, {framing}: 413, RSS +{grown:.0f} MiB")


@pytest.mark.fault("compression bomb")
@pytest.mark.req("R32")
async def test_a_compression_bomb_is_unpacked_to_the_limit_at_most(target: Target, record_property: Note) -> None:
    packed = bomb(5)  # the largest that may be read whole
    before = target.rss_mib()
    target.forget_peak()
    ends = await target.open()
    lines = ("content-type: application/json", "content-encoding: gzip", f"content-length: {len(packed)}")
    begun = target.cpu_s()
    ends[1].write(target.head("POST", "/v1/chat/completions", *lines) + packed)
    assert (await asyncio.wait_for(ends[0].readuntil(b"\r\n"), HANG_S)).startswith(b"HTTP/1.1 413 ")
    grown = target.rss_mib(peak=True) - before
    assert grown <= 32, "the body as it came, and 8 MiB of the unpacked one"
    record_property(
        "figure", f"5 GiB in {len(packed) / MIB:.0f} MiB: 413, RSS +{grown:.0f} MiB, {1000 * (target.cpu_s() - begun):.0f} ms of CPU"
    )


@pytest.mark.fault("chunk flood")
@pytest.mark.req("R32")
async def test_a_flood_of_chunks_does_not_hold_others_up(target: Target, record_property: Note) -> None:
    chunks = scaled(100_000, 1_000_000)
    flood = b"1\r\nx\r\n" * chunks
    before = target.rss_mib()
    target.forget_peak()
    ends = await target.open()
    async with target.good_caller() as beside:
        await asyncio.sleep(0.5)
        ends[1].write(target.head("POST", "/v1/chat/completions", "content-type: application/json", "transfer-encoding: chunked"))
        with contextlib.suppress(ConnectionError):  # closed 2 s after the refusal
            for at in range(0, len(flood), 65536):
                ends[1].write(flood[at : at + 65536])
                await ends[1].drain()
                await asyncio.sleep(0)
        reply = await asyncio.wait_for(ends[0].readuntil(b"\r\n"), HANG_S)
        await asyncio.sleep(0.2)
    assert reply.startswith(b"HTTP/1.1 413 "), "about 13,000 chunks of a byte are read, and the rest is dropped"
    assert target.rss_mib(peak=True) - before <= 16
    timely(max(beside), 2.0)
    record_property(
        "figure", f"{chunks:,} chunks of a byte: others' p50 {1000 * statistics.median(beside):.1f} ms, slowest {1000 * max(beside):.0f} ms"
    )
