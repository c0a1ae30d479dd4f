import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from domain.rollouts import StoredRollout
from gateway.process.snapshots import WorkerSnapshot
from gateway.process.worker_link import WorkerLink, worker_socket
from gateway.record import Record
from gateway.rollouts.watch import RolloutWatch, WorkersRollouts
from policies.rollout.assignment import Arm
from policies.rollout.document import RolloutDocument, text_of
from policies.rollout.in_force import NOTHING, AssignedArm
from policies.rollout.progress import abort, begin
from policies.rollout.samples import Interval
from tenancy.stores.memory import MemoryRolloutStore

DOCUMENT = RolloutDocument(name="v2", baseline="chat", canary="chat-v2")


class Store(MemoryRolloutStore):
    """One that can be away."""

    away = silent = False

    async def in_force(self) -> Any:
        if self.away:
            raise OSError("connection refused")
        if self.silent:
            await asyncio.get_running_loop().create_future()
        return await super().in_force()

    async def put_sums(self, rollout_id: str, source: str, sums: Mapping[int, str]) -> None:
        if self.away:
            raise OSError("connection refused")
        await super().put_sums(rollout_id, source, sums)


class Worker:
    def __init__(self, store: Store, source: str = "w1") -> None:
        self.now = 1000.0
        self.live: Any = SimpleNamespace(rollouts=NOTHING)
        self.watch = RolloutWatch(store, source, lambda: self.now)

    async def look(self) -> None:
        await self.watch.look(self.live)

    def answers(self) -> None:
        dealt = AssignedArm(self.live.rollouts.by_pool["chat"], Arm.CANARY, counted=True)
        self.watch.observe(Record("r", 0.0, "ok", 200, 1.0, 0.0, dealt=dealt))


async def started(store: Store) -> StoredRollout:
    state = msgspec.json.encode(begin(DOCUMENT.plan("ro_1"), 0.0)).decode()
    one = StoredRollout("ro_1", "v2", text_of(DOCUMENT), state, 1, True, 0.0, 0.0)
    await store.start(one, "chat", "chat-v2")
    return one


async def counted(store: Store) -> Interval:
    found = [msgspec.json.decode(text, type=Interval) for text in await store.sums("ro_1", 0, 10**9)]
    first, *others = found
    for other in others:
        first = first + other
    return first


async def test_what_is_started_is_followed_and_what_is_rolled_back_is_not() -> None:
    store, plan = Store(), DOCUMENT.plan("ro_1")
    one, worker = await started(store), Worker(store)
    await worker.look()
    assert worker.live.rollouts.by_pool["chat"].live == 0.01
    state = abort(plan, begin(plan, 0.0), 1.0, "slow").state
    assert await store.write(msgspec.structs.replace(one, state=msgspec.json.encode(state).decode(), open=False))
    await worker.look()
    assert worker.live.rollouts == NOTHING


async def test_the_sums_of_workers_add_up_however_often_they_are_written() -> None:
    store = Store()
    await started(store)
    workers = [Worker(store, source) for source in ("w1", "w2")]
    for worker in workers:
        await worker.look()
    for _ in range(3):
        for worker in workers:
            worker.answers()
            await worker.look()
    assert (await counted(store)).canary.requests == 6


async def test_while_the_store_is_away_all_stays_and_nothing_counted_is_lost() -> None:
    store = Store()
    await started(store)
    worker = Worker(store)
    await worker.look()
    store.away = True
    worker.answers()
    await worker.look()
    assert "chat" in worker.live.rollouts.by_pool
    store.away = False
    await worker.look()
    assert (await counted(store)).canary.requests == 1


async def test_the_last_answers_are_written_at_the_end_and_an_end_without_a_store_is_one_too() -> None:
    store = Store()
    await started(store)
    worker = Worker(store)
    await worker.look()
    worker.answers()
    await worker.watch.close()
    assert (await counted(store)).canary.requests == 1
    store.away = True
    worker.answers()
    await worker.watch.close()


async def test_a_database_that_never_answers_does_not_keep_a_rollout_from_going_back(monkeypatch: pytest.MonkeyPatch) -> None:
    store, plan = Store(), DOCUMENT.plan("ro_1")
    one, worker = await started(store), Worker(store)
    await worker.look()
    store.silent = True
    with monkeypatch.context() as waits:
        waits.setattr("gateway.rollouts.watch.STORE_WITHIN_S", 0.0)
        await worker.look()
    assert "chat" in worker.live.rollouts.by_pool
    store.silent = False
    state = abort(plan, begin(plan, 0.0), 1.0, "slow").state
    assert await store.write(msgspec.structs.replace(one, state=msgspec.json.encode(state).decode(), open=False))
    await worker.look()
    assert worker.live.rollouts == NOTHING


async def test_the_keeper_has_the_sums_and_sends_back_what_is_worse_over_the_link(tmp_path: Path) -> None:
    store = Store()
    one, workers = await started(store), [Worker(store, name) for name in ("w1", "w2")]
    links = []
    for index, worker in enumerate(workers):
        await worker.look()
        worker.answers()
        path = worker_socket(tmp_path, index, os.getpid())
        links.append(WorkerLink(path, lambda _with_metrics: WorkerSnapshot(0, 1, "ready", 0.0), None, worker.watch.answers(worker.live)))
        await links[-1].start()
    asking = WorkersRollouts(tmp_path)
    assert [msgspec.json.decode(text, type=Interval).canary.requests for text in (await asking.sums({"ro_1": (0, 101)}))["ro_1"]] == [1, 1]
    assert await asking.sums({"ro_1": (101, 200), "ro_2": (0, 101)}) == {"ro_1": [], "ro_2": []}
    store.away = True
    await asking.send_back(["ro_1", "ro_2"])
    for worker in workers:
        await worker.look()
        assert worker.live.rollouts == NOTHING
    assert len((await asking.sums({"ro_1": (0, 101)}))["ro_1"]) == 2  # what was counted stays until it is written
    store.away = False
    await workers[0].look()  # the database is back, and the rollback is not written yet
    assert workers[0].live.rollouts == NOTHING
    assert (await counted(store)).canary.requests == 1
    assert await store.write(one)  # somebody decided otherwise
    await workers[0].look()
    assert workers[0].live.rollouts.by_pool["chat"].live == 0.01
    for link in links:
        await link.close()
