"""openai-python's realtime client, unmodified, against a gateway (`make test-clients`)."""

import asyncio
import json
import os

import pytest

from backends.simengine import SimEngine, SimSettings
from tests.clients.test_clients import HERE, NEWEST, QUIET, WITHIN_S
from tests.gateway_harness import gateway

REALTIME = "openai_realtime"
"""The program of this client, which has no chats."""

pytestmark = pytest.mark.client


async def test_the_official_realtime_client_runs_unmodified() -> None:
    policies = [{"tenant": "*", "models": [{"name": "ears", "pool": "chat"}]}]
    async with SimEngine(SimSettings(models=("sim",), speed=1000)) as engine, gateway(engine.url, policies=policies) as served:
        environment = {
            **{name: value for name, value in os.environ.items() if name in ("HOME", "LANG", "PATH", "TMPDIR")},
            **QUIET,
            "OPENAI_BASE_URL": f"{served.url}/v1",
            "OPENAI_API_KEY": served.keys["acme"],
            "CLIENT_MODEL": "ears",
        }
        command = [str(NEWEST / "bin" / "python"), str(HERE / "run_program.py"), str(HERE / "programs" / f"{REALTIME}.py")]
        child = await asyncio.create_subprocess_exec(
            *command, env=environment, cwd=HERE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            told, complaints = await asyncio.wait_for(child.communicate(), WITHIN_S)
        finally:
            if child.returncode is None:
                child.kill()
        reports = {line["case"]: line for line in map(json.loads, told.decode().splitlines())}
        assert {case: report.get("error") for case, report in reports.items()} == dict.fromkeys(reports), complaints.decode()
        words = {"plain": 3, "stream": 5}
        for case, deltas in words.items():
            seen = reports[case]["value"]
            kinds = ["session.created", *["transcription.delta"] * deltas, "transcription.done"]
            assert [event["type"] for event in seen] == kinds
            assert seen[-1]["text"] == "".join(event["delta"] for event in seen[1:-1])
            assert seen[-1]["usage"]["completion_tokens"] == deltas
        assert "404" in reports["extras"]["value"]
        assert reports["strangers"]["value"] == []
        records = await served.recorded(3)
        assert [record.usage.completion_tokens for record in records] == [3, 5, 0]
