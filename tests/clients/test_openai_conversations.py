"""The Conversations API of the official openai client, as it is installed for users, against a gateway that keeps conversations."""

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from backends.simengine import SimEngine, SimSettings
from tenancy.responses import ResponseSealer
from tenancy.stores.sql import SqlConversations, SqlResponses, open_engine
from tests.clients.test_clients import HERE, NEWEST, QUIET, WITHIN_S
from tests.databases import migrated_file
from tests.gateway_harness import PEPPER, gateway

pytestmark = pytest.mark.client

CONVERSATIONS = "openai_conversations"


async def _ran(folder: Path) -> dict[str, Any]:
    """What the program reports, by case."""
    await migrated_file(folder / "store.db")
    database = open_engine(f"sqlite:///{folder / 'store.db'}")
    sealer = ResponseSealer([PEPPER], os.urandom)
    stores = {"responses": SqlResponses(database, sealer, time.time), "conversations": SqlConversations(database, sealer, time.time)}
    policy = {"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], "responses": {}}
    try:
        async with (
            SimEngine(SimSettings(models=("sim",), speed=1000)) as engine,
            gateway(engine.url, policies=(policy,), **stores) as served,
        ):
            environment = {
                **{name: value for name, value in os.environ.items() if name in ("HOME", "LANG", "PATH", "TMPDIR")},
                **QUIET,
                "OPENAI_BASE_URL": f"{served.url}/v1",
                "OPENAI_API_KEY": served.keys["acme"],
                "CLIENT_MODEL": "sim",
            }
            command = [str(NEWEST / "bin" / "python"), str(HERE / "run_program.py"), str(HERE / "programs" / f"{CONVERSATIONS}.py")]
            child = await asyncio.create_subprocess_exec(*command, env=environment, cwd=HERE, stdout=asyncio.subprocess.PIPE)
            try:
                told, _ = await asyncio.wait_for(child.communicate(), WITHIN_S)
            finally:
                if child.returncode is None:
                    child.kill()
    finally:
        await database.dispose()
    return {line["case"]: line for line in map(json.loads, told.decode().splitlines())}


async def test_the_official_client_keeps_a_conversation(tmp_path: Path) -> None:
    ran = await _ran(tmp_path)
    assert {case: line["error"] for case, line in ran.items() if "error" in line} == {}
    assert ran["strangers"]["value"] == []
    plain, stream, extras = (ran[case]["value"] for case in ("plain", "stream", "extras"))
    assert plain["items"] == plain["texts"]
    assert len(set(plain["texts"])) == 6
    assert stream["newest"] == stream["text"] != ""
    assert extras == {
        "metadata": [{"topic": "tides"}, {"topic": "ebb"}, {"topic": "ebb"}],
        "one": "function_call_output",
        "same": True,
        "left": ["message", "function_call"],
        "deleted": True,
    }
