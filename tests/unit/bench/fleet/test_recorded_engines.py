"""What is recorded of an engine is read as it is, and the search finds constants that explain it."""

import gzip
import json
import random
import sys
from pathlib import Path

import pytest

from bench.fleet import recorded_engines
from bench.fleet.recorded_engines import EngineLimits, Outcome, RecordedRequest, chains_of, error, fitted, recorded, simulated, summary
from routing.simulation.timing import StepTiming

LIMITS = EngineLimits(64, 512)
TRUE = StepTiming(c0=8.0, c1=0.06, c1a=0.0, c2=0.05, c3=1e-4, kv_tokens=60_000)


def requests_of(count: int, timing: StepTiming = TRUE) -> list[RecordedRequest]:
    """Requests, and what an engine with these constants did with them."""
    dice = random.Random(1)
    at_s, asked = 0.0, []
    for _ in range(count):
        at_s += dice.expovariate(16.0)
        tokens = [dice.randrange(1000) for _ in range(dice.randrange(100, 1500))]
        asked.append(RecordedRequest(at_s, tokens, dice.randrange(1, 200), 0.0, 0.0))
    outcome = simulated(asked, chains_of(asked), timing, LIMITS)
    return [request._replace(first_s=first, last_s=last) for request, first, last in zip(asked, *outcome, strict=True)]


def test_every_request_is_answered_in_order_of_time() -> None:
    for request in requests_of(80):
        assert request.at_s < request.first_s <= request.last_s
        assert (request.first_s == request.last_s) == (request.output == 1)


def test_the_search_finds_constants_that_answer_as_was_recorded() -> None:
    requests = requests_of(80)
    chains, those = chains_of(requests), range(40)
    start = TRUE.times(1.6)
    real = summary(requests, Outcome([r.first_s for r in requests], [r.last_s for r in requests]), those)
    timings = start, fitted(requests, chains, start, LIMITS, those), TRUE
    errors = [error(summary(requests, simulated(requests, chains, timing, LIMITS), those), real) for timing in timings]
    assert errors[2] == 0.0
    assert errors[1] < 0.2 * errors[0]


def test_a_recording_is_read_with_its_tokens_and_from_its_first_moment(tmp_path: Path) -> None:
    with gzip.open(tmp_path / recorded_engines.WORKLOAD, "wt") as file:
        file.writelines(json.dumps({"input_tok_ids": [number] * 3}) + "\n" for number in range(2))
    rows = [
        {"request_id": f"bench-{number}", "output_toks": 5, "queued_ts": 100.0 - number, "first_token_ts": 101.0, "last_token_ts": 102.0}
        for number in range(2)
    ]
    with gzip.open(tmp_path / "RTX4090_requests.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    settings = {"engine_kwargs": {"max_num_seqs": 7, "max_num_batched_tokens": 9}}
    (tmp_path / "RTX4090_meta.json").write_text(json.dumps(settings))
    requests, limits = recorded(tmp_path, "RTX4090")
    assert limits == EngineLimits(7, 9)
    assert requests == [RecordedRequest(0.0, [1, 1, 1], 5, 2.0, 3.0), RecordedRequest(1.0, [0, 0, 0], 5, 2.0, 3.0)]


def test_a_folder_without_recordings_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["recorded_engines", "--data", str(tmp_path)])
    with pytest.raises(SystemExit):
        recorded_engines.main()
    assert f"{tmp_path} has no workload_llama31_8b.jsonl.gz; the folder needs" in capsys.readouterr().err
