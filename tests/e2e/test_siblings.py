"""Several workers of one host as processes: each knows where the others sent a prompt, without KV events."""

import asyncio
import contextlib
import signal
from collections import defaultdict
from pathlib import Path

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from gateway.fleet.signals import REST_EVERY_S
from gateway.placement.rest import AT_REST_S
from tests.e2e.test_serve import Served, serving
from tests.time_limit import slowdown
from tests.timing import HANG_S, skip_stalled, until

SETTINGS = """
data: {{{{bind: "127.0.0.1:0"}}}}
admin: {{{{bind: "127.0.0.1:0"}}}}
workers: {{workers}}
drain: {{{{accept_s: {{accept_s}}, grace_s: {{grace_s}}}}}}
routing: {{{{share_dispatches: {share}}}}}
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
expose_headers: true
routing: {policy: predicted_latency, explore_share: 0.0}
"""
WORKERS = 3
ENGINES = 4
PROMPTS = 8
ROUNDS = 6


async def engines_per_prompt(served: Served, went: dict[int, set[str]], rounds: int = ROUNDS) -> float:
    """Each prompt is sent once a round, each time over a new connection, so that the kernel spreads them over the workers; the rounds are
    further apart than workers take to tell each other. Returns on how many engines a prompt was computed, on average."""
    headers = {**served.headers, "connection": "close"}
    async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
        for number in range(rounds):
            for prompt in range(PROMPTS):
                text = " ".join(f"word{prompt}-{at}" for at in range(1500))
                messages = [{"role": "system", "content": text}, {"role": "user", "content": f"turn {number}"}]
                body = {"model": "sim", "messages": messages, "max_tokens": 2, "stream": True}
                reply = await client.post(f"{served.url}/v1/chat/completions", json=body, headers=headers)
                assert reply.status_code == 200, reply.text
                went[prompt].add(reply.headers["x-tidegate-backend"])
            await asyncio.sleep(0.2)
    return sum(map(len, went.values())) / len(went)


async def replaced(served: Served, how: signal.Signals) -> None:
    """Restart every process, one after the other; with SIGUSR2 by a new interpreter."""
    log = served.home / "err.log"
    before = log.read_text().count("every process has been replaced")
    served.process.send_signal(how)
    await until(lambda: log.read_text().count("every process has been replaced") > before)


async def counted(served: Served, sample: str) -> float:
    async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
        text = (await client.get(f"{served.admin}/metrics")).text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(sample))


@pytest.mark.slow
@pytest.mark.req("ROUTERS-17")
async def test_a_prompt_is_computed_on_one_engine_whichever_worker_it_comes_to(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(SimEngine(SimSettings(models=("sim",), speed=1000))) for _ in range(ENGINES)]
        backends = "\n".join(f'      - {{{{id: e{at}, url: "{engine.url}"}}}}' for at, engine in enumerate(engines))
        found = {}
        for share in ("true", "false"):
            settings = SETTINGS.format(share=share, backends=backends)
            async with serving(tmp_path / share, "", workers=WORKERS, settings=settings, policy=POLICY) as served:
                went: dict[int, set[str]] = defaultdict(set)
                found[share] = await engines_per_prompt(served, went)
                heard = await counted(served, 'tidegate_shared_dispatches_total{result="heard"}')
                told = await counted(served, 'tidegate_shared_dispatches_total{result="told"}')
                if share == "true":
                    after_restart = []
                    for how in (signal.SIGHUP, signal.SIGUSR2):
                        await replaced(served, how)
                        after_restart.append(await engines_per_prompt(served, went, rounds=2))
            if share == "true":
                assert told == PROMPTS * ROUNDS
                assert heard == (WORKERS - 1) * told, "every sibling hears every dispatch"
                if "prefix index not taken over" in (served.home / "err.log").read_text() and slowdown() > 2.0:
                    skip_stalled("a worker was not told in time what the others know")
                assert max(after_restart) <= 1.03, "a worker begins with what the others know"
            else:
                assert (told, heard) == (0, 0)
                # so that prompts are new to the second gateway's engines
                async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as direct:
                    for engine in engines:
                        await direct.post(f"{engine.url}/reset_prefix_cache")
    assert found["true"] <= 1.03, found
    assert found["false"] >= 1.5, found


@pytest.mark.slow
async def test_an_engine_is_read_by_one_worker_and_seldom_while_nobody_asks(tmp_path: Path) -> None:
    """Counted in readings for each time in which one worker alone would make one: whatever the machine's speed, four would make four."""
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(SimEngine(SimSettings(models=("sim",), speed=1000))) for _ in range(ENGINES)]
        backends = "\n".join(f'      - {{{{id: e{at}, url: "{engine.url}"}}}}' for at, engine in enumerate(engines))
        settings = SETTINGS.format(share="true", backends=backends)
        async with serving(tmp_path / "home", "", workers=4, settings=settings, policy=POLICY) as served:
            # from the first reading after every worker was at rest: two more of each engine take two of the longest pauses or less
            await asyncio.sleep(AT_REST_S + 2 * REST_EVERY_S)
            at_rest = [engine.metrics_reads for engine in engines]
            await asyncio.sleep(4 * REST_EVERY_S)
            assert max(engine.metrics_reads - before for engine, before in zip(engines, at_rest, strict=True)) <= 8
            went: dict[int, set[str]] = defaultdict(set)
            await engines_per_prompt(served, went, rounds=2)
            asked = [engine.metrics_reads for engine in engines]
            assert min(after - before for after, before in zip(asked, at_rest, strict=True)) > 2, "a request ends the rest"
