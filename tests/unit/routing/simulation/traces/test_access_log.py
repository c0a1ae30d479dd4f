"""The access log of a gateway, replayed."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from domain.clock import Rng
from domain.priority import Class
from routing.prefix.sampled import sampled
from routing.simulation.traces import TraceError, load


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
    assert "2 lines without a request that an engine would have served were left out" in workload.notes


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


def chained_record(at: float, chain: list[int], known_blocks: int, **more: object) -> str:
    routed = {"chain": sampled(chain), "chain_key": "k", "block_tokens": 64, "known_tokens": known_blocks * 64}
    return record(at, prompt_tokens=len(chain) * 64, completion_tokens=5, **{**routed, **more})


def common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def test_prompts_share_as_much_as_the_gateway_found(tmp_path: Path) -> None:
    first = [random.Random(1).getrandbits(60) for _ in range(100)]
    second = first[:77] + [random.Random(2).getrandbits(60) for _ in range(50)]
    stranger = [random.Random(3).getrandbits(60) for _ in range(50)]
    lines = (
        chained_record(1.0, first, 0),
        chained_record(2.0, second, 77),
        chained_record(3.0, second, 0, chain_key="another gateway"),
        chained_record(4.0, stranger, 0),
        chained_record(5.0, second[:90], 0),
    )
    (tmp_path / "access.log").write_text("".join(lines))
    workload = load(tmp_path / "access.log", dice)
    one, two, elsewhere, strange, again = [turn.chain for turn in workload.turns]
    assert common(one, two) == 77, "exactly, though the places are an eighth apart"
    assert common(one, elsewhere) == common(two, elsewhere) == 0, "hashes of another key say nothing"
    assert common(one, strange) == 0
    assert 90 * 7 // 8 <= common(two, again) <= 90, "evicted meanwhile: as far as the places tell"
    assert workload.notes == []


def test_a_conversation_waits_as_its_caller_did(tmp_path: Path) -> None:
    used = {"prompt_tokens": 64, "completion_tokens": 2, "duration_us": 2_000_000, "session": "aa"}
    lines = (record(1.0, **used), record(2.0, **used), record(7.5, **used), record(8.0, "other", **used))
    (tmp_path / "access.log").write_text("".join(lines))
    first, beside, later, other = load(tmp_path / "access.log", dice).turns
    assert (first.after, beside.after) == (-1, -1), "a subagent asks while its parent's answer comes"
    assert (later.after, later.think_s) == (1, 3.5)
    assert first.session == later.session != other.session
    assert other.after == -1


def test_what_was_refused_is_replayed_with_usual_lengths(tmp_path: Path) -> None:
    lines = (
        record(1.0, prompt_tokens=100, completion_tokens=30, request_bytes=500, priority_class="batch"),
        record(2.0, outcome="overloaded", request_bytes=1000),
        record(3.0, outcome="token_limit", request_bytes=1000),
        record(4.0, outcome="invalid_json", request_bytes=1000),
        record(5.0, "new", outcome="no_backend", request_bytes=1000),
        record(6.0, cache="hit-exact", prompt_tokens=10, completion_tokens=10),
    )
    (tmp_path / "access.log").write_text("".join(lines))
    workload = load(tmp_path / "access.log", dice)
    lengths = [(turn.prompt_tokens, turn.output_tokens, turn.limited) for turn in workload.turns]
    assert lengths == [(100, 30, False), (200, 30, False), (200, 30, True), (250, 256, False)]
    assert workload.turns[0].priority_class is Class.BATCH
    assert "1 answers of the cache, which no engine gave were left out" in workload.notes


@pytest.mark.parametrize(("field", "value"), [("chain", "!!!!"), ("prompt_tokens", "many"), ("at", "yesterday")])
def test_a_broken_line_is_named(field: str, value: str, tmp_path: Path) -> None:
    (tmp_path / "access.log").write_text(
        record(1.0, prompt_tokens=9) + json.dumps({**json.loads(record(2.0, prompt_tokens=9)), field: value})
    )
    with pytest.raises(TraceError, match=r"access\.log:2"):
        load(tmp_path / "access.log", dice)
