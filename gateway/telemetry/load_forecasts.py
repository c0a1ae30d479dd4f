"""The load of pools in the past, read from Prometheus, and the growth that it lets expect.

A gateway keeps no history: what it tells in `tidegate_pool_load_backends` lies in the Prometheus that reads its metrics, of all gateways
of a pool, and outlives them. `LoadForecasts` reads the slots that have ended since the last look, ten minutes each, and keeps as many as
the settings look back: 4,050 of a pool at most. A forecast needs the slots of the day before, not the last ones, so a Prometheus that is
away for some hours changes nothing.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog

from domain.clock import WallClock
from domain.membership import Role
from gateway.dashboards.prometheus import AsksPrometheus, PrometheusAway, line_of
from routing.forecast import NO_GROWTH, SLOT_S, Growth, HourLoad, LoadSlots, PredictSettings

LOOK_EVERY_S: Final = 60.0
"""How soon a slot is read after its end, and a Prometheus is asked again that was away."""
LATE_S: Final = 30.0
"""A slot is read so long after its end: Prometheus has the last scrape then."""
AGAIN_S: Final = 3600.0
"""The last hour is read again each time: what is written late, as by a Prometheus that passes series on, is taken up."""
WHOLE_EVERY_S: Final = 6 * 3600.0
"""How often the whole history is read again: a store that was late or answered in part may know more by now."""

log = structlog.get_logger("tidegate.scaling")

Sleep = Callable[[float], Awaitable[None]]


def load_query(pool: str, role: Role) -> str:
    """The load of a pool's engines of one role, mean of a slot; the highest that a gateway saw."""
    of = f'pool={json.dumps(pool, ensure_ascii=False)}, role="{role}"'
    return f"max(avg_over_time(tidegate_pool_load_backends{{{of}}}[{SLOT_S}s]))"


class LoadForecasts:
    """The histories of the pools that have a section `predict`, by role.

    Args:
        pools: their settings.
        prometheus: answers questions of the past.
        wall: seconds since the epoch.
    """

    def __init__(
        self, pools: Mapping[tuple[str, Role], PredictSettings], prometheus: AsksPrometheus, wall: WallClock, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._pools = pools
        self._prometheus = prometheus
        self._wall = wall
        self._sleep = sleep
        self._slots = {pool: LoadSlots(predict) for pool, predict in pools.items()}
        self._read_to: dict[tuple[str, Role], float] = {}
        """The end of the last slot that was asked for, of each pool."""
        self._whole_at: dict[tuple[str, Role], float] = {}
        """When the whole history was last read."""
        self._away = ""
        """Why the last look found nothing; empty where it did."""

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            await self.look()
            await self._sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """Read the slots that have ended since the last look."""
        now = self._wall()
        latest = (now - LATE_S) // SLOT_S * SLOT_S
        why = ""
        for pool, predict in self._pools.items():
            known = self._read_to.get(pool)
            if known == latest:
                continue
            oldest = (latest - predict.history_s) // SLOT_S * SLOT_S
            whole = known is None or not len(self._slots[pool]) or now - self._whole_at[pool] >= WHOLE_EVERY_S
            start = oldest if known is None or whole else min(max(known - AGAIN_S, oldest), latest)
            try:
                points = await line_of(self._prometheus, load_query(*pool), start, latest, SLOT_S)
            except PrometheusAway as away:
                why = f"Prometheus {away}"
                continue
            self._slots[pool].take(points, now)
            self._read_to[pool] = latest
            if whole:
                self._whole_at[pool] = now
        if why and not self._away:
            log.warning("the load of the days before cannot be read", why=why)
        self._away = why

    def growth(self, pool: str, role: Role) -> Growth:
        """By how much the pool's load is expected to grow; of a pool without `predict`, and before the first look, nothing is known."""
        slots = self._slots.get((pool, role))
        if slots is None:
            return NO_GROWTH
        if not len(slots) and (self._away or (pool, role) not in self._read_to):
            return Growth(None, 0, f"no forecast: {self._away or 'the history is being read'}")
        return slots.growth(self._wall())

    def hours(self, pool: str, role: Role) -> tuple[PredictSettings, list[HourLoad]] | None:
        """The load of the pool in each hour of the day, with what the settings say of its forecasts; None for a pool without `predict`."""
        slots = self._slots.get((pool, role))
        return None if slots is None else (self._pools[pool, role], slots.hours(self._wall()))

    async def close(self) -> None:
        """Close the connections."""
        await self._prometheus.close()
