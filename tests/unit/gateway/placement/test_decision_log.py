"""Decisions on disk: found again by their ids, bounded in bytes and hours, and worth no request."""

import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from domain.usage import Usage
from gateway.placement import decision_log
from gateway.placement.decision_log import MAX_WRITTEN, SUFFIX, DecisionLog, find_written, prune
from gateway.placement.decisions import Decision, Decisions, Ended, decision
from gateway.record import Record
from routing.fleet import Availability, Backend
from routing.policy_instance import policy_instance
from routing.ports import RoutingRequest
from routing.registry import POLICIES
from routing.schedule import Route

NOW = 1_795_000_000.0
ASKED = RoutingRequest(1000, tuple(range(15)), tenant="acme", session=9)
MIB = 1024**2


def at(second: float, number: int) -> str:
    """An id of the gateway."""
    return f"req-{int(second):08x}-{number:024x}"


def decided(*ids: str, backends: int = 2, policy: str = "predicted_latency", at_unix: float = NOW, **facts: Any) -> Decision:
    instance = policy_instance(policy)
    terms = tuple([float(place) for place in range(len(instance.policy.terms))])
    ranked = tuple([(Backend(f"e{rank}", "p", Availability.UP, ""), terms) for rank in range(backends)])
    out = (Backend("gone", "p", Availability.DOWN, "cannot be reached"),)
    costs = (*[1.5 + rank for rank in range(backends - 1)], float("inf"))
    params = instance.params
    route = Route(policy, ranked, out, (), costs, (640.0,) * backends, (2.0,) * backends, params)
    entry = decision(route, ASKED, ids, at_unix, "sim", "chat")
    for name, value in facts.items():
        setattr(entry, name, value)
    return entry


def log_in(folder: Path, name: str, **more: Any) -> DecisionLog:
    usual = {"max_bytes": 64 * MIB, "workers": 1, "keep_s": 60.0, "wall": time.time, "clock": time.monotonic}
    return DecisionLog(folder, name, **{**usual, **more})


