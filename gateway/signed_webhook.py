"""Signed webhooks: the signature of a message, and the port that posts it. Rollouts and budget alerts send such messages.

Receivers check the signature and the time in it, and refuse messages that are older than they like.
"""

import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

SIGNATURE: Final = "x-tidegate-signature"
"""The header with the signature of a message."""

Post = Callable[[bytes, Mapping[str, str]], Awaitable[int]]
"""Sends a body with headers and returns the status of the answer, within seconds. Raises whatever the transport raises."""


def signature(secret: bytes, at_unix: int, body: bytes) -> str:
    """`t=TIME,v1=HEX`: HMAC-SHA256 over the time of sending, a dot and the body; the time lets receivers refuse replayed messages."""
    return f"t={at_unix},v1={hmac.digest(secret, b'%d.' % at_unix + body, 'sha256').hex()}"
