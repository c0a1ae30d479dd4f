"""`tidegate backend create|drain|resume|delete` against a gateway of two workers, as an operator types them."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from tests.e2e.test_serve import SETTINGS, Served, ask, serving
from tests.timing import HANG_S, timely

TOKEN = "an-admin-token-of-32-characters!"
SIM = SimSettings(models=("sim",), speed=1000)


def backend(served: Served, *arguments: str, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway", "backend", *arguments, "--admin", served.admin],
        cwd=served.home,
        env={**os.environ, "TIDEGATE_ADMIN_TOKEN": token, "COLUMNS": "240"},
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )


async def shown(client: httpx.AsyncClient, served: Served) -> dict[str, dict[str, object]]:
    return {b["backend"]: b for b in (await client.get(f"{served.admin}/backends")).json()["backends"]}


async def until(client: httpx.AsyncClient, served: Served, backend_id: str, state: str | None, within_s: float = HANG_S) -> float:
    begun = time.monotonic()
    async with asyncio.timeout(within_s):
        while (await shown(client, served)).get(backend_id, {}).get("state") != state:
            await asyncio.sleep(0.05)
    return time.monotonic() - begun


async def refusing(client: httpx.AsyncClient, served: Served) -> None:
    """Wait until no worker has a backend left: the list shows the most cautious one, and each hears of drains by itself."""
    refused = 0
    async with asyncio.timeout(HANG_S):
        while refused < 12:
            headers = {**served.headers, "connection": "close"}
            reply = await client.post(f"{served.url}/v1/chat/completions", json=ask(), headers=headers)
            refused = refused + 1 if reply.status_code == 503 else 0
    assert reply.json()["error"]["code"] == "no_backend"


@pytest.mark.slow
async def test_created_drained_resumed_and_deleted_by_command(tmp_path: Path) -> None:
    settings = SETTINGS + "secrets: {{admin_token: {{file: token}}}}\n"
    (tmp_path / "token").write_text(TOKEN)
    async with (
        SimEngine(SIM) as first,
        SimEngine(SIM) as second,
        serving(tmp_path, first.url, workers=2, settings=settings) as served,
        httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client,
    ):
        run = asyncio.to_thread
        added = await run(backend, served, "create", "extra", second.url, "--pool", "chat")
        assert added.returncode == 0, added.stderr
        timely(await until(client, served, "extra", "up"), 5.0)
        listed = await run(backend, served, "list")
        row = next(line for line in listed.stdout.splitlines() if "│ extra" in line)
        assert [cell.strip() for cell in row.split("│")[1:6]] == ["extra", "chat", "up", "1", "registered"]
        for _ in range(20):
            reply = await client.post(f"{served.url}/v1/chat/completions", json=ask(), headers={**served.headers, "connection": "close"})
            assert reply.status_code == 200
        assert second.counters.finished > 0

        drained = await run(backend, served, "drain", "extra", "--grace", "5s")
        assert "Every gateway on this database drains it" in drained.stdout, drained.stderr
        await until(client, served, "extra", "draining")
        drained = await run(backend, served, "drain", "e0")
        assert "until it is resumed or the gateway is restarted" in drained.stdout, drained.stderr
        await until(client, served, "e0", "draining")
        await refusing(client, served)
        assert (await run(backend, served, "resume", "e0")).returncode == 0
        await until(client, served, "e0", "up")

        refused = await run(backend, served, "delete", "e0", "--yes")
        assert refused.returncode == 1
        assert "belongs to tidegate.yaml; take it out there" in refused.stderr
        assert (await run(backend, served, "delete", "extra", "--yes")).returncode == 0
        await until(client, served, "extra", None)
        own = await run(backend, served, "create", "loop", served.url, "--pool", "chat")
        assert "is this gateway itself" in own.stderr
        wrong = await run(backend, served, "create", "x", second.url, "--pool", "chat", token="not-the-token-of-this-gateway")
        assert "admin token is missing or wrong" in wrong.stderr
        log = (tmp_path / "err.log").read_text()
        for said in ("backend.register", "backend.drain", "backend.resume", "backend.remove", "refused: no valid admin token"):
            assert said in log
        assert TOKEN not in log


async def test_without_a_token_nothing_can_be_changed_and_how_to_is_said(tmp_path: Path) -> None:
    async with SimEngine(SIM) as engine, serving(tmp_path, engine.url) as served:
        refused = await asyncio.to_thread(backend, served, "drain", "e0")
    assert refused.returncode == 1
    assert "set secrets.admin_token" in refused.stderr
