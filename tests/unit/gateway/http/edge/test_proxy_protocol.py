"""Headers of the PROXY protocol: the specification's own rules, and where a header ends."""

import pytest

from gateway.http.edge.proxy_protocol import (
    FIXED_BYTES,
    MAX_BLOCK_BYTES,
    MAX_LINE_BYTES,
    SIGNATURE,
    BadProxyHeader,
    ProxyHeader,
    crc32c,
    read_header,
)

V4 = bytes([203, 0, 113, 7, 192, 0, 2, 1]) + (4711).to_bytes(2) + (443).to_bytes(2)
V6 = bytes.fromhex("20010db8000000000000000000000007") + bytes(15) + b"\x01" + (4711).to_bytes(2) + (443).to_bytes(2)
UNIX = b"/run/a".ljust(108, b"\0") + bytes(108)
NEXT = b"GET / HTTP/1.1\r\n"


def block(rest: bytes, family: int = 0x11, command: int = 0x21, length: int | None = None) -> bytes:
    return SIGNATURE + bytes([command, family]) + (len(rest) if length is None else length).to_bytes(2) + rest


def tlv(kind: int, value: bytes) -> bytes:
    return bytes([kind]) + len(value).to_bytes(2) + value


def with_checksum(rest: bytes, wrong: int = 0) -> bytes:
    without = block(rest + tlv(3, bytes(4)))
    return without[:-4] + (crc32c(without) ^ wrong).to_bytes(4)


