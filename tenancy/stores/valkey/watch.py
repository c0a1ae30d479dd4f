"""Watches a shared store from beside the request path: how many processes decide on it, and whether it has lost any writes.

Each part of the store keeps a mark with the lineage (replication id) of the server that wrote it. A mark that is missing means
an empty store; a mark of another lineage means a failover or a restart, which may have lost the last writes. The script that renews the
mark reports that to exactly one of all processes.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from domain.clock import Clock
from tenancy.ports import CountersAway
from tenancy.shares import Replicas
from tenancy.stores.valkey.client import ValkeyScripts
from tenancy.stores.valkey.topology import tag_in

LOOK_S: Final = 1.0
"""Between two looks; at each look a process also announces that it is alive."""
MEMBER_S: Final = 10.0
"""A process that was not heard for this long is gone."""
DELIVER_S: Final = 0.25
"""Between two deliveries of owed settlements."""
PARTS: Final = 16
"""Parts of a cluster, each with a mark; a node that owns no mark's slot (more than 16 nodes) can lose its data unnoticed until the
comparison with SQL."""


class Epoch(msgspec.Struct, frozen=True):
    """A part of the store began anew: its server has another lineage, or no data."""

    lineage: str
    lost: bool
    """Whether all data is lost; else only the last writes may be missing."""


class StoreWatch:
    """One process's watch over the store.

    Args:
        member: this process's own id.
        rebuild: awaited when totals should be restored from SQL; may be called more than once.
        deliver: delivers the settlements that the store is owed (`FallbackCounters.deliver`); called before `rebuild`.
        heard, failed: called with the result of each look, so that an outage is noticed without traffic too.
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
        self._scripts = scripts
        self._member = member.encode()
        self._clock = clock
        self._rebuild = rebuild
        self._deliver = deliver
        self._heard = heard
        self._failed = failed
        self._tags = [tag_in(part, PARTS) for part in range(PARTS)] if scripts.is_cluster else [b"0"]
        self._seen = Replicas()
        self._begun: list[Epoch] = []
        """New beginnings that the store reported and that are not rebuilt yet."""

    @property
    def replicas(self) -> int:
        """How many processes decide on these counters, as far as known."""
        return self._seen.count

    @property
    def began_anew(self) -> bool:
        """Whether a part of the store began anew, and its totals are not restored yet."""
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
        """Announce this process to each part of the store, and read how many processes there are and whether a part began anew."""
        answers = await asyncio.gather(*map(self._look_at, self._tags))
        counts = [count for count in answers if count is not None]
        if counts:
            self._seen.saw(max(counts), self._clock())
        if len(counts) == len(answers):
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
            # parts of one server begin together; that one of them is empty is the worse news
            same = [begun for begun in self._begun if begun.lineage == lineage]
            if not same or (epoch.lost and not any(begun.lost for begun in same)):
                self._begun = [*(begun for begun in self._begun if begun.lineage != lineage), epoch]
        return int(members)
