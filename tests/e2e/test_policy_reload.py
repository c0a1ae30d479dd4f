"""Policies change under load: what is written comes into force in every worker, what is broken does not, and no request is lost."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from tests.e2e.test_serve import POLICY, Served, ask, serving, tidegate
from tests.timing import HANG_S, until

TOKEN = "a-token-of-more-than-24-characters"


@contextlib.asynccontextmanager
async def callers(served: Served) -> AsyncIterator[Counter[int]]:
    """Eight that ask all the time, a new connection for every request; the statuses they saw."""
    seen: Counter[int] = Counter()
    stop = asyncio.Event()

    async def one() -> None:
        headers = {**served.headers, "connection": "close"}
        async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
            while not stop.is_set():
                seen[(await client.post(f"{served.url}/v1/chat/completions", json=ask(), headers=headers)).status_code] += 1
                await asyncio.sleep(0.01)

    tasks = [asyncio.create_task(one()) for _ in range(8)]
    try:
        yield seen
    finally:
        stop.set()
        await asyncio.gather(*tasks)


async def models(served: Served) -> set[str]:
    """Those that every one of 12 new connections sees, over both workers."""
    async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
        headers = {**served.headers, "connection": "close"}
        replies = [await client.get(f"{served.url}/v1/models", headers=headers) for _ in range(12)]
    return set.intersection(*({one["id"] for one in reply.json()["data"]} for reply in replies))


async def gauge(served: Served, name: str) -> float:
    async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
        text = (await client.get(f"{served.admin}/metrics")).text
    return next(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f"{name} "))


@pytest.mark.slow
async def test_policies_change_under_load_and_no_request_is_lost(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    secret = "secrets: {admin_token: {file: token}}\n"
    file = tmp_path / "policies" / "default.yaml"

    async def reload(served: Served) -> tuple[int, str]:
        command = ("policy", "reload", "--admin", served.admin, "--token-file", "token")
        done = await asyncio.to_thread(tidegate, *command, home=tmp_path)
        return done.returncode, done.stdout + done.stderr

    async with (
        SimEngine(SimSettings(models=("sim",), speed=1000)) as engine,
        serving(tmp_path, engine.url, workers=2, more=secret) as served,
    ):
        async with callers(served) as seen:
            await until(lambda: seen[200])
            file.write_text(POLICY + "  - {name: second, pool: chat}\n")
            async with asyncio.timeout(HANG_S):
                while await models(served) != {"sim", "second"}:
                    await asyncio.sleep(0.1)
            file.write_text(POLICY + "  - {name: third, pool: nowhere}\n")
            code, said = await reload(served)
            assert code == 1
            assert "default.yaml:4:19: models[1].pool: there is no pool 'nowhere'; there are: chat" in " ".join(said.split())
            assert await gauge(served, "tidegate_policies_refused") == 1
            assert await models(served) == {"sim", "second"}
            answered = seen[200]
            await until(lambda: seen[200] > answered + 20)  # those that began before the change are over
            file.write_text(POLICY + "  - {name: third, pool: chat}\n")
            code, said = await reload(served)
            assert (code, "in force in 2 workers" in said) == (0, True)
            assert await models(served) == {"sim", "third"}
            assert await gauge(served, "tidegate_policies_refused") == 0
            answered = seen[200]
            await until(lambda: seen[200] > answered + 20)
    assert set(seen) == {200}
    assert seen[200] > 20
    digests = {line.get("policy") for line in served.log_lines() if line.get("endpoint") == "/v1/chat/completions"}
    assert len(digests) == 3
