"""Live samples: rates, quantiles and hit ratios from what workers counted, over restarts of workers and engines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.signals import Signals
from gateway.placement.backend_state import BackendState
from gateway.process.snapshots import WorkerSnapshot
from gateway.queue.refusals import REFUSALS
from gateway.queue.waiter import QueueState
from gateway.telemetry.families import CLASSES, PROMISED, QUEUE_REFUSED, TOKENS, TTFT, TTFT_BOUNDS_S
from gateway.telemetry.live import SUMMED, WINDOW, LiveFigures, WorkerLive, quantiles


def live(index: int = 0, started: float = 1.0, fleet: tuple[BackendState, ...] = (), **sums: list[float]) -> WorkerLive:
    names = {"classes": CLASSES, "tokens": TOKENS, "ttft": TTFT, "promised": PROMISED, "queue_refused": QUEUE_REFUSED}
    counted = {family.name: [0.0] * family.width for family in SUMMED} | {names[name].name: values for name, values in sums.items()}
    queue = QueueState("chat", (1, 2, 3, 4), 0.0)
    return WorkerLive(
        WorkerSnapshot(index=index, pid=100 + index, state="ready", started_at=started, fleet=fleet, queues=(queue,)), 2, 3, counted
    )


def backend(queries: int, hits: int) -> BackendState:
    return BackendState(
        "chat", "e0", True, signals=Signals(read_at=0.0, prefix_queries=queries, prefix_hits=hits, kv_usage=0.5), state="up"
    )


def test_rates_are_of_the_time_since_the_sample_before() -> None:
    figures = LiveFigures()
    first = figures.sample([live(classes=[10, 1, 0, 0])], 100.0)
    assert first.requests is None
    second = figures.sample([live(classes=[16, 2, 0, 0])], 102.0)
    assert second.requests == {"ok": 3.0, "caller": 0.5, "gateway": 0.0, "engine": 0.0}
    assert (second.in_flight, second.connections) == (2, 3)
    assert sum(second.waiting.values()) == 1 + 2 + 3 + 4


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1000)), min_size=1, max_size=20))
def test_a_rate_is_never_negative_whatever_workers_come_and_go(steps: list[tuple[bool, int]]) -> None:
    figures = LiveFigures()
    figures.sample([live()], 100.0)
    started, counted, total = 1.0, 0.0, 0.0
    for at, (again, more) in enumerate(steps):
        if again:
            started, counted = started + 1, 0.0
        counted += more
        sample = figures.sample([live(started=started, classes=[counted, 0, 0, 0])], 101.0 + at)
        assert sample.requests is not None
        assert sample.requests["ok"] == (0 if again else more)
        total += sample.requests["ok"]
    assert total <= sum(more for _, more in steps)


def test_quantiles_are_of_the_last_samples_alone() -> None:
    figures = LiveFigures()
    width = len(TTFT_BOUNDS_S) + 2
    counts = [0.0] * width
    figures.sample([live(ttft=list(counts))], 100.0)
    counts[3] += 10  # 20 to 40 ms
    assert 20 <= (figures.sample([live(ttft=list(counts))], 101.0).ttft_ms.p50 or 0) <= 40
    for second in range(WINDOW):
        sample = figures.sample([live(ttft=list(counts))], 102.0 + second)
    assert sample.ttft_ms.p50 is None


@given(st.lists(st.integers(0, 50), min_size=3, max_size=3).filter(any))
def test_a_quantile_lies_in_a_bucket_that_has_values(counts: list[int]) -> None:
    bounds = (0.1, 0.2)
    found = quantiles(bounds, counts)
    assert found.p50 is not None
    assert found.p99 is not None
    lowest = next(at for at, count in enumerate(counts) if count)
    assert ([0.0, 100.0, 200.0][lowest]) <= found.p50 <= found.p99 <= 200.0


def test_a_backends_hits_are_of_the_window_and_begin_anew_with_its_engine() -> None:
    figures = LiveFigures()

    def ratio(queries: int, hits: int, at: float) -> float | None:
        (shown,) = figures.sample([live(fleet=(backend(queries, hits),))], at).backends
        return shown.hit_ratio

    assert ratio(1000, 900, 1.0) is None
    assert ratio(1100, 950, 2.0) == 0.5
    assert ratio(100, 0, 3.0) is None  # restarted
    assert ratio(300, 50, 4.0) == 0.25


def test_workers_add_up_and_service_levels_are_shares() -> None:
    figures = LiveFigures()
    figures.sample([live(0), live(1)], 1.0)
    sample = figures.sample([live(0, promised=[3, 1], tokens=[8, 0, 2, 0]), live(1, promised=[5, 1], tokens=[2, 0, 0, 0])], 2.0)
    assert sample.workers == 2
    assert sample.slo_met == pytest.approx(0.8)
    assert sample.tokens == {"prompt": 10.0, "cached": 0.0, "completion": 2.0, "reasoning": 0.0}


def test_refusals_are_told_by_the_reasons_that_occurred() -> None:
    figures = LiveFigures()
    assert figures.sample([live()], 1.0).queue_reasons is None, "there is no second yet"
    counts = [0.0] * len(REFUSALS)
    counts[REFUSALS.index("too_long")] = 6.0
    sample = figures.sample([live(queue_refused=counts)], 3.0)
    assert sample.queue_reasons == {"too_long": 3.0}
    assert sample.queue_refused == 3.0