class Written:
    """A folder, and logs that write into it at a time that the test says."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.now = NOW
        self._logs = 0
        monkeypatch.setattr(decision_log, "FLUSH_S", 3600.0)  # only the end writes

    async def write(self, *decisions: Decision, max_bytes: int = 64 * MIB, keep_s: float = 1e6) -> None:
        """Write these decisions as one worker, from its start to its end."""
        self._logs += 1
        log = log_in(self.folder, f"w{self._logs}", max_bytes=max_bytes, keep_s=keep_s, wall=lambda: self.now)
        for made in decisions:
            log.note(made)
        await log.close()
        for path in self.segments():
            if f"-w{self._logs}-" in path.name:
                os.utime(path, (self.now, self.now))

    def segments(self) -> list[Path]:
        return sorted(self.folder.glob(f"*{SUFFIX}"))


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    return Written(tmp_path / "decisions", monkeypatch)


@pytest.mark.parametrize("policy", ["predicted_latency", "weighted", "p2c", "session_ring"])
async def test_what_is_read_from_disk_is_what_the_worker_would_have_said(written: Written, policy: str) -> None:
    asked, kept = at(NOW, 1), Decisions()
    made = decided(asked, policy=policy, served_by="e1", rule="r", steps=("trim",), fell_back=("big: overloaded",), queued="served")
    kept.keep(made)
    await written.write(decided(at(NOW, 2)), made, decided(at(NOW, 3)))
    found = find_written(written.folder, asked)
    assert found is not None
    assert found == kept.find(asked)
    assert (found.contenders[0].backend, found.contenders[-1].lost) == ("e0", "cannot be reached")
    assert find_written(written.folder, at(NOW, 4)) is None


async def test_a_term_that_came_with_a_later_version_was_0_in_a_decision_written_before(written: Written) -> None:
    asked = at(NOW, 1)
    made = decided(asked)
    older = tuple((backend, terms[:-1]) for backend, terms in made.route.ranked)
    await written.write(msgspec.structs.replace(made, route=msgspec.structs.replace(made.route, ranked=older)))
    found = find_written(written.folder, asked)
    assert found is not None
    terms = list(found.contenders[0].terms)
    assert terms == list(POLICIES["predicted_latency"].terms)
    assert found.contenders[0].terms[terms[-1]] == 0.0


async def test_of_several_decisions_the_last_counts_and_facts_that_came_late_are_in_it(written: Written) -> None:
    asked = at(NOW, 1)
    first, again = decided(asked, queued="waiting"), decided(asked, queued="served")
    log = log_in(written.folder, "w", wall=lambda: NOW)
    log.note(first)
    log.note(again)
    again.served_by = "e1"  # a failover
    await log.close()
    found = find_written(written.folder, asked)
    assert found is not None
    assert (found.queued, found.served_by) == ("served", "e1")


async def test_how_a_long_request_ended_is_found_after_its_decision_was_written(written: Written) -> None:
    asked, kept = at(NOW, 1), Decisions()
    made = decided(asked)
    kept.written = list[Decision]().append
    kept.keep(made)
    await written.write(made)
    assert (found := find_written(written.folder, asked)) is not None
    assert found.ended is None
    again = list[Decision]()
    kept.written = again.append
    kept.end(made, Record(asked, NOW, "ok", 200, 9.5, 0.0, queue_s=2.0, ttft_s=3.0, usage=Usage(100, 20, 64)))
    assert again == [made]
    await written.write(*again)
    assert (found := find_written(written.folder, asked)) is not None
    assert found.ended == Ended("ok", 200, 9.5, 2.0, 3.0, 100, 64, 20)
    assert found == kept.find(asked)


async def test_a_hit_of_the_cache_is_written_once_and_read_again(written: Written) -> None:
    asked, kept, hits = at(NOW, 1), Decisions(), list[Decision]()
    kept.written = hits.append
    kept.end(None, Record(asked, NOW, "ok", 200, 0.01, 0.0, tenant="acme", model="sim", cache="hit-exact", cache_age_s=12.0))
    kept.end(None, Record(at(NOW, 2), NOW, "rate_limited", 429, 0.01, 0.0, tenant="acme"))
    assert len(hits) == len(kept) == 1
    await written.write(*hits)
    found = find_written(written.folder, asked)
    assert found == kept.find(asked)
    assert found is not None
    assert (found.tenant, found.model, found.policy, found.cache, found.cache_age_s) == ("acme", "sim", "", "hit-exact", 12.0)


async def test_a_callers_id_is_found_with_its_tenant_only(written: Written) -> None:
    await written.write(decided(at(NOW, 1), caller_id="mine"), decided(at(NOW, 2), caller_id="mine", tenant="bolt"))
    for tenant, ours in (("acme", at(NOW, 1)), ("bolt", at(NOW, 2))):
        found = find_written(written.folder, "mine", tenant)
        assert found is not None and (found.request_id, found.caller_request_id, found.tenant) == (ours, "mine", tenant)
    assert find_written(written.folder, "mine") is None
    assert find_written(written.folder, at(NOW, 1), "bolt") is None


async def test_workers_and_restarts_leave_segments_that_are_all_searched(written: Written) -> None:
    for number in range(5):
        written.now = NOW + 1000.0 * number
        await written.write(decided(at(written.now, number), at_unix=written.now))
    assert len(written.segments()) == 5
    assert all(find_written(written.folder, at(NOW + 1000.0 * number, number)) is not None for number in range(5))


async def test_only_segments_of_its_time_are_read_for_an_id_of_ours(written: Written) -> None:
    await written.write(decided(at(NOW, 1)))
    written.now = NOW + 100_000.0
    await written.write(decided(at(NOW, 1)))  # no such request: an id of ours is not given twice
    assert decision_log._segments_of(written.folder, at(NOW, 1)) == written.segments()[:1]
    assert decision_log._segments_of(written.folder, "mine") == written.segments()


async def test_the_oldest_segments_go_when_the_folder_is_full(written: Written) -> None:
    def bytes_on_disk() -> int:
        return sum(path.stat().st_size for path in written.segments())

    for number in range(40):
        written.now = NOW + number
        await written.write(*[decided(os.urandom(700).hex()) for _ in range(64)], max_bytes=MIB)
        assert bytes_on_disk() <= MIB
    assert bytes_on_disk() > MIB // 2
    assert int(written.segments()[0].name[:8], 16) > NOW


async def test_what_is_older_than_its_hours_goes(written: Written) -> None:
    await written.write(decided(at(NOW, 1)))
    prune(written.folder, 64 * MIB, NOW - 1.0)
    assert len(written.segments()) == 1
    written.now = NOW + 3601.0
    await written.write(decided(at(written.now, 2)), keep_s=3600.0)
    assert [int(path.name[:8], 16) for path in written.segments()] == [int(NOW + 3601.0)]


async def test_a_torn_or_damaged_segment_costs_only_its_own_frames(written: Written) -> None:
    await written.write(decided(at(NOW, 1)))
    written.now += 1.0
    await written.write(decided(at(NOW, 2)))
    (damaged, _) = written.segments()
    data = damaged.read_bytes()
    for bad in (data[:-3], data[:5], data[:2], b"", data[:4] + b"\xff" * (len(data) - 4), b"\xff\xff\xff\xff" + data):
        damaged.write_bytes(bad)
        assert find_written(written.folder, at(NOW, 1)) is None
        assert find_written(written.folder, at(NOW, 2)) is not None
    assert find_written(written.folder / "none", at(NOW, 1)) is None


async def test_of_a_large_pool_the_best_are_written(written: Written) -> None:
    await written.write(decided(at(NOW, 1), backends=300))
    found = find_written(written.folder, at(NOW, 1))
    assert found is not None
    assert [contender.backend for contender in found.contenders] == [*[f"e{rank}" for rank in range(MAX_WRITTEN)], "gone"]


async def test_a_disk_that_is_nearly_full_is_left_to_others(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    full = os.statvfs_result((4096, 4096, 1000, 99, 99, 10, 10, 10, 0, 255))
    monkeypatch.setattr(decision_log.os, "statvfs", lambda _: full)
    with capture_logs() as logs:
        await written.write(*[decided(at(NOW, number)) for number in range(100)])
    assert written.segments() == []
    assert [line["log_level"] for line in logs] == ["warning"]


async def test_decisions_that_nobody_writes_are_not_gathered_for_ever(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_log, "MAX_PENDING", 10)
    await written.write(*[decided(at(NOW, number)) for number in range(100)])
    found = [number for number in range(100) if find_written(written.folder, at(NOW, number)) is not None]
    assert found == list(range(10))


async def test_a_running_worker_writes_within_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_log, "FLUSH_S", 0.01)
    log = log_in(tmp_path, "w")
    asked = at(time.time(), 1)
    log.note(decided(asked))
    try:
        while find_written(tmp_path, asked) is None:
            time.sleep(0.005)
    finally:
        await log.close()


async def test_a_decision_needs_no_more_bytes_than_the_settings_say(written: Written) -> None:
    """About 5,000 requests per MiB, of a pool of four backends."""
    decisions = [decided(at(NOW, int.from_bytes(os.urandom(12), "big")), backends=4, at_unix=NOW + n / 7) for n in range(320)]
    await written.write(*decisions)
    assert sum(path.stat().st_size for path in written.segments()) / len(decisions) < MIB / 5000
