"""The kinds of engines of a plan: speeds of profiles from files and from the registry, limits and GPUs of launch configurations."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import app
from routing.profile import EngineProfile, PromptPoint, StepPoint, profile_text
from tests.command_line import Commands, Result
from tests.unit.gateway.cli.test_models import config, weights

__all__ = ["config", "weights"]

RUNNER = Commands(env={"COLUMNS": "200"})
RATES = {
    **{"prefill_s": 0.006, "prefill_s_token": 2e-5, "prefill_s_token_ctx": 1e-9},
    **{"step_s": 0.006, "step_s_seq": 2e-5, "step_s_token": 5e-8},
}


def profile(**fields: Any) -> EngineProfile:
    known = {"engine": "vllm", "served": "tide-8b", "measured_unix": 1_750_000_000.0, "rates": RATES, "kv_tokens": 400_000}
    return EngineProfile(**{**known, "error_share": 0.04, **fields}, prompts=[PromptPoint(100, 0.01)], steps=[StepPoint(1, 100.0, 0.006)])


@pytest.fixture(name="fleet")
def _fleet(tmp_path: Path) -> Path:
    (tmp_path / "fleet.yaml").write_text("engines:\n  - {machine: h100-8b}\n")
    return tmp_path / "fleet.yaml"


def plan(fleet: Path, *more: str) -> Result:
    asked = ["plan", "--trace", "no-sharing", "--limit", "60", "--ttft-s", "1", "--tpot-ms", "50", "--seeds", "1", "--fleet", str(fleet)]
    return RUNNER.invoke(app, [*asked, *more])


def kinds(fleet: Path, *more: str) -> list[dict[str, Any]]:
    done = plan(fleet, "--json", *more)
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)["kinds"]
    return found


def saved(path: Path, **fields: Any) -> str:
    path.write_text(profile_text(profile(**fields)))
    return str(path)


def test_profiles_replace_the_speed_and_bring_their_price(fleet: Path, tmp_path: Path) -> None:
    slow = {name: rate * 3 for name, rate in RATES.items()}
    files = (saved(tmp_path / "a.json", usd_per_hour=2.0), saved(tmp_path / "b.json", rates=slow, usd_per_hour=1.0))
    first, second = kinds(fleet, "--profile", files[0], "--profile", files[1])
    assert (first["kind"], first["usd_engine_hour"], second["kind"], second["usd_engine_hour"]) == ("a", 2.0, "b", 1.0)
    assert first["timing"] == "measured on tide-8b (vllm), 2025-06-15; error on held-out prompts 4.0%"
    assert second["least"] > first["least"]
    priced = kinds(fleet, "--profile", files[0], "--gpu-hour-usd", "7")
    assert priced[0]["usd_engine_hour"] == 7.0


def test_prompts_beyond_the_measured_ones_are_noted(fleet: Path, tmp_path: Path) -> None:
    done = plan(fleet, "--profile", saved(tmp_path / "a.json"))
    assert "note: a: 60 of 60 prompts are longer than the 100 tokens that were measured, so their time is extrapolated" in done.stdout
    assert "extrapolated" not in plan(fleet).stdout


def test_a_launch_configuration_has_the_limits_and_the_gpus(fleet: Path) -> None:
    (kind,) = kinds(fleet, "--launch", "vllm-70b-tp4", "--gpu-hour-usd", "2")
    assert (kind["launch"], kind["gpus_each"], kind["usd_engine_hour"]) == ("vllm-70b-tp4", 4, 8.0)
    assert kind["cost"]["gpus"] == 4 * kind["least"]


def test_a_class_over_four_gpus_counts_four(tmp_path: Path) -> None:
    (tmp_path / "four.yaml").write_text("engines:\n  - {machine: h100-70b-tp4}\n")
    assert kinds(tmp_path / "four.yaml")[0]["gpus_each"] == 4


def test_factors_of_the_fleet_file_are_told(tmp_path: Path) -> None:
    (tmp_path / "slow.yaml").write_text("engines:\n  - {machine: h100-8b, prefill_slower: 1.6}\n")
    assert kinds(tmp_path / "slow.yaml")[0]["timing"].endswith("prefill_slower 1.6")


def test_a_revision_of_the_registry_has_profile_and_launch_configuration(config: str, weights: Path, fleet: Path, tmp_path: Path) -> None:
    at = ("-c", config, "--offline")
    registered = RUNNER.invoke(app, ["model", "register", "tide-8b@v1", str(weights), "--launch", "vllm-8b", *at])
    assert registered.exit_code == 0, registered.output
    none = plan(fleet, "--profile", "tide-8b@v1", *at)
    assert (none.exit_code, "tide-8b@v1 has no profile; `tidegate engine profile URL --save" in none.output) == (2, True)
    with_profile(config, profile())
    (kind,) = kinds(fleet, "--profile", "tide-8b@v1", *at)
    assert (kind["kind"], kind["launch"], kind["gpus_each"]) == ("tide-8b@v1", "vllm-8b", 1)
    assert kind["timing"].startswith("measured on tide-8b (vllm)")
    unknown = plan(fleet, "--profile", "tide-8b@v9", *at)
    assert (unknown.exit_code, "there is no revision tide-8b@v9" in unknown.output) == (1, True)


def with_profile(config: str, measured: EngineProfile) -> None:
    """Keep a profile with the revision, as `tidegate engine profile --save` does."""
    from gateway.cli.admin_client import AdminClient
    from gateway.cli.models import REVISIONS
    from gateway.cli.offline import OfflineApi

    with OfflineApi(Path(config)) as api:
        AdminClient(api, quiet=True).post(f"{REVISIONS}/tide-8b%40v1/profile", json.loads(profile_text(measured)))


@pytest.mark.parametrize(
    ("profiles", "more", "said"),
    [
        ([{"kv_tokens": None}], (), "did not tell its KV capacity; write kv_tokens into the fleet file's entry"),
        ([{"usd_per_hour": 2.0}, {}], (), "no price, and the others have one"),
        ([{}, {}], ("--launch", "vllm-8b", "--launch", "vllm-8b", "--launch", "vllm-8b"), "--launch is there 3 times for 2 kinds"),
        ([{}], ("--launch", "vllm-cpu-test", "--gpu-hour-usd", "1"), "has no GPU, so --gpu-hour-usd is no price of it"),
        ([{}], ("--fleet", "other.yaml"), "a profile replaces the speed in one fleet file"),
        ([], ("--profile", "fleet.yaml"), "is no profile of `tidegate engine profile`"),
    ],
)
def test_what_does_not_go_together_is_named(
    fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profiles: list[dict[str, Any]], more: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    files = [saved(tmp_path / f"p{number}.json", **fields) for number, fields in enumerate(profiles)]
    done = plan(fleet, *(part for file in files for part in ("--profile", file)), *more)
    assert done.exit_code == 2, done.output
    assert said in done.output.replace("\n", " ")


def test_files_of_one_name_are_told_apart_and_one_file_is_planned_once(fleet: Path, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    first, second = saved(tmp_path / "p.json"), saved(tmp_path / "x" / "p.json")
    assert [kind["kind"] for kind in kinds(fleet, "--profile", first, "--profile", second)] == [first, second]
    twice = plan(fleet, "--profile", first, "--profile", first)
    assert (twice.exit_code, "is named twice" in twice.output) == (2, True)
