"""How much of their limits tenants, organisations, models and the gateway have left, read by the admin process out of the counters that
workers decide on.

`HeadroomWatch` looks at all limits in turn but those of end users, only while somebody scrapes, and at most `LOOKS_PER_S` limits in a
second: with counters in a worker's memory a look takes time of that worker. The path of a request knows nothing of it.
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
from tenancy.limits import Group, Level, Limit, LimitLine, Window, line_of
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
    "tidegate_shared_limit_headroom_ratio": (
        "What an organisation, a model or the gateway has left of its own rates and concurrent requests: the least share.",
        ("level", "name"),
    ),
    "tidegate_shared_budget_headroom_ratio": (
        "What an organisation, a model or the gateway has left of its own budgets, over a period or for ever: the least share.",
        ("level", "name"),
    ),
    "tidegate_headroom_looked_timestamp_seconds": ("When every limit was last looked at for these gauges.", ()),
}

TENANT: Final = Level.TENANT.value

log = structlog.get_logger("tidegate.limits")

Rows = list[tuple[tuple[str, ...], float]]
Place = tuple[str, str]
"""Level and name: of a tenant, an organisation, a model, or the gateway, whose name is empty."""
Sleep = Callable[[float], Awaitable[None]]


class Headroom(msgspec.Struct, frozen=True):
    """The least share that is left, by level and name; at most `MAX_NAMES` names of a level, and `_other` for the rest."""

    limits: Mapping[Place, float]
    budgets: Mapping[Place, float]
    looked_unix: float


def share_left(usage: LimitUsage) -> float:
    """What is left of one limit, from 0 to 1."""
    line = usage.line
    whole = line.burst if line.window is Window.MINUTE else line.amount
    return max(0.0, min(1.0, usage.remaining / whole)) if whole > 0 else 0.0


class HeadroomWatch:
    """Looks at limits while somebody wants to know.

    Args:
        directory: the limits now.
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
        limits: dict[Place, float] = {}
        budgets: dict[Place, float] = {}
        labels: dict[str, set[str]] = {}
        try:
            async for (level, name), usage in self._usages():
                names = labels.setdefault(level, set())
                cut = name[:MAX_LABEL_CHARS]
                label = (level, cut if cut in names or len(names) < MAX_NAMES else OTHER)
                names.add(label[1])
                least = limits if usage.line.window in SPENT_AT_ONCE else budgets
                least[label] = min(least.get(label, 1.0), share_left(usage))
        except CountersAway as error:
            if self.headroom is not None:
                log.warning("what is left of limits is not known", reason=str(error)[:200])
            self.headroom = None
        else:
            self.headroom = Headroom(limits, budgets, self._wall())

    def rows(self) -> list[tuple[str, Rows]]:
        """Samples by gauge, as of the last round; begins another round."""
        self._wanted.set()
        return list(headroom_rows(self.headroom))

    async def _usages(self) -> AsyncIterator[tuple[Place, LimitUsage]]:
        looked = 0
        for (place, tag), found in groupby(sorted(self._limits(), key=itemgetter(0)), key=itemgetter(0)):
            lines: list[LimitLine] = [line_of(limit, self._wall()) for _, limit in found]
            for begin in range(0, len(lines), AT_ONCE):
                some = lines[begin : begin + AT_ONCE]
                for usage in await self._look(Group(tag, tuple(some))):
                    yield place, usage
                looked += len(some)
                if looked >= LOOKS_PER_S:
                    looked = 0
                    await self._sleep(1.0)

    def _limits(self) -> Iterator[tuple[tuple[Place, str], Limit]]:
        """Every limit with its place, and the tag that it is counted under."""
        directory = self._directory()
        yield from ((((scope.level.value, scope.name), tag), limit) for scope, tag, limit in directory.shared_limits())
        yield from ((((TENANT, tenant), tenant), limit) for tenant, limit in directory.limits_of_tenants())


def headroom_rows(headroom: Headroom | None) -> Iterator[tuple[str, Rows]]:
    """Samples by gauge; none without figures."""
    if headroom is not None:
        for kind, shares in (("limit", headroom.limits), ("budget", headroom.budgets)):
            yield f"tidegate_{kind}_headroom_ratio", [((name,), share) for (level, name), share in shares.items() if level == TENANT]
            yield f"tidegate_shared_{kind}_headroom_ratio", [(place, share) for place, share in shares.items() if place[0] != TENANT]
        yield "tidegate_headroom_looked_timestamp_seconds", [((), headroom.looked_unix)]
