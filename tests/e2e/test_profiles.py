"""The profile of an engine from its measurement to what uses it: the registry, the first prediction of a started gateway, and a plan."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from backends.simengine import SimEngine, SimSettings
from domain.model_revisions import proof_of
from gateway.cli import app
from routing.profile import EngineProfile, read_profile, ttft_s
from routing.rates import UNKNOWN_RATES
from tests.command_line import Commands
from tests.engines.processes import Tidegate, serve_tidegate, stopping
from tests.timing import until
from tests.unit.backends.launch.test_weights_digest import CONFIG, safetensors

PROMPT = "the harbour wall near the old town " * 200


def tidegate(*arguments: str) -> str:
    done = Commands(env={"COLUMNS": "250"}).invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.stdout


async def first_prediction(gateway: Tidegate, pool: str, *backends: str) -> tuple[int, dict[str, float]]:
    """The tokens of the prompt of a pool's first request, and the seconds that its computation is predicted to take on each backend:
    before any traffic, from which the gateway could have learnt."""
    for backend in backends:
        await until(lambda name=backend: gateway.backend(name)["state"] == "up")  # type: ignore[misc]
    async with gateway.client() as client:
        body = {"model": f"{pool}-model", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 1}
        reply = await client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    terms = re.findall(r"([\w-]+) \([^)]*prefill_s=([\d.e-]+)", reply.headers["x-tidegate-reason"])
    (tokens,) = re.findall(r"held=0/(\d+)", reply.headers["x-tidegate-decision"])
    assert {name for name, _ in terms} == set(backends)
    return int(tokens), {name: float(seconds) for name, seconds in terms}


def planned_with(profile: str, home: Path) -> dict[str, Any]:
    """What `tidegate plan` finds with a profile in place of a class of machine."""
    (home / "fleet.yaml").write_text("engines:\n  - machine: h100-8b\n")
    fleet = ("--trace", "chat", "--limit", "50", "--fleet", str(home / "fleet.yaml"), "--profile", profile)
    slo = ("--ttft-s", "5", "--tpot-ms", "500", "--seeds", "1")
    return dict(json.loads(tidegate("plan", *fleet, *slo, "--json", "-c", str(home / "tidegate.yaml"), "--offline")))


async def test_a_profile_of_the_registry_is_the_first_prediction_and_plans(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "config.json").write_text(json.dumps(CONFIG))
    (weights / "model.safetensors").write_bytes(safetensors())
    digest = (await asyncio.to_thread(tidegate, "model", "digest", str(weights))).strip()
    quick = SimSettings(models=("tide-8b", f"tide-8b{proof_of(digest)}"), speed=20.0)
    async with SimEngine(quick) as one, SimEngine(quick) as other:
        pinned: dict[str, Any] = {"name": "tide", "model": "tide-8b", "revision": "v1", "pinned": {"digest": digest}}
        pools = [
            {**pool, "backends": [{"id": f"{pool['name']}-{number}", "url": engine.url} for number, engine in enumerate((one, other))]}
            for pool in (pinned, {"name": "plain", "model": "tide-8b"})
        ]
        home = tmp_path / "gateway"
        at = ("-c", str(home / "tidegate.yaml"), "--offline")

        def profiled() -> None:
            tidegate("model", "register", "tide-8b@v1", str(weights), *at)
            limits = ("--longest", "512", "--sequences", "1", "--minutes", "0.05")
            tidegate("engine", "profile", one.url, *limits, "--usd-per-hour", "2.5", "--save", "tide-8b@v1", *at)

        gateway = await asyncio.to_thread(serve_tidegate, home, pools, before=profiled)
        with stopping(gateway):
            tokens, predicted = await first_prediction(gateway, "tide", "tide-0", "tide-1")
            plain_tokens, assumed = await first_prediction(gateway, "plain", "plain-0", "plain-1")
    profile: EngineProfile = read_profile(await asyncio.to_thread(tidegate, "model", "profile", "tide-8b@v1", *at))
    assert list(predicted.values()) == pytest.approx([ttft_s(profile.prior, tokens)] * 2, rel=0.02)
    assert list(assumed.values()) == pytest.approx([ttft_s(UNKNOWN_RATES, plain_tokens)] * 2, rel=0.02), "without a profile"
    (kind,) = (await asyncio.to_thread(planned_with, "tide-8b@v1", home))["kinds"]
    assert "measured on tide-8b (vllm)" in kind["timing"]
    assert kind["usd_engine_hour"] == 2.5
