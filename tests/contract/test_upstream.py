"""The `Upstream` port: one suite, every adapter. What holds here is what the relay and the lifecycle rely on."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Mapping

import pytest
import trustme

from backends.clients.aiohttp_client import AiohttpUpstream
from backends.clients.endpoint import EngineEndpoint, endpoint
from backends.clients.http1 import RelayUpstream
from backends.ports import Call, EngineTls, Flight, Loss, Upstream
from tests.scripted_server import Peer, scripted
from tests.timing import loop_lateness, until

CALL = Call("POST", "/v1/chat/completions", b'{"model":"m"}', "req-1", b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01", None)
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
WITHIN_S = 60.0
"""When a wait is given up, so that a test ends that would hang."""


class Sink:
    """Notes every callback in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.status = 0
        self.headers: Mapping[bytes, bytes] = {}
        self.body = b""
        self.loss: Loss | None = None
        self.over = asyncio.Event()
        self.data = asyncio.Event()

    def on_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        self.calls.append("head")
        self.status, self.headers = status, headers

    def on_data(self, data: bytes) -> None:
        assert data
        if self.calls[-1] != "data":
            self.calls.append("data")
        self.body += data
        self.data.set()

    def on_end(self) -> None:
        self.calls.append("end")
        self.over.set()

    def on_loss(self, loss: Loss, detail: str) -> None:
        assert detail
        self.calls.append("loss")
        self.loss = loss
        self.over.set()

    async def wait(self) -> "Sink":
        async with asyncio.timeout(WITHIN_S):
            await self.over.wait()
        await asyncio.sleep(0.01)  # a callback after the last one would be a breach
        return self


class Ways:
    """Makes upstreams of one adapter and closes them."""

    def __init__(self, adapter: type) -> None:
        self.adapter = adapter
        self.made: list[Upstream] = []

    def to(self, url: str, **options: object) -> Upstream:
        target: EngineEndpoint = endpoint(url, **options)  # type: ignore[arg-type]
        way: Upstream = self.adapter(target, time.monotonic, asyncio.get_running_loop())
        self.made.append(way)
        return way


@pytest.fixture(params=[RelayUpstream, AiohttpUpstream], ids=["relay", "aiohttp"])
async def ways(request: pytest.FixtureRequest) -> AsyncIterator[Ways]:
    made = Ways(request.param)
    yield made
    for way in made.made:
        await way.close()


async def keep_alive(peer: Peer) -> None:
    while await peer.request():
        await peer.send(OK)


async def test_sends_what_was_checked_and_nothing_else(ways: Ways) -> None:
    async with scripted(keep_alive) as server:
        sink = Sink()
        ways.to(server.url, authorization="Bearer engine", headers=(("x-signed", "t=1,v1=ab"),)).dispatch(CALL, sink)
        await sink.wait()
        assert (sink.calls, sink.status, sink.body) == (["head", "data", "end"], 200, b"{}")
        assert sink.headers[b"content-type"] == b"application/json"
        head, _, body = server.peers[0].received.partition(b"\r\n\r\n")
        assert body == CALL.body
        first, *lines = head.split(b"\r\n")
        assert first == b"POST /v1/chat/completions HTTP/1.1"
        sent = {k.lower(): v.strip() for k, _, v in (line.partition(b":") for line in lines)}
        assert sent.pop(b"accept-encoding", b"identity") == b"identity"
        assert sent == {
            b"host": f"127.0.0.1:{server.port}".encode(),
            b"user-agent": b"tidegate",
            b"accept": b"application/json, text/event-stream",
            b"content-type": b"application/json",
            b"content-length": b"%d" % len(CALL.body),
            b"authorization": b"Bearer engine",
            b"x-signed": b"t=1,v1=ab",
            b"x-request-id": b"req-1",
            b"traceparent": CALL.traceparent,
        }


async def test_a_form_says_what_it_is(ways: Ways) -> None:
    asked: list[bytes] = []

    async def engine(peer: Peer) -> None:
        while request := await peer.request():
            asked.append(request)
            await peer.send(OK)

    form = Call("POST", "/v1/audio/transcriptions", b"--b--", "req-1", None, None, b"multipart/form-data; boundary=b")
    async with scripted(engine) as server:
        upstream = ways.to(server.url)
        for call in (CALL, form, CALL):
            sink = Sink()
            upstream.dispatch(call, sink)
            await sink.wait()
    types = [[line for line in request.lower().split(b"\r\n") if line.startswith(b"content-type:")] for request in asked]
    json_type, form_type = [b"content-type: application/json"], [b"content-type: multipart/form-data; boundary=b"]
    assert types == [json_type, form_type, json_type]


