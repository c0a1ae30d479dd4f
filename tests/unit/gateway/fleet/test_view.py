from domain.membership import SourceState
from gateway.fleet.view import clashes_seen, fleet_seen, sources_seen
from gateway.placement.backend_state import BackendState
from gateway.process.snapshots import WorkerSnapshot


def worker(index: int, *sources: SourceState, clashes: tuple[str, ...] = ()) -> WorkerSnapshot:
    return WorkerSnapshot(index=index, pid=index, state="ready", started_at=0.0, sources=sources, clashes=clashes)


def test_a_source_is_as_bad_as_for_the_worker_that_has_it_worst() -> None:
    good, old = SourceState("DNS x", "chat", "dns", 3, "", 1.0), SourceState("DNS x", "chat", "dns", 2, "", 9.0)
    bad = SourceState("DNS x", "chat", "dns", 2, "time-out", 4.0)
    assert sources_seen([worker(0, good), worker(1, bad), worker(2, old)]) == [bad]
    assert sources_seen([worker(0, good), worker(1, old)]) == [old]
    assert sources_seen([]) == []


def test_contradictions_are_told_once() -> None:
    assert clashes_seen([worker(0, clashes=("b", "a")), worker(1, clashes=("a",))]) == ["a", "b"]


def test_a_breaker_is_as_bad_as_in_the_worker_that_has_it_worst_and_opens_add_up() -> None:
    states = (
        BackendState("p", "a", True, breaker="half_open", breaker_opens=1),
        BackendState("p", "a", True, breaker="open", breaker_opens=2),
    )
    (seen,) = fleet_seen(WorkerSnapshot(index=at, pid=at, state="ready", started_at=0.0, fleet=(one,)) for at, one in enumerate(states))
    assert (seen.up, seen.breaker, seen.breaker_opens) == (True, "open", 3)


def test_a_price_of_a_backend_is_there_as_soon_as_one_worker_knows_it() -> None:
    states = (BackendState("p", "a", True), BackendState("p", "a", True, usd_per_hour=2.5))
    (seen,) = fleet_seen(WorkerSnapshot(index=at, pid=at, state="ready", started_at=0.0, fleet=(one,)) for at, one in enumerate(states))
    assert seen.usd_per_hour == 2.5
