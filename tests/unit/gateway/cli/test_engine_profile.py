"""`tidegate engine profile` on simulated engines: what it keeps, where it refuses, and how two engines stand side by side."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from backends.simengine.faults import FaultRule
from backends.simengine.settings import PRESETS
from gateway.cli import app
from routing.profile import read_profile, step_s, ttft_s
from routing.rates import Rates
from tests.command_line import Commands, Result
from tests.engines.processes import free_port
from tests.timing import until
from tests.unit.gateway.cli.test_models import config, weights

__all__ = ["config", "weights"]

QUICK = ("--longest", "128", "--sequences", "2", "--minutes", "0.05")


def sim(**fields: Any) -> SimEngine:
    return SimEngine(SimSettings(**{"models": ("m",), "speed": 20.0, **fields}))


async def run(*arguments: str, group: str = "engine") -> Result:
    return await asyncio.to_thread(Commands(env={"COLUMNS": "200"}).invoke, app, [group, *arguments])


async def test_two_engines_are_measured_compared_drawn_and_written(tmp_path: Path) -> None:
    async with sim() as first, sim(preset="h100-70b-tp4") as second:
        prices = ("--usd-per-hour", "2", "--usd-per-hour", "8")
        files = ("--out", str(tmp_path / "p.json"), "--plot", str(tmp_path / "p.png"))
        done = await run("profile", first.url, "--compare", second.url, *prices, *files, *QUICK)
    assert done.exit_code == 0, done.output
    profile = read_profile((tmp_path / "p.json").read_bytes())
    assert (profile.engine, profile.served, profile.kv_tokens, profile.usd_per_hour) == ("vllm", "m", PRESETS["h100-8b"].kv_tokens, 2.0)
    assert profile.cold_start_s is None
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert f"A: {first.url}" in done.stdout
    assert f"B: {second.url}" in done.stdout
    assert "dollars per million tokens, 2 sequences" in done.stdout
    assert "450,000 tokens" in done.stdout


async def test_a_second_engine_that_is_not_there_is_told_before_the_first_is_measured(tmp_path: Path) -> None:
    async with sim() as engine:
        done = await run("profile", engine.url, "--compare", "http://127.0.0.1:1", "--out", str(tmp_path / "p.json"), *QUICK)
        assert not engine.received, "nothing was measured"
    assert done.exit_code == 1
    assert "127.0.0.1:1" in done.stderr


async def test_what_was_measured_is_kept_when_the_second_engine_fails(tmp_path: Path) -> None:
    async with sim() as first, sim(faults=(FaultRule("status_500"),)) as second:
        done = await run("profile", first.url, "--compare", second.url, "--usd-per-hour", "2", "--out", str(tmp_path / "p.json"), *QUICK)
    assert done.exit_code == 1
    assert f"{second.url} cannot be measured" in done.stderr
    assert read_profile((tmp_path / "p.json").read_bytes()).served == "m"


async def test_an_engine_with_requests_is_left_alone_unless_forced() -> None:
    async with sim(speed=0.05) as engine, httpx.AsyncClient(timeout=60, verify=False) as client:
        body = {"model": "m", "prompt": "a b c", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        async with client.stream("POST", f"{engine.url}/v1/completions", json=body) as reply:
            lines = reply.aiter_lines()  # kept: a generator that nobody holds closes its stream
            await anext(lines)
            await until(lambda: len(engine.received) == 1)
            refused = await run("profile", engine.url, *QUICK)
    assert refused.exit_code == 1
    assert "1 running and 0 waiting requests: measuring would disturb them" in refused.stderr
    assert "say --force" in refused.stderr


async def test_requests_of_others_during_the_measurement_end_it_unless_forced() -> None:
    async def beside(*more: str) -> Result:
        """A profile, beside which another one runs from the moment it has measured something."""
        before = len(engine.received)
        measuring = asyncio.create_task(run("profile", engine.url, *QUICK, *more))
        await until(lambda: len([one for one in list(engine.received)[before:] if one.body]) > 3 or measuring.done())
        body = {"model": "m", "prompt": "a b c " * 200, "max_tokens": 300, "ignore_eos": True}
        async with httpx.AsyncClient(timeout=60, verify=False) as client:
            assert (await client.post(f"{engine.url}/v1/completions", json=body)).status_code == 200
        return await measuring

    async with sim() as engine:
        refused = await beside()
        forced = await beside("--force")
    assert refused.exit_code == 1
    assert "others asked it meanwhile: it computed" in refused.stderr
    assert "drain it, or say --force" in refused.stderr
    assert forced.exit_code == 0, forced.output


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("http://127.0.0.1:1", "--compare", "vllm-9b"), 2, "'vllm-9b' is no address of an engine"),
        (("nonsense",), 2, "no address of an engine"),
        (("http://127.0.0.1:1",), 1, "127.0.0.1:1"),
        (("http://127.0.0.1:1", "--dialect", "x"), 2, "--dialect 'x' is unknown"),
    ],
)
async def test_what_is_no_engine_is_named(arguments: tuple[str, ...], code: int, words: str) -> None:
    refused = await run("profile", *arguments)
    assert (refused.exit_code, words in refused.stderr) == (code, True), refused.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("--out", "/nowhere/p.json"), "/nowhere/p.json cannot be written"), (("--plot", "p.xyz"), "p.xyz: a plot's name ends in .png")],
)
async def test_a_file_that_cannot_be_written_is_refused_before_the_minutes_of_measuring(arguments: tuple[str, ...], words: str) -> None:
    refused = await run("profile", "http://127.0.0.1:1", *arguments)
    assert (refused.exit_code, words in refused.stderr) == (2, True), refused.stderr


async def test_a_profile_is_kept_only_with_the_revision_that_the_engine_proves(config: str, weights: Path, tmp_path: Path) -> None:
    at = ("-c", config, "--offline")
    assert (await run("register", "tide-8b@v1", str(weights), *at, group="model")).exit_code == 0
    shown = json.loads((await run("show", "tide-8b@v1", "--json", *at, group="model")).stdout)
    async with sim() as plain:
        refused = await run("profile", plain.url, "--save", "tide-8b@v1", *QUICK, *at)
        unproven = await run("check", plain.url, "--revision", "tide-8b@v1", *at)
    assert refused.exit_code == 1
    assert "does not prove revision tide-8b@v1" in refused.stderr
    assert unproven.exit_code == 1
    assert "WRONG" in unproven.stdout
    assert "does not prove revision tide-8b@v1" in unproven.stdout
    async with sim(models=("tide-8b", f"tide-8b{shown['proof']}")) as proves:
        proven = json.loads((await run("check", proves.url, "--revision", "tide-8b@v1", "--json", *at)).stdout)
        kept = await run("profile", proves.url, "--save", "tide-8b@v1", *QUICK, *at)
    assert kept.exit_code == 0, kept.output
    assert "kept with tide-8b@v1" in kept.stdout
    assert ("revision", "ok") in [(one["what"], one["state"]) for one in proven["engines"][0]["findings"]]
    printed = await run("profile", "tide-8b@v1", *at, group="model")
    assert read_profile(printed.stdout).served == "tide-8b"
    assert "no revision tide-8b@v9" in (await run("profile", proves.url, "--save", "tide-8b@v9", *at)).stderr


STARTED = """#!{python}
import itertools, os, sys
flags = sys.argv
names = itertools.takewhile(lambda flag: not flag.startswith("--"), flags[flags.index("--served-model-name") + 1 :])
models = [text for name in names for text in ("--model", name)]
os.execv("{python}", ["{python}", "-m", "backends.simengine", "--port", flags[flags.index("--port") + 1], "--speed", "20", *models])
"""
"""A program `vllm` that is a simulated engine."""


async def test_a_launch_configuration_is_started_on_the_revision_that_the_profile_is_kept_with(
    config: str, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "vllm").write_text(STARTED.format(python=sys.executable))
    (tmp_path / "bin" / "vllm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    at = ("-c", config, "--offline")
    assert (await run("register", "tide-8b@v1", str(weights), *at, group="model")).exit_code == 0
    done = await run("profile", "vllm-cpu-test", "--set", f"port={free_port()}", "--save", "tide-8b@v1", *QUICK, *at)
    assert done.exit_code == 0, done.output
    kept = read_profile((await run("profile", "tide-8b@v1", *at, group="model")).stdout)
    assert kept.served == "tide-8b"
    assert kept.cold_start_s is not None
    assert kept.cold_start_s > 0
    (weights / "config.json").write_text("{}")
    refused = await run("profile", "vllm-cpu-test", "--save", "tide-8b@v1", *QUICK, *at)
    assert refused.exit_code == 1
    assert "the engine is not started: " in refused.stderr


@pytest.mark.slow
async def test_the_speed_of_a_simulated_engine_is_found_within_a_fifth(tmp_path: Path) -> None:
    """Ten times slower than its preset, so that what this machine adds to each time is small."""
    timing = PRESETS["h100-8b"]
    truth = Rates(*(constant / 1e3 / 0.1 for constant in (timing.c0, timing.c1, timing.c1a, timing.c0, timing.c2, timing.c3)))
    async with sim(speed=0.1) as engine:
        limits = ("--longest", "2048", "--sequences", "4", "--minutes", "2")
        done = await run("profile", engine.url, "--out", str(tmp_path / "p.json"), *limits)
    assert done.exit_code == 0, done.output
    profile = read_profile((tmp_path / "p.json").read_bytes())
    for length in (128, 600, 2048):
        assert ttft_s(profile.prior, length) == pytest.approx(ttft_s(truth, length), rel=0.2)
    for sequences in (1, 4):
        assert step_s(profile.prior, sequences, sequences * 500) == pytest.approx(step_s(truth, sequences, sequences * 500), rel=0.2)
    assert profile.error_share < 0.2
