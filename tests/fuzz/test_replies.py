"""Engines' HTTP replies: the same status, headers and body however they are cut, or none."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from backends.clients.http1 import ReplyError, ReplyParser
from tests.fuzz.mutation import Target, cut

PIECES = [
    b"\r\n",
    b"\n",
    b"\r",
    b"\r\n\r\n",
    b": ",
    b"\0",
    b"\xff",
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.0 500 x\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"204",
    b"304",
    b"101",
    b"content-length: 2\r\n",
    b"content-length: 0\r\n",
    b"transfer-encoding: chunked\r\n",
    b"connection: close\r\n",
    b"connection: upgrade\r\nupgrade: h2c\r\n",
    b"0\r\n\r\n",
    b"3\r\nabc\r\n",
    b"ffffffffffffffff\r\n",
    b"x: " + b"y" * 3000 + b"\r\n",
    b"a: b\r\n" * 100,
]
REPLIES = Target("replies", PIECES)


class Read(NamedTuple):
    """What a caller of the parser would have made of a reply."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes
    how: str
    reusable: bool
    behind: bytes = b""
    """What was not read any more."""


def read(chunks: list[bytes]) -> Read:
    parser, body = ReplyParser(), b""
    for at, chunk in enumerate(chunks):
        if parser.complete:
            return Read(parser.status, parser.headers, body, "over", False, b"".join(chunks[at:]))
        try:
            body += parser.feed(chunk)
        except ReplyError:
            return Read(parser.status, parser.headers, b"", "broken", False)
    return Read(parser.status, parser.headers, body, "over" if parser.complete else "open" if parser.head_done else "head", parser.reusable)


def reply(data: bytes) -> str:
    whole = read([data])
    for chunks in cut(data):
        again = read(chunks)
        if whole.how == "broken":
            # it may have been over before the broken byte, and then its connection is not used again
            assert again.how == "broken" or not again.reusable
        else:
            assert again[:4] == whole[:4]
            # in one read, blank lines behind a reply are passed over, which harms nobody
            assert again.reusable == whole.reusable or not again.behind.strip(b"\r\n")
    return f"ok {whole.status} {sorted(whole.headers)} {whole.how}" if whole.how != "broken" else f"broken {whole.status}"


@pytest.mark.req("R54")
@pytest.mark.parametrize("path", REPLIES.corpus, ids=lambda p: p.stem)
def test_corpus(path: Path) -> None:
    reply(path.read_bytes())


@pytest.mark.req("R54")
def test_replies_are_read_the_same_however_they_are_cut(record_property: Any) -> None:
    record_property("figure", REPLIES.run(reply, 3_000))
