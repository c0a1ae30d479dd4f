"""Several workers of one host as processes: a breaker that opens in one keeps the others from the engine too."""

import asyncio
import contextlib
import time
from pathlib import Path

import httpx
import pytest

from backends.breaker import JITTER, OPEN_FIRST_S
from backends.simengine import SimEngine, SimSettings
from backends.simengine.faults import FaultRule
from tests.e2e.test_serve import Served, serving
from tests.timing import HANG_S

SETTINGS = """
data: {{{{bind: "127.0.0.1:0"}}}}
admin: {{{{bind: "127.0.0.1:0"}}}}
workers: {{workers}}
drain: {{{{accept_s: {{accept_s}}, grace_s: {{grace_s}}}}}}
pools:
  - name: chat
    model: sim
    backends:
{backends}
"""
POLICY = """
tenant: "*"
models:
  - {name: sim, pool: chat}
routing: least_load
"""
WORKERS = 4
APART_S = 0.06
"""Between requests: longer than workers take to tell each other."""


async def counted(served: Served, sample: str) -> float:
    async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
        text = (await client.get(f"{served.admin}/metrics")).text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(sample))


@pytest.mark.slow
async def test_no_worker_asks_an_engine_whose_breaker_opened_in_another(tmp_path: Path) -> None:
    sim = SimSettings(models=("sim",), speed=1000)
    async with contextlib.AsyncExitStack() as stack:
        bad, good = [await stack.enter_async_context(SimEngine(sim)) for _ in range(2)]
        bad.misbehave([FaultRule("status_500", p=1.0)])
        backends = "\n".join(f'      - {{{{id: e{at}, url: "{engine.url}"}}}}' for at, engine in enumerate((bad, good)))
        settings = SETTINGS.format(backends=backends)
        served = await stack.enter_async_context(serving(tmp_path / "g", "", workers=WORKERS, settings=settings, policy=POLICY))
        client = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=HANG_S))
        headers = {**served.headers, "connection": "close"}  # so that the kernel spreads them over the workers

        async def ask() -> None:
            body = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
            await client.post(f"{served.url}/v1/chat/completions", json=body, headers=headers)
            await asyncio.sleep(APART_S)

        async with asyncio.timeout(HANG_S):
            while not await counted(served, "tidegate_backend_breaker_opens_total"):
                await ask()
        opened = time.monotonic()
        asked = bad.count
        assert asked <= WORKERS * 4 + 1, "each worker has seen four failures at most, and one of them five"
        sent = 0
        while time.monotonic() - opened < OPEN_FIRST_S * (1 - JITTER) - 1.5:
            await ask()
            sent += 1
        assert sent >= WORKERS
        assert bad.count == asked, f"{bad.count - asked} of {sent} requests went to an engine that another worker knew to fail"
        assert await counted(served, "tidegate_backend_breaker_opens_total") == 1, "the host counts one opening"