async def test_keep_alive_reuses_one_connection(ways: Ways) -> None:
    async with scripted(keep_alive) as server:
        way = ways.to(server.url)
        for _ in range(5):
            sink = Sink()
            way.dispatch(CALL, sink)
            await sink.wait()
            assert sink.body == b"{}"
        assert len(server.peers) == 1


async def test_abort_after_the_end_changes_nothing(ways: Ways) -> None:
    async with scripted(keep_alive) as server:
        way = ways.to(server.url)
        for _ in range(3):
            sink = Sink()
            flight = way.dispatch(CALL, sink)
            await sink.wait()
            flight.abort()
            flight.abort()
        assert sink.calls == ["head", "data", "end"]
        assert len(server.peers) == 1


async def test_idle_age_stays_below_the_engines(ways: Ways) -> None:
    async with scripted(keep_alive) as server:
        way = ways.to(server.url, idle_s=0.05)
        for _ in range(2):
            sink = Sink()
            way.dispatch(CALL, sink)
            await sink.wait()
            await asyncio.sleep(0.15)
        assert len(server.peers) == 2


async def test_connection_cap_refuses_with_capacity(ways: Ways) -> None:
    async def silent(peer: Peer) -> None:
        await peer.request()
        await peer.wait_closed_by_client()

    async with scripted(silent) as server:
        way = ways.to(server.url, max_connections=2)
        flights = [way.dispatch(CALL, Sink()) for _ in range(2)]
        await asyncio.sleep(0.05)
        third = Sink()
        way.dispatch(CALL, third)
        await third.wait()
        assert third.loss is Loss.CAPACITY
        assert third.calls == ["loss"]
        for flight in flights:
            flight.abort()


@pytest.mark.req("R22")
async def test_abort_reaches_the_engine_within_200_ms_and_silences_the_sink(ways: Ways) -> None:
    async def endless(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM + b"3\r\nabc\r\n")
        await peer.wait_closed_by_client()

    async def silent(peer: Peer) -> None:
        await peer.request()
        await peer.wait_closed_by_client()

    async with scripted(endless, silent) as server:
        way = ways.to(server.url)
        streaming, waiting = Sink(), Sink()
        flight = way.dispatch(CALL, streaming)
        async with asyncio.timeout(WITHIN_S):
            await streaming.data.wait()
        other = way.dispatch(CALL, waiting)
        await until(lambda: len(server.peers) == 2)
        async with loop_lateness() as lateness:
            begun = time.monotonic()
            flight.abort()
            other.abort()
            flight.abort()
            for peer in server.peers:
                await peer.eof.wait()
            told_s = time.monotonic() - begun
        assert told_s <= 0.2 + 2 * max(lateness)
        assert streaming.calls == ["head", "data"]
        assert waiting.calls == []


async def test_nobody_listens(ways: Ways) -> None:
    async with scripted(keep_alive) as server:
        url = server.url
    sink = Sink()
    ways.to(url).dispatch(CALL, sink)
    await sink.wait()
    assert (sink.calls, sink.loss) == (["loss"], Loss.CONNECT)


@pytest.mark.parametrize("how", ["reset", "close"])
async def test_lost_before_the_reply_head(ways: Ways, how: str) -> None:
    async def lose(peer: Peer) -> None:
        await peer.request()
        await asyncio.sleep(0)
        if how == "reset":
            peer.reset()

    async with scripted(lose) as server:
        sink = Sink()
        ways.to(server.url).dispatch(CALL, sink)
        await sink.wait()
        assert (sink.calls, sink.loss) == (["loss"], Loss.NO_REPLY)
        assert len(server.peers) == 1, "a fresh connection is not stale: whether to try again is the retry budget's to say"


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example", "nobody.invalid"])
async def test_a_name_that_cannot_be_resolved_is_a_lost_call(ways: Ways, host: str) -> None:
    sink = Sink()
    ways.to(f"http://{host}:8000").dispatch(CALL, sink)
    await sink.wait()
    assert (sink.calls, sink.loss) == (["loss"], Loss.CONNECT)


