"""Kept answers as the admin port shows them: the real admin process asks real workers."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from tests.e2e.test_serve import POLICY, ask, serving, tidegate
from tests.timing import HANG_S

TOKEN_FROM = "secrets: {admin_token: {env: TIDEGATE_ADMIN_TOKEN}}\n"


@pytest.mark.slow
async def test_what_workers_keep_is_listed_and_purged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_ADMIN_TOKEN", "t" * 43)

    async def listed() -> list[dict[str, object]]:
        command = ("cache", "list", "--tenant", "acme", "--json", "--admin", served.admin)
        shown = await asyncio.to_thread(tidegate, *command, home=tmp_path)
        assert shown.returncode == 0, shown.stderr
        found: list[dict[str, object]] = json.loads(shown.stdout)
        return found

    async with (
        SimEngine(SimSettings(models=("sim",), speed=1000)) as engine,
        serving(tmp_path, engine.url, workers=2, more=TOKEN_FROM, policy=POLICY + "cache: {}\n") as served,
    ):
        async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
            sent = ask(temperature=0, max_tokens=4000)
            reply = await client.post(f"{served.url}/v1/chat/completions", json=sent, headers=served.headers)
            assert reply.status_code == 200, reply.text
            assert [(one["model"], len(str(one["key"]))) for one in await listed()] == [("sim", 64)], reply.text
            assert 'tidegate_cache_lookups_total{result="miss",tenant="acme"} 1.0' in (await client.get(f"{served.admin}/metrics")).text
        await asyncio.to_thread(tidegate, "cache", "purge", "--tenant", "acme", "--yes", "--admin", served.admin, home=tmp_path)
        while await listed():
            await asyncio.sleep(0.2)