LONGEST = b"PROXY UNKNOWN ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n"
TAKEN = [
    (b"PROXY TCP4 203.0.113.7 192.0.2.1 4711 443\r\n", "203.0.113.7"),
    (b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n", "255.255.255.255"),
    (b"PROXY TCP4 203.0.113.7 192.0.2.1 0 0\r\n", "203.0.113.7"),
    (b"PROXY TCP6 2001:DB8::7 2001:db8::1 4711 443\r\n", "2001:db8::7"),
    (b"PROXY TCP6 ::ffff:203.0.113.7 ::1 4711 443\r\n", "203.0.113.7"),
    (b"PROXY TCP6 ::ffff:cb00:7107 ::1 4711 443\r\n", "203.0.113.7"),
    (b"PROXY UNKNOWN\r\n", ""),
    (b"PROXY UNKNOWN anything at all \xff\r\n", ""),
    (LONGEST, ""),
    (block(V4), "203.0.113.7"),
    (block(V6, 0x21), "2001:db8::7"),
    (block(bytes(10) + b"\xff\xff" + bytes([203, 0, 113, 7]) + bytes(16) + bytes(4), 0x21), "203.0.113.7"),
    (block(V4, 0x12), ""),  # a datagram cannot have opened this connection
    (block(V6, 0x22), ""),
    (block(UNIX, 0x31), ""),
    (block(UNIX, 0x32), ""),
    (block(b"", 0x00), ""),
    (block(b"whatever", 0x00), ""),
    (block(V4, 0x10), ""),
    (block(b"", 0x00, 0x20), ""),  # LOCAL, as in a health check
    (block(V4, 0x11, 0x20), ""),
    (block(b"\xff" * 40, 0xFF, 0x20), ""),
    (block(V4 + tlv(4, b"") + tlv(0xEA, b"\x01vpce-08d2bf15fac5001c9")), "203.0.113.7"),  # as AWS writes it
    (block(V4 + tlv(2, b"api.example.com") + tlv(5, b"x" * 128)), "203.0.113.7"),
    (block(V4 + tlv(0x20, b"x" * (MAX_BLOCK_BYTES - FIXED_BYTES - len(V4) - 3))), "203.0.113.7"),
    (with_checksum(V4), "203.0.113.7"),
    (with_checksum(V4 + tlv(4, bytes(30))), "203.0.113.7"),
]


@pytest.mark.parametrize(("data", "source"), TAKEN, ids=lambda v: repr(v[:50]) if isinstance(v, bytes) else v)
def test_headers_and_where_they_end(data: bytes, source: str) -> None:
    assert read_header(data + NEXT) == ProxyHeader(len(data), source)
    assert all(read_header(data[:end]) is None for end in range(len(data))), "an incomplete header says nothing"


REFUSED = [
    (b"G", "does not begin"),
    (b"PROXY\t", "does not begin"),
    (b"proxy TCP4", "does not begin"),
    (b"\x16\x03\x01", "does not begin"),  # TLS without a header
    (SIGNATURE[:-1] + b"\r", "does not begin"),
    (b"PROXY UNKNOWN" + b" " * 93 + b"\n", "does not end with CRLF"),
    (b"PROXY UNKNOWN" + b" " * 94, f"longer than {MAX_LINE_BYTES}"),
    (LONGEST[:-2] + b" \r\n", f"longer than {MAX_LINE_BYTES}"),
    (b"PROXY \n", "does not end with CRLF"),
    (b"PROXY \r\n", "is not PROXY TCP4"),
    (b"PROXY TCP4\r\n", "is not PROXY TCP4"),
    (b"PROXY TCP5 203.0.113.7 192.0.2.1 4711 443\r\n", "is not PROXY TCP4"),
    (b"PROXY TCP4 203.0.113.7 192.0.2.1 4711\r\n", "is not PROXY TCP4"),
    (b"PROXY TCP4  203.0.113.7 192.0.2.1 4711 443\r\n", "is not PROXY TCP4"),
    (b"PROXY TCP4 203.0.113.7 192.0.2.1 4711 443 \r\n", "is not PROXY TCP4"),
    (b"PROXY TCP4 203.0.113.007 192.0.2.1 4711 443\r\n", "none of TCP4"),
    (b"PROXY TCP4 203.0.113.256 192.0.2.1 4711 443\r\n", "none of TCP4"),
    (b"PROXY TCP4 2001:db8::7 192.0.2.1 4711 443\r\n", "none of TCP4"),
    (b"PROXY TCP4 203.0.113.7 2001:db8::1 4711 443\r\n", "none of TCP4"),
    (b"PROXY TCP4 \xd9\xa1.1.1.1 192.0.2.1 4711 443\r\n", "none of TCP4"),
    (b"PROXY TCP6 203.0.113.7 ::1 4711 443\r\n", "none of TCP6"),
    (b"PROXY TCP6 fe80::1%eth0 ::1 4711 443\r\n", "none of TCP6"),
    (b"PROXY TCP6 ::1::2 ::1 4711 443\r\n", "none of TCP6"),
    (b"PROXY TCP4 203.0.113.7 192.0.2.1 65536 443\r\n", "no port"),
    (b"PROXY TCP4 203.0.113.7 192.0.2.1 0443 443\r\n", "no port"),
    (b"PROXY TCP4 203.0.113.7 192.0.2.1 4711 -1\r\n", "no port"),
    (block(V4, command=0x11), "version 1"),
    (block(V4, command=0x31), "version 3"),
    (block(V4, command=0x22), "command 2"),
    (block(V4, 0x41), "unassigned family 4"),
    (block(V4, 0x13), "transport 3"),
    (block(V4[:-1]), "too short"),
    (block(V6[:-1], 0x21), "too short"),
    (block(UNIX[:-1], 0x31), "too short"),
    (block(V4 + b"\x04"), "reaches beyond"),
    (block(V4 + b"\x04\x00"), "reaches beyond"),
    (block(V4 + b"\x04\x00\x02x"), "reaches beyond"),
    (block(V4 + tlv(3, b"")), "checksum"),
    (block(V4 + tlv(3, bytes(4))), "checksum"),
    (with_checksum(V4, wrong=1), "checksum"),
    (SIGNATURE + b"\x21\x11" + (MAX_BLOCK_BYTES - FIXED_BYTES + 1).to_bytes(2), f"at most {MAX_BLOCK_BYTES}"),  # before it comes
    (SIGNATURE + b"\x21\x11\xff\xff", f"at most {MAX_BLOCK_BYTES}"),
]


@pytest.mark.parametrize(("data", "why"), REFUSED, ids=lambda v: repr(v[:50]) if isinstance(v, bytes) else v)
def test_what_is_no_header_is_refused_by_name(data: bytes, why: str) -> None:
    for given in (data, data + NEXT):
        with pytest.raises(BadProxyHeader, match=why):
            read_header(given)


def test_the_checksum_is_the_one_of_rfc_3720() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
