"""Several gateways on one database: keys that are revoked or rotated (R34, R35), also while it is away, and the database away under load
(R36)."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from tests.booked import booked
from tests.contract.test_ledger_crashes import database
from tests.replicas import Replica, Reply, Tenancy, admin_client, launch, ready, replicas
from tests.scale import scaled
from tests.timing import hang_s, timely

pytestmark = pytest.mark.slow

SIM = SimSettings(models=("sim",), instant=True)
TOLD_S = 5.0
"""Within which every gateway follows a change."""


class Load:
    """Calls at a steady rate over all gateways, each with the key that `key` gives for it."""

    def __init__(self, made: list[Replica], per_s: int, key: Callable[[int], str]) -> None:
        self.replies: list[Reply] = []
        self._made, self._per_s, self._key = made, per_s, key
        self._calls: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.gather(*self._calls)

    async def _run(self) -> None:
        began, n = time.monotonic(), 0
        while True:
            while n < (time.monotonic() - began) * self._per_s:
                call = asyncio.create_task(self._call(n))
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)
                n += 1
            await asyncio.sleep(0.005)

    async def _call(self, n: int) -> None:
        self.replies.append(await self._made[n % len(self._made)].ask(self._key(n)))


async def refused_after(made: list[Replica], key: str, begun: float) -> float:
    """Seconds from `begun` until no gateway takes the key any more."""
    while any(reply.status != 401 for reply in await asyncio.gather(*(one.ask(key) for one in made))):
        assert time.monotonic() < begun + hang_s()
        await asyncio.sleep(0.05)
    return time.monotonic() - begun


async def taken_after(made: list[Replica], key: str, begun: float) -> float:
    """Seconds from `begun` until every gateway takes the key."""
    while any(reply.status != 200 for reply in await asyncio.gather(*(one.ask(key) for one in made))):
        assert time.monotonic() < begun + hang_s()
        await asyncio.sleep(0.25)
    return time.monotonic() - begun


@pytest.mark.req("R34")
@pytest.mark.req("R35")
@pytest.mark.req("R37")
async def test_revoked_and_rotated_keys_over_four_gateways(tmp_path: Path, record_property: Any) -> None:
    tenancy, per_s, overlap_s = Tenancy(["acme", "bolt"]), scaled(100, 1000), scaled(14, 60)
    async with (
        SimEngine(SIM) as engine,
        replicas(tmp_path, 4, tenancy, engine=engine.url, counters="memory://") as made,
        admin_client() as admin,
    ):
        ids, old = tenancy.ids, tenancy.keys["acme"]
        new = ""
        use_new = use_old = False

        def key(n: int) -> str:
            return new if use_new and (n // 4 % 2 or not use_old) else old

        load = Load(made, per_s, key)
        async with load.running():
            await asyncio.sleep(1.0)
            begun = time.monotonic()
            done = await admin.post(f"{made[0].admin}/tenants/bolt/keys/{ids['bolt']}/revoke")
            assert done.status_code == 200, done.text
            revoked_s = await refused_after(made, tenancy.keys["bolt"], begun)

            asked = time.monotonic()
            done = await admin.post(f"{made[1].admin}/tenants/acme/keys/{ids['acme']}/rotate", json={"overlap_s": overlap_s})
            assert done.status_code == 200, done.text
            new, rotated = done.json()["key"], time.monotonic()
            taken_s = await taken_after(made, new, rotated)
            use_new = use_old = True
            await asyncio.sleep(max(0.0, asked + overlap_s - 3.0 - time.monotonic()))
            use_old = False
            await asyncio.sleep(0.5)
            assert {reply.status for reply in await asyncio.gather(*(one.ask(old) for one in made))} == {200}, "still within the overlap"
            ended_s = await refused_after(made, old, rotated + overlap_s)
            await asyncio.sleep(1.0)
        audit = (await admin.get(f"{made[2].admin}/audit")).text
    failed = [reply for reply in load.replies if reply.status != 200]
    record_property(
        "figure",
        f"4 gateways: revoked key refused by all after {revoked_s:.1f} s; rotation under {len(load.replies)} calls at {per_s}/s: "
        f"{len(failed)} failed, new secret taken by all after {taken_s:.1f} s, old one refused {ended_s:+.1f} s after its overlap",
    )
    assert "key.rotate" in audit and not any(text.split("_")[3] in audit for text in (old, new, tenancy.keys["bolt"]))
    assert failed == []
    for took_s in (revoked_s, taken_s, ended_s):
        timely(took_s, TOLD_S)


@pytest.mark.fault("database away")
@pytest.mark.req("R34")
async def test_keys_that_are_revoked_while_the_database_is_away_end_at_every_gateway(tmp_path: Path, record_property: Any) -> None:
    """At the gateway that is asked at once, at the other one when the database has it."""
    tenancy = Tenancy(["acme", "bolt", "crane"])
    async with database("postgres", tmp_path) as db, SimEngine(SIM) as engine, admin_client() as admin:
        async with replicas(tmp_path, 2, tenancy, engine=engine.url, counters="memory://", sql=db.url) as made:

            async def revoke(tenant: str, *asked: Replica) -> None:
                for one in asked:
                    done = await admin.post(f"{one.admin}/keys/{tenancy.ids[tenant]}/revoke")
                    assert (done.status_code, done.json()["pending"]) == (202, True), done.text

            assert {reply.status for one in made for reply in [await one.ask(key) for key in tenancy.keys.values()]} == {200}
            await asyncio.to_thread(db.stop)
            begun = time.monotonic()
            await revoke("acme", made[0])
            await revoke("bolt", *made)
            here_s = await refused_after(made[:1], tenancy.keys["acme"], begun)
            both_s = await refused_after(made, tenancy.keys["bolt"], begun)
            assert (await made[1].ask(tenancy.keys["acme"])).status == 200, "nobody could tell it"
            made[0].process.terminate()
            await asyncio.to_thread(made[0].process.wait)
            made[0].process = launch(made[0].home).process
            await ready(made[0])
            assert [(await made[0].ask(tenancy.keys[name])).status for name in tenancy.tenants] == [401, 401, 200], "a restart forgets none"

            await asyncio.to_thread(db.start)
            async with asyncio.timeout(hang_s()):
                while (await admin.post(f"{made[1].admin}/tenants", json={"name": "after"})).status_code not in (201, 409):
                    await asyncio.sleep(0.1)
            back = time.monotonic()
            there_s = await refused_after(made, tenancy.keys["acme"], back)
            assert {(await one.ask(tenancy.keys["crane"])).status for one in made} == {200}
            async with asyncio.timeout(hang_s()):
                while len(rows := [row for row in await audit(admin, made[1]) if row["action"] == "key.revoke"]) < 2:
                    await asyncio.sleep(0.1)
    record_property(
        "figure",
        f"revoked without the database: refused by the gateway asked after {here_s:.1f} s, by both asked after {both_s:.1f} s; "
        f"by one that was not asked {there_s:.1f} s after the database is back",
    )
    assert sorted(row["target"] for row in rows) == sorted(f"tenant/{name}/key/{tenancy.ids[name]}" for name in ("acme", "bolt"))
    for took_s in (here_s, both_s, there_s):
        timely(took_s, TOLD_S)


async def audit(admin: httpx.AsyncClient, one: Replica) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await admin.get(f"{one.admin}/audit")).json()["items"]
    return found


@pytest.mark.fault("database away")
@pytest.mark.req("R36")
async def test_a_database_that_is_away_fails_no_request_and_loses_none(tmp_path: Path, record_property: Any) -> None:
    tenancy, per_s, away_s = Tenancy(["acme"]), scaled(40, 200), scaled(10, 600)
    async with database("postgres", tmp_path) as db, SimEngine(SIM) as engine, admin_client() as admin:
        async with replicas(tmp_path, 2, tenancy, engine=engine.url, counters="memory://", sql=db.url) as made:

            async def write(one: Replica, name: str) -> int:
                return (await admin.post(f"{one.admin}/tenants", json={"name": name})).status_code

            load = Load(made, per_s, lambda _: tenancy.keys["acme"])
            async with load.running():
                await asyncio.sleep(1.0)
                assert await write(made[0], "before") == 201
                await asyncio.to_thread(db.stop)
                gone = time.monotonic()
                writes = [await write(one, "while-away") for one in made]
                await asyncio.sleep(gone + away_s - time.monotonic())
                writes += [await write(one, "while-away") for one in made]
                await asyncio.to_thread(db.start)
                async with asyncio.timeout(hang_s()):
                    while await write(made[0], "after") not in (201, 409):
                        await asyncio.sleep(0.2)
                await asyncio.sleep(1.0)
            logs = "".join(one.errors for one in made)
        # the gateways have ended, and booked what they had
        rows, counted = await booked(db.url)
    failed = [reply for reply in load.replies if reply.status != 200]
    record_property(
        "figure",
        f"Postgres away {away_s} s at {per_s}/s: {len(load.replies)} requests, {len(failed)} failed; {len(rows)} rows, "
        f"{len(rows) - len(set(rows))} twice; admin writes {sorted(set(writes))}",
    )
    assert failed == []
    assert set(writes) == {503}
    assert sorted(rows) == sorted(reply.headers["x-request-id"] for reply in load.replies)
    assert counted == len(rows)
    assert "Traceback" not in logs
