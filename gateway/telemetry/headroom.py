"""How much of their limits tenants have left, read by the admin process out of the counters that workers decide on.

`HeadroomWatch` looks at the limits of all tenants in turn, only while somebody scrapes, and at most `LOOKS_PER_S` limits in a second: with
counters in a worker's memory a look takes time of that worker. The path of a request knows nothing of it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

import msgspec
import structlog

from domain.clock import WallClock
from gateway.telemetry.cells import MAX_LABEL_CHARS, MAX_NAMES
from gateway.telemetry.families import OTHER
from tenancy.directory import Directory
from tenancy.hold import LimitUsage
from tenancy.limits import Group, LimitLine, Window, line_of
from tenancy.ports import CountersAway

EVERY_S: Final = 5.0
"""Least time between the beginnings of two rounds of looks: rates have changed by then, and most scrapers come more rarely."""
LOOKS_PER_S: Final = 500
"""Limits that are looked at in a second, at most. A look at a limit in a worker's memory takes some 10 us, so 0.5 % of a core."""
AT_ONCE: Final = 50
"""Limits of one question; a worker answers a question in one go."""
SPENT_AT_ONCE: Final = frozenset({Window.MINUTE, Window.NOW})
"""Windows of limits that fill up again within a minute, or when a request ends. All others are budgets."""

HEADROOM_GAUGES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "tidegate_limit_headroom_ratio": (
        "What the tenant has left of its rates and concurrent requests: of all its limits the least share.",
        ("tenant",),
    ),
    "tidegate_budget_headroom_ratio": (
        "What the tenant has left of its limits over a period of the calendar, a rolling window or for ever: the least share.",
        ("tenant",),
    ),
    "tidegate_headroom_looked_timestamp_seconds": ("When every tenant's limits were last looked at for these gauges.", ()),
}

log = structlog.get_logger("tidegate.limits")

Rows = list[tuple[tuple[str, ...], float]]
Sleep = Callable[[float], Awaitable[None]]


class Headroom(msgspec.Struct, frozen=True):
    """The least share that is left, by tenant; at most `MAX_NAMES` tenants, and `_other` for the rest."""

    limits: Mapping[str, float]
    budgets: Mapping[str, float]
    looked_unix: float


def share_left(usage: LimitUsage) -> float:
    """What is left of one limit, from 0 to 1."""
    line = usage.line
    whole = line.burst if line.window is Window.MINUTE else line.amount
    return max(0.0, min(1.0, usage.remaining / whole)) if whole > 0 else 0.0


class HeadroomWatch:
    """Looks at the limits of tenants while somebody wants to know.

    Args:
        directory: the tenants and their limits now.
        look: reads the counters of a group. Raises CountersAway.
    """

    def __init__(
        self,
        directory: Callable[[], Directory],
        look: Callable[[Group], Awaitable[Sequence[LimitUsage]]],
        wall: WallClock,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._directory = directory
        self._look = look
        self._wall = wall
        self._sleep = sleep
        self._wanted = asyncio.Event()
        self.headroom: Headroom | None = None
        """The last figures; None before the first ones, and while the counters are away."""

    async def run(self) -> None:
        """Look whenever somebody has asked since the last round, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self.look_round()
            await self._sleep(EVERY_S)

    async def look_round(self) -> None:
        """Look at every limit once."""
        limits: dict[str, float] = {}
        budgets: dict[str, float] = {}
        labels: set[str] = set()
        try:
            async for tenant, usage in self._usages():
                label = tenant[:MAX_LABEL_CHARS]
                if label not in labels:
                    if len(labels) >= MAX_NAMES:
                        label = OTHER
                    labels.add(label)
                least = limits if usage.line.window in SPENT_AT_ONCE else budgets
                least[label] = min(least.get(label, 1.0), share_left(usage))
        except CountersAway as error:
            if self.headroom is not None:
                log.warning("what tenants have left of their limits is not known", reason=str(error)[:200])
            self.headroom = None
        else:
            self.headroom = Headroom(limits, budgets, self._wall())

    def rows(self) -> list[tuple[str, Rows]]:
        """Samples by gauge, as of the last round; begins another round."""
        self._wanted.set()
        return list(headroom_rows(self.headroom))

    async def _usages(self) -> AsyncIterator[tuple[str, LimitUsage]]:
        looked = 0
        for tenant, found in groupby(sorted(self._directory().limits_of_tenants(), key=itemgetter(0)), key=itemgetter(0)):
            lines: list[LimitLine] = [line_of(limit, self._wall()) for _, limit in found]
            for begin in range(0, len(lines), AT_ONCE):
                some = lines[begin : begin + AT_ONCE]
                for usage in await self._look(Group(tenant, tuple(some))):
                    yield tenant, usage
                looked += len(some)
                if looked >= LOOKS_PER_S:
                    looked = 0
                    await self._sleep(1.0)


def headroom_rows(headroom: Headroom | None) -> Iterator[tuple[str, Rows]]:
    """Samples by gauge; none without figures."""
    if headroom is not None:
        yield "tidegate_limit_headroom_ratio", [((tenant,), share) for tenant, share in headroom.limits.items()]
        yield "tidegate_budget_headroom_ratio", [((tenant,), share) for tenant, share in headroom.budgets.items()]
        yield "tidegate_headroom_looked_timestamp_seconds", [((), headroom.looked_unix)]
