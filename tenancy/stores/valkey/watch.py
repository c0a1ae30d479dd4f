"""Watches a shared store from beside the request path: how many processes decide on it, and whether it is still the one that
was written to.

Each part of the store keeps a mark with the lineage (replication id) of the server that wrote it. A mark that is missing means
an empty store; one of another lineage means a failover or a restart, which may have lost the last writes. Exactly one of all
processes is told, by the script that renews the mark.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from domain.clock import Clock
from tenancy.ports import CountersAway
from tenancy.shares import Replicas
from tenancy.stores.valkey.client import ValkeyScripts
from tenancy.stores.valkey.slots import tag_in

LOOK_S: Final = 1.0
"""Between two looks; also how often each process says that it is there."""
MEMBER_S: Final = 10.0
"""A process that was not heard for this long is gone."""
DELIVER_S: Final = 0.25
PARTS: Final = 16
"""Of a cluster, each with a mark; a node that owns no mark's slot (more than 16 nodes) can lose its data unnoticed until the
comparison with SQL."""


class Epoch(msgspec.Struct, frozen=True):
    """A new beginning of a part of the store."""

    lineage: str
    lost: bool
    """Nothing is left of what was there; else only the last writes may be missing."""


class StoreWatch:
    """One process's watch. `rebuild` is awaited when totals should be put in order from SQL; it may be asked more than once.

    Args:
        member: this process's own id.
        deliver: hands over what the store is owed (`GuardedCounters.deliver`); done before `rebuild`.
        heard, failed: told how each look went, so that an outage is known without traffic too.
    """

    def __init__(
        self,
        scripts: ValkeyScripts,
        member: str,
        clock: Clock,
        *,
        rebuild: Callable[[Epoch], Awaitable[None]],
        deliver: Callable[[], Awaitable[bool]],
        heard: Callable[[], None],
        failed: Callable[[CountersAway], Awaitable[None]],
    ) -> None:
        self._scripts, self._member, self._clock = scripts, member.encode(), clock
        self._rebuild, self._deliver, self._heard, self._failed = rebuild, deliver, heard, failed
        self._tags = [tag_in(part, PARTS) for part in range(PARTS)] if scripts.is_cluster else [b"0"]
        self._seen = Replicas()
        self._begun: list[Epoch] = []
        """Told by the store and not rebuilt yet."""

    @property
    def replicas(self) -> int:
        """How many processes decide on these counters, as far as known."""
        return self._seen.count

    @property
    def begun(self) -> bool:
        """Whether a part of the store began anew, and totals are not known to be in order yet."""
        return bool(self._begun)

    async def run(self) -> None:
        """Look and deliver, for ever."""
        look_at = 0.0
        while True:
            if self._clock() >= look_at:
                look_at = self._clock() + LOOK_S
                await self.look()
            if await self._deliver() and self._begun:
                await self._rebuild(self._begun[0])
                self._begun.pop(0)
            await asyncio.sleep(DELIVER_S)

    async def look(self) -> None:
        """Say that we are there and see what is."""
        found = await asyncio.gather(*map(self._look_at, self._tags))
        counts = [count for count in found if count is not None]
        if counts:
            self._seen.saw(max(counts), self._clock())
        if len(counts) == len(found):
            self._heard()

    async def _look_at(self, tag: bytes) -> int | None:
        keys = [b"tidegate:{%b}:members" % tag, b"tidegate:{%b}:lineage" % tag]
        lineage = self._scripts.lineage(keys[0])
        try:
            members, changed = await self._scripts.run("presence", keys, [self._member, int(MEMBER_S * 1e6), lineage.encode()])
        except CountersAway as away:
            await self._failed(away)
            return None
        if changed:
            epoch = Epoch(lineage, lost=changed == 2)
            # parts of one server begin together; an empty one is the stronger word
            same = [begun for begun in self._begun if begun.lineage == lineage]
            if not same or (epoch.lost and not any(begun.lost for begun in same)):
                self._begun = [*(begun for begun in self._begun if begun.lineage != lineage), epoch]
        return int(members)
