"""The request log of a whole gateway: a request is listed, shown with its timeline, seen live, replayed, and erased with its user."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from tests.e2e.test_admin_api import TOKEN, command
from tests.e2e.test_serve import serving
from tests.timing import HANG_S

OWNER = {"authorization": f"Bearer {TOKEN}"}
CHAT = {"model": "sim", "stream": True, "user": "ann", "messages": [{"role": "user", "content": "hello there"}]}


async def listed(client: httpx.AsyncClient, url: str, count: int) -> list[dict[str, object]]:
    """The rows of the list, once there are so many."""
    async with asyncio.timeout(HANG_S):
        while len(rows := (await client.get(url, headers=OWNER)).json()["items"]) < count:
            await asyncio.sleep(0.05)
    return rows


SIM = SimSettings(models=("sim",), speed=100)


@pytest.mark.parametrize(("store", "workers"), [("", 2), ("request_log: {store: 'memory://'}\n", 1)])
async def test_a_request_is_listed_shown_and_seen_live(tmp_path: Path, store: str, workers: int) -> None:
    (tmp_path / "token").write_text(TOKEN)
    more = f"secrets: {{admin_token: {{file: token}}}}\n{store}"
    async with (
        SimEngine(SIM) as engine,
        serving(tmp_path, engine.url, workers=workers, more=more) as served,
        httpx.AsyncClient(timeout=HANG_S, trust_env=False) as client,
    ):
        api = f"{served.admin}/admin/v1/requests"
        seen: list[dict[str, object]] = []

        async def watch() -> None:
            async with client.stream("GET", f"{api}/live?model=sim", headers=OWNER) as reply:
                async for line in reply.aiter_lines():
                    if line.startswith("data: "):
                        seen.extend(json.loads(line[6:])["items"])
                    if len(seen) >= 2:
                        return

        watching = asyncio.create_task(watch())
        await asyncio.sleep(0.2)
        replies = [await client.post(f"{served.url}/v1/chat/completions", json=CHAT, headers=served.headers) for _ in range(2)]
        assert [reply.status_code for reply in replies] == [200, 200]
        async with asyncio.timeout(HANG_S):
            await watching
        rows = await listed(client, api, 2)
        assert {row["request_id"] for row in rows} == {row["request_id"] for row in seen}
        first = rows[0]
        assert (first["outcome"], first["model"], first["status"], first["stream"]) == ("ok", "sim", 200, True)
        one = (await client.get(f"{api}/{first['request_id']}", headers=OWNER)).json()
        assert [step["step"] for step in one["timeline"]][-2:] == ["decode", "delivery"]
        assert sum(step["length_ms"] for step in one["timeline"]) == pytest.approx(one["duration_ms"], abs=0.01)
        assert one["content"] is None
        assert (await client.get(f"{api}/req-00000000-0", headers=OWNER)).status_code == 404
        assert (await client.get(f"{served.admin}{one['explanation']}", headers=OWNER)).status_code == 200
        erased = command(served, "cache", "purge", "--tenant", str(first["tenant"]), "--user", "ann", "--yes")
        assert erased.returncode == 0, erased.stderr
        async with asyncio.timeout(HANG_S):
            while (await client.get(api, headers=OWNER)).json()["items"]:
                await asyncio.sleep(0.05)
