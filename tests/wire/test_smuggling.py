"""Request smuggling: every vector hides a second request, and that one must never be served (R31)."""

import asyncio

import pytest

from tests.timing import HANG_S
from tests.wire.edge_server import edge

SECOND = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"


def post(*lines: bytes, body: bytes = b"", start: bytes = b"POST /first HTTP/1.1") -> bytes:
    return b"\r\n".join((start, b"Host: a", *lines)) + b"\r\n\r\n" + body


CL, TE = b"Content-Length: ", b"Transfer-Encoding: "
CHUNKED = TE + b"chunked"
END = b"0\r\n\r\n"

REFUSED = {
    "length and chunked": post(CL + b"6", CHUNKED, body=END + b"G"),
    "chunked and length": post(CHUNKED, CL + b"6", body=END + b"G"),
    "two lengths": post(CL + b"0", CL + b"36"),
    "two equal lengths": post(CL + b"3", CL + b"3", body=b"abc"),
    "length list": post(CL + b"0, 36"),
    "length plus": post(CL + b"+3", body=b"abc"),
    "length minus": post(CL + b"-1"),
    "length hex": post(CL + b"0x3", body=b"abc"),
    "length words": post(CL + b"3 3", body=b"abc"),
    "length empty": post(CL),
    "length huge": post(CL + b"9" * 40),
    "length underscore": post(CL + b"1_0"),
    "length fraction": post(CL + b"3.0", body=b"abc"),
    "chunked twice": post(CHUNKED, CHUNKED, body=END),
    "chunked, identity": post(TE + b"chunked, identity", body=END),
    "identity, chunked": post(TE + b"identity, chunked", body=END),
    "gzip, chunked": post(TE + b"gzip, chunked", body=END),
    "xchunked": post(TE + b"xchunked", body=END),
    "chunked;x": post(TE + b"chunked;x=1", body=END),
    "chunked quoted": post(TE + b'"chunked"', body=END),
    "tab chunked": post(b"Transfer-Encoding:\x0bchunked", body=END),
    "coding identity": post(TE + b"identity"),
    "space before colon": post(b"Transfer-Encoding : chunked", body=END),
    "tab before colon": post(b"Content-Length\t: 0"),
    "no colon": post(b"Content-Length 0"),
    "empty name": post(b": x"),
    "folded": post(b"X: a\r\n b"),
    "folded tab": post(b"X: a\r\n\tb"),
    "folded length": post(b"Content-Length:\r\n 5", body=b"abcde"),
    "first line folded": b"POST /first HTTP/1.1\r\n Host: a\r\n\r\n",
    "bare lf": b"POST /first HTTP/1.1\nHost: a\n\n",
    "bare lf in head": post(b"X: a\nContent-Length: 5"),
    "bare cr": post(b"X: a\rContent-Length: 5"),
    "nul in value": post(b"X: a\0b"),
    "nul in name": post(b"X\0: a"),
    "control in value": post(b"X: a\x08b"),
    "high byte in name": post(b"X\xc3\xa9: a"),
    "chunk size plus": post(CHUNKED, body=b"+3\r\nabc\r\n" + END),
    "chunk size minus": post(CHUNKED, body=b"-3\r\nabc\r\n" + END),
    "chunk size 0x": post(CHUNKED, body=b"0x3\r\nabc\r\n" + END),
    "chunk size space": post(CHUNKED, body=b"3 \r\nabc\r\n" + END),
    "chunk size overflow": post(CHUNKED, body=b"f" * 17 + b"\r\nabc\r\n" + END),
    "chunk size empty": post(CHUNKED, body=b"\r\nabc\r\n" + END),
    "chunk lf": post(CHUNKED, body=b"3\nabc\n0\n\n"),
    "chunk without crlf": post(CHUNKED, body=b"3\r\nabcX\r\n" + END),
    "chunk longer than said": post(CHUNKED, body=b"3\r\nabcde\r\n" + END),
    "chunk extension lf": post(CHUNKED, body=b"3;a\nb\r\nabc\r\n" + END),
    "chunked in 1.0": post(CHUNKED, body=END, start=b"POST /first HTTP/1.0"),
    "version 2.0": post(start=b"POST /first HTTP/2.0"),
    "version 1.2": post(start=b"POST /first HTTP/1.2"),
    "version 0.9": b"GET /first\r\n\r\n",
    "version lower": post(start=b"POST /first http/1.1"),
    "no host": b"POST /first HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    "two hosts": post(b"Host: b"),
    "host with space": b"POST /first HTTP/1.1\r\nHost: a b\r\n\r\n",
    "host with slash": b"POST /first HTTP/1.1\r\nHost: a/b\r\n\r\n",
    "absolute target": post(start=b"POST http://b/first HTTP/1.1"),
    "asterisk": post(start=b"OPTIONS * HTTP/1.1"),
    "connect": b"CONNECT b:80 HTTP/1.1\r\nHost: b:80\r\n\r\n",
    "two authorizations": post(b"Authorization: Bearer a", b"Authorization: Bearer b"),
    "two content types": post(b"Content-Type: application/json", b"Content-Type: text/plain"),
    "lower-case method": post(start=b"post /first HTTP/1.1"),
    "unknown method": post(start=b"BREW /first HTTP/1.1"),
    "tab in first line": post(start=b"POST\t/first HTTP/1.1"),
    "target with high byte": post(start=b"POST /\xff HTTP/1.1"),
    "compressed": post(b"Content-Encoding: gzip", CL + b"3", body=b"abc"),
    "length in a trailer": post(CHUNKED, body=b"3\r\nabc\r\n0\r\nContent-Length: 50\r\n\r\n"),
    "many trailers": post(CHUNKED, body=b"0\r\n" + b"".join(b"X%d: y\r\n" % n for n in range(500)) + b"\r\n"),
}

