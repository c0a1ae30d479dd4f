"""The load push through a whole gateway: with polls that are much too slow, what the engine pushes is known all the same."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.simengine import FaultRule, SimEngine, SimSettings
from tests.e2e.test_serve import SETTINGS, Served, ask, serving
from tests.timing import HANG_S, timely


@asynccontextmanager
async def pushing(home: Path, signals_s: float, workers: int = 1) -> AsyncIterator[tuple[SimEngine, Served]]:
    at_once = SimSettings(models=("sim",), dialect="sglang", max_num_seqs=2, load_push="tcp://127.0.0.1:*")
    settings = SETTINGS.replace("model: sim", "model: sim\n    dialect: sglang") + f"engines: {{{{signals_s: {signals_s:g}}}}}\n"
    async with SimEngine(at_once) as engine:
        assert engine.load_push is not None
        push = f', load_push: {{endpoint: "{engine.load_push.endpoint}"}}'
        async with serving(home, engine.url, workers=workers, backend=push, settings=settings) as served:
            yield engine, served


async def listed(client: httpx.AsyncClient, served: Served, right: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    try:
        async with asyncio.timeout(HANG_S):
            while True:
                (seen,) = (await client.get(f"{served.admin}/backends")).json()["backends"]
                if right(seen):
                    return seen
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(seen) from None


def told(seen: dict[str, Any]) -> tuple[Any, Any]:
    signals = seen.get("signals") or {}
    return signals.get("running"), signals.get("waiting")


@pytest.mark.req("ROUTERS-5")
async def test_a_queue_is_seen_though_nobody_asks(tmp_path: Path, record_property: Any) -> None:
    async with (
        pushing(tmp_path, signals_s=600, workers=2) as (engine, served),
        httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client,
    ):
        await listed(client, served, lambda seen: told(seen) == (0, 0) and seen["push"]["reason"] == "")
        # behind the gateway's back, so that nothing but the engine can tell of it
        body = ask(max_tokens=20_000, stream=True, ignore_eos=True)
        asked = [asyncio.create_task(client.post(f"{engine.url}/v1/chat/completions", json=body)) for _ in range(5)]
        loop = asyncio.get_running_loop()
        begun = loop.time()
        seen = await listed(client, served, lambda seen: told(seen) == (2, 3))
        record_property("figure", f"a queue is known after {(loop.time() - begun) * 1000:.0f} ms with a poll every 600 s")
        timely(loop.time() - begun, 5.0)
        timely(seen["load_age_s"], 3.0)
        assert set(seen["signals"]["pushed"]) == {"running", "waiting", "waiting_uncached_tokens", "kv_usage", "kv_capacity_tokens"}
        assert seen["signals"]["kv_usage"] > 0
        text = (await client.get(f"{served.admin}/metrics")).text
        for line in ('waiting_requests{backend="e0",pool="chat"} 3.0', 'load_pushed{backend="e0",pool="chat"} 1.0'):
            assert f"tidegate_backend_{line}" in text
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await listed(client, served, lambda seen: told(seen) == (0, 0))


@pytest.mark.slow
@pytest.mark.req("ROUTERS-6")
async def test_an_engine_that_falls_silent_is_known_by_polls(tmp_path: Path) -> None:
    async with (
        pushing(tmp_path, signals_s=0.1) as (engine, served),
        httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client,
    ):
        await listed(client, served, lambda seen: seen["push"]["reason"] == "" and seen["signals"]["pushed_at"] is not None)
        engine.inject([FaultRule("lose_load_reports", after=1_000_000)])
        body = ask(max_tokens=20_000, stream=True, ignore_eos=True)
        asked = [asyncio.create_task(client.post(f"{engine.url}/v1/chat/completions", json=body)) for _ in range(4)]
        seen = await listed(client, served, lambda seen: "silent" in seen["push"]["reason"] and told(seen) == (2, 2))
        assert seen["signals"]["pushed"] == []
        timely(seen["signals_age_s"], 2.0)
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
