"""Rollbacks on virtual time, while the database is busy with something else, such as the booking of usage: whatever a transaction waits
for, a worse canary is sent back within ten seconds of the end of the interval that proves it."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from math import log
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import pytest

from domain.rollouts import StoredRollout
from gateway.rollouts.keeper import LAG_S, RolloutKeeper
from gateway.rollouts.watch import STORE_POLL_S
from policies.rollout.document import RolloutDocument, text_of
from policies.rollout.progress import LookOutcome, begin, tick
from policies.rollout.samples import ArmSums, Interval, Tally
from policies.rollout.state import state_text
from tenancy.stores.memory import MemoryRolloutStore
from tests.world.loop import VirtualLoop

WITHIN_S: Final = 10.0
"""What docs/reference/rollouts.md promises, from the end of the interval until no worker gives the canary a request."""
INTERVAL_S: Final = 10.0
ASKED_S: Final = 0.5
"""What workers are given to answer a question."""
DOCUMENT: Final = RolloutDocument.model_validate(
    {
        "name": "v2",
        "baseline": "chat",
        "canary": "chat-v2",
        "steps": [{"share": 0.2, "min_s": 3600.0, "max_s": 7200.0}, {"share": 1.0}],
        "warm_up_s": 0.0,
        "warm_up_requests": 0,
        "settle_s": 0.0,
        "interval_s": INTERVAL_S,
        "margins": {"itl": 0.05},
    }
)


class BusyStore(MemoryRolloutStore):
    """A store whose transactions wait behind others; `deaf` ones cannot be interrupted, as SQLite's wait for its lock."""

    read_s = write_s = 0.001
    deaf = False

    async def _wait(self, seconds: float) -> None:
        ends = asyncio.get_running_loop().time() + seconds
        interrupted: asyncio.CancelledError | None = None
        while (left := ends - asyncio.get_running_loop().time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError as error:
                if not self.deaf:
                    raise
                interrupted = error
        if interrupted is not None:
            raise interrupted

    async def in_force(self) -> Sequence[StoredRollout]:
        await self._wait(self.read_s)
        return await super().in_force()

    async def sums(self, rollout_id: str, first: int, below: int) -> Sequence[str]:
        await self._wait(self.read_s)
        return await super().sums(rollout_id, first, below)

    async def write(self, wanted: StoredRollout) -> bool:
        await self._wait(self.write_s)
        return await super().write(wanted)

    async def forget_sums(self, rollout_id: str, below: int) -> None:
        await self._wait(self.write_s)
        await super().forget_sums(rollout_id, below)


class World:
    """A keeper, the workers of its gateway, and the store that both use."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.store = BusyStore()
        self.counted: list[Interval] = []
        self.back_at: float | None = None
        """When every worker had been told to send the canary back, or had read it."""

    async def sums(self, wanted: Mapping[str, tuple[int, int]]) -> Mapping[str, Sequence[str]]:
        await asyncio.sleep(ASKED_S)
        ((rollout, (first, below)),) = wanted.items()
        return {rollout: [msgspec.json.encode(one).decode() for one in self.counted[-60:] if first <= one.index < below]}

    async def send_back(self, rollouts: Collection[str]) -> None:
        await asyncio.sleep(ASKED_S)
        self._back(self.loop.now)

    def _back(self, at: float) -> None:
        self.back_at = at if self.back_at is None else min(at, self.back_at)

    @contextlib.asynccontextmanager
    async def change(self) -> AsyncIterator[Any]:
        async def write_down(_entry: object) -> None:
            self._back(self.loop.now + STORE_POLL_S + self.store.read_s)  # the store has it, and workers look once a second

        yield SimpleNamespace(change=SimpleNamespace(write_down=write_down), rollouts=self.store)

    async def traffic(self, intervals: Sequence[Interval]) -> None:
        """The sums of each interval, at its end."""
        for one in intervals:
            await asyncio.sleep(max(0.0, (one.index + 1) * INTERVAL_S - self.loop.now))
            self.counted.append(one)
            await self.store.put_sums("ro_1", "w1", {one.index: msgspec.json.encode(one).decode()})

    async def run(self, intervals: Sequence[Interval], read_s: float, write_s: float, deaf: bool) -> None:
        state = begin(DOCUMENT.plan("ro_1"), self.loop.now)
        await self.store.start(StoredRollout("ro_1", "v2", text_of(DOCUMENT), state_text(state), 1, True, 0.0, 0.0), "chat", "chat-v2")

        def clock() -> float:
            return self.loop.now

        keeper = RolloutKeeper(self.store, self.change, clock, clock, lambda _: None, self)
        tasks = [asyncio.create_task(keeper.run()), asyncio.create_task(self.traffic(intervals))]
        await asyncio.sleep(2 * LAG_S)
        self.store.read_s, self.store.write_s, self.store.deaf = read_s, write_s, deaf
        await asyncio.sleep(intervals[-1].index * INTERVAL_S - self.loop.now + INTERVAL_S + 60.0)
        self.store.deaf = False
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def until_proven(began_s: float) -> list[Interval]:
    """Intervals of a canary whose tokens take half as long again, up to the one that proves it."""
    plan, found, rng = DOCUMENT.plan("ro_1"), list[Interval](), random.Random(7)
    state = begin(plan, began_s)
    while True:
        index = int(began_s / INTERVAL_S) + 1 + len(found)
        noise = rng.gauss(0, 0.02)
        canary = ArmSums(30, {"itl": Tally(30, 30 * (log(0.015) + noise))})
        found.append(Interval(index, canary, ArmSums(100, {"itl": Tally(100, 100 * log(0.010))})))
        look = tick(plan, state, (index + 1) * INTERVAL_S + LAG_S, found[-1:])
        state = look.state
        if look.outcome is LookOutcome.ROLL_BACK:
            return found


BUSY = {
    "at rest": (0.001, 0.001, False),
    "every transaction waits": (2.9, 2.9, False),
    "a write waits for seconds": (0.01, 8.0, False),
    "a write is never answered": (0.01, 1e6, False),
    "nothing is answered": (1e6, 1e6, False),
    "SQLite's lock is taken all the time": (5.0, 5.0, True),
    "SQLite's lock is free now and then": (2.5, 5.0, True),
}


@pytest.mark.parametrize("offset_s", [0.0, 0.3, 1.1, 1.7, 2.6, 4.2, 6.3, 8.8])
@pytest.mark.parametrize("busy", BUSY)
def test_a_worse_canary_is_sent_back_within_ten_seconds_of_its_interval(busy: str, offset_s: float) -> None:
    read_s, write_s, deaf = BUSY[busy]
    loop = VirtualLoop(random.Random(1), 1000.0 + offset_s)
    world = World(loop)
    intervals = until_proven(loop.now)
    assert len(intervals) > 5
    loop.run_until_complete(world.run(intervals, read_s, write_s, deaf))
    loop.close()
    assert world.back_at is not None
    assert 0 < world.back_at - (intervals[-1].index + 1) * INTERVAL_S <= WITHIN_S
    assert loop.troubles == []
