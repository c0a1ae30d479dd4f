"""Profiles of real engines: vLLM on the CPU measured, kept, predicted with and planned with, and set beside llama.cpp."""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from domain.model_revisions import proof_of
from routing.profile import EngineProfile, read_profile, ttft_s
from tests.e2e.test_profiles import first_prediction, planned_with
from tests.engines.processes import Process, engine_home, engine_python, serve_tidegate, start_vllm, stopping, tiny_model
from tests.engines.test_llamacpp import start_llama
from tests.timing import until

pytestmark = pytest.mark.real_engine

SEQUENCES = 4
QUICK = ("--longest", "64", "--sequences", "2", "--minutes", "0.05")


@dataclass
class Bench:
    vllm: Process
    weights: Path
    digest: str
    home: Path


def tidegate(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"COLUMNS": "250", "PATH": "/usr/bin:/bin"})
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    python = engine_python(".venv-vllm", "test-engines")
    with engine_home("vllm-profile") as home:
        weights = tiny_model(python, home) / "model"
        digest = tidegate("model", "digest", str(weights)).stdout.strip()
        names = ("--served-model-name", "tiny-served", f"tiny-served{proof_of(digest)}")
        vllm = start_vllm(python, weights.parent, home, "vllm", "--max-num-seqs", str(SEQUENCES), *names)
        with stopping(vllm):
            vllm.wait_ready()
            yield Bench(vllm, weights, digest, home)


async def test_vllm_is_profiled_and_its_profile_is_predicted_and_planned_with(bench: Bench, record_property: Any) -> None:
    home = bench.home / "gateway"
    settings = str(home / "tidegate.yaml")
    at = ("-c", settings, "--offline")
    pool: dict[str, Any] = {"name": "tiny", "model": "tiny-served", "revision": "v1", "pinned": {"digest": bench.digest}}
    # one engine at two addresses, because a pool with one backend compares nothing
    urls = (bench.vllm.url, bench.vllm.url.replace("127.0.0.1", "localhost"))
    pool["backends"] = [{"id": f"e{number}", "url": url} for number, url in enumerate(urls)]
    printed: list[str] = []

    def profiled() -> None:
        tidegate("model", "register", "tiny-served@v1", str(bench.weights), *at)
        limits = ("--longest", "4096", "--sequences", "8", "--minutes", "0.3")
        done = tidegate("engine", "profile", bench.vllm.url, *limits, "--usd-per-hour", "0.1", "--save", "tiny-served@v1", *at)
        printed.append(done.stdout)

    gateway = serve_tidegate(home, [pool], before=profiled)
    with stopping(gateway):
        tokens, predicted = await first_prediction(gateway, "tiny", "e0", "e1")
    profile: EngineProfile = read_profile(tidegate("model", "profile", "tiny-served@v1", *at).stdout)
    record_property("figure", {"rates": profile.rates, "error_share": profile.error_share, "kv_tokens": profile.kv_tokens})
    _holds_the_laws(profile, bench.vllm, printed[0])
    assert list(predicted.values()) == pytest.approx([ttft_s(profile.prior, tokens)] * 2, rel=0.02)
    (kind,) = planned_with("tiny-served@v1", home)["kinds"]
    assert "measured on tiny-served (vllm)" in kind["timing"]


def _holds_the_laws(profile: EngineProfile, engine: Process, printed: str) -> None:
    """What is true of any engine, however busy the machine: times themselves are not."""
    fitted = sorted((point for point in profile.prompts if not point.held_out), key=lambda point: point.tokens)
    assert fitted[-1].seconds > fitted[0].seconds
    assert ttft_s(profile.prior, 4096) > 2 * ttft_s(profile.prior, 128)
    assert {point.sequences for point in profile.steps} <= {1, 2, SEQUENCES}, "no more than it runs at once"
    # a step that is measured in a burst would be a thousandth of the others
    assert min(point.seconds for point in profile.steps) > max(point.seconds for point in profile.steps) / 100
    info = engine.get("/metrics").text
    blocks, size = (
        int(re.findall(rf'vllm:cache_config_info{{[^}}]*{label}="(\d+)"', info)[0]) for label in ("num_gpu_blocks", "block_size")
    )
    assert profile.kv_tokens == blocks * size
    for point in (point for point in profile.prompts if point.held_out):
        # a factor: the engine has a share of a busy machine
        assert 0.1 < ttft_s(profile.prior, point.tokens) / point.seconds < 10.0
        assert f"first token of a held-out prompt of {point.tokens:,} tokens: predicted" in printed


async def test_a_real_engine_with_requests_is_measured_by_force_only(bench: Bench) -> None:
    over = threading.Event()

    def traffic() -> None:
        body = {"model": "tiny-served", "prompt": "a", "max_tokens": 8000, "ignore_eos": True, "stream": True}
        while not over.is_set():
            with httpx.stream("POST", f"{bench.vllm.url}/v1/completions", json=body, timeout=300, trust_env=False) as reply:
                for _ in reply.iter_raw():
                    if over.is_set():
                        return

    # two callers: when one of them asks anew, the other is answered; the other half of the slots is for the measurement
    threads = [threading.Thread(target=traffic) for _ in range(SEQUENCES - 2)]
    for thread in threads:
        thread.start()
    try:
        await until(lambda: bench.vllm.series("vllm:num_requests_running") == len(threads))
        refused = tidegate("engine", "profile", bench.vllm.url, *QUICK, code=1)
        forced = tidegate("engine", "profile", bench.vllm.url, *QUICK, "--force", "--json")
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert re.search(r"has [1-4] running and \d+ waiting requests: measuring would disturb them", refused.stderr), refused.stderr
    assert json.loads(forced.stdout)["profiles"][0]["prompts"]


def test_vllm_and_llamacpp_stand_side_by_side_with_their_cost(bench: Bench) -> None:
    llama = start_llama(bench.home, "smol", "--parallel", "4")
    with stopping(llama):
        llama.wait_ready()
        engines = (bench.vllm.url, "--compare", llama.url, "--dialect", "vllm", "--dialect", "llamacpp")
        printed = tidegate("engine", "profile", *engines, "--usd-per-hour", "0.1", "--usd-per-hour", "0.2", *QUICK).stdout
    for engine in (f"A: {bench.vllm.url}", f"B: {llama.url}", "tiny-served (vllm)", "smol (llamacpp)"):
        assert engine in printed
    (cost,) = (line for line in printed.splitlines() if "dollars per million tokens, 2 sequences" in line)
    dollars = [float(cell) for cell in cost.split("│")[2:4]]
    assert all(one > 0 for one in dollars), cost
