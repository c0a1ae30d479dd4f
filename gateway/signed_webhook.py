"""Signed webhooks: the signature of a message, and the port that posts it. Rollouts and budget alerts send such messages.

Receivers check the signature and the time in it, and refuse messages that are older than they like.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from gateway.config.trust import verify_for

SIGNATURE: Final = "x-tidegate-signature"
"""The header with the signature of a message."""

HOOK_WITHIN_S: Final = 5.0
"""Longest wait for the answer of a webhook's receiver."""
HOOK_ID: Final = "tidegate-webhook"
"""The request id that receivers of a webhook see."""

Post = Callable[[bytes, Mapping[str, str]], Awaitable[int]]
"""Sends a body with headers and returns the status of the answer, within seconds. Raises whatever the transport raises."""


def signature(secret: bytes, at_unix: int, body: bytes) -> str:
    """`t=TIME,v1=HEX`: HMAC-SHA256 over the time of sending, a dot and the body; the time lets receivers refuse replayed messages."""
    return f"t={at_unix},v1={hmac.digest(secret, b'%d.' % at_unix + body, 'sha256').hex()}"


async def post_message(url: str, body: bytes, headers: Mapping[str, str]) -> int:
    """Post a message to the webhook of the settings, on a connection of its own because it is needed a few times a day.

    Returns:
        The HTTP status of the answer.

    Raises:
        httpx.HTTPError, TimeoutError: no answer came within `HOOK_WITHIN_S`.
    """
    # imported only here: most gateways have no webhook
    import httpx

    async with asyncio.timeout(HOOK_WITHIN_S), httpx.AsyncClient(timeout=HOOK_WITHIN_S, trust_env=False, verify=verify_for(url)) as client:
        whole = {"content-type": "application/json", "x-request-id": HOOK_ID, **headers}
        # the body of the answer says nothing that the status does not, so it is not read
        async with client.stream("POST", url, content=body, headers=whole) as reply:
            return reply.status_code
