import sys

import pytest

from backends.clients.http1 import MAX_HEAD_BYTES, ReplyError, ReplyParser

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def read(parser: ReplyParser, data: bytes, step: int) -> bytes:
    return b"".join(parser.feed(data[i : i + step]) for i in range(0, len(data), step))


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("data", "body"),
    [
        (HEAD + b"Content-Length: 5\r\n\r\nhello", b"hello"),
        (HEAD + b"Content-Length: 0\r\n\r\n", b""),
        (CHUNKED + b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", b"hello"),
        (CHUNKED + b"5;ext=1\r\nhello\r\n0\r\nX-Trailer: 1\r\n\r\n", b"hello"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"Content-Length: 5\r\n\r\nhello", b"hello"),
    ],
)
def test_however_a_reply_is_cut_it_reads_the_same(data: bytes, body: bytes, step: int) -> None:
    parser = ReplyParser()
    assert read(parser, data, step) == body
    assert (parser.complete, parser.reusable, parser.status) == (True, True, 200)
    assert parser.headers[b"content-type"] == b"text/event-stream"
    assert b"x-trailer" not in parser.headers


def test_one_parser_reads_reply_after_reply() -> None:
    parser = ReplyParser()
    for body in (b"a", b"bc", b""):
        assert parser.feed(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)) == body
        assert parser.reusable
        parser.reset()


def test_a_body_without_framing_ends_by_close() -> None:
    parser = ReplyParser()
    assert parser.feed(HEAD + b"\r\nsome") == b"some"
    assert (parser.ends_by_close, parser.complete) == (True, False)


def test_a_reply_that_closes_is_not_reused() -> None:
    parser = ReplyParser()
    parser.feed(HEAD + b"Connection: close\r\nContent-Length: 0\r\n\r\n")
    assert (parser.complete, parser.reusable) == (True, False)


@pytest.mark.parametrize(
    "tail", [b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nbad", b"garbage", b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n"]
)
def test_bytes_behind_a_reply_are_dropped_with_the_connection(tail: bytes) -> None:
    parser = ReplyParser()
    assert parser.feed(HEAD + b"Content-Length: 5\r\n\r\nhello" + tail) == b"hello"
    assert (parser.complete, parser.reusable, parser.status) == (True, False, 200)
    with pytest.raises(ReplyError, match="after the end"):
        parser.feed(b"more")


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        CHUNKED + b"zz\r\n",
        CHUNKED + b"5\r\nhelloX",
    ],
)
def test_what_is_not_http_is_an_error(data: bytes) -> None:
    parser = ReplyParser()
    with pytest.raises(ReplyError):
        parser.feed(data)


@pytest.mark.parametrize("step", [100, 100_000])
def test_a_head_is_bounded_however_it_comes(step: int) -> None:
    parser = ReplyParser()
    with pytest.raises(ReplyError, match="head over"):
        read(parser, HEAD + b"X: " + b"a" * MAX_HEAD_BYTES + b"\r\n", step)


def test_a_large_body_is_no_large_head() -> None:
    parser = ReplyParser()
    size = 4 * MAX_HEAD_BYTES
    assert parser.feed(HEAD + b"Content-Length: %d\r\n\r\n" % size + b"a" * size) == b"a" * size


@pytest.mark.parametrize("behind", [b"H", b"HTTP/1.1 200 OK\r\nContent-L", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_the_beginning_of_another_reply_never_reaches_the_next_caller(behind: bytes) -> None:
    parser = ReplyParser()
    assert parser.feed(HEAD + b"Content-Length: 2\r\n\r\nok" + behind) == b"ok"
    assert parser.complete
    assert not parser.reusable


def test_a_change_of_protocol_is_an_error() -> None:
    with pytest.raises(ReplyError, match="another protocol"):
        ReplyParser().feed(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\nbytes")


def test_what_was_read_stays_when_nothing_more_is_fed() -> None:
    parser = ReplyParser()
    parser.feed(b"HTTP/1.1 200 OK\r\nx-engine: a\r\ncontent-length: 5\r\n\r\nhal")
    before = sys.getrefcount(parser)
    parser.close()
    assert (parser.status, parser.headers[b"x-engine"], parser.head_done, parser.complete) == (200, b"a", True, False)
    assert sys.getrefcount(parser) < before, "llhttp holds it no more"
