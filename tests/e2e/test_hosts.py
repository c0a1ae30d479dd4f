"""Gateways of two hosts that share a store: each knows what the other sent where; and one that starts again, what it sent before."""

import asyncio
import contextlib
import re
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from tests.replicas import Replica, Tenancy, launch, ready, replicas
from tests.timing import HANG_S, until
from tests.valkey_servers import single_server

pytestmark = pytest.mark.slow

ENGINES = 4
PROMPTS = 8
ROUNDS = 6
POLICY = """
tenant: "*"
models:
  - {name: sim, pool: chat}
expose_headers: true
routing: {policy: predicted_latency, explore_share: 0.0}
"""


async def metrics(replica: Replica) -> str:
    async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
        return (await client.get(f"http://127.0.0.1:{replica.admin_port}/metrics")).text


async def heard(replica: Replica) -> int:
    found = re.search(r'^tidegate_shared_dispatches_total\{result="heard"\} (\d+)', await metrics(replica), re.M)
    return int(found[1]) if found else 0


async def acquainted(made: list[Replica], key: str) -> bool:
    """Send something to each; whether each has heard of another one's requests."""
    for replica in made:
        await replica.ask(key, messages=[{"role": "user", "content": "x" * 1000}])
    return all([await heard(replica) > 0 for replica in made])


async def one_round(made: list[Replica], key: str, went: defaultdict[int, set[str]], number: int) -> None:
    """Send each prompt once; `went` has the engines of each."""
    for prompt in range(PROMPTS):
        text = " ".join(f"word{prompt}-{at}" for at in range(1500))
        messages = [{"role": "system", "content": text}, {"role": "user", "content": f"turn {number}"}]
        reply = await made[(number + prompt) % len(made)].ask(key, messages=messages, max_tokens=2)
        assert reply.status == 200, reply.body
        went[prompt].add(reply.headers["x-tidegate-backend"])


async def engines_per_prompt(made: list[Replica], key: str) -> float:
    """Each prompt is sent once a round, to the gateways in turn. Returns on how many engines a prompt was computed, on average."""
    went: defaultdict[int, set[str]] = defaultdict(set)
    for number in range(ROUNDS):
        await one_round(made, key, went, number)
        await asyncio.sleep(0.2)  # longer than gateways take to tell each other
    return sum(map(len, went.values())) / len(went)


@pytest.mark.req("ROUTERS-17")
async def test_a_prompt_is_computed_on_one_engine_whichever_host_it_comes_to(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    found: dict[bool, float] = {}
    async with contextlib.AsyncExitStack() as stack:
        valkey = stack.enter_context(single_server(tmp_path / "valkey"))
        for share in (True, False):
            engines = [await stack.enter_async_context(SimEngine(SimSettings(models=("sim",), speed=1000))) for _ in range(ENGINES)]
            tenancy = Tenancy(["acme"])
            more = f"routing: {{share_between_hosts: {str(share).lower()}}}\n"
            urls = [engine.url for engine in engines]
            async with replicas(tmp_path / str(share), 2, tenancy, engine=urls, counters=valkey.url, policies=(POLICY,), more=more) as made:
                key = tenancy.keys["acme"]
                while share and not await acquainted(made, key):  # within a second; from then on every dispatch is heard
                    await asyncio.sleep(0.1)
                before = [await heard(replica) for replica in made]
                found[share] = await engines_per_prompt(made, key)
                told = sum([await heard(replica) for replica in made]) - sum(before)
                assert told >= PROMPTS * ROUNDS if share else told == 0
    assert found[True] <= 1.03, found
    record_property(
        "figure", f"engines per prompt over two hosts: {found[True]:.2f}, where they tell each other nothing {found[False]:.2f}"
    )


@pytest.mark.parametrize("killed", [False, True])
async def test_a_gateway_that_starts_again_begins_with_what_it_knew(tmp_path: Path, killed: bool) -> None:
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(SimEngine(SimSettings(models=("sim",), speed=1000))) for _ in range(ENGINES)]
        tenancy = Tenancy(["acme"])
        urls = [engine.url for engine in engines]
        more = "routing: {index_every_s: 1}" if killed else ""
        async with replicas(tmp_path, 1, tenancy, engine=urls, counters="memory://", policies=(POLICY,), more=more) as made:
            went: defaultdict[int, set[str]] = defaultdict(set)
            await one_round(made, tenancy.keys["acme"], went, 0)
            if killed:
                over_at, left = time.time(), made[0].home / "tidegate-index"
                await until(lambda: left.exists() and left.stat().st_mtime > over_at + 0.1)
                made[0].kill()
            else:
                made[0].process.terminate()
            await asyncio.to_thread(made[0].process.wait)
            made[0] = launch(made[0].home)
            await ready(made[0])
            assert "prefix index taken over" in made[0].errors
            await one_round(made, tenancy.keys["acme"], went, 1)
    assert sum(map(len, went.values())) / len(went) <= 1.03