SERVED_ONCE = {
    "pipelined": post(CL + b"3", body=b"abc"),
    "pipelined after chunks": post(CHUNKED, body=b"3\r\nabc\r\n" + END),
    "pipelined after close": post(CL + b"0", b"Connection: close"),
    "chunk extension": post(CHUNKED, body=b"3;a=b\r\nabc\r\n" + END),
    "trailer": post(CHUNKED, body=b"3\r\nabc\r\n0\r\nX-Checksum: 50\r\n\r\n"),
    "length on get": post(CL + b"3", body=b"abc", start=b"GET /first HTTP/1.1"),
    "http2 offer": post(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk", CL + b"3", body=b"abc"),
    "websocket offer": post(b"Connection: keep-alive, Upgrade", b"Upgrade: websocket", CL + b"3", body=b"abc"),
    "expect": post(b"Expect: 100-continue", CL + b"3", body=b"abc"),
    "version 1.0": post(CL + b"3", body=b"abc", start=b"POST /first HTTP/1.0"),
    "leading blank lines": b"\r\n\r\n" + post(CL + b"3", body=b"abc"),
}
"""Acceptable requests with another one behind, which must not be read either."""


def test_there_are_enough_vectors() -> None:
    assert len(REFUSED) + len(SERVED_ONCE) >= 60


@pytest.mark.fault("smuggling")
@pytest.mark.req("R31")
@pytest.mark.parametrize("name", REFUSED)
async def test_bad_requests_are_refused_and_nothing_behind_them_is_served(name: str) -> None:
    async with edge() as running:
        got = await running.send(REFUSED[name] + SECOND)
        assert got.split(b" ")[1] in (b"400", b"415", b"431"), got
        assert b"/smuggled" not in got
        assert all(path != "/smuggled" for _, path, _ in running.served)
        assert [path for _, path, _ in running.served] in ([], ["/first"])
        assert got.count(b"HTTP/1.1 ") == 1


@pytest.mark.fault("smuggling")
@pytest.mark.req("R31")
@pytest.mark.parametrize("name", SERVED_ONCE)
@pytest.mark.parametrize("apart", [False, True])
async def test_what_is_pipelined_is_never_read(name: str, apart: bool) -> None:
    async with edge() as running:
        first = SERVED_ONCE[name]
        got = await running.send(first + SECOND) if not apart else await running.send(first[:-1], first[-1:] + SECOND)
        assert b"smuggled" not in got
        assert got.count(b"HTTP/1.1 2") == 1
        assert [path for _, path, _ in running.served] == ["/first"]


BEHIND = {
    "a request": SECOND,
    "an http2 offer": SECOND[:-2] + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
    "a websocket offer": SECOND[:-2] + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "a tunnel": b"CONNECT inside:443 HTTP/1.1\r\nHost: a\r\n\r\n",
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "noise": b"\x16\x03\x01" + b"x" * 100,
}


@pytest.mark.fault("smuggling")
@pytest.mark.req("R31")
@pytest.mark.parametrize("name", BEHIND)
async def test_nothing_sent_behind_a_running_request_disturbs_it(name: str) -> None:
    async with edge() as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(post(start=b"GET /never HTTP/1.1"))
        await asyncio.sleep(0.03)
        (exchange,) = running.exchanges
        for _ in range(2):
            writer.write(BEHIND[name])
            await asyncio.sleep(0.03)
        assert len(running.exchanges) == 1
        exchange.start(b"content-type: text/plain\r\n")
        exchange.write(b"one")
        exchange.end()
        got = await asyncio.wait_for(reader.read(), HANG_S)
        assert got.count(b"HTTP/1.1 ") == 1
        assert got.endswith(b"3\r\none\r\n0\r\n\r\n")
        assert running.defects == []
        writer.close()


@pytest.mark.req("R22")
@pytest.mark.parametrize("name", BEHIND)
async def test_a_caller_that_leaves_is_noticed_whatever_it_sent_before(name: str) -> None:
    async with edge() as running:
        _, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(post(start=b"GET /never HTTP/1.1"))
        await asyncio.sleep(0.03)
        writer.write(BEHIND[name])
        await asyncio.sleep(0.03)
        writer.close()
        await asyncio.sleep(0.03)
        assert running.exchanges[0].gone
        assert not running.connections.open
