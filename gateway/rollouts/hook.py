"""The webhook for changes of rollouts: signed JSON, posted after the change is written, with retries; no caller waits for it.

A message may be delivered more than once or out of order, and is lost when the admin process ends before it is delivered: the audit log
is the source of truth. Receivers check the signature and the time in it, and ask the admin API for the state.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
import structlog

from domain.clock import WallClock
from gateway.signed_webhook import SIGNATURE, Post, signature

MAX_WAITING: Final = 200
"""Messages that may wait; beyond that new messages are dropped and counted. Fifty rollouts change a few times an hour."""
PAUSES_S: Final = (1.0, 5.0, 25.0)
"""Seconds between the attempts: a receiver that restarts is back within half a minute."""

Sleep = Callable[[float], Awaitable[None]]

log = structlog.get_logger("tidegate.rollouts")

_ORDERED: Final = msgspec.json.Encoder(order="deterministic")


class HookCounts(msgspec.Struct):
    """Counts of messages since the admin process started."""

    sent: int = 0
    failed: int = 0
    """Messages that were given up, or dropped because too many waited."""


class RolloutHook:
    """Queues messages and delivers them one after the other.

    Args:
        post: sends one message.
        secret: the key of the signature.
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
        """Queue a message for delivery; returns at once."""
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
        """Send one message, with all its attempts."""
        why = ""
        for pause in (0.0, *PAUSES_S):
            if pause:
                await self._sleep(pause)
            try:
                status = await self._post(body, {SIGNATURE: signature(self._secret, int(self._wall()), body)})
            except Exception as error:  # noqa: BLE001 - whatever the transport raises, the next attempt may succeed
                why = f"{type(error).__name__}: {error}"[:200]
                continue
            if 200 <= status < 300:
                self.counts.sent += 1
                return
            why = f"answers {status}"
        self.counts.failed += 1
        log.error("a rollout's webhook could not be delivered", attempts=1 + len(PAUSES_S), why=why)
