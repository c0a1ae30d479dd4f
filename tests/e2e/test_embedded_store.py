"""The embedded counter store as part of a served gateway: it comes up with it, comes back when it dies, and goes with it."""

import asyncio
import json
import os
import signal
import time
from pathlib import Path

import pytest

from backends.simengine import SimEngine, SimSettings
from tenancy.stores.valkey.embedded import answers
from tests.e2e.test_serve import serving, tidegate
from tests.timing import HANG_S


def slot(home: Path) -> dict[str, object]:
    told = json.loads((home / "run" / "supervisor.json").read_text())
    return next(place for place in told["slots"] if place["name"] == "store")


def server_of(keeper: object) -> int:
    return int(Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()[0])


async def until(true, what: str) -> None:
    give_up_at = time.monotonic() + HANG_S
    while not true():
        assert time.monotonic() < give_up_at, what
        await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_it_starts_with_two_workers_comes_back_and_ends_with_them(tmp_path: Path) -> None:
    path = tmp_path / "run" / "counters.sock"
    async with SimEngine(SimSettings(models=("sim",), speed=1000)) as engine, serving(tmp_path, engine.url, workers=2) as served:
        assert answers(path) and (tmp_path / "tidegate-counters").is_dir()
        first = server_of(slot(tmp_path)["pid"])
        os.kill(first, signal.SIGKILL)
        await until(lambda: slot(tmp_path)["restarts"] == 1 and answers(path), "a killed server is replaced")
        keeper = slot(tmp_path)["pid"]
        served.process.send_signal(signal.SIGHUP)
        await asyncio.sleep(1.0)
        assert slot(tmp_path)["pid"] == keeper, "a rolling restart leaves it alone"
        second = server_of(keeper)
        served.process.terminate()
        assert await asyncio.to_thread(served.process.wait, 20) == 0, (tmp_path / "err.log").read_text()
        assert not answers(path) and not alive(second)


@pytest.mark.slow
async def test_it_ends_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    async with SimEngine(SimSettings(models=("sim",), speed=1000)) as engine, serving(tmp_path, engine.url, workers=2) as served:
        server = server_of(slot(tmp_path)["pid"])
        served.process.kill()
        served.process.wait()
        await until(lambda: not alive(server), "nothing is left behind")


@pytest.mark.slow
async def test_one_worker_needs_none_and_check_says_where_counters_are(tmp_path: Path) -> None:
    async with SimEngine(SimSettings(models=("sim",), speed=1000)) as engine, serving(tmp_path, engine.url):
        assert not (tmp_path / "run" / "counters.sock").exists()
        told = await asyncio.to_thread(tidegate, "check", home=tmp_path)
        assert "counters: in this process" in told.stdout
    text = (tmp_path / "tidegate.yaml").read_text()
    (tmp_path / "tidegate.yaml").write_text(text + 'stores: {counters: "redis://127.0.0.1:1"}\n')
    told = await asyncio.to_thread(tidegate, "check", home=tmp_path)
    assert told.returncode == 0
    assert "counters: single 127.0.0.1:1" in told.stdout
    assert "note: stores.counters: 127.0.0.1:1:" in told.stderr
