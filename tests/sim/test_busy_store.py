"""Limits under five times the decisions that their store can take, most of them refusals, on virtual time: two processes with the counters
that a worker has, and one store that runs a script at a time."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import pytest

from domain.identity import TenantId
from tenancy.hold import Admission, Admitted, Beat, Hold, LimitUsage
from tenancy.limits import Amounts, Group, Level, Limit, Meter, Scope, Window, line_of
from tenancy.ports import Counters, CountersAway
from tenancy.stores.fallback_counters import FallbackCounters
from tenancy.stores.kept_refusals import KeptRefusals
from tenancy.stores.memory import MemoryCounters
from tenancy.stores.valkey.node import LOCAL_TIMEOUT_S
from tests.world.loop import VirtualLoop

NOON: Final = 1_800_000_000.0
SCRIPT_S: Final = 0.001
ASKS_S: Final = 0.01
"""What one caller takes from one request to the next."""
CALLERS: Final = 130
LASTS_S: Final = 0.2
SECONDS: Final = 3.0

T = TypeVar("T")


class BusyStore:
    """Counters behind a server that runs one script at a time; who has no answer in time goes, and the script runs nevertheless."""

    in_process = False
    crowded = 0

    def __init__(self, counters: MemoryCounters, loop: VirtualLoop, patience_s: float) -> None:
        self._counters, self._loop, self._patience_s = counters, loop, patience_s
        self.free_at = 0.0
        self.scripts = 0

    async def _run(self, script: Callable[[], Awaitable[T]]) -> T:
        self.scripts += 1
        self.free_at = max(self.free_at, self._loop.now) + SCRIPT_S
        done: asyncio.Future[Any] = self._loop.create_future()
        self._loop.punctually(self.free_at, lambda: asyncio.ensure_future(self._ran(script, done), loop=self._loop))
        try:
            async with asyncio.timeout(self._patience_s):
                return await asyncio.shield(done)  # type: ignore[no-any-return]  # what the script returns
        except TimeoutError:
            raise CountersAway("no answer in time") from None

    @staticmethod
    async def _ran(script: Callable[[], Awaitable[T]], done: "asyncio.Future[T]") -> None:
        done.set_result(await script())

    async def admit(self, hold: Hold) -> Admission:
        return await self._run(lambda: self._counters.admit(hold))

    async def beat(self, beats: Sequence[Beat]) -> None:
        if beats:
            await self._run(lambda: self._counters.beat(beats))

    async def settle(self, hold: Hold, actual: Amounts) -> None:
        with contextlib.suppress(CountersAway):  # the script runs all the same
            await self._run(lambda: self._counters.settle(hold, actual))

    async def look(self, group: Group) -> list[LimitUsage]:
        return await self._run(lambda: self._counters.look(group))


class Flood:
    """Two processes, and callers of each that ask again at once whatever they are told."""

    def __init__(self, *limits: Limit, patience_s: float = LOCAL_TIMEOUT_S, keeps: bool = True, **amounts: int) -> None:
        self.loop = VirtualLoop(random.Random(1), 0.0)
        self.group = Group("acme", tuple(line_of(limit, NOON) for limit in limits))
        self.amounts = Amounts(**amounts)
        self.admitted: list[float] = []
        self.told: Counter[str] = Counter()
        counters = MemoryCounters(lambda: NOON + self.loop.now)
        self.store = BusyStore(counters, self.loop, patience_s)
        self.processes = [self._process(KeptRefusals(self.store, self.loop.time) if keeps else self.store) for _ in range(2)]
        try:
            self.loop.run_until_complete(self._live())
        finally:
            self.loop.close()

    def _process(self, shared: Counters) -> FallbackCounters:
        return FallbackCounters(shared, lambda: MemoryCounters(lambda: NOON + self.loop.now), lambda: 2, self.loop.time)

    async def _live(self) -> None:
        await asyncio.gather(*(self._caller(self.processes[number % 2], f"{number}") for number in range(CALLERS)))
        await asyncio.sleep(LASTS_S + 1.0)

    async def _caller(self, process: FallbackCounters, name: str) -> None:
        number = 0
        while self.loop.now < SECONDS:
            number += 1
            hold = Hold(f"{name}-{number}", TenantId("acme"), self.amounts, (self.group,))
            admission = await process.admit(hold)
            self.told[type(admission).__name__ + " alone" * admission.degraded] += 1
            if isinstance(admission, Admitted):
                self.admitted.append(self.loop.now)
                self.loop.call_later(LASTS_S, lambda hold=hold: asyncio.ensure_future(process.settle(hold, self.amounts), loop=self.loop))
            await asyncio.sleep(ASKS_S)


ACME: Final = Scope(Level.TENANT, "acme")


@pytest.mark.req("R6")
@pytest.mark.req("R7")
@pytest.mark.req("R45")
@pytest.mark.parametrize(
    ("limit", "amounts", "most"),
    [
        (Limit(ACME, Meter.REQUESTS, Window.DAY, 60), {}, 60),
        (Limit(ACME, Meter.OUTPUT_TOKENS, Window.MINUTE, 4000), {"output_tokens": 40}, 100 + SECONDS / 60 * 100),
        (Limit(ACME, Meter.COST_NANOUSD, Window.MONTH, 10**9), {"cost_nanousd": 10**7}, 100),
    ],
    ids=["requests a day", "tokens a minute", "money"],
)
def test_five_times_the_decisions_that_the_store_can_take_pass_no_limit(
    limit: Limit, amounts: dict[str, int], most: float, record_property: Callable[[str, object], None]
) -> None:
    flood = Flood(limit, **amounts)
    asked = sum(flood.told.values())
    record_property("figure", f"{len(flood.admitted)} of {most:.0f} admitted, {flood.store.scripts} scripts for {asked:,} requests")
    assert asked / SECONDS > 5 / SCRIPT_S
    assert most - 2 <= len(flood.admitted) <= most
    assert set(flood.told) == {"Admitted", "Refused"}, "nobody decided alone"
    assert flood.store.scripts < asked / 5
