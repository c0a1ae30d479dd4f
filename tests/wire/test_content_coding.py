"""Compressed request bodies: unpacked in steps up to the limit of any body, and refused where anything is wrong with them."""

import gzip
import zlib

import pytest

from tests.wire.edge_server import edge
from tests.wire.test_edge import post

SAID = b'{"model":"m","messages":[]}' * 40
DAMAGED = bytearray(gzip.compress(SAID, mtime=0))
DAMAGED[-6] ^= 1
"""One bit of the checksum is wrong. No time stands in the data, as they are names of tests, which are the same in each process."""


def zeros(size: int) -> bytes:
    """A gzip body of zeros, about a thousandth of `size` long."""
    return gzip.compress(bytes(size))


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        (b"gzip", gzip.compress(SAID, mtime=0)),
        (b"GZIP", gzip.compress(SAID, mtime=0)),
        (b"x-gzip", gzip.compress(SAID, mtime=0)),
        (b"deflate", zlib.compress(SAID)),
        (b"identity", SAID),
    ],
)
@pytest.mark.parametrize("apart", [False, True])
async def test_a_compressed_body_is_read_as_if_it_were_not(coding: bytes, body: bytes, apart: bool) -> None:
    request = post(body, b"Content-Encoding: " + coding, b"Connection: close")
    async with edge() as running:
        await running.send(*((request[:-9], request[-9:]) if apart else (request,)))
        assert [given for _, _, given in running.served] == [SAID]


async def test_a_chunked_body_may_be_compressed() -> None:
    packed = gzip.compress(SAID, mtime=0)
    head = b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n"
    async with edge() as running:
        await running.send(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(packed), packed))
        assert [given for _, _, given in running.served] == [SAID]


@pytest.mark.parametrize(
    ("coding", "body", "said"),
    [
        (b"gzip", b"abc", b"not valid gzip"),
        (b"gzip", bytes(DAMAGED), b"not valid gzip"),
        (b"gzip", gzip.compress(SAID, mtime=0)[:-1], b"ends before"),
        (b"gzip", gzip.compress(SAID, mtime=0)[:40], b"ends before"),
        (b"gzip", gzip.compress(SAID, mtime=0) + b"x", b"follow"),
        (b"gzip", gzip.compress(SAID, mtime=0) + gzip.compress(SAID, mtime=0), b"follow"),
        (b"gzip", gzip.compress(SAID, mtime=0) + b"x" * 40_000, b"follow"),
        (b"gzip", zlib.compress(SAID), b"not valid gzip"),
        (b"deflate", gzip.compress(SAID, mtime=0), b"not valid deflate"),
        (b"deflate", zlib.compress(SAID)[2:-4], b"not valid deflate"),
    ],
)
async def test_a_damaged_body_is_refused(coding: bytes, body: bytes, said: bytes) -> None:
    async with edge() as running:
        got = await running.send(post(body, b"Content-Encoding: " + coding, b"Connection: close"))
        assert got.startswith(b"HTTP/1.1 400 "), got
        assert said in got, got
        assert not running.served


@pytest.mark.parametrize("coding", [b"br", b"zstd", b"compress", b"gzip, gzip", b"identity, gzip", b""])
async def test_another_coding_is_refused_with_the_accepted_ones(coding: bytes) -> None:
    async with edge() as running:
        got = await running.send(post(b"abc", b"Content-Encoding: " + coding))
        assert got.startswith(b"HTTP/1.1 415 "), got
        assert b"'gzip'" in got
        assert b"'deflate'" in got


@pytest.mark.fault("compression bomb")
@pytest.mark.req("R32")
async def test_a_body_may_unpack_to_the_limit_and_no_further() -> None:
    limit = 256 * 1024
    async with edge(max_body_bytes=limit) as running:
        await running.send(post(zeros(limit), b"Content-Encoding: gzip", b"Connection: close"))
        assert [len(given) for _, _, given in running.served] == [limit]
        got = await running.send(post(zeros(limit + 1), b"Content-Encoding: gzip", b"Connection: close"))
        assert got.startswith(b"HTTP/1.1 413 "), got
        assert b"unpacks to more than the 262144 bytes" in got
        assert len(running.served) == 1


@pytest.mark.fault("compression bomb")
@pytest.mark.req("R32")
async def test_a_bomb_is_not_unpacked_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked = 0
    start = zlib.decompressobj

    class Counting:
        """A decompressor that counts the bytes it gives out."""

        def __init__(self, wbits: int) -> None:
            self.inner = start(wbits)

        def decompress(self, data: bytes, max_length: int) -> bytes:
            nonlocal unpacked
            out = self.inner.decompress(data, max_length)
            unpacked += len(out)
            return out

        def __getattr__(self, name: str) -> object:
            return getattr(self.inner, name)

    bomb = zeros(32 * 1024 * 1024)
    monkeypatch.setattr(zlib, "decompressobj", Counting)
    limit = 64 * 1024
    async with edge(max_body_bytes=limit) as running:
        got = await running.send(post(bomb, b"Content-Encoding: gzip", b"Connection: close"))
        assert got.startswith(b"HTTP/1.1 413 "), got
    assert limit < unpacked <= 2 * limit


async def test_the_declared_length_counts_packed_bytes() -> None:
    packed = zeros(100_000)
    async with edge(max_body_bytes=len(packed)) as running:
        got = await running.send(post(packed + b"x", b"Content-Encoding: gzip", b"Connection: close"))
        assert b"The body has %d bytes" % (len(packed) + 1) in got
        assert got.startswith(b"HTTP/1.1 413 ")
