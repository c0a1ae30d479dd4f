"""Offers of another protocol, which a server may ignore (RFC 9110, 7.8): Java's HttpClient offers cleartext HTTP/2 on every connection.

llhttp stops reading at such a head, so the connection feeds it again without the offer. Sans-io.
"""

import re
from typing import Final

_UPGRADE: Final = re.compile(rb"\r\n(?:upgrade|http2-settings):[^\r\n]*", re.IGNORECASE)
_OPTION: Final = re.compile(rb"(\r\nconnection:)[^\r\n]*upgrade[^\r\n]*", re.IGNORECASE)


def without_upgrade(data: bytes) -> bytes | None:
    """`data` without the offer in the head that it begins with; None where the head is not whole, is a CONNECT, or offers nothing that
    can be left out."""
    head, blank_line, rest = data.partition(b"\r\n\r\n")
    stripped = _OPTION.sub(rb"\1 keep-alive", _UPGRADE.sub(b"", head))
    if not blank_line or head.startswith(b"CONNECT") or stripped == head:
        return None
    return stripped + blank_line + rest
