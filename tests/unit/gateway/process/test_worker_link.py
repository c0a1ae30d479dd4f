"""Workers answer for themselves; whoever asks never waits long and never sees a counter fall."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from backends.signals import Signals
from gateway.fleet.view import fleet_seen
from gateway.placement.backend_state import BackendState
from gateway.process.snapshots import PolicyState, SlotState, State, Supervision, WorkerSnapshot
from gateway.process.worker_link import (
    MAX_GONE,
    Totals,
    WorkerLink,
    ask_oldest,
    collect,
    look,
    not_ready,
    processes_of,
    publish,
    supervision,
    worker_socket,
)
from gateway.record import Record
from gateway.telemetry.families import REQUESTS
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.snapshot import FamilyNumbers, MetricsSnapshot
from tenancy.hold import LimitUsage
from tenancy.limits import Group, Level, Limit, Meter, Scope, Window, line_of
from tenancy.ports import CountersAway
from tenancy.stores.memory import MemoryCounters

RECORD = Record(request_id="r", at_unix=0.0, outcome="ok", status=200, duration_s=0.1, overhead_s=0.0)


def snapshot(index: int = 0, *, pid: int = 7, state: State = "ready", requests: int = 0, reasons: tuple[str, ...] = ()) -> WorkerSnapshot:
    metrics = Metrics()
    metrics.in_flight = 1
    for _ in range(requests):
        metrics.observe(RECORD)
    return WorkerSnapshot(
        index=index,
        pid=pid,
        state=state,
        started_at=1.0,
        reasons=reasons,
        fleet=(BackendState("p", "b", up=False, why="refused"),),
        policies=PolicyState("d", 7.0),
        metrics=metrics.snapshot(),
    )


def counted(totals: MetricsSnapshot) -> float:
    return sum(cell[0] for _, cell in totals.families.get(REQUESTS.name, ()))


async def test_a_snapshot_arrives_as_it_was_sent_and_without_numbers_when_only_the_state_is_asked(tmp_path: Path) -> None:
    asked: list[bool] = []

    def answer(with_metrics: bool) -> WorkerSnapshot:
        asked.append(with_metrics)
        return snapshot(requests=3)

    links = [WorkerLink(worker_socket(tmp_path, index, os.getpid()), answer) for index in (1, 0)]
    for link in links:
        await link.start()
    try:
        assert os.stat(tmp_path / f"worker-0-{os.getpid()}.sock").st_mode & 0o777 == 0o600
        assert await collect(tmp_path) == [snapshot(requests=3)] * 2
        await collect(tmp_path, with_metrics=False)
        assert asked == [True, True, False, False]
    finally:
        for link in links:
            await link.close()
            await link.close()
    assert await collect(tmp_path) == []
    assert os.listdir(tmp_path) == []


async def test_the_loop_runs_between_the_slices_of_a_scrape(tmp_path: Path) -> None:
    metrics = Metrics([f"m{at}" for at in range(400)])
    for at in range(4000):
        metrics.observe(msgspec.structs.replace(RECORD, model=f"m{at % 400}", tenant=f"t{at}", cost_nanousd=1, soft_limits=("rpm",)))
    turns = 0
    seen_at: list[int] = []

    def families() -> Iterator[FamilyNumbers]:
        for family in metrics.families():
            seen_at.append(turns)
            yield family

    async def other_work() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    now = iter(range(1000))
    empty = msgspec.structs.replace(snapshot(), metrics=metrics.totals())
    link = WorkerLink(
        worker_socket(tmp_path, 0, os.getpid()), lambda _with_metrics: empty, families=families, clock=lambda: float(next(now))
    )
    await link.start()
    working = asyncio.create_task(other_work())
    try:
        assert await collect(tmp_path, 30.0) == [msgspec.structs.replace(empty, metrics=metrics.snapshot())]
    finally:
        working.cancel()
        await link.close()
    assert len(set(seen_at)) > 1, "other work has its turns while families are copied"
    assert link.longest_slice_s == 1.0, "what is measured are the slices, not the pauses between them"


def test_processes_are_named_by_the_supervisor_and_by_the_workers_where_there_is_none() -> None:
    published = Supervision(1, 2, 3, (SlotState("worker-0", 4, 0, 0), SlotState("store", None, 0, 0)))
    workers = [snapshot(0, pid=4), snapshot(1, pid=5)]
    assert processes_of(published, workers, 9) == [("supervisor", 1), ("worker-0", 4), ("admin", 9), ("worker-0", 4), ("worker-1", 5)]
    assert processes_of(None, workers, 9) == [("admin", 9), ("worker-0", 4), ("worker-1", 5)]


async def test_the_oldest_ready_worker_can_be_asked(tmp_path: Path) -> None:
    async def answered(index: int) -> bytes:
        return b"worker %d" % index

    links = []
    ages: list[tuple[float, State]] = [(30.0, "ready"), (10.0, "ready"), (20.0, "ready"), (5.0, "draining"), (1.0, "starting")]
    for index, (started_at, state) in enumerate(ages):
        shown = msgspec.structs.replace(snapshot(index, pid=os.getpid(), state=state), started_at=started_at)
        path = worker_socket(tmp_path, index, os.getpid())
        links.append(WorkerLink(path, lambda _, shown=shown: shown, answers={b"who\n": lambda _, index=index: answered(index)}))
        await links[-1].start()
    assert await ask_oldest(tmp_path, b"who\n") == b"worker 1"
    for link in links[:3]:
        await link.close()
    assert await ask_oldest(tmp_path, b"who\n") == b"", "none is ready"
    for link in links:
        await link.close()


async def test_a_worker_that_does_not_answer_is_left_out_and_a_dead_one_removed(tmp_path: Path) -> None:
    ended = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await ended.wait()
    for name in (f"worker-0-{ended.pid}.sock", f"worker-1-{os.getpid()}.sock"):
        server = await asyncio.start_unix_server(lambda _r, _w: None, path=str(tmp_path / name))
        server.close()  # bound, and nobody listens any more
    held: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_unix_server(lambda _r, w: held.append(w), path=str(tmp_path / "worker-2-1.sock"))
    nonsense = await asyncio.start_unix_server(lambda _r, w: w.close(), path=str(tmp_path / "worker-3-1.sock"))
    async with silent, nonsense:
        # within its time a slow machine may not come to the dead one
        while (tmp_path / f"worker-0-{ended.pid}.sock").exists() or not held:
            assert await collect(tmp_path, 0.05) == []
        for writer in held:
            writer.close()
        await asyncio.sleep(0.01)
    assert f"worker-1-{os.getpid()}.sock" in os.listdir(tmp_path), "its process lives: it may be about to listen"


async def test_nonsense_gets_an_empty_answer(tmp_path: Path) -> None:
    link = WorkerLink(worker_socket(tmp_path, 0, 1), lambda _: snapshot())
    await link.start()
    for said in (b"give me\n", b"x" * 5000, b""):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "worker-0-1.sock"))
        writer.write(said)
        writer.write_eof()
        with contextlib.suppress(ConnectionResetError):  # closed before it had read all of the long one
            assert await reader.read() == b""
        writer.close()
    await link.close()


GROUP = Group("acme", (line_of(Limit(Scope(Level.TENANT, "acme"), Meter.TOKENS, Window.DAY, 1000, soft=10), 0.0),))


async def test_how_limits_stand_is_asked_of_the_ready_worker(tmp_path: Path) -> None:
    counters = MemoryCounters(lambda: 1.0)

    async def away(group: Group) -> list[LimitUsage]:
        raise CountersAway("not here")

    with pytest.raises(CountersAway, match="no worker is ready"):
        await look(tmp_path, GROUP)
    draining = WorkerLink(worker_socket(tmp_path, 0, 7), lambda _: snapshot(0, state="draining"), away)
    ready = WorkerLink(worker_socket(tmp_path, 1, 7), lambda _: snapshot(1), counters.look)
    async with contextlib.AsyncExitStack() as stack:
        for link in (draining, ready):
            await link.start()
            stack.push_async_callback(link.close)
        assert await look(tmp_path, GROUP) == [LimitUsage(GROUP.lines[0], 0, 0, 1000, 0)]
        many = Group("acme", GROUP.lines * 20_000)
        with pytest.raises(CountersAway, match="too many"):
            await look(tmp_path, many)
        reader, writer = await asyncio.open_unix_connection(str(worker_socket(tmp_path, 1, 7)))
        writer.write(b"look\nnonsense")
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()


def test_a_run_directory_too_deep_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="too long for a unix socket"):
        worker_socket(tmp_path / ("d" * 100), 0, 1)


def test_totals_never_fall_when_workers_come_and_go() -> None:
    totals = Totals()
    assert counted(totals.add([snapshot(0, pid=1, requests=5), snapshot(1, pid=2, requests=7)])) == 12
    seen = totals.add([snapshot(0, pid=1, requests=6)])
    assert counted(seen) == 13, "worker 1 ended; what it counted stays"
    assert seen.in_flight == 1, "what it had in flight does not"
    assert counted(totals.add([snapshot(0, pid=1, requests=6), snapshot(1, pid=3, requests=1)])) == 14
    assert counted(totals.add([snapshot(0, pid=1, requests=6), snapshot(1, pid=2, requests=9)])) == 16, "it had only missed a scrape"


def test_totals_of_a_crash_loop_stay_right_and_bounded() -> None:
    totals = Totals()
    for pid in range(1, 200):
        totals.add([snapshot(0, pid=pid, requests=2)])
    assert counted(totals.add([])) == 2 * 199
    assert len(totals._last) <= MAX_GONE


def test_readiness_needs_every_place_and_names_what_is_missing() -> None:
    assert not_ready([snapshot(0), snapshot(1)], 2) == []
    assert not_ready([snapshot(0), snapshot(0, state="draining"), snapshot(1)], 2) == [], "a rolling restart stays ready"
    waiting = snapshot(1, state="starting", reasons=("no key store", "no fleet"))
    known = Supervision(1, 2, 3, (SlotState("worker-2", None, 9, 4, "exit 3"),))
    assert not_ready([snapshot(0, state="draining"), waiting], 3, known) == [
        "worker 0: draining",
        "worker 1: starting; no key store; no fleet",
        "worker 2: not answering (ended 4 times lately: exit 3)",
    ]


def test_what_the_supervisor_publishes_is_read_back(tmp_path: Path) -> None:
    assert supervision(tmp_path) is None
    told = Supervision(1, 8000, 8001, (SlotState("worker-0", 5, 0, 0),))
    publish(tmp_path, "supervisor.json", told)
    assert supervision(tmp_path) == told
    assert [path.name for path in tmp_path.iterdir()] == ["supervisor.json"]
    (tmp_path / "supervisor.json").write_text("{")
    assert supervision(tmp_path) is None


def seen(pid: int, up: bool, why: str, in_flight: int, age_s: float | None, running: int | None) -> WorkerSnapshot:
    signals = None if age_s is None else Signals(read_at=0.0, running=running)
    state = BackendState("p", "a", up, why, in_flight, signals, age_s)
    return WorkerSnapshot(index=pid, pid=pid, state="ready", started_at=0.0, fleet=(state,))


def test_what_all_workers_sent_since_the_freshest_reading_counts() -> None:
    first, second = seen(1, True, "", 3, 0.1, 7), seen(2, True, "", 4, 0.2, 9)
    state = msgspec.structs.replace(first.fleet[0], signals=Signals(read_at=0.0, running=7, waiting=2), prefill_tokens_per_s=900.0)
    one = msgspec.structs.replace(first, fleet=(msgspec.structs.replace(state, sent_since=5, ended_since=1),))
    other = msgspec.structs.replace(second, fleet=(msgspec.structs.replace(second.fleet[0], sent_since=3, ended_since=2),))
    for workers in ((one, other), (other, one)):
        (joined,) = fleet_seen(workers)
        assert (joined.running_now, joined.waiting_now, joined.prefill_tokens_per_s) == (7, 7, 900.0)
    (alone,) = fleet_seen([one])
    assert (alone.running_now, alone.waiting_now) == (7, 6)


def test_the_fleet_is_what_all_workers_together_see() -> None:
    (joined,) = fleet_seen([seen(1, True, "", 3, 0.5, 7), seen(2, False, "no answer", 4, 0.1, 9), seen(3, True, "", 5, None, None)])
    assert (joined.up, joined.why, joined.in_flight, joined.signals_age_s) == (False, "no answer", 12, 0.1)
    assert joined.signals is not None
    assert joined.signals.running == 9
    assert (joined.running_now, joined.waiting_now) == (9, None)
    assert fleet_seen([]) == []
