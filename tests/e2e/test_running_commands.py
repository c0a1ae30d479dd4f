"""`tidegate status`, `reload` and `stop` against a gateway of two workers, in the folder of its settings, as an operator types them."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from tests.e2e.test_serve import SETTINGS, ask, serving, tidegate
from tests.timing import HANG_S
from tests.valkey_servers import free_port

TOKEN = "an-admin-token-of-32-characters!"


@pytest.mark.slow
async def test_a_gateway_is_looked_at_reloaded_and_stopped_by_command(tmp_path: Path) -> None:
    settings = SETTINGS.replace('admin: {{bind: "127.0.0.1:0"}}', f'admin: {{{{bind: "127.0.0.1:{free_port()}"}}}}')
    (tmp_path / "token").write_text(TOKEN)

    async def run(*arguments: str, code: int = 0) -> str:
        done = await asyncio.to_thread(tidegate, *arguments, home=tmp_path)
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        return done.stdout

    async with (
        SimEngine(SimSettings(models=("sim",), speed=1000)) as engine,
        serving(tmp_path, engine.url, workers=2, settings=settings, more="secrets: {admin_token: {file: token}}\n") as served,
        httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client,
    ):
        before = json.loads(await run("status", "--json"))
        assert (before["ready"], before["workers"], before["gateway"]["pid"]) == (True, {"expected": 2, "answered": 2}, served.process.pid)
        assert [(pool["pool"], pool["up"]) for pool in before["pools"]] == [("chat", 1)]
        said = await run("reload")
        assert "every process has been replaced: admin, worker-0, worker-1" in said
        after = json.loads(await run("status", "--json"))
        assert {worker["pid"] for worker in before["gateway"]["workers"]}.isdisjoint(
            worker["pid"] for worker in after["gateway"]["workers"]
        )
        assert after["gateway"]["pid"] == served.process.pid
        reply = await client.post(f"{served.url}/v1/chat/completions", json=ask(), headers=served.headers)
        assert reply.status_code == 200

        # a key that is made while the gateway runs goes over its API, and is in its audit
        made = json.loads(await run("key", "create", "--tenant", "acme", "--json"))
        actors = [row["actor"] for row in json.loads(await run("audit", "list", "--json"))]
        assert actors[:2] == ["bootstrap", "bootstrap"], "the key, after the reload"
        assert actors[-1] == "command line", "what was made before the gateway ran"
        assert made["tenant"] == "acme"

        assert "stopped" in await run("stop", "--yes")
        assert await asyncio.to_thread(served.process.wait, 20) == 0
        assert "no gateway answers" in (await asyncio.to_thread(tidegate, "status", home=tmp_path)).stderr
