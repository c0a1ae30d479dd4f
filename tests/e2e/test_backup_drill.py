"""The drill: a backup under load, the loss of everything, a restore; and what was there before the backup is there again."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from backends.simengine import SimEngine
from tenancy.limits import Meter, Window
from tests.booked import booked
from tests.e2e.test_reconcile import BUDGET, SIM, again, kill_all, limited, spend, tokened
from tests.e2e.test_serve import serving, tidegate
from tests.replicas import Tenancy

pytestmark = pytest.mark.slow

BEFORE = 200
"""Requests that have ended before the backup begins."""


def command(home: Path, *arguments: str) -> str:
    done = tidegate(*arguments, home=home)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def test_nothing_of_what_was_before_the_backup_is_lost(tmp_path: Path, record_property: Any) -> None:
    home = tmp_path / "home"
    home.mkdir()
    tenancy = Tenancy(["bolt"], [limited(Meter.REQUESTS, Window.EVER, tenant="bolt")])
    async with SimEngine(SIM) as engine, serving(home, engine.url, workers=2, settings=tokened(home), tenancy=tenancy) as served:
        assert set(await spend(served, BUDGET - 10, key=tenancy.keys["bolt"])) == {200}
        assert set(await spend(served, BEFORE)) == {200}
        await asyncio.sleep(0.2)  # usage of the last 50 ms is not durable yet
        load = asyncio.create_task(spend(served, 1_000_000))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(command, home, "backup", "create", "../backup")
        assert not load.done()
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)
        kill_all(home, served.process)
        shutil.rmtree(home / "tidegate-ledger")
        for file in home.glob("tidegate.db*"):
            file.unlink()
        (home / "tidegate.directory").unlink(missing_ok=True)

        held = json.loads(await asyncio.to_thread(command, home, "backup", "verify", "../backup", "--json"))
        assert held["ledger_files"] > 0, "usage that was not in the database yet"
        await asyncio.to_thread(command, home, "backup", "restore", "../backup")
        process, second = await again(home)
        try:
            statuses = await spend(second, 30, key=tenancy.keys["bolt"])
            assert (statuses.count(200), statuses.count(429)) == (10, 20), "the budget goes on from where it was"
            second.headers.update(served.headers)
            assert set(await spend(second, 5)) == {200}, "the key of before"
            assert "unbroken" in await asyncio.to_thread(command, home, "audit", "verify", "--offline")
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait, 20)
    url = f"sqlite:///{home}/tidegate.db"
    ids, requests = await booked(url)
    assert len(ids) == len(set(ids)) == requests, "rows and sums agree"
    assert requests >= BUDGET - 10 + BEFORE + 10 + 5
    assert sum(held["rows"].values()) > BEFORE
    record_property("figure", f"{BUDGET - 10 + BEFORE} requests before the backup, none lost; {requests} rows after the restore")
