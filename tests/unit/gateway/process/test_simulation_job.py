"""What one what-if simulation does: it tells how far it is, writes the comparison, and refuses what is unbounded or cannot be read."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.process.simulation_job import (
    ASKED,
    MAX_REQUESTS,
    RESULT,
    JobLine,
    SimulationAsked,
    contenders,
    run_job,
)

FLEET = {"engines": [{"machine": "h100-8b", "count": 2}]}
ASK: dict[str, Any] = {"workload": "chat", "fleet": FLEET, "policies": ["predicted_latency", "least_load"], "limit": 400}


def done(folder: Path, asked: dict[str, Any]) -> list[JobLine]:
    (folder / ASKED).write_text(json.dumps(asked))
    told: list[JobLine] = []
    run_job(folder, told.append)
    return told


def test_progress_grows_to_the_end_and_the_result_has_every_policy(tmp_path: Path) -> None:
    told = done(tmp_path, {**ASK, "seeds": 2})
    steps = [line for line in told if line.of]
    assert {line.of for line in steps} == {400 * 2 * 2}
    assert [line.done for line in steps] == sorted({line.done for line in steps})
    assert steps[-1].done == 1600
    assert "seed 2 of 2" in steps[-1].words
    result = json.loads((tmp_path / RESULT).read_text())
    assert [policy["policy"] for policy in result["policies"]] == ["predicted_latency", "least_load"]
    assert all("runs" not in policy and policy["interval"] for policy in result["policies"])


def test_an_equal_question_has_an_equal_answer(tmp_path: Path) -> None:
    results = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        done(tmp_path / name, ASK)
        results.append((tmp_path / name / RESULT).read_bytes())
    assert results[0] == results[1]


def test_an_uploaded_trace_that_nobody_reads_is_refused_with_its_line_and_without_a_path(tmp_path: Path) -> None:
    told = done(tmp_path, {"trace": "nonsense\n", "fleet": FLEET, "policies": ["least_load"]})
    assert told[-1].error.startswith("trace:1: is no trace that Tidegate reads")
    assert str(tmp_path) not in told[-1].error
    assert not (tmp_path / RESULT).exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"workload": None}, "needs one of workload, trace and recent"),
        ({"trace": "x"}, "needs one of workload, trace and recent"),
        ({"recent": True}, "needs one of workload, trace and recent"),
        ({"workload": "nothing"}, "there is no made-up workload 'nothing'"),
        ({"policies": ["least_lod"]}, "did you mean least_load"),
        ({"policies": []}, "at least 1"),
        ({"limit": MAX_REQUESTS + 1}, "less than or equal to 20000"),
        ({"limit": MAX_REQUESTS, "seeds": 5}, "200,000 requests; at most 120,000"),
    ],
)
def test_what_is_asked_is_bounded(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        SimulationAsked.model_validate_json(json.dumps({**ASK, **change}))


def test_policies_are_shown_with_the_parameters_that_were_written() -> None:
    asked = SimulationAsked.model_validate_json(json.dumps({**ASK, "policies": ["weighted", {"policy": "weighted", "prefix": 0.8}]}))
    assert list(contenders(asked.policies)) == ["weighted", "weighted prefix=0.8"]
