"""The admin process decides on rollouts beside its other work: while its main loop is held, by the admin API, metrics or the booking of
usage, a worse canary still goes back."""

import asyncio
import socket
import sqlite3
import time
from contextlib import closing, suppress
from math import log
from pathlib import Path

import msgspec
import pytest

from domain.rollouts import StoredRollout
from gateway.config.load import load_settings
from gateway.config.read_secrets import HookSecrets
from gateway.process.children import WorkerSlot
from gateway.wiring.admin import AdminApiRun
from policies.rollout.document import RolloutDocument, text_of
from policies.rollout.progress import begin
from policies.rollout.samples import ArmSums, Interval, Tally
from policies.rollout.state import state_text
from tenancy.keys import Pepper
from tenancy.stores.sql import SqlRolloutStore, open_engine
from tests.databases import migrated_file
from tests.time_limit import slowdown
from tests.timing import until

SETTINGS = """
stores: {sql: "sqlite:///tidegate.db", counters: "memory://"}
pools:
  - {name: chat, model: m, backends: [{id: a, url: "http://10.0.0.1:8000"}]}
  - {name: chat-v2, model: m, backends: [{id: b, url: "http://10.0.0.2:8000"}]}
"""
DOCUMENT = RolloutDocument.model_validate(
    {
        "name": "v2",
        "baseline": "chat",
        "canary": "chat-v2",
        "steps": [{"share": 0.2, "min_s": 3600.0, "max_s": 7200.0}, {"share": 1.0}],
        "warm_up_s": 0.0,
        "warm_up_requests": 0,
        "settle_s": 0.0,
    }
)
HELD_S = 20.0
"""When the test gives up on a quiet machine, where the decision takes four seconds."""
UNLOCKED_LOOKS = 20
"""Ten milliseconds apart: the transactions with which the loops begin are over."""
INTERVALS = 40
"""Of ten seconds each, in which the canary's tokens took twice as long: several times what proves it."""


async def proven_worse(database: Path) -> None:
    """A rollout that began a while ago, and what workers have counted since."""
    began = time.time() - 10.0 * (INTERVALS + 1)
    engine = open_engine(f"sqlite:///{database}")
    store = SqlRolloutStore(engine)
    state = state_text(begin(DOCUMENT.plan("ro_1"), began))
    await store.start(StoredRollout("ro_1", "v2", text_of(DOCUMENT), state, 1, True, began, began), "chat", "chat-v2")
    first = int(began // 10)
    sums = {}
    for index in range(first, first + INTERVALS):
        noise = 0.01 if index % 2 else -0.01
        canary = ArmSums(30, {"itl": Tally(30, 30 * (log(0.020) + noise))})
        sums[index] = msgspec.json.encode(Interval(index, canary, ArmSums(100, {"itl": Tally(100, 100 * log(0.010))}))).decode()
    await store.put_sums("ro_1", "w1", sums)
    await engine.dispose()


def still_open(database: Path) -> bool:
    with closing(sqlite3.connect(database)) as connection:
        ((found,),) = connection.execute("SELECT open FROM rollout").fetchall()
    return bool(found)


async def unlocked(database: Path) -> None:
    """Wait until nobody has written for a while: a loop that is held inside a transaction of its own locks the database with it, and then
    the keeper tells the workers alone."""
    free = 0
    while free < UNLOCKED_LOOKS:
        await asyncio.sleep(0.01)
        with closing(sqlite3.connect(database, timeout=0.0, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                free = 0
                continue
            connection.execute("ROLLBACK")
        free += 1


@pytest.mark.slow
async def test_a_worse_canary_goes_back_while_the_main_loop_is_held(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "tidegate.yaml").write_text(SETTINGS)
    database = tmp_path / "tidegate.db"
    await migrated_file(database)
    await proven_worse(database)
    settings = load_settings(tmp_path / "tidegate.yaml", {})

    def fine(*, new_start: bool) -> None: ...

    with socket.socket() as sock:
        slot = WorkerSlot(-1, sock, tmp_path / "run", -1, lambda: None)
        made = AdminApiRun(settings, slot, Pepper("k1", b"p" * 32), None, HookSecrets(None, None), fine)
        running = asyncio.create_task(made.run())
        try:
            while made.rollouts().keeper.looked_unix == 0.0:  # the keeper has begun
                assert not running.done(), running.exception()
                await asyncio.sleep(0.01)
            await unlocked(database)
            assert still_open(database)
            held_at = time.monotonic()
            while still_open(database) and time.monotonic() < held_at + HELD_S * slowdown():
                time.sleep(0.02)  # the main loop does not run in here
            assert not still_open(database)
            # the keeper's thread counts the change behind its commit
            await until(lambda: made.rollouts().keeper.changes == {"rollout.rollback": 1})
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            await made.close()
