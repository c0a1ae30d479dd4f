"""The caller's side of HTTP/1.1: framing, limits, deadlines, backpressure, TLS."""

import asyncio
import resource
import ssl
import time
from typing import Any

import pytest
import trustme

from domain.faults import Kind
from gateway.http.edge.connection import EdgeConnection
from gateway.http.edge.connections import Connections, EdgeLimits
from gateway.http.edge.exchange import Exchange
from tests.timing import HANG_S
from tests.wire.edge_server import LARGE_BYTES, Wire, edge

GET = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n"
CLOSE = b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


def post(body: bytes, *lines: bytes, path: bytes = b"/x") -> bytes:
    head = b"\r\n".join((b"POST " + path + b" HTTP/1.1", b"Host: a", b"Content-Length: %d" % len(body), *lines))
    return head + b"\r\n\r\n" + body


async def test_one_connection_serves_many_requests_one_after_the_other() -> None:
    async with edge() as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        for n in range(5):
            writer.write(post(b"x" * n))
            assert (await reader.readuntil(b"bytes")).endswith(b"%d bytes" % n)
        assert len(running.connections.open) == 1
        writer.close()
        assert len(running.served) == 5


async def test_a_request_may_come_in_any_pieces() -> None:
    whole = b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    async with edge() as running:
        for step in (1, 2, 7, len(whole)):
            assert b"5 bytes" in await running.send(*(whole[i : i + step] for i in range(0, len(whole), step)))
        assert {body for _, _, body in running.served} == {b"abcde"}


