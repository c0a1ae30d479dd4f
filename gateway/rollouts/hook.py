"""Tells somebody outside of changes of rollouts: signed JSON, posted after the change is written, tried again, never waited for.

A message may come more than once or in another order, and is lost when the admin process ends before it is delivered: the audit is what
holds. Receivers check the signature and the time in it, and ask the admin API what is so.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
import structlog

from domain.clock import WallClock

MAX_WAITING: Final = 200
"""Messages that wait; of more the new ones are dropped and counted. Fifty rollouts change a few times an hour."""
PAUSES_S: Final = (1.0, 5.0, 25.0)
"""Between attempts: a receiver that restarts is back within half a minute."""
SIGNATURE: Final = "x-tidegate-signature"

Post = Callable[[bytes, Mapping[str, str]], Awaitable[int]]
"""Sends a body with headers and says the status of the answer. Raises whatever the transport raises; within seconds."""
Sleep = Callable[[float], Awaitable[None]]

log = structlog.get_logger("tidegate.rollouts")

_ORDERED: Final = msgspec.json.Encoder(order="deterministic")


class HookCounts(msgspec.Struct):
    """What became of messages."""

    sent: int = 0
    failed: int = 0
    """Given up, or dropped because too many waited."""


class RolloutHook:
    """See the module.

    Args:
        secret: what messages are signed with.
        wall: seconds since the epoch.
    """

    def __init__(self, post: Post, secret: bytes, wall: WallClock, sleep: Sleep = asyncio.sleep) -> None:
        self._post = post
        self._secret = secret
        self._wall = wall
        self._sleep = sleep
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue(MAX_WAITING)
        self.counts = HookCounts()

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send it, some time soon; at once back."""
        try:
            self._waiting.put_nowait(_ORDERED.encode(message))
        except asyncio.QueueFull:
            self.counts.failed += 1
            log.error("a rollout's webhook is dropped: too many wait", waiting=MAX_WAITING)

    async def run(self) -> None:
        """Deliver until cancelled."""
        while True:
            await self.deliver(await self._waiting.get())

    async def deliver(self, body: bytes) -> None:
        """One message, with all its attempts."""
        why = ""
        for pause in (0.0, *PAUSES_S):
            if pause:
                await self._sleep(pause)
            try:
                status = await self._post(body, {SIGNATURE: signature(self._secret, int(self._wall()), body)})
            except Exception as error:  # noqa: BLE001 - whatever the transport raises, the next attempt may do better
                why = f"{type(error).__name__}: {error}"[:200]
                continue
            if 200 <= status < 300:
                self.counts.sent += 1
                return
            why = f"answers {status}"
        self.counts.failed += 1
        log.error("a rollout's webhook could not be delivered", attempts=1 + len(PAUSES_S), why=why)


def signature(secret: bytes, at_unix: int, body: bytes) -> str:
    """`t=TIME,v1=HEX`: HMAC-SHA256 over the time of sending, a dot and the body; so an old message is told from a new one."""
    return f"t={at_unix},v1={hmac.digest(secret, b'%d.' % at_unix + body, 'sha256').hex()}"
