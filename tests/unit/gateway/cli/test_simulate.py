"""`tidegate simulate` from the command line: a tiny trace in, tables, JSON and a page out; bad input is named and ends with 2."""

import json
import re
from pathlib import Path

import pytest

from gateway.cli import app
from tests.command_line import Commands

RUNNER = Commands()
FLEET = "engines:\n  - {machine: h100-8b, count: 2}\n"
TRACE = "".join(
    f'{{"timestamp":{i * 100},"input_length":1100,"output_length":6,"hash_ids":[{i % 3},{i % 3 + 10},{i + 100}]}}\n' for i in range(40)
)


@pytest.fixture(name="inputs")
def _inputs(tmp_path: Path) -> list[str]:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    (tmp_path / "trace.jsonl").write_text(TRACE)
    return ["simulate", "--trace", str(tmp_path / "trace.jsonl"), "--fleet", str(tmp_path / "fleet.yaml")]


def test_a_tiny_trace_end_to_end(inputs: list[str], tmp_path: Path) -> None:
    page, figures = tmp_path / "report.html", tmp_path / "figures.json"
    found = RUNNER.invoke(app, [*inputs, "--policy", "random,predicted_latency", "--seeds", "2", "--html", str(page), "-o", str(figures)])
    assert found.exit_code == 0, found.output
    assert "mooncake: 40 requests, simulated" in found.output
    written = json.loads(figures.read_text())
    by_policy = {one["policy"]: one["mean"] for one in written["policies"]}
    assert by_policy["predicted_latency"]["hit_rate"] > by_policy["random"]["hit_rate"] > 0
    assert written["pooled_hit_rate"] >= by_policy["predicted_latency"]["hit_rate"]
    assert len(written["policies"][0]["runs"]) == 2
    html = page.read_text()
    assert html.count("<svg") == 3
    # the page needs nothing from anywhere: the only addresses are names of XML
    addresses = set(re.findall(r"""(?:href|src)\s*=\s*["']([^"'#][^"']*)|url\((?!#)([^)]*)\)""", html))
    assert addresses == set()
    assert "<script" not in html


def test_the_same_seed_gives_the_same_figures(inputs: list[str]) -> None:
    outs = [RUNNER.invoke(app, [*inputs, "--policy", "random", "--seed", "7", "--json"]).stdout for _ in range(2)]
    first, second = (json.loads(text)["policies"] for text in outs)
    assert first == second


def test_a_made_up_workload_needs_no_file(inputs: list[str]) -> None:
    found = RUNNER.invoke(app, ["simulate", "--trace", "chat", *inputs[3:], "--policy", "p2c", "--limit", "50", "--speed", "2"])
    assert found.exit_code == 0
    assert "note: arrivals 2 times as dense" in found.output


@pytest.mark.parametrize(
    ("fleet", "trace", "policy", "said"),
    [
        (FLEET, TRACE, "rando", "there is no routing policy 'rando'; did you mean random?"),
        (FLEET, TRACE, "", "--policy names none"),
        (FLEET, TRACE, "{policy: p2c, memory_s: 1}", "policies[0].memory_s: is no known key"),
        (FLEET, TRACE, "{policy: p2c", "--policy:1:"),
        (FLEET, TRACE + "{", "random", "trace.jsonl:41: input data was truncated"),
        ("engines:\n  - {machine: h200, count: 2}\n", TRACE, "random", "fleet.yaml:2:"),
        ("engines: []\n", TRACE, "random", "has 0 entries"),
        (FLEET + "replica: 3\n", TRACE, "random", "did you mean replicas?"),
        ("engines:\n  - {machine: h100-8b, token_budget: 100}\n", TRACE, "random", "token_budget"),
    ],
)
def test_bad_input_is_named(tmp_path: Path, inputs: list[str], fleet: str, trace: str, policy: str, said: str) -> None:
    (tmp_path / "fleet.yaml").write_text(fleet)
    (tmp_path / "trace.jsonl").write_text(trace)
    found = RUNNER.invoke(app, [*inputs, "--policy", policy])
    assert found.exit_code == 2, found.output
    assert said in found.output.replace("\n", " ")


def test_a_policy_with_parameters_stands_beside_itself(inputs: list[str]) -> None:
    found = RUNNER.invoke(app, [*inputs, "--policy", "weighted, {policy: weighted, prefix: 0.0}", "--json"])
    assert found.exit_code == 0, found.output
    plain, changed = json.loads(found.stdout)["policies"]
    assert (plain["policy"], changed["policy"]) == ("weighted", "weighted prefix=0.0")
    assert changed["mean"]["hit_rate"] < plain["mean"]["hit_rate"]


def test_no_trace_is_not_the_folder_one_is_in(inputs: list[str]) -> None:
    found = RUNNER.invoke(app, ["simulate", "--trace", "", *inputs[3:], "--policy", "random"])
    assert found.exit_code == 2
    assert "--trace is empty" in found.output


def test_where_nothing_can_be_written_nothing_is_run(inputs: list[str], tmp_path: Path) -> None:
    for option, target in (("--html", tmp_path), ("--out", tmp_path / "none" / "figures.json")):
        # a trace that is not there would be said first if it were read
        found = RUNNER.invoke(app, ["simulate", "--trace", "/nowhere", *inputs[3:], "--policy", "random", option, str(target)])
        assert found.exit_code == 2
        assert "cannot be written" in found.output


def test_the_example_fleet_is_one() -> None:
    example = Path(__file__).parents[4] / "docs" / "examples" / "fleet.yaml"
    found = RUNNER.invoke(app, ["simulate", "--trace", "noisy-tenant", "--fleet", str(example), "--policy", "random", "--limit", "20"])
    assert found.exit_code == 0, found.output
