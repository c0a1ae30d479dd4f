"""The access log of a gateway, replayed."""

import json
import random
from pathlib import Path

from domain.clock import Rng
from routing.simulation.traces import load


def dice(name: str) -> Rng:
    return random.Random(f"0 {name}")


def record(at: float, tenant: str = "acme", **more: object) -> str:
    head = {"at": at, "request_id": "r", "outcome": "ok", "status": 200, "duration_us": 1, "overhead_us": 1, "model": "chat"}
    return json.dumps({**head, "tenant": tenant, **more}) + "\n"


def test_what_was_answered_is_replayed_in_order(tmp_path: Path) -> None:
    lines = (
        record(99.0, outcome="unauthorized", status=401),
        record(100.5, prompt_tokens=200, completion_tokens=20, cached_tokens=130),
        record(100.0, prompt_tokens=300, cached_tokens=64, lora="x"),
        '{"level":"info"}\n',
    )
    (tmp_path / "access.log").write_text("".join(lines))
    workload = load(tmp_path / "access.log", dice)
    first, second = workload.turns
    assert (first.at_s, first.prompt_tokens, first.output_tokens, first.lora) == (0.0, 300, 1, "x")
    assert (second.at_s, second.tenant, len(second.chain)) == (0.5, "acme", 3)
    assert "2 lines without a request that used tokens were left out" in workload.notes


def test_times_are_read_in_both_forms(tmp_path: Path) -> None:
    lines = record(1_790_000_000.5, prompt_tokens=9) + record(0.0, prompt_tokens=9).replace("0.0", '"2026-09-21T14:13:20.250000Z"', 1)
    (tmp_path / "access.log").write_text(lines)
    assert [turn.at_s for turn in load(tmp_path / "access.log", dice).turns] == [0.0, 0.25]


def test_what_was_cached_is_a_tenants_common_beginning(tmp_path: Path) -> None:
    used = {"prompt_tokens": 200, "completion_tokens": 2, "cached_tokens": 130}
    (tmp_path / "access.log").write_text(record(1.0, **used) + record(1.0, **used) + record(1.0, "other", **used))
    one, two, other = load(tmp_path / "access.log", dice).turns
    assert list(one.chain[:2]) == list(two.chain[:2]) != list(other.chain[:2])
    assert one.chain[2] != two.chain[2]
