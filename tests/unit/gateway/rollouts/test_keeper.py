"""The keeper over a real database: what workers counted becomes a decision, an audit row and a message, once."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from math import log
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from domain.rollouts import StoredRollout
from gateway.admin.call import Transactions as OpenBooks
from gateway.rollouts.keeper import FORGET_EVERY_S, LAG_S, RolloutKeeper, merged
from gateway.wiring.admin import StoreTransactions
from policies.rollout.document import RolloutDocument, text_of
from policies.rollout.progress import LookOutcome, begin, pause, tick
from policies.rollout.samples import ArmSums, Interval, Tally
from policies.rollout.state import read, state_text
from tenancy.audit import AuditRow
from tenancy.stores.sql import SqlJournal, SqlRolloutStore, open_engine
from tests.databases import migrated_file

SLOW = [{"share": 0.2, "min_s": 3600.0, "max_s": 7200.0}, {"share": 1.0}]
STEPS = [{"share": 0.2, "min_requests": 50, "min_s": 60.0}, {"share": 0.6, "min_requests": 50, "min_s": 60.0}, {"share": 1.0}]
WARM: dict[str, Any] = {"warm_up_s": 0.0, "warm_up_requests": 0, "settle_s": 0.0, "margins": {"itl": 0.05}}
START = 1_800_000_000.0


class World:
    """Some gateways' keepers on one database, and the time."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.now = START
        self.engine = engine
        self.store = SqlRolloutStore(engine)
        self.journal = SqlJournal(engine, lambda: self.now)
        self.told: list[Mapping[str, Any]] = []
        self.rng = Random(7)

    def keeper(self, store: Any = None, workers: Any = None) -> RolloutKeeper:
        def change() -> AbstractAsyncContextManager[OpenBooks]:
            return StoreTransactions(self.journal).change()

        return RolloutKeeper(store or self.store, change, lambda: self.now, lambda: self.now, self.told.append, workers)

    async def start(self, name: str = "v2", **fields: Any) -> StoredRollout:
        document = RolloutDocument.model_validate(
            {"name": name, "baseline": f"{name}-a", "canary": f"{name}-b", "steps": STEPS, **WARM, **fields}
        )
        rollout_id = f"ro_{name}"
        state = state_text(begin(document.plan(rollout_id), self.now))
        one = StoredRollout(rollout_id, name, text_of(document), state, 1, True, self.now, self.now)
        await self.store.start(one, document.baseline, document.canary)
        return one

    def interval(self, times: float, requests: int = 30) -> Interval:
        """One worker's sums of the interval that is over now."""
        noise = self.rng.gauss(0, 0.02)
        canary = ArmSums(requests, {"itl": Tally(requests, requests * (log(0.010 * times) + noise))})
        return Interval(int(self.now // 10) - 1, canary, ArmSums(100, {"itl": Tally(100, 100 * log(0.010))}))

    async def count(self, rollout: str, times: float, source: str = "w1", requests: int = 30) -> None:
        interval = self.interval(times, requests)
        await self.store.put_sums(rollout, source, {interval.index: msgspec.json.encode(interval).decode()})

    async def until_changed(self, keeper: RolloutKeeper, rollout: str, times: float, most: int = 400) -> AuditRow:
        """Ten seconds after ten seconds, with a look after each."""
        before = len(await self.rows())
        for _ in range(most):
            self.now += 10
            await self.count(rollout, times)
            self.now += LAG_S
            await keeper.look()
            self.now -= LAG_S
            if len(rows := await self.rows()) > before:
                return rows[-1]
        raise AssertionError("nothing changed")

    async def rows(self) -> list[AuditRow]:
        return await self.journal.page(0, 1000)

    async def status(self, name: str = "v2") -> str:
        found = await self.store.find(name)
        assert found is not None
        return read(found).state.status.value


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    await migrated_file(tmp_path / "rollouts.db")
    engine = open_engine(f"sqlite:///{tmp_path / 'rollouts.db'}")
    yield World(engine)
    await engine.dispose()


async def settled(world: World, *keepers: RolloutKeeper) -> None:
    """Past the wait after a keeper's first look."""
    for _ in range(2):
        for keeper in keepers:
            await keeper.look()
        world.now += LAG_S
    world.now = START


async def test_a_worse_canary_goes_back_at_the_first_look_after_the_interval_that_proves_it(world: World) -> None:
    one = await world.start(steps=SLOW)
    keeper = world.keeper()
    await settled(world, keeper)
    found, proven = read(one), False
    state = found.state
    while not proven:
        world.now += 10
        await world.count("ro_v2", 1.5)
        index = int(world.now // 10) - 1
        look = tick(found.plan, state, world.now + LAG_S, merged(await world.store.sums("ro_v2", index, index + 1)))
        state, proven = look.state, look.outcome is LookOutcome.ROLL_BACK
        world.now += LAG_S
        await keeper.look()
        world.now -= LAG_S
        assert (await world.status() == "rolled back") is proven
    (row,) = await world.rows()
    assert (row.entry.actor, row.entry.role, row.entry.action, row.entry.target) == ("rollout", "", "rollout.rollback", "rollout/v2")
    said = msgspec.json.decode(row.entry.after)
    assert (said["status"], said["share"]) == ("rolled back", 0.0)
    assert "worse" in said["reason"]
    assert said["findings"][0]["judgement"] == "worse"
    assert await world.store.in_force() == []  # what workers see
    assert [(one["event"], one["rollout"]) for one in world.told] == [("rollout.rollback", "v2")]
    posted = msgspec.json.decode(msgspec.json.encode(world.told[0]))
    assert datetime.fromisoformat(posted["at"]) == datetime.fromtimestamp(row.at_unix_ms / 1000, UTC)
    assert posted["at"].endswith("Z")
    assert keeper.state.changes == {"rollout.rollback": 1}
    await keeper.look()
    assert len(await world.rows()) == 1


async def test_a_good_canary_goes_on_phase_by_phase_until_it_is_done(world: World) -> None:
    await world.start()
    keeper = world.keeper()
    await settled(world, keeper)
    actions = [(await world.until_changed(keeper, "ro_v2", times=1.0)).entry.action for _ in range(2)]
    assert actions == ["rollout.advance", "rollout.done"]
    assert [one["share"] for one in world.told] == [0.6, 1.0]
    (done,) = await world.store.in_force()  # until somebody closes it
    assert read(done).state.status.value == "done"
    world.now += 10
    await world.count("ro_v2", 9.0)
    world.now += 10 + LAG_S
    await keeper.look()
    assert await world.status() == "done"
    assert await world.store.sums("ro_v2", 0, 10**12) == []


async def test_looks_that_find_nothing_new_write_nothing(world: World) -> None:
    one = await world.start()
    keeper = world.keeper()
    await settled(world, keeper)
    for _ in range(30):
        world.now += 1
        await keeper.look()
    assert await world.store.in_force() == [one]
    world.now += 10
    await world.count("ro_v2", 1.0)
    world.now += LAG_S
    await keeper.look()
    (counted,) = await world.store.in_force()
    assert counted.version == 2
    assert read(counted).state.evidence.requests == 30
    assert await world.store.sums("ro_v2", 0, 10**12) == []  # counted, so forgotten


async def test_an_interval_is_counted_once_workers_had_time_to_write_it(world: World) -> None:
    await world.start()
    keeper = world.keeper()
    await settled(world, keeper)
    world.now += 10
    await world.count("ro_v2", 1.0, "w1")
    world.now += LAG_S - 1
    await keeper.look()
    await world.count("ro_v2", 1.0, "w2")
    world.now += 1
    await keeper.look()
    (counted,) = await world.store.in_force()
    assert read(counted).state.evidence.requests == 60


async def test_of_several_gateways_one_decides_and_writes_it_down(world: World) -> None:
    await world.start(steps=SLOW)
    keepers = [world.keeper() for _ in range(3)]
    await settled(world, *keepers)
    for _ in range(400):
        world.now += 10
        await world.count("ro_v2", 1.5)
        world.now += LAG_S
        await asyncio.gather(*(keeper.look() for keeper in keepers))
        world.now -= LAG_S
        if await world.rows():
            break
    for keeper in keepers:
        await keeper.look()
    assert [row.entry.action for row in await world.rows()] == ["rollout.rollback"]
    assert len(world.told) == 1
    assert sum(sum(keeper.state.changes.values()) for keeper in keepers) == 1
    assert (await world.journal.verify()).broken_at is None


async def test_gates_and_time_that_is_up_are_told_and_wait(world: World) -> None:
    gate = [{**STEPS[0], "gate": True}, *STEPS[1:]]
    await world.start("gated", steps=gate)
    keeper = world.keeper()
    await settled(world, keeper)
    assert (await world.until_changed(keeper, "ro_gated", 1.0)).entry.action == "rollout.gate"
    await world.start("slow", steps=[{**STEPS[0], "max_s": 300.0}, *STEPS[1:]], on_timeout="hold")
    world.now += 400
    await keeper.look()
    assert [row.entry.action for row in await world.rows()] == ["rollout.gate", "rollout.hold"]
    assert "no decision within 300 s (0 of 50 requests)" in world.told[-1]["reason"]
    assert [await world.status(name) for name in ("gated", "slow")] == ["at gate", "held"]


async def test_what_is_paused_is_still_compared(world: World) -> None:
    one = await world.start(steps=SLOW)
    await world.store.write(msgspec.structs.replace(one, state=state_text(pause(read(one).state, world.now))))
    keeper = world.keeper()
    await settled(world, keeper)
    assert (await world.until_changed(keeper, "ro_v2", 1.5)).entry.action == "rollout.rollback"


class Away(SqlRolloutStore):
    """A database that can go away."""

    away = False

    async def in_force(self) -> Any:
        if self.away:
            raise OSError("connection refused")
        return await super().in_force()


async def test_a_database_that_is_away_is_said_once_and_what_comes_late_is_waited_for(world: World) -> None:
    await world.start()
    store = Away(world.engine)
    keeper = world.keeper(store)
    await settled(world, keeper)
    store.away = True
    with capture_logs() as said:
        for _ in range(20):
            world.now += 1
            await keeper.look()
    assert [line["log_level"] for line in said] == ["warning"]
    store.away = False
    with capture_logs() as said:
        await keeper.look()
    assert [line["event"] for line in said] == ["rollouts are looked at again"]
    await world.count("ro_v2", 1.0)  # what a worker kept meanwhile
    world.now += LAG_S
    await keeper.look()
    (counted,) = await world.store.in_force()
    assert read(counted).state.evidence.requests == 30


class Workers:
    """The workers of one gateway, as its keeper asks them."""

    def __init__(self) -> None:
        self.intervals: list[Interval] = []
        self.back: list[set[str]] = []

    async def sums(self, wanted: Mapping[str, tuple[int, int]]) -> Mapping[str, Sequence[str]]:
        return {
            rollout: [msgspec.json.encode(one).decode() for one in self.intervals if first <= one.index < below]
            for rollout, (first, below) in wanted.items()
        }

    async def send_back(self, rollouts: Collection[str]) -> None:
        self.back.append(set(rollouts))


async def through_an_outage(world: World, keeper: RolloutKeeper, store: Away, workers: Workers, times: float) -> int:
    """Thirty minutes without the database; returns the seconds until the canary was sent back, or 0."""
    store.away = True
    began = world.now
    for _ in range(180):
        world.now += 10
        workers.intervals = [*workers.intervals, world.interval(times)][-60:]
        world.now += LAG_S
        await keeper.look()
        world.now -= LAG_S
        if workers.back:
            return int(world.now - began)
    return 0


async def test_a_worse_canary_goes_back_while_the_database_is_away(world: World) -> None:
    await world.start(steps=SLOW)
    store, workers = Away(world.engine), Workers()
    keeper = world.keeper(store, workers)
    await settled(world, keeper)
    assert 0 < await through_an_outage(world, keeper, store, workers, 1.5) < 600
    assert workers.back == [{"ro_v2"}]
    assert (await world.rows(), await world.status()) == ([], "running")
    await keeper.look()  # a worker may have started a moment ago
    assert workers.back == [{"ro_v2"}] * 2
    store.away = False
    await keeper.look()
    (row,) = await world.rows()
    assert (row.entry.action, await world.status()) == ("rollout.rollback", "rolled back")
    assert "while the database was away or busy: inter-token latency" in world.told[0]["reason"]
    assert (keeper.state.sent_back, keeper.state.changes) == ({}, {"rollout.rollback": 1})
    await keeper.look()
    assert len(await world.rows()) == 1


async def test_an_outage_of_the_database_passes_no_step_and_sends_no_good_canary_back(world: World) -> None:
    one = await world.start()
    store, workers = Away(world.engine), Workers()
    keeper = world.keeper(store, workers)
    await settled(world, keeper)
    assert await through_an_outage(world, keeper, store, workers, 1.0) == 0
    store.away = False
    assert (await world.store.in_force(), await world.rows()) == ([one], [])


async def test_what_was_sent_back_is_written_though_another_gateway_counts_meanwhile(world: World) -> None:
    await world.start(steps=SLOW)
    store, workers = Away(world.engine), Workers()
    keeper = world.keeper(store, workers)
    await settled(world, keeper)
    await through_an_outage(world, keeper, store, workers, 1.5)
    store.away = False
    other = await world.store.in_force()

    async def older() -> Sequence[StoredRollout]:
        assert await world.store.write(other[0])  # between this keeper's read and its write
        return other

    store.in_force = older  # type: ignore[method-assign]
    await keeper.look()
    assert (await world.rows(), set(keeper.state.sent_back)) == ([], {"ro_v2"})
    del store.in_force
    await keeper.look()
    assert await world.status() == "rolled back"


async def test_what_a_newer_version_started_is_left_alone_and_said_once(world: World) -> None:
    newer = StoredRollout("ro_n", "newer", '{"name": "newer", "phases": []}', "{}", 1, True, START, START)
    await world.store.start(newer, "x", "y")
    await world.start(steps=SLOW)
    keeper = world.keeper()
    with capture_logs() as said:
        await settled(world, keeper)
    assert [(line["log_level"], line["rollout"]) for line in said] == [("error", "newer")]
    assert (keeper.state.unreadable, [one.name for one in keeper.state.standings]) == (1, ["v2"])
    assert (await world.until_changed(keeper, "ro_v2", 1.5)).entry.target == "rollout/v2"
    assert await world.store.find("newer") == newer


async def test_sums_of_closed_rollouts_are_removed_some_time(world: World) -> None:
    await world.store.put_sums("ro_gone", "w1", {1: "{}"})
    keeper = world.keeper()
    await keeper.look()
    assert len(await world.store.sums("ro_gone", 0, 9)) == 1
    world.now += FORGET_EVERY_S
    await keeper.look()
    assert await world.store.sums("ro_gone", 0, 9) == []


def test_sums_of_workers_are_added_by_interval_and_what_is_broken_is_left_out() -> None:
    one = Interval(7, canary=ArmSums(2, {"itl": Tally(2, 1.0)}))
    text = msgspec.json.encode(one).decode()
    with capture_logs() as said:
        assert merged([text, "{", text, msgspec.json.encode(Interval(8)).decode()]) == [one + one, Interval(8)]
    assert len(said) == 1
