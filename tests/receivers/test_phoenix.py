"""A real receiver: what Arize Phoenix shows of a real gateway's requests (`make test-receivers`).

`tidegate serve` with two simulated engines sends its traces over OTLP; they are read back by Phoenix's own API, as its pages read them.
"""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.simengine import FaultRule, SimEngine, SimSettings
from tests.e2e.test_serve import ask, serving
from tests.engines.processes import ROOT, Process, engine_home, free_port, start, stopping
from tests.timing import HANG_S, until

pytestmark = pytest.mark.client

PHOENIX = ROOT / ".venv-phoenix"
SIM = SimSettings(models=("sim",), speed=1000)
PROJECT = "tidegate-test"
STEPS = {"authenticate", "interpret", "look_ahead", "admit", "look_up", "choose", "forward", "settle"}
SERVED = "POST /v1/chat/completions"


@pytest.fixture(scope="module")
def phoenix() -> Iterator[Process]:
    assert (PHOENIX / ".made").exists(), f"{PHOENIX.name} is not there or not complete; run `make test-receivers`"
    with engine_home("phoenix") as home:
        port = free_port()
        settings = {
            "PHOENIX_WORKING_DIR": str(home),
            "PHOENIX_HOST": "127.0.0.1",
            "PHOENIX_PORT": str(port),
            "PHOENIX_GRPC_PORT": str(free_port()),
            "PHOENIX_TELEMETRY_ENABLED": "false",
        }
        process = start("phoenix", [str(PHOENIX / "bin/phoenix"), "serve"], home, url=f"http://127.0.0.1:{port}", **settings)
        with stopping(process):
            process.wait_ready("/healthz")
            yield process


def shown(phoenix: Process, trace_id: str) -> list[dict[str, Any]]:
    """The spans of a trace that Phoenix has; none while it does not know the project."""
    reply = phoenix.get(f"/v1/projects/{PROJECT}/spans?limit=1000&trace_id={trace_id}")
    return [] if reply.status_code == 404 else list(reply.raise_for_status().json()["data"])


async def test_phoenix_shows_plain_streamed_retried_and_failed_requests(phoenix: Process, tmp_path: Path) -> None:
    async with SimEngine(SIM) as engine, SimEngine(SIM) as other:
        settings = {
            "data": {"bind": "127.0.0.1:0"},
            "admin": {"bind": "127.0.0.1:0"},
            "drain": {"accept_s": 0.0, "grace_s": 5.0},
            "pools": [{"name": "chat", "model": "sim", "backends": [{"id": "e0", "url": engine.url}, {"id": "e1", "url": other.url}]}],
            "traces": {
                "ratio": 1.0,
                "resource": {"openinference.project.name": PROJECT},
                "exporters": {"phoenix": {"endpoint": f"{phoenix.url}/v1/traces"}},
            },
        }
        written = json.dumps(settings).replace("{", "{{").replace("}", "}}")
        async with serving(tmp_path, engine.url, settings=written) as served, httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:

            async def asked(trace_id: str, **fields: object) -> int:
                headers = {**served.headers, "traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"}
                reply = await client.post(f"{served.url}/v1/chat/completions", json=ask(**fields), headers=headers)
                return reply.status_code

            plain, streamed, retried, failed = (f"{at:032x}" for at in range(0xA1, 0xA5))
            assert await asked(plain) == 200
            assert await asked(streamed, stream=True) == 200
            for one in (engine, other):
                one.misbehave([FaultRule("reset_before_headers", first=1)])
            statuses = [await asked(retried)]
            for one in (engine, other):
                one.misbehave([FaultRule("status_500")])
            statuses.append(await asked(failed))
            await until(lambda: len(shown(phoenix, failed)) > 0)
    print(statuses)
    for t in (plain, streamed, retried, failed):
        print(json.dumps(shown(phoenix, t), indent=1))
    assert 0
