"""`tidegate plan` from the command line: a trace and fleets in, tables, JSON and a plot out; why there is no plan is one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import app
from tests.command_line import Commands, Result

RUNNER = Commands(env={"COLUMNS": "200"})
FLEET = "engines:\n  - {machine: h100-8b}\n"
TP4 = "engines:\n  - {machine: h100-70b-tp4}\n"
TRACE = "".join(
    f'{{"timestamp":{i * 25},"input_length":3000,"output_length":30,"hash_ids":{[i + 1000 * block for block in range(6)]}}}\n'
    for i in range(160)
)


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    (tmp_path / "h100.yaml").write_text(FLEET)
    (tmp_path / "tp4.yaml").write_text(TP4)
    (tmp_path / "trace.jsonl").write_text(TRACE)
    return tmp_path


def run(folder: Path, *more: str, ttft_s: str = "0.3", fleets: tuple[str, ...] = ("h100.yaml",), trace: str = "trace.jsonl") -> Result:
    named = [part for fleet in fleets for part in ("--fleet", str(folder / fleet))]
    return RUNNER.invoke(
        app, ["plan", "--trace", str(folder / trace), *named, "--ttft-s", ttft_s, "--tpot-ms", "60", "--seeds", "2", *more]
    )


def planned(folder: Path, *more: str, **named: Any) -> dict[str, Any]:
    done = run(folder, "--json", *more, **named)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_two_kinds_from_the_trace_to_the_table_and_the_plot(folder: Path) -> None:
    prices = ("--gpu-hour-usd", "2.5", "--headroom", "0.2", "--standby", "1", "--plot", str(folder / "plan.png"))
    done = run(folder, *prices, "--jobs", "2", fleets=("h100.yaml", "tp4.yaml"), ttft_s="1")
    assert done.exit_code == 0, done.output
    assert "mooncake: 160 requests, 480,000 prompt and 4,800 answer tokens; TTFT 1 s, TPOT 60 ms for 95.0%" in done.stdout
    for said in ("USD for 1M tokens in and out", "1 standby)", "headroom", "cheapest", "one fewer (", "KV peak", "simulated, not measured"):
        assert said in done.stdout
    assert "speed of tp4: constants of the class h100-70b-tp4; this engine was not measured" in done.stdout
    assert done.stdout.count("cheapest") == 1
    assert (folder / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_the_number_of_the_table_meets_and_one_fewer_does_not(folder: Path) -> None:
    (kind,) = planned(folder, "--gpu-hour-usd", "2")["kinds"]
    by_number = {point["engines"]: point for point in kind["tried"]}
    assert by_number[kind["least"]]["worst"] >= 0.95 > by_number[kind["least"] - 1]["worst"]
    hours = by_number[kind["least"]]["mean"]["lasted_s"] / 3600
    assert kind["cost"]["usd_per_million_tokens"] == pytest.approx(2 * kind["least"] * hours / 484_800 * 1e6)


def test_the_same_seeds_give_the_same_plan_however_many_run_at_a_time(folder: Path) -> None:
    first = planned(folder)
    assert planned(folder) == first
    assert planned(folder, "--jobs", "2") == first


def test_more_traffic_needs_no_fewer_engines(folder: Path) -> None:
    needed = [planned(folder, "--speed", speed, "--seeds", "1")["kinds"][0]["least"] for speed in ("0.25", "1", "2")]
    assert needed == sorted(needed)
    assert needed[0] < needed[-1]


def test_preemptible_engines_cost_less(folder: Path) -> None:
    full, less = (planned(folder, "--gpu-hour-usd", "2", "--seeds", "1", *more)["kinds"][0] for more in ((), ("--spot", "0.5")))
    preemptible = less["cost"]["preemptible"]
    assert preemptible == full["least"] // 2
    assert less["cost"]["usd_hour"] == pytest.approx(full["cost"]["usd_hour"] - 2 * 0.6 * preemptible)
    assert f"({preemptible} preemptible)" in run(folder, "--spot", "0.5", "--seeds", "1").stdout


def test_without_a_price_the_fewest_gpus_are_marked(folder: Path) -> None:
    done = run(folder, "--seeds", "1", fleets=("h100.yaml", "tp4.yaml"), ttft_s="2")
    assert done.exit_code == 0
    assert "fewest GPUs" in done.stdout
    assert "cheapest" not in done.stdout


def test_an_objective_below_an_idle_engine_is_said_at_once(folder: Path) -> None:
    done = run(folder, ttft_s="0.02")
    assert done.exit_code == 1
    assert "h100: no number of engines helps: an idle engine takes" in done.stdout
    assert "least" not in done.stdout
    assert run(folder, "--most", "1").exit_code == 1
    assert "--most" in run(folder, "--most", "1").stdout


@pytest.mark.parametrize(
    ("trace", "fleet", "more", "said"),
    [
        ("", FLEET, (), "trace.jsonl"),
        (TRACE + "{", FLEET, (), "trace.jsonl:161:"),
        (TRACE, "engines:\n  - {machine: h200}\n", (), "h100.yaml:2:"),
        (TRACE, FLEET + "  - {machine: h100-8b, slower: 2}\n", (), "engines has 2 kinds, and a plan has engines of one kind"),
        (TRACE, FLEET + "faults: [{at_s: 1, engine: 0, kind: kill, for_s: 1}]\n", (), "faults belong to engines by number"),
        (TRACE, FLEET, ("--plot", "/nowhere/plan.png"), "/nowhere/plan.png cannot be written"),
        (TRACE, FLEET, ("--plot", "plan.xyz"), "plan.xyz: a plot's name ends in .png, .svg, .pdf"),
        (TRACE, FLEET, ("--fleet", "/nowhere.yaml"), "/nowhere.yaml:1:1: cannot be read: No such file or directory; make the file"),
        (TRACE, FLEET, ("--trace", "chatt"), "chatt: there is no such file, and no such made-up workload; those are shared-prefix"),
        (TRACE, FLEET, ("--profile", "/nowhere.json"), "--profile /nowhere.json: cannot be read"),
        (TRACE, FLEET, ("--launch", "vllm-9b"), "did you mean vllm-8b?"),
        (TRACE, FLEET, ("--gpu-hour-usd", "1", "--gpu-hour-usd", "2"), "--gpu-hour-usd is there 2 times for 1 kind"),
    ],
)
def test_bad_input_is_named(folder: Path, trace: str, fleet: str, more: tuple[str, ...], said: str) -> None:
    (folder / "trace.jsonl").write_text(trace)
    (folder / "h100.yaml").write_text(fleet)
    done = run(folder, *more)
    assert done.exit_code in (1, 2), done.output
    assert said in done.output.replace("\n", " ")
    assert "Traceback" not in done.output


def test_an_empty_trace_is_no_folder() -> None:
    done = RUNNER.invoke(app, ["plan", "--trace", "", "--fleet", "f.yaml", "--ttft-s", "1", "--tpot-ms", "50"])
    assert (done.exit_code, "--trace is empty" in done.output) == (2, True)
