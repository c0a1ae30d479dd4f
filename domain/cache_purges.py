"""Purges of the answer cache, as gateways on one database hear of them. Values only."""

from typing import Final, Protocol

import msgspec

KEPT_DAYS: Final = 31
"""How long a purge is remembered: no answer is kept for longer, so a gateway that was cut off for any time hears of every purge that
concerns it."""


class CachePurge(msgspec.Struct, frozen=True, kw_only=True):
    """One purge: the answers of one owner that meet every condition that is set."""

    owner: str
    """The tenant, or `group:` and the sharing group."""
    model: str = ""
    namespace: str = ""
    user: str = ""
    """The keyed digest of an end user's label."""
    before_unix: float | None = None
    """Answers kept before this time; None for all that are there."""
    at_unix: float = 0.0
    """When it was asked for, of a purge that was written down."""


class CachePurgeStore(Protocol):
    """The purges, shared by every gateway on the database."""

    async def newest(self) -> int:
        """The number of the newest purge; cheap enough to read every second."""
        ...

    async def since(self, number: int) -> list[CachePurge]:
        """The purges with higher numbers, in their order."""
        ...

    async def add(self, purge: CachePurge, now_unix: float) -> int:
        """Write a purge down; returns its number, which is higher than that of every purge that can be read already."""
        ...
