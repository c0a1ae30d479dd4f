"""KV events from a simulated engine through a whole gateway: prompts go in, `GET /backends` says what the engine holds."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.simengine import FaultRule, SimEngine, SimSettings
from tests.e2e.test_serve import Served, ask, serving
from tests.timing import HANG_S

KV_TOKENS, BLOCK = 1_024, 16


@asynccontextmanager
async def publishing(home: Path, workers: int = 1, **options: Any) -> AsyncIterator[tuple[SimEngine, Served]]:
    at, replay = f"ipc://{home}/kv", f"ipc://{home}/replay"
    settings = SimSettings(
        models=("sim",), speed=1000, kv_events=at, kv_replay=replay, kv_tokens=KV_TOKENS, block_size=BLOCK, max_model_len=512, **options
    )
    async with SimEngine(settings) as engine:
        events = f', kv_events: {{endpoint: "{at}", replay: "{replay}"}}'
        async with serving(home, engine.url, workers=workers, backend=events) as served:
            yield engine, served


class Caller:
    def __init__(self, client: httpx.AsyncClient, served: Served) -> None:
        self._client = client
        self._served = served

    async def say(self, number: int) -> None:
        text = " ".join(f"{number}seagull{word}" for word in range(40))
        body = ask(messages=[{"role": "user", "content": text}])
        reply = await self._client.post(f"{self._served.url}/v1/chat/completions", json=body, headers=self._served.headers)
        assert reply.status_code == 200, reply.text

    async def until(self, engine: SimEngine, right: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        kv: dict[str, Any] = {}
        try:
            async with asyncio.timeout(HANG_S):
                while True:
                    (listed,) = (await self._client.get(f"{self._served.admin}/backends")).json()["backends"]
                    kv = listed.get("kv") or {}
                    if kv and right(kv):
                        return kv
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError((kv, held(engine))) from None

    async def exact(self, engine: SimEngine, **counted: int) -> dict[str, Any]:
        """Wait until the gateway says that it knows exactly what is true, having counted what must have happened."""
        return await self.until(
            engine,
            lambda kv: (
                kv["trusted"]
                and kv["blocks"] == held(engine)
                and all({**kv, **kv["counts"]}[name] == count for name, count in counted.items())
            ),
        )


def held(engine: SimEngine) -> int:
    return engine.batcher.kv.evictable + engine.batcher.kv.used - engine.batcher.kv.private


@pytest.mark.req("ROUTERS-11")
async def test_what_the_engine_holds_is_known_through_gaps(tmp_path: Path, record_property: Any) -> None:
    async with publishing(tmp_path, kv_buffer=30) as (engine, served), httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
        caller = Caller(client, served)
        await caller.exact(engine)
        for number in range(10):
            await caller.say(number)
        first = await caller.exact(engine)
        assert first["blocks"] > 10
        engine.inject([FaultRule("lose_kv_events", after=4)])
        for number in range(10, 18):
            await caller.say(number)
        await caller.exact(engine, gaps=1, missed=4)
        engine.inject([FaultRule("lose_kv_events", after=40)])
        for number in range(20, 65):
            await caller.say(number)
        lost = await caller.until(engine, lambda kv: "buffer begins" in kv["reason"])
        assert lost["reason"].startswith("gap of 40 batches")
        assert 0 < lost["blocks"] <= held(engine), "what it says is there, and there may be more"
        text = (await client.get(f"{served.admin}/metrics")).text
        assert 'tidegate_backend_kv_events_trusted{backend="e0",pool="chat"} 0.0' in text
        assert 'tidegate_backend_kv_event_gaps_total{backend="e0",pool="chat"} 2.0' in text
        await client.post(f"{engine.url}/reset_prefix_cache")
        for number in range(3):
            await caller.say(number)
        rebuilt = await caller.exact(engine, gaps=2, cleared=1)
        assert rebuilt["counts"]["removed"] > 0, "the cache was small enough to evict"
        record_property("figure", "4 batches lost: replayed, exact; 40 lost of a buffer of 30: said, and exact after a clearing")
    assert "seagull" not in (tmp_path / "err.log").read_text() + (tmp_path / "out.log").read_text(), "no prompt is in a log"


@pytest.mark.slow
@pytest.mark.req("ROUTERS-10")
async def test_a_restarted_engine_holds_what_its_new_process_says_and_every_worker_hears_it(tmp_path: Path) -> None:
    async with publishing(tmp_path, workers=2) as (engine, served), httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
        caller = Caller(client, served)
        for number in range(8):
            await caller.say(number)
        await caller.exact(engine, epoch=0)
        engine.inject([FaultRule("restart_empty_kv")])
        await caller.say(100)
        await caller.exact(engine, epoch=1)
        text = (await client.get(f"{served.admin}/metrics")).text
        assert 'tidegate_backend_kv_events_trusted{backend="e0",pool="chat"} 1.0' in text


@pytest.mark.slow
async def test_a_worker_that_has_nothing_to_hear_does_not_load_zeromq(tmp_path: Path) -> None:
    async with SimEngine(SimSettings(models=("sim",))) as engine, serving(tmp_path, engine.url) as served:
        children = (Path("/proc") / str(served.process.pid) / "task" / str(served.process.pid) / "children").read_text().split()
        assert children
        for child in children:
            assert "libzmq" not in (Path("/proc") / child / "maps").read_text()
