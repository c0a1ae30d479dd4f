"""Policies that the database owns, from the command line to the answers of every worker."""

import asyncio
from pathlib import Path

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from tests.e2e.test_serve import POLICY, Served, serving, tidegate
from tests.timing import HANG_S

TOKEN = "a-token-of-more-than-24-characters"
MORE = "secrets: {admin_token: {file: token}}\npolicies_from: database\n"


async def models(served: Served) -> set[str]:
    async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
        headers = {**served.headers, "connection": "close"}
        replies = [await client.get(f"{served.url}/v1/models", headers=headers) for _ in range(8)]
    seen = {frozenset(one["id"] for one in reply.json()["data"]) for reply in replies}
    assert len(seen) == 1, "workers agree"
    return set(seen.pop())


@pytest.mark.slow
async def test_policies_are_applied_listed_and_gone_back_to(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    new, bad, fetched = (tmp_path / name for name in ("new", "bad", "fetched"))
    for folder, text in ((new, POLICY + "  - {name: second, pool: chat}\n"), (bad, POLICY + "  - {name: third, pool: nowhere}\n")):
        folder.mkdir()
        (folder / "default.yaml").write_text(text)

    async def policy(served: Served, *command: str) -> tuple[int, str]:
        given = ("policy", *command, "--admin", served.admin, "--token-file", "token")
        done = await asyncio.to_thread(tidegate, *given, home=tmp_path)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    async with SimEngine(SimSettings(models=("sim",), speed=1000)) as engine:
        async with serving(tmp_path, engine.url, workers=2, more=MORE) as served:
            assert await models(served) == {"sim"}
            (tmp_path / "policies" / "default.yaml").write_text("tenant: nobody reads this any more\n")
            code, said = await policy(served, "apply", str(bad), "--yes")
            assert code == 1
            assert "default.yaml:4:19: models[1].pool: there is no pool 'nowhere'; there are: chat" in said
            code, said = await policy(served, "apply", str(new), "--yes", "--note", "a second model")
            assert (code, "version 2" in said, "in force in 2 workers" in said) == (0, True, True), said
            assert "second" in said, "what changes is told"
            assert await models(served) == {"sim", "second"}
            code, said = await policy(served, "history")
            assert (code, said.index("a second model") < said.index("first start")) == (0, True)
            assert (await policy(served, "rollback", "1"))[0] == 0
            assert await models(served) == {"sim"}
            assert (await policy(served, "fetch", str(fetched), "--version", "2"))[0] == 0
            assert (fetched / "default.yaml").read_text() == (new / "default.yaml").read_text()
