"""Offers of another protocol, which may be ignored (RFC 9110, 7.8): Java's HttpClient offers cleartext HTTP/2 on every connection.

llhttp stops reading at such a head, so it is fed again without the offer. Sans-io.
"""

import re
from typing import Final

_UPGRADE: Final = re.compile(rb"\r\n(?:upgrade|http2-settings):[^\r\n]*", re.IGNORECASE)
_OPTION: Final = re.compile(rb"(\r\nconnection:)[^\r\n]*upgrade[^\r\n]*", re.IGNORECASE)


def without_upgrade(data: bytes) -> bytes | None:
    """`data` with the offer taken out of the head it begins with; None when that head is not whole, is a CONNECT, or makes
    no offer that could be taken out."""
    head, found, rest = data.partition(b"\r\n\r\n")
    stripped = _OPTION.sub(rb"\1 keep-alive", _UPGRADE.sub(b"", head))
    if not found or head.startswith(b"CONNECT") or stripped == head:
        return None
    return stripped + found + rest