@pytest.mark.req("GATEWAYS-22")
async def test_a_stale_keep_alive_is_resent_once_on_a_fresh_connection(ways: Ways) -> None:
    async def one_reply_then_deaf(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()
        peer.reset()

    async with scripted(one_reply_then_deaf, keep_alive) as server:
        way = ways.to(server.url)
        for _ in range(2):
            sink = Sink()
            way.dispatch(CALL, sink)
            await sink.wait()
            assert sink.calls == ["head", "data", "end"]
        assert len(server.peers) == 2


@pytest.mark.parametrize(("idle_s", "late_s", "resent"), [(2.5, 3.0, True), (0.5, 3.0, False), (2.5, 6.0, False), (0.5, 0.5, True)])
async def test_who_had_idled_for_long_may_be_told_late_that_it_was_closed(idle_s: float, late_s: float, resent: bool) -> None:
    """An engine whose loop is held up closes for its keep-alive time before it reads the request that came meanwhile."""
    now = 100.0

    async def deaf_the_second_time(peer: Peer) -> None:
        nonlocal now
        await peer.request()
        await peer.send(OK)
        await peer.request()
        now += late_s
        peer.reset()

    async with scripted(deaf_the_second_time, keep_alive) as server:
        way = RelayUpstream(endpoint(server.url), lambda: now, asyncio.get_running_loop())
        first, second = Sink(), Sink()
        way.dispatch(CALL, first)
        await first.wait()
        now += idle_s
        way.dispatch(CALL, second)
        await second.wait()
        await way.close()
    assert (second.calls[-1] == "end") is resent


@pytest.mark.parametrize(
    ("reply", "loss"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}", Loss.CUT),
        (STREAM + b"3\r\nabc\r\n", Loss.CUT),
        (STREAM + b"5\r\nab", Loss.CUT),
        (b"SSH-2.0-OpenSSH\r\n", Loss.GARBLED),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", Loss.GARBLED),
    ],
    ids=["short body", "no last chunk", "inside a chunk", "not http", "huge head"],
)
async def test_broken_replies_are_losses(ways: Ways, reply: bytes, loss: Loss) -> None:
    async def broken(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply)
        await asyncio.sleep(0.05)

    async with scripted(broken) as server:
        sink = Sink()
        ways.to(server.url).dispatch(CALL, sink)
        await sink.wait()
        assert sink.calls[-1] == "loss"
        assert sink.loss is loss


async def test_chunks_arrive_as_they_come_and_unframed(ways: Ways) -> None:
    async def drip(peer: Peer) -> None:
        await peer.request()
        for byte in STREAM + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n":
            await peer.send(bytes([byte]))
            await asyncio.sleep(0)
        await peer.wait_closed_by_client()

    async with scripted(drip) as server:
        sink = Sink()
        ways.to(server.url).dispatch(CALL, sink)
        await sink.wait()
        assert (sink.calls[-1], sink.body) == ("end", b"abcde")


