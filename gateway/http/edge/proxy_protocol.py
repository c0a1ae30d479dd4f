"""The header of the PROXY protocol, with which a proxy of TCP connections says who opened the one that it passes on. Pure.

Both versions of HAProxy's specification are read: a line of text (1) and a binary block (2). `read_header` gets the bytes that have come,
and says how long the header is and which address it tells. A header that tells none (`LOCAL`, as in health checks, `UNKNOWN`, a Unix
socket) leaves the connection its own address. Whether the sender is trusted is not decided here.
"""

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final

import msgspec

MAX_LINE_BYTES: Final = 107
"""The longest line of version 1 with its CRLF, as the specification counts it."""
MAX_BLOCK_BYTES: Final = 4096
"""The longest block of version 2 that is read, as in nginx. The addresses need 52 bytes with the fixed part, 232 for Unix sockets; the rest
is for additions (TLV), of which senders use 100 to 500 bytes, and some 2 KiB for the certificate of a TLS client."""

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
"""The first bytes of version 2."""
FIXED_BYTES: Final = 16
"""The part of a block before its addresses: signature, version and command, family and transport, and the length of the rest."""
_LINE_BEGINS: Final = b"PROXY "

_ADDRESS_BYTES: Final = {1: 12, 2: 36, 3: 216}
"""The length of source and destination by address family: IPv4, IPv6, Unix."""
_TRANSPORTS: Final = (1, 2)
"""Stream and datagram."""
_STREAM_4: Final = 0x11
_STREAM_6: Final = 0x21

_PORT: Final = re.compile(rb"0|[1-9][0-9]{0,4}")
_V4: Final = re.compile(rb"[0-9.]{7,15}")
_V6: Final = re.compile(rb"[0-9A-Fa-f:.]{2,39}")

_TLV_CRC32C: Final = 3
_CRC32C_POLYNOMIAL: Final = 0x82F63B78


class BadProxyHeader(ValueError):
    """Bytes that are no header of the PROXY protocol; the message says why."""


class ProxyHeader(msgspec.Struct, frozen=True, gc=False):
    """One complete header."""

    size: int
    """Its bytes; the connection's own data follows."""
    source: str = ""
    """The address that it tells; empty where the connection keeps its own."""


def read_header(data: bytes) -> ProxyHeader | None:
    """The header that `data` begins with; None while it is not complete, and then every byte of `data` belongs to it.

    Raises:
        BadProxyHeader: what comes is no header, or a longer one than is read; raised as soon as that is certain.
    """
    if data[: len(SIGNATURE)] == SIGNATURE[: len(data)]:
        return _block(data)
    if data[: len(_LINE_BEGINS)] == _LINE_BEGINS[: len(data)]:
        return _line(data)
    raise BadProxyHeader("the connection does not begin with a header of the PROXY protocol")


def _line(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\n", 0, MAX_LINE_BYTES)
    if end < 0:
        if len(data) >= MAX_LINE_BYTES:
            raise BadProxyHeader(f"the line of version 1 is longer than {MAX_LINE_BYTES} bytes")
        return None
    if data[end - 1] != 0x0D:
        raise BadProxyHeader("the line of version 1 does not end with CRLF")
    protocol, *rest = data[len(_LINE_BEGINS) : end - 1].split(b" ")
    if protocol == b"UNKNOWN":
        return ProxyHeader(end + 1)
    if protocol not in (b"TCP4", b"TCP6") or len(rest) != 4:
        raise BadProxyHeader("the line of version 1 is not PROXY TCP4|TCP6 SOURCE DESTINATION PORT PORT")
    source, _ = (_written_address(text, protocol) for text in rest[:2])
    for port in rest[2:]:
        if _PORT.fullmatch(port) is None or int(port) > 65535:
            raise BadProxyHeader("the line of version 1 has something that is no port")
    return ProxyHeader(end + 1, source)


def _written_address(text: bytes, protocol: bytes) -> str:
    try:
        if protocol == b"TCP4" and _V4.fullmatch(text):
            return str(IPv4Address(text.decode("ascii")))
        if protocol == b"TCP6" and _V6.fullmatch(text):
            return _shown(IPv6Address(text.decode("ascii")))
    except AddressValueError:
        pass
    raise BadProxyHeader(f"the line of version 1 has an address that is none of {protocol.decode('ascii')}")


def _shown(address: IPv6Address) -> str:
    """The address as text; an IPv4 address inside an IPv6 one is the IPv4 address."""
    return str(address.ipv4_mapped or address)


def _block(data: bytes) -> ProxyHeader | None:
    if len(data) < FIXED_BYTES:
        return None
    version, command = data[12] >> 4, data[12] & 0x0F
    if version != 2 or command > 1:
        raise BadProxyHeader(f"the block has version {version} and command {command}; known are version 2 and commands 0 and 1")
    size = FIXED_BYTES + int.from_bytes(data[14:16])
    if size > MAX_BLOCK_BYTES:
        raise BadProxyHeader(f"the block of version 2 has {size} bytes; at most {MAX_BLOCK_BYTES} are read")
    if len(data) < size:
        return None
    if command == 0:  # LOCAL: the proxy's own connection. The family and all that follows have no meaning.
        return ProxyHeader(size)
    family, transport = data[13] >> 4, data[13] & 0x0F
    if family > max(_ADDRESS_BYTES) or transport > max(_TRANSPORTS):
        raise BadProxyHeader(f"the block of version 2 has the unassigned family {family} or transport {transport}")
    if not family or not transport:
        return ProxyHeader(size)
    additions = FIXED_BYTES + _ADDRESS_BYTES[family]
    if size < additions:
        raise BadProxyHeader("the block of version 2 is too short for its addresses")
    _check_additions(data[:size], additions)
    if data[13] == _STREAM_4:
        return ProxyHeader(size, str(IPv4Address(data[16:20])))
    return ProxyHeader(size, _shown(IPv6Address(data[16:32])) if data[13] == _STREAM_6 else "")


def _check_additions(block: bytes, at: int) -> None:
    """Check that the additions (TLV) from `at` on fill the block, and its checksum where one of them is a checksum."""
    while at < len(block):
        length = int.from_bytes(block[at + 1 : at + 3])
        value, end = at + 3, at + 3 + length
        if end > len(block):
            raise BadProxyHeader("an addition (TLV) in the block of version 2 reaches beyond the block")
        if block[at] == _TLV_CRC32C:
            told = int.from_bytes(block[value:end])
            if length != 4 or told != crc32c(block[:value] + bytes(4) + block[end:]):
                raise BadProxyHeader("the checksum of the block of version 2 is wrong")
        at = end


def _crc32c_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_CRC32C_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


_CRC32C_TABLE: Final = _crc32c_table()


def crc32c(data: bytes) -> int:
    """The CRC-32C (Castagnoli) of the data, which senders may put into a block of version 2."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC32C_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF
