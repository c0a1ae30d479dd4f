"""The head of a request, checked before anybody asks for the caller's key. Sans-io.

llhttp (strict) has refused broken grammar by now: two lengths, length and chunking together, obsolete folding, bare LF,
odd chunk sizes. This module checks the meaning: headers that may occur only once, versions and codings that are spoken.

`without_upgrade` removes offers of another protocol, which a server may ignore (RFC 9110, 7.8): Java's HttpClient offers cleartext HTTP/2
on every connection. llhttp stops reading at such a head, so the connection feeds it again without the offer.
"""

import re
from typing import Final

import msgspec

from domain.faults import Fault, Kind
from gateway.http.edge.content_coding import CODINGS

ONCE: Final = frozenset(
    {
        b"api-key",
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"expect",
        b"host",
        b"transfer-encoding",
        b"traceparent",
        b"x-api-key",
    }
)
"""Headers that mean different things to different readers when they come twice, so they may not."""

_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
_TRACEPARENT: Final = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""Version `ff` and ids of zeros are invalid (W3C Trace Context, 3.2.2)."""
_PRINTABLE: Final = re.compile(rb"[\x20-\x7e]{1,512}")
_HOST: Final = re.compile(rb"[A-Za-z0-9.\-_\[\]:]{1,255}")

_UPGRADE: Final = re.compile(rb"\r\n(?:upgrade|http2-settings):[^\r\n]*", re.IGNORECASE)
_OFFER: Final = re.compile(rb"\r\nupgrade:([^\r\n]*)", re.IGNORECASE)
_OPTION: Final = re.compile(rb"(\r\nconnection:)[^\r\n]*upgrade[^\r\n]*", re.IGNORECASE)

HTTP2_PREFACE: Final = b"PRI * HTTP/2.0\r\n"
HTTP2_REFUSAL: Final = b"\0\0\0\4\0\0\0\0\0" + b"\0\0\x08\7\0\0\0\0\0" + b"\0\0\0\0" + b"\0\0\0\x0d"
"""The answer to a caller that begins with HTTP/2: an empty SETTINGS frame, and GOAWAY with HTTP_1_1_REQUIRED (RFC 9113, 6.8 and 7). A
client of HTTP/2 could not read an answer in HTTP/1.1."""


class RequestHead(msgspec.Struct, frozen=True, gc=False):
    """The head of one request. Header names are lower case; repeated headers are joined by a comma."""

    method: str
    path: str
    headers: dict[bytes, bytes]
    content_length: int | None
    chunked: bool
    keep_alive: bool
    deployment: str = ""
    """The model that an Azure path names; empty for any other path."""
    coding: str = ""
    """The content coding of the body; empty for none."""
    query: str = ""
    """What follows the path in the target, as sent. It is never logged: people put keys there."""

    @property
    def has_body(self) -> bool:
        """Whether the head announces a body."""
        return self.chunked or bool(self.content_length)

    def request_id(self) -> str | None:
        """The request id that the caller chose; None where there is none, or a malformed one. Of two ids the first is the caller's: the
        other one is added by a proxy on the way."""
        value = self.headers.get(b"x-request-id", b"").partition(b",")[0]
        return value.decode("ascii") if _REQUEST_ID.fullmatch(value) else None

    def trace(self) -> tuple[bytes | None, bytes | None]:
        """`traceparent` and `tracestate` to pass on, when well formed (W3C Trace Context)."""
        parent = self.headers.get(b"traceparent")
        if parent is None or not _TRACEPARENT.fullmatch(parent):
            return None, None
        state = self.headers.get(b"tracestate")
        return parent, state if state is not None and _PRINTABLE.fullmatch(state) else None


def checked_head(
    method: bytes, target: bytes, version: str, headers: dict[bytes, bytes], *, keep_alive: bool, hosts: frozenset[bytes]
) -> RequestHead:
    """The checked head.

    Args:
        target: the request target as sent. Nothing is decoded or normalised, so the path that is authorised is the path that is served.
        hosts: allowed Host values in lower case; empty allows any well-formed one.

    Raises:
        Fault: MALFORMED_HTTP, EXPECTATION_FAILED or UNSUPPORTED_MEDIA.
    """
    if version not in ("1.1", "1.0"):
        raise Fault(Kind.MALFORMED_HTTP, f"HTTP/{version} is not spoken here; use HTTP/1.1.")
    if not target.startswith(b"/"):
        raise Fault(Kind.MALFORMED_HTTP, "The request target must be a path that begins with a slash.")
    host = headers.get(b"host")
    if host is None:
        if version == "1.1":
            raise Fault(Kind.MALFORMED_HTTP, "The Host header is missing.")
    elif not _HOST.fullmatch(host):
        raise Fault(Kind.MALFORMED_HTTP, "The Host header is malformed.")
    elif hosts and host.lower() not in hosts:
        raise Fault(Kind.MALFORMED_HTTP, "The Host header names a host that is not served here.")
    length = headers.get(b"content-length")
    coding = headers.get(b"transfer-encoding")
    if coding is not None and (coding.lower() != b"chunked" or version == "1.0"):
        raise Fault(Kind.MALFORMED_HTTP, "The only transfer coding accepted is 'chunked', in HTTP/1.1.")
    body_coding = ""
    if b"content-encoding" in headers and (encoding := headers[b"content-encoding"].lower()) != b"identity":
        body_coding = CODINGS.get(encoding, "")
        if not body_coding:
            accepted = "'gzip', 'deflate' and 'identity', one of them"
            raise Fault(Kind.UNSUPPORTED_MEDIA, f"The 'content-encoding' of a request may be {accepted}. Or send the JSON without it.")
    expect = headers.get(b"expect")
    if expect is not None and expect.lower() != b"100-continue":
        raise Fault(Kind.EXPECTATION_FAILED, "The only expectation met here is '100-continue'.")
    path, _, query = target.decode("latin-1").partition("?")
    size = int(length) if length else None
    return RequestHead(method.decode("ascii"), path, headers, size, coding is not None, keep_alive, coding=body_coding, query=query)


def size_of(headers: dict[bytes, bytes]) -> int:
    """The size of a head's lines in bytes."""
    return sum([len(name) + len(value) + 4 for name, value in headers.items()])


def offers_websocket(data: bytes) -> bool:
    """Whether the head that `data` begins with offers the WebSocket protocol, and no other one."""
    head, _, _ = data.partition(b"\r\n\r\n")
    return [value.strip().lower() for value in _OFFER.findall(head)] == [b"websocket"] and _OPTION.search(head) is not None


def without_upgrade(data: bytes) -> bytes | None:
    """`data` without the offer in the head that it begins with; None where the head is not whole, is a CONNECT, or offers nothing that
    can be left out."""
    head, blank_line, rest = data.partition(b"\r\n\r\n")
    stripped = _OPTION.sub(rb"\1 keep-alive", _UPGRADE.sub(b"", head))
    if not blank_line or head.startswith(b"CONNECT") or stripped == head:
        return None
    return stripped + blank_line + rest