async def test_a_reply_framed_by_close_is_complete(ways: Ways) -> None:
    async def unframed(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: x\n\n")

    async with scripted(unframed) as server:
        sink = Sink()
        ways.to(server.url).dispatch(CALL, sink)
        await sink.wait()
        assert (sink.calls, sink.body) == (["head", "data", "end"], b"data: x\n\n")


async def test_interim_heads_are_passed_over(ways: Ways) -> None:
    async def interim(peer: Peer) -> None:
        while await peer.request():
            await peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            await peer.send(OK)

    async with scripted(interim) as server:
        sink = Sink()
        ways.to(server.url).dispatch(CALL, sink)
        await sink.wait()
        assert (sink.calls, sink.status, sink.body) == (["head", "data", "end"], 200, b"{}")


async def test_redirects_are_not_followed(ways: Ways) -> None:
    async def elsewhere(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 307 Temporary\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")
        await peer.wait_closed_by_client()

    async with scripted(elsewhere) as server:
        sink = Sink()
        ways.to(server.url).dispatch(CALL, sink)
        await sink.wait()
        assert (sink.calls, sink.status) == (["head", "end"], 307)


async def test_pause_stops_the_engine_and_resume_loses_nothing(ways: Ways) -> None:
    size = 32 * 1024 * 1024
    sent = 0

    async def flood(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        block = b"x" * 65536
        while sent < size:
            await peer.send(block)
            sent += len(block)
        await peer.wait_closed_by_client()

    async with scripted(flood) as server:
        sink = Sink()
        flight = ways.to(server.url).dispatch(CALL, sink)
        async with asyncio.timeout(WITHIN_S):
            await sink.data.wait()
        flight.pause()
        held_at = got_at = -1
        while (sent, len(sink.body)) != (held_at, got_at):  # until every buffer on the way is full
            held_at, got_at = sent, len(sink.body)
            await asyncio.sleep(0.1)
        assert held_at < size
        flight.resume()
        await sink.wait()
        assert len(sink.body) == size


class FullSink(Sink):
    """A caller that is full as soon as anything comes, and never says that it has room again."""

    flight: Flight

    def on_data(self, data: bytes) -> None:
        super().on_data(data)
        self.flight.pause()


async def test_a_connection_paused_at_the_end_of_its_reply_serves_the_next_call(ways: Ways) -> None:
    async with scripted(keep_alive) as server:
        way = ways.to(server.url)
        full = FullSink()
        full.flight = way.dispatch(CALL, full)
        await full.wait()
        for _ in range(2):
            sink = Sink()
            way.dispatch(CALL, sink)
            await sink.wait()
            assert (sink.calls, sink.body) == (["head", "data", "end"], b"{}")
        assert len(server.peers) == 1


async def test_as_many_calls_at_once_as_there_may_be_connections(ways: Ways) -> None:
    async with scripted(keep_alive) as server:
        for _ in range(20):
            way = ways.to(server.url, max_connections=3)
            sinks = [Sink() for _ in range(3)]
            for sink in sinks:
                way.dispatch(CALL, sink)
                await asyncio.sleep(0)
            for sink in sinks:
                await sink.wait()
            assert [sink.loss for sink in sinks] == [None] * 3


async def test_half_open_peers_are_watched_by_the_kernel(ways: Ways) -> None:
    """Dropping packets needs a network namespace; here the law is that every connection asks the kernel to notice."""

    async def silent(peer: Peer) -> None:
        await peer.request()
        await peer.wait_closed_by_client()

    async with scripted(silent) as server:
        flight = ways.to(server.url).dispatch(CALL, Sink())
        await until(lambda: server.peers)
        await asyncio.sleep(0.02)
        ends = [server.peers[0].writer.get_extra_info(name)[1] for name in ("peername", "sockname")]
        with open("/proc/net/tcp", encoding="ascii") as table:
            # by both ports: connections of others may have either one
            ours = [
                row for row in map(str.split, table) if [row[1].partition(":")[2], row[2].partition(":")[2]] == [f"{n:04X}" for n in ends]
            ]
        flight.abort()
        # column 5 (timer_active:when): 02 is the keep-alive timer
        ((timer, _, due_in),) = [row[5].partition(":") for row in ours]
        assert timer == "02"
        assert int(due_in, 16) / 100 <= 15.0


async def test_tls_is_verified(ways: Ways) -> None:
    authority = trustme.CA()
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(served)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    async with scripted(keep_alive, ssl=served) as server:
        url = server.url.replace("http:", "https:")
        sink = Sink()
        ways.to(url, tls=EngineTls(trusting)).dispatch(CALL, sink)
        await sink.wait()
        assert sink.body == b"{}"
        stranger = Sink()
        ways.to(url).dispatch(CALL, stranger)
        await stranger.wait()
        assert stranger.loss is Loss.CONNECT


async def test_close_ends_everything_without_callbacks(ways: Ways) -> None:
    async def silent(peer: Peer) -> None:
        await peer.request()
        await peer.wait_closed_by_client()

    async with scripted(silent) as server:
        sink = Sink()
        way = ways.to(server.url)
        way.dispatch(CALL, sink)
        await until(lambda: server.peers)
        await way.close()
        async with asyncio.timeout(WITHIN_S):
            await server.peers[0].eof.wait()
        assert sink.calls == []
