"""Follows the purges of the answer cache that operators ask for over the admin API: every gateway on the database hears of them.

Every worker does every purge, also in a store that all share: it first stops keeping the answers that are under way in it, and then removes
what it may have kept until then.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from cache.ports import Selection
from domain.cache_purges import CachePurge, CachePurgeStore

READ_WITHIN_S: Final = 10.0

log = structlog.get_logger("tidegate.cache")


class PurgeWatch:
    """The purges as one worker follows them.

    Args:
        store: the purges of the database.
        purge: removes answers; raises while its store cannot be reached, and is then called again at the next look.
    """

    def __init__(self, store: CachePurgeStore, purge: Callable[[Selection], Awaitable[int]]) -> None:
        self._store = store
        self._purge = purge
        self._done = 0
        """The number of the last purge that was done here. A worker begins with every purge that is remembered: what it finds in a shared
        store may be older than it is."""
        self._away = False

    async def look(self) -> None:
        """Do the purges that came since the last look. An outage is logged at its begin and end; what it has held up is done behind it."""
        try:
            async with asyncio.timeout(READ_WITHIN_S):
                newest = await self._store.newest()
                wanted = await self._store.since(self._done) if newest > self._done else []
            for purge in wanted:
                removed = await self._purge(_selected(purge))
                log.info("cache purged", owner=purge.owner, model=purge.model, namespace=purge.namespace, removed=removed)
        except Exception as error:  # noqa: BLE001 - drivers raise their own
            if not self._away:
                log.warning("purges of the answer cache are held up", reason=f"{type(error).__name__}: {error}"[:200])
            self._away = True
            return
        if self._away:
            log.info("purges of the answer cache go on")
        self._away = False
        self._done = max(self._done, newest)


def _selected(purge: CachePurge) -> Selection:
    return Selection(owner=purge.owner, model=purge.model, namespace=purge.namespace, user=purge.user, before=purge.before_unix)