async def test_head_is_answered_without_a_body_and_streams_are_chunked() -> None:
    async with edge() as running:
        got = await running.send(b"HEAD /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert b"content-length: 7\r\n" in got
        assert got.endswith(b"\r\n\r\n")
        got = await running.send(b"GET /stream HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert got.endswith(b"\r\n\r\n4\r\none \r\n3\r\ntwo\r\n0\r\n\r\n")
        got = await running.send(b"GET /stream HTTP/1.0\r\n\r\n")
        assert got.endswith(b"\r\n\r\none two")
        assert b"transfer-encoding" not in got


async def test_expect_continue_is_answered_only_when_the_body_is_wanted() -> None:
    async with edge() as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"abc")
        assert b"200 OK" in await reader.readuntil(b"bytes")
        writer.close()
        got = await running.send(b"POST /no-body HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        assert b"100 Continue" not in got
        assert b"connection: close" in got
        assert b" 417 " in await running.send(b"POST /x HTTP/1.1\r\nHost: a\r\nExpect: magic\r\nContent-Length: 3\r\n\r\nabc")


@pytest.mark.fault("giant body")
@pytest.mark.req("R32")
async def test_a_declared_giant_is_refused_before_its_body() -> None:
    async with edge() as running:
        got = await running.send(b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1073741824\r\n\r\n")
        assert got.startswith(b"HTTP/1.1 413 ")


@pytest.mark.fault("giant body")
@pytest.mark.req("R32")
async def test_an_endless_chunked_body_is_refused_at_the_limit(record_property: pytest.FixtureRequest) -> None:
    limit, block = 1024 * 1024, b"10000\r\n" + b"x" * 65536 + b"\r\n"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with edge(max_body_bytes=limit) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        sent = 0
        answer = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
        while not answer.done() and sent < 64 * limit:
            writer.write(block)
            await writer.drain()
            sent += len(block)
            await asyncio.sleep(0)
        assert (await answer).startswith(b"HTTP/1.1 413 ")
        assert running.faults[0].kind is Kind.BODY_TOO_LARGE
        writer.close()
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown_mb <= 16
    record_property("figure", f"413 at the limit, RSS +{grown_mb:.0f} MiB")  # type: ignore[operator]


CHUNKED = b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
BODY_40_KIB = b"a000\r\n" + b"x" * 40_960 + b"\r\n"

WITHOUT_END = {
    "chunks of a byte": (BODY_40_KIB, b"1\r\nx\r\n"),
    "a chunk extension": (BODY_40_KIB + b"1;", b"a"),
    "chunk extensions": (BODY_40_KIB, b"1;" + b"a" * 1000 + b"\r\nx\r\n"),
    "a trailer's value": (BODY_40_KIB + b"0\r\nX: ", b"a"),
    "a trailer's name": (BODY_40_KIB + b"0\r\n", b"a"),
    "a chunk's size": (BODY_40_KIB, b"0"),
}
"""How the body begins, and the bytes that come again and again."""
FLOOD_BYTES = 6_000_000


@pytest.mark.fault("chunk flood")
@pytest.mark.req("R32")
@pytest.mark.parametrize("name", WITHOUT_END)
async def test_framing_without_end_is_refused_before_much_of_it_is_read(name: str) -> None:
    begin, again = WITHOUT_END[name]
    flood = again * (FLOOD_BYTES // len(again))
    async with edge() as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(CHUNKED + begin)
        answer = asyncio.create_task(reader.readuntil(b"\r\n"))
        sent = 0
        while not answer.done() and sent < len(flood):
            writer.write(flood[sent : sent + 16_384])
            await writer.drain()
            await asyncio.sleep(0)
            sent += 16_384
        assert running.faults, f"no refusal after {sent} bytes"
        assert (await answer).startswith((b"HTTP/1.1 413 ", b"HTTP/1.1 400 "))  # 400: llhttp refuses a chunk's size without end itself
        writer.close()


@pytest.mark.req("R32")
async def test_small_chunks_and_short_trailers_are_accepted() -> None:
    small = b"1\r\nx\r\n" * 10_000 + b"8\r\nabcdefgh\r\n" * 30_000
    async with edge() as running:
        ends = CHUNKED.replace(b"Host: a", b"Host: a\r\nConnection: close")
        assert b"250000 bytes" in await running.send(ends + small + b"0\r\nX-Checksum: " + b"5" * 8000 + b"\r\n\r\n")
        assert running.faults == []


async def test_blank_lines_behind_a_request_end_the_connection_after_its_reply() -> None:
    async with edge() as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(b"GET /never HTTP/1.1\r\nHost: a\r\n\r\n")
        await asyncio.sleep(0.03)
        for _ in range(10):
            writer.write(b"\r\n" * 4000)
            await writer.drain()
            await asyncio.sleep(0.01)
        running.exchanges[0].reply(200, b"", b"late")
        got = await asyncio.wait_for(reader.read(), HANG_S)
        assert b"connection: close" in got
        assert got.endswith(b"late")
        writer.close()


@pytest.mark.req("R32")
async def test_the_length_of_the_target_counts_like_that_of_the_headers() -> None:
    async with edge() as running:
        assert b" 431 " in await running.send(b"GET /x?" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n")
        assert running.served == []


class CountingParser:
    """Counts the bytes that a parser copies when it joins the pieces of one long line."""

    def __init__(self, parser: Any) -> None:
        self._parser = parser
        self.copied = 0
        self._joined = 0

    def feed_data(self, data: bytes) -> None:
        self._joined += len(data)
        self.copied += self._joined
        self._parser.feed_data(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)


@pytest.mark.req("R32")
@pytest.mark.parametrize("line", [b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nX: %b\r\n\r\n"])
def test_a_long_line_in_small_reads_is_read_in_linear_time(line: bytes) -> None:
    size = 1024 * 1024
    exchanges: list[Exchange] = []
    connections = Connections(
        EdgeLimits(max_header_bytes=size + 1024),
        lambda: 0.0,
        lambda: 0.0,
        serve=exchanges.append,
        refuse=lambda fault, _: repr(fault).encode(),
        log_defect=lambda *_: None,
    )
    connection = EdgeConnection(connections)
    connection.connection_made(Wire())
    parser = connection._parser = CountingParser(connection._parser)
    whole = line % (b"a" * size)
    for at in range(0, len(whole), 64):
        connection.data_received(whole[at : at + 64])
    assert len(exchanges) == 1
    assert parser.copied <= 100 * size, f"{parser.copied / size:.0f} times the line's bytes"


@pytest.mark.parametrize(
    "head", [b"X: " + b"a" * 20_000, b"\r\n".join(b"X%d: a" % n for n in range(100)), b"\r\n".join(b"X: a" for _ in range(100))]
)
async def test_heads_are_bounded_in_bytes_and_lines(head: bytes) -> None:
    async with edge() as running:
        assert b" 431 " in await running.send(b"GET /x HTTP/1.1\r\nHost: a\r\n" + head + b"\r\n\r\n")
        assert b" 431 " in await running.send(b"GET /x HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 40_000)
        assert running.served == []


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.fault("slow or idle sockets")
@pytest.mark.req("R33")
@pytest.mark.parametrize(
    ("sent", "limit_s", "status"),
    [
        (b"GET /x HT", 10.0, b" 408 "),
        (b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nabc", 5.0, b" 408 "),
        (b"", 75.0, b""),
    ],
    ids=["head", "body", "idle"],
)
async def test_slow_callers_are_sent_away(sent: bytes, limit_s: float, status: bytes) -> None:
    clock = Clock()
    async with edge(clock) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(sent)
        await asyncio.sleep(0.05)
        running.connections.sweep(clock.now)  # sets the deadline
        clock.now += limit_s - 0.5
        running.connections.sweep(clock.now)
        assert running.connections.open
        assert running.faults == []
        clock.now += 1.0
        running.connections.sweep(clock.now)
        got = await asyncio.wait_for(reader.read(4096), HANG_S)
        assert status in got
        writer.close()


@pytest.mark.fault("slow reader")
@pytest.mark.req("R33")
@pytest.mark.parametrize("closing", [False, True], ids=["keep-alive", "close"])
async def test_a_caller_that_does_not_take_its_reply_is_cut_off(closing: bool) -> None:
    clock = Clock()
    async with edge(clock, slow_reader_s=30.0) as running:
        _, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(b"GET /large HTTP/1.1\r\nHost: a\r\n" + b"Connection: close\r\n" * closing + b"\r\n")
        await asyncio.sleep(0.2)
        running.connections.sweep(clock.now)
        clock.now += 29.0
        running.connections.sweep(clock.now)
        assert running.connections.open
        clock.now += 2.0
        running.connections.sweep(clock.now)
        await asyncio.sleep(0.05)
        assert not running.connections.open
        writer.close()


@pytest.mark.fault("slow reader")
@pytest.mark.req("R33")
async def test_many_slow_readers_together_have_a_bound_and_the_slowest_go_first() -> None:
    clock = Clock()
    async with edge(clock, reply_buffers_total_bytes=2 * LARGE_BYTES) as running:
        callers = []
        for _ in range(4):
            callers.append(await asyncio.open_connection("127.0.0.1", running.port))
            callers[-1][1].write(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
            await asyncio.sleep(0.1)
        assert len(running.connections.slow_readers) == 4
        running.connections.sweep(clock.now)
        await asyncio.sleep(0.05)
        assert len(running.connections.open) in (2, 3)  # the kernel holds a part of each reply
        for reader, _ in callers[2:]:
            assert len(await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HANG_S)) < 500
            assert await asyncio.wait_for(reader.readexactly(LARGE_BYTES), HANG_S) == b"x" * LARGE_BYTES
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await asyncio.wait_for(callers[0][0].readexactly(LARGE_BYTES), HANG_S)
        for _, writer in callers:
            writer.close()


async def test_a_slow_but_steady_reader_gets_the_whole_reply() -> None:
    clock = Clock()
    async with edge(clock, slow_reader_s=30.0, keepalive_s=75.0) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        taken = 0
        while taken < LARGE_BYTES:
            taken += len(await asyncio.wait_for(reader.read(256 * 1024), HANG_S))
            running.connections.sweep(clock.now)
            clock.now += 1.0  # about 64 s in all: more than the limit, had nothing been taken
        for _ in range(70):
            running.connections.sweep(clock.now)
            clock.now += 1.0
        writer.write(GET)  # idle for less than the keep-alive time, so the connection is still good
        assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"bytes"), HANG_S)
        writer.close()


@pytest.mark.parametrize("step", [1, 10, 1000])
async def test_an_upgrade_offer_is_ignored_however_it_is_cut(step: int) -> None:
    request = b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
    async with edge() as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        for _ in range(2):
            for begin in range(0, len(request), step):
                writer.write(request[begin : begin + step])
                await asyncio.sleep(0.001)
            assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"bytes"), HANG_S)
        writer.close()


class Broken:
    """A connection whose deadline code has a defect."""

    deadline = 0.0
    aborted = False

    def expire(self, now: float) -> None:
        raise ZeroDivisionError

    def abort(self) -> None:
        self.aborted = True


async def test_a_defect_in_one_connection_does_not_end_the_sweep_of_others() -> None:
    clock = Clock()
    async with edge(clock) as running:
        opened = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(3)]
        await asyncio.sleep(0.05)
        running.connections.sweep(clock.now)
        broken = Broken()
        running.connections.open[broken] = None  # type: ignore[index]  # it has what the sweep uses
        clock.now += 80.0
        running.connections.sweep(clock.now)
        del running.connections.open[broken]  # type: ignore[arg-type]  # as above
        await asyncio.sleep(0.05)
        assert broken.aborted
        assert [type(defect) for defect in running.defects] == [ZeroDivisionError]
        assert not running.connections.open, "the idle ones were closed all the same"
        for _, writer in opened:
            writer.close()


async def test_a_body_that_keeps_its_rate_is_waited_for() -> None:
    clock = Clock()
    async with edge(clock, body_timeout_s=30.0) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 40000\r\n\r\n")
        for _ in range(20):
            writer.write(b"x" * 2000)
            await asyncio.sleep(0.01)
            running.connections.sweep(clock.now)
            clock.now += 1.0
        assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"bytes"), HANG_S)
        writer.close()


@pytest.mark.fault("slow or idle sockets")
async def test_beyond_the_cap_the_longest_idle_one_goes_and_busy_ones_stay() -> None:
    async with edge(max_connections=2) as running:
        opened = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(2)]
        await asyncio.sleep(0.05)
        opened[0][1].write(b"GET /never HTTP/1.1\r\nHost: a\r\n\r\n")
        await asyncio.sleep(0.05)
        third = await asyncio.open_connection("127.0.0.1", running.port)
        assert await asyncio.wait_for(opened[1][0].read(), HANG_S) == b""
        third[1].write(b"GET /never HTTP/1.1\r\nHost: a\r\n\r\n")
        await asyncio.sleep(0.05)
        refused = await running.send()
        assert refused.startswith(b"HTTP/1.1 503 ")
        for _, writer in (*opened, third):
            writer.close()


async def test_draining_closes_after_the_reply() -> None:
    async with edge() as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        idle = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(GET)
        await reader.readuntil(b"bytes")
        running.connections.draining = True
        writer.write(GET)
        assert b"connection: close" in await asyncio.wait_for(reader.read(), HANG_S)
        running.connections.start_draining()
        assert await asyncio.wait_for(idle[0].read(), HANG_S) == b""
        await asyncio.wait_for(running.connections.wait_until_empty(), HANG_S)
        idle[1].close()
        writer.close()


@pytest.mark.fault("restart under load")
async def test_whoever_was_accepted_last_is_heard_before_idle_connections_are_closed() -> None:
    async with edge() as running:
        connections = running.connections
        late = await asyncio.open_connection("127.0.0.1", running.port)
        connections.draining = True
        listening = asyncio.create_task(connections.wait_for_idle(connections.clock() + 5.0))
        await asyncio.sleep(0.1)
        late[1].write(GET)
        assert b"connection: close" in await asyncio.wait_for(late[0].read(), HANG_S)
        await asyncio.wait_for(listening, HANG_S)  # nobody is left to be heard
        silent = await asyncio.open_connection("127.0.0.1", running.port)
        begun = connections.clock()
        await connections.wait_for_idle(begun + 0.2)
        assert 0.2 <= connections.clock() - begun < 1.0
        connections.start_draining()
        assert await asyncio.wait_for(silent[0].read(), HANG_S) == b""
        for _, writer in (late, silent):
            writer.close()


@pytest.mark.fault("restart under load")
async def test_a_request_that_came_while_the_worker_stood_still_is_read_before_idle_connections_are_closed() -> None:
    async with edge() as running:
        connections = running.connections
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        while not connections.idle:
            await asyncio.sleep(0)
        connections.draining = True
        usual, until = connections.clock, connections.clock() + 5.0

        def late() -> float:
            writer.write(GET)  # asyncio sends at once, so the request lies in the socket when the clock says that the time is over
            connections.clock = usual
            return until

        connections.clock = late
        await connections.wait_for_idle(until)
        assert connections.clock is usual
        connections.start_draining()
        assert b"connection: close" in await asyncio.wait_for(reader.read(), HANG_S)
        writer.close()


async def test_a_caller_that_leaves_mid_body_is_noticed() -> None:
    async with edge() as running:
        _, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc")
        await asyncio.sleep(0.05)
        writer.close()
        async with asyncio.timeout(HANG_S):
            while not running.faults:
                await asyncio.sleep(0.01)
        assert running.faults[0].kind is Kind.CLIENT_GONE


async def test_only_configured_hosts_are_served() -> None:
    async with edge(hosts=frozenset({b"api.example"})) as running:
        assert b" 400 " in await running.send(GET)
        assert b" 200 " in await running.send(b"GET /x HTTP/1.1\r\nHost: API.example\r\nConnection: close\r\n\r\n")


@pytest.mark.parametrize("pieces", [1, 3])
async def test_a_caller_that_begins_with_http_2_is_told_to_use_http_1_1(pieces: int) -> None:
    begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
    step = -(-len(begin) // pieces)
    async with edge() as running:
        got = await running.send(*(begin[at : at + step] for at in range(0, len(begin), step)))
        settings, goaway = got[:9], got[9:]
        assert settings == bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]), "SETTINGS, empty: a server's first frame"
        assert goaway[:9] == bytes([0, 0, 8, 7, 0, 0, 0, 0, 0])
        assert (goaway[9:13], goaway[13:]) == (bytes(4), (13).to_bytes(4)), "no stream was taken; HTTP_1_1_REQUIRED"
        assert running.faults[0].kind is Kind.MALFORMED_HTTP


async def test_tls_ends_at_the_edge() -> None:
    authority = trustme.CA()
    served, trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(served)
    authority.configure_trust(trusting)
    async with edge(ssl=served) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port, ssl=trusting, server_hostname="127.0.0.1")
        writer.write(CLOSE)
        assert b"200 OK" in await asyncio.wait_for(reader.read(), HANG_S)
        writer.close()
        assert await running.send(GET) == b""


@pytest.mark.fault("slow or idle sockets")
@pytest.mark.req("R33")
async def test_slow_sockets_do_not_touch_good_callers(record_property: pytest.FixtureRequest) -> None:
    count = 300
    async with edge() as running:
        slow = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(count)]
        for _, writer in slow:
            writer.write(b"GET /x HTTP/1.1\r\nHost: ")
        begun = time.monotonic()
        for _ in range(50):
            assert b"200 OK" in await running.send(CLOSE)
        record_property("figure", f"50 good calls beside {count} slow sockets in {time.monotonic() - begun:.2f} s")  # type: ignore[operator]
        for _, writer in slow:
            writer.close()
