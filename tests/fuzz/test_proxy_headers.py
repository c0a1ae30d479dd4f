"""Headers of the PROXY protocol: an address or a refusal in words, the same however the bytes are cut, and no byte behind the header."""

import random
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from gateway.http.edge.proxy_protocol import MAX_BLOCK_BYTES, MAX_LINE_BYTES, SIGNATURE, BadProxyHeader, crc32c, read_header
from tests.fuzz.mutation import Target, cut

V4 = bytes([203, 0, 113, 7, 192, 0, 2, 1, 0, 80, 1, 187])
V6 = bytes.fromhex("20010db8000000000000000000000007") * 2 + b"\0\x50\x01\xbb"
PIECES = [
    b"PROXY ",
    b"PROXY UNKNOWN\r\n",
    b"TCP4 ",
    b"TCP6 ",
    b"\r\n",
    b"\n",
    b" ",
    b"203.0.113.7",
    b"::ffff:1.2.3.4",
    b"2001:db8::7",
    b"65535",
    b"65536",
    SIGNATURE,
    b"\x20\x00\x00\x00",
    b"\x21\x11\x00\x0c",
    b"\x21\x21\x00\x24",
    b"\x21\x31\x00\xd8",
    b"\xff\xff",
    V4,
    V6,
    b"\x03\x00\x04",
    b"\x04\x00\x00",
]
SEEDS = [
    b"PROXY TCP4 203.0.113.7 192.0.2.1 4711 443\r\nGET / HTTP/1.1\r\n",
    b"PROXY TCP6 2001:db8::7 ::1 4711 443\r\n\x16\x03\x01",
    b"PROXY UNKNOWN\r\n",
    SIGNATURE + b"\x20\x00\x00\x00",
    SIGNATURE + b"\x21\x11\x00\x0c" + V4,
    SIGNATURE + b"\x21\x21\x00\x24" + V6 + b"GET",
    SIGNATURE + b"\x21\x11\x00\x13" + V4 + b"\x04\x00\x04abcd",
    SIGNATURE + b"\x21\x31\x00\xd8" + bytes(216),
]
HEADERS = Target("proxy_headers", PIECES, SEEDS)


def judged(data: bytes) -> tuple[str, str, int]:
    """The verdict on all bytes at once: `ok`, `waits` or the reason; the address; and the size."""
    try:
        header = read_header(data)
    except BadProxyHeader as error:
        assert 0 < len(str(error)) < 200
        assert str(error).isprintable()
        assert error.__cause__ is None
        return "".join(c for c in str(error) if not c.isdigit()), "", 0
    return ("waits", "", 0) if header is None else ("ok", header.source, header.size)


def headers(data: bytes) -> str:
    verdict, source, size = judged(data)
    if verdict == "ok":
        assert 15 <= size <= min(len(data), MAX_BLOCK_BYTES)
        assert source == "" or str(ip_address(source)) == source
        assert judged(data[:size]) == ("ok", source, size), "what follows the header says nothing about it"
        assert judged(data[:size] + b"\xff" * 200) == ("ok", source, size)
    elif verdict == "waits":
        assert len(data) < MAX_BLOCK_BYTES
        assert data.startswith(SIGNATURE[: len(data)]) or len(data) < MAX_LINE_BYTES
    for pieces in cut(data[: MAX_BLOCK_BYTES + 10]):
        so_far, early = b"", judged(b"")
        for piece in pieces:
            so_far += piece
            early = judged(so_far)
            if early[0] != "waits":
                break
        assert early[:2] == (verdict, source) or len(data) > MAX_BLOCK_BYTES + 10, (early, verdict)
    return f"{verdict} {'v6' if ':' in source else 'v4' if source else ''}"


def made(rng: random.Random) -> bytes:
    """A block of version 2 with additions, whose lengths and checksum are mostly right."""
    family = rng.choice((0x11, 0x11, 0x21, 0x31, 0x12, 0x22, 0x00, 0x01, 0x44))
    rest = {0x11: V4, 0x12: V4, 0x21: V6, 0x22: V6, 0x31: bytes(216)}.get(family, b"")
    for _ in range(rng.randrange(4)):
        value = rng.randbytes(rng.choice((0, 1, 4, 30, 300)))
        rest += bytes([rng.choice((1, 2, 4, 5, 0x20, 0x30, 0xEA))]) + (len(value) + rng.choice((0, 0, 0, 0, 1, 5))).to_bytes(2) + value
    checked = rng.random() < 0.4
    rest += b"\x03\x00\x04" + bytes(4) if checked else b""
    length = max(0, len(rest) + rng.choice((0, 0, 0, 0, 0, -1, 1, 60_000)))
    data = SIGNATURE + bytes([rng.choice((0x21, 0x21, 0x21, 0x20, 0x22, 0x11)), family]) + min(length, 65_535).to_bytes(2) + rest
    if checked and rng.random() < 0.8:
        data = data[:-4] + crc32c(data).to_bytes(4)
    return data + rng.randbytes(rng.choice((0, 0, 3, 50)))


@pytest.mark.parametrize("path", HEADERS.corpus, ids=lambda p: p.stem)
def test_corpus(path: Path) -> None:
    headers(path.read_bytes())


def test_headers_tell_an_address_or_are_refused_in_words(record_property: Any) -> None:
    record_property("figure", HEADERS.run(headers, 1_500, made))
