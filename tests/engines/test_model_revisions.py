"""The registry's digest and profile on a real engine: SmolLM2 in llama.cpp, under a name that proves its file."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from domain.model_revisions import Pinned, proof_of
from routing.profile import read_profile, ttft_s
from tests.engines.processes import engine_home, stopping
from tests.engines.test_llamacpp import start_llama, weights

pytestmark = pytest.mark.real_engine


def tidegate(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "gateway", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_real_engine_proves_its_weights_and_is_profiled(tmp_path: Path, record_property: Any) -> None:
    said = json.loads(tidegate("model", "digest", weights(), "--json"))
    assert (said["architecture"], said["precision"], said["context"]) == ("llama", "q4_1", 8192)
    served = f"smol{proof_of(said['digest'])}"
    with engine_home("llamacpp-profile") as home:
        engine = start_llama(home, served, "--parallel", "4")
        with stopping(engine):
            engine.wait_ready()
            listed = [model["id"] for model in engine.get("/v1/models").json()["data"]]
            assert Pinned("smol@v1", said["digest"]).unproven(listed) == ""
            options = ("--dialect", "llamacpp", "--longest", "128", "--sequences", "2", "--minutes", "0.5")
            tidegate("engine", "profile", engine.url, *options, "--out", str(tmp_path / "p.json"))
    profile = read_profile((tmp_path / "p.json").read_bytes())
    held = [point for point in profile.prompts if point.held_out]
    record_property("figure", {"rates": profile.rates, "error_share": profile.error_share})
    for point in held:
        # a factor: the engine has a share of a busy machine
        assert 0.5 < ttft_s(profile.prior, point.tokens) / point.seconds < 2.0
