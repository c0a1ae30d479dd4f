"""Two gateways in front of one engine of eight places: what it has no place for waits in them, and they know of each other."""

import asyncio
import time
from pathlib import Path

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from tests.replicas import Replica, Reply, Tenancy, replicas, statuses
from tests.timing import HANG_S, hang_s
from tests.valkey_servers import single_server

pytestmark = pytest.mark.slow

PLACES = 8
CALLERS = 40
LOOKS = 30


async def gauge(replica: Replica, name: str) -> float:
    """The sum of its samples."""
    async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
        text = (await client.get(f"http://127.0.0.1:{replica.admin_port}/metrics")).text
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f"{name}{{"))


async def until(made: list[Replica], name: str, value: float) -> None:
    give_up_at = time.monotonic() + hang_s()
    while {await gauge(one, name) for one in made} != {value}:
        assert time.monotonic() < give_up_at, [await gauge(one, name) for one in made]
        await asyncio.sleep(0.1)


async def calling(replica: Replica, key: str, stop: asyncio.Event, replies: list[Reply]) -> None:
    """One caller who asks again when it has its answer."""
    while not stop.is_set():
        replies.append(await replica.ask(key, max_tokens=40))


async def test_what_an_engine_has_no_place_for_waits_in_the_gateways(tmp_path: Path) -> None:
    tenancy = Tenancy(["acme"])
    sim = SimSettings(models=("sim",), max_num_seqs=PLACES, speed=0.5)
    with single_server(tmp_path / "valkey") as valkey:
        async with SimEngine(sim) as engine, replicas(tmp_path, 2, tenancy, engine=engine.url, counters=valkey.url) as made:
            await until(made, "tidegate_backend_limit_processes", 2)
            replies: list[Reply] = []
            stop = asyncio.Event()
            callers = [asyncio.create_task(calling(made[n % 2], tenancy.keys["acme"], stop, replies)) for n in range(CALLERS)]
            # a new engine is given 64 at once, which it has to be done with first, however long that takes on this machine
            waited = [CALLERS] * LOOKS
            queued = [0.0] * LOOKS
            while sum(waited[-LOOKS:]) >= LOOKS * PLACES / 2 or max(queued[-LOOKS:]) <= CALLERS / 2:
                waited.append(len(engine.batcher.waiting))
                queued.append(sum([await gauge(one, "tidegate_queue_depth") for one in made]))
                await asyncio.sleep(0.02)
            stop.set()
            await asyncio.gather(*callers)
            assert set(statuses(replies)) == {200}
            made[1].process.terminate()
            await until(made[:1], "tidegate_backend_limit_processes", 1)
