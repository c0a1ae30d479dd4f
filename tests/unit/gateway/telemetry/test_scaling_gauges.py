"""The signals for autoscalers, out of the workers' snapshots."""

import msgspec
import pytest

from backends.signals import Signals
from domain.membership import Role
from gateway.placement.backend_state import BackendState, LimitView
from gateway.process.snapshots import WorkerSnapshot
from gateway.queue.waiter import QueueState
from gateway.telemetry.families import GOODPUT_REQUESTS, TTFT, TTFT_BOUNDS_S
from gateway.telemetry.scaling_gauges import SCALING_GAUGES, WINDOW_S, PoolScaling
from gateway.telemetry.snapshot import MetricsSnapshot
from routing.scaling import ScaleSettings, ToZeroSettings


def engine(name: str, **signals: object) -> BackendState:
    read = Signals(read_at=0.0, **signals) if signals else None  # type: ignore[arg-type]  # fields of one struct
    running, waiting = (None, None) if read is None else (read.running, read.waiting)
    return BackendState(
        *("chat", name, True, "", 0, read, 0.1), state="up", running_now=running, waiting_now=waiting, prefill_tokens_per_s=10_000.0
    )


def worker(fast: float = 0, slow: float = 0, met: float = 0, missed: float = 0, *fleet: BackendState) -> WorkerSnapshot:
    counts = [0.0] * TTFT.width
    counts[TTFT_BOUNDS_S.index(0.25)], counts[TTFT_BOUNDS_S.index(4.0)] = fast, slow
    families = {
        TTFT.name: [(("m", "chat"), counts)],
        GOODPUT_REQUESTS.name: [(("m", "acme"), [met, missed]), (("other", "acme"), [0.0, 99.0 + missed])],
    }
    return WorkerSnapshot(
        index=0,
        pid=1,
        state="ready",
        started_at=1.0,
        fleet=fleet,
        metrics=MetricsSnapshot(families),
        queues=(QueueState("chat", (1, 2, 0, 0), 0.0),),
    )


BUSY = (
    engine("e0", running=6, waiting=4, waiting_uncached_tokens=8_000, kv_usage=0.5),
    engine("e1", running=4, waiting=0, waiting_uncached_tokens=0, kv_usage=0.7),
)


def test_each_signal_is_the_pools() -> None:
    now = [100.0]
    scaling = PoolScaling({"chat": ScaleSettings(), "empty": None}, lambda: now[0])
    first = dict(scaling.rows([worker(5, 5, 5, 5, *BUSY)]))
    assert set(first) == set(SCALING_GAUGES)
    # three requests of the queue are taken to be as long as those in the engines
    assert first["tidegate_pool_queue_tokens_per_backend"] == [(("chat", "both"), (8_000 + 3 * 2_000) / 2)]
    assert first["tidegate_pool_predicted_ttft_p95_seconds"] == [(("chat", "both"), pytest.approx(14_000 / 20_000))]
    assert first["tidegate_pool_kv_pressure_ratio"] == [(("chat", "both"), pytest.approx(0.6 * (14 + 3) / 10))]
    assert first["tidegate_pool_goodput_deficit_ratio"] == []
    assert first["tidegate_pool_backends"] == [(("chat", "both"), 2.0), (("empty", "both"), 0.0)]
    assert first["tidegate_pool_wanted_backends"] == [(("chat", "both"), 4.0)]
    now[0] = 115.0
    second = dict(scaling.rows([worker(5, 105, 80, 30, *BUSY)]))
    assert second["tidegate_pool_goodput_deficit_ratio"] == [(("chat", "both"), 25 / 100)]
    assert second["tidegate_pool_predicted_ttft_p95_seconds"] == [(("chat", "both"), pytest.approx(3.9))]
    # what was counted longer ago than the window is no signal any more
    now[0] += WINDOW_S
    third = dict(scaling.rows([worker(5, 105, 80, 30, *BUSY)]))
    assert third["tidegate_pool_goodput_deficit_ratio"] == []


def test_what_is_not_known_has_no_sample() -> None:
    scaling = PoolScaling({"chat": ScaleSettings(min=1, max=9)}, lambda: 5.0)
    rows = dict(scaling.rows([worker(0, 0, 0, 0, BackendState("chat", "e0", False, "refused", state="down"))]))
    for name in ("queue_tokens_per_backend", "predicted_ttft_p95_seconds", "kv_pressure_ratio", "goodput_deficit_ratio"):
        assert rows[f"tidegate_pool_{name}"] == []
    assert rows["tidegate_pool_wanted_backends"] == rows["tidegate_pool_backends"] == [(("chat", "both"), 1.0)]


def test_limits_bound_what_an_engine_bears_and_draining_engines_do_not_count() -> None:
    read = Signals(read_at=0.0, running=30)
    bears = BackendState("chat", "e0", True, "", 0, read, state="up", running_now=30, limit=LimitView(10.0, None, 5.0))
    leaves = BackendState("chat", "e1", False, "draining", state="draining")
    (chat,) = PoolScaling({"chat": ScaleSettings(headroom=0.0)}, lambda: 5.0).look([worker(0, 0, 0, 0, bears, leaves)])
    assert chat.load.backends == 1 and chat.wanted is not None and chat.wanted.wanted == 4


def test_the_start_of_an_engine_that_held_requests_waited_for_asks_for_no_second_one() -> None:
    """The waits of held requests are the engine's start: neither their times nor the promises that they missed are the load's."""
    now = [100.0]
    zero = ScaleSettings(min=0, max=4, headroom=0.0, to_zero=ToZeroSettings())
    scaling = PoolScaling({"chat": zero}, lambda: now[0])
    up = engine("e0", running=3, waiting=0, waiting_uncached_tokens=0, kv_usage=0.1)

    def look(after_s: float, slow: float, *fleet: BackendState, waits: int = 0, held: int = 0) -> tuple[int, float | None]:
        now[0] += after_s
        queue = QueueState("chat", (0, waits, 0, 0), 0.0, held)
        (chat,) = scaling.look([msgspec.structs.replace(worker(0, slow, 0, slow, *fleet), queues=(queue,))])
        assert chat.wanted is not None
        return chat.wanted.wanted, chat.load.ttft_p95_s

    assert look(0, 0, waits=9, held=9) == (1, None)
    assert look(90, 3, up, waits=6) == (1, None), "the start took longer than the window is"
    assert look(10, 9, up) == (1, None)
    wanted, p95_s = look(WINDOW_S + 1, 19, up)
    assert (wanted, p95_s) == (2, pytest.approx(3.9)), "nobody was held any more, and it took as long"

    # a queue that never empties is overload, once no request in it can be one that was held
    assert look(WINDOW_S + 1, 19, waits=9, held=9)[1] is None
    told = [look(30, 30 * at, up, waits=9)[1] is not None for at in range(1, 16)]
    assert told == [at * 30 - 30 >= ToZeroSettings().wait_s + WINDOW_S for at in range(1, 16)]


def half(name: str, role: Role, **signals: object) -> BackendState:
    return msgspec.structs.replace(engine(name, **signals), role=role)


PAIRS = (
    half("p0", "prefill", running=2, waiting=4, waiting_uncached_tokens=40_000, kv_usage=0.2),
    half("d0", "decode", running=6, waiting=0, waiting_uncached_tokens=0, kv_usage=0.9),
    half("d1", "decode", running=6, waiting=0, waiting_uncached_tokens=0, kv_usage=0.9),
)
BY_ROLE: dict[Role, ScaleSettings] = {"prefill": ScaleSettings(headroom=0.0), "decode": ScaleSettings(headroom=0.0, max=3)}


def test_engines_of_each_role_are_told_and_recommended_apart() -> None:
    scaling = PoolScaling({"chat": None}, lambda: 5.0, {"chat": BY_ROLE})
    rows = {name: dict(found) for name, found in scaling.rows([worker(0, 0, 0, 0, *PAIRS)])}
    assert rows["tidegate_pool_backends"] == {("chat", "prefill"): 1, ("chat", "decode"): 2}
    # 4 wait in the engine and 3 in the gateway, 10,000 tokens each
    assert rows["tidegate_pool_queue_tokens_per_backend"] == {("chat", "prefill"): 70_000, ("chat", "decode"): 0}
    assert rows["tidegate_pool_predicted_ttft_p95_seconds"] == {("chat", "prefill"): pytest.approx(7.0)}
    assert rows["tidegate_pool_kv_pressure_ratio"]["chat", "decode"] == pytest.approx(0.9 * 15 / 12)
    assert rows["tidegate_pool_wanted_backends"] == {("chat", "prefill"): 2, ("chat", "decode"): 3}


def test_missed_promises_add_to_the_role_that_the_load_fills_most() -> None:
    now = [0.0]
    scaling = PoolScaling({"chat": None}, lambda: now[0], {"chat": BY_ROLE})
    scaling.look([worker(0, 0, 0, 0, *PAIRS)])
    now[0] = 15.0
    found = {one.load.role: one for one in scaling.look([worker(0, 9, 50, 50, *PAIRS)])}
    assert found["decode"].load.deficit is None and found["prefill"].load.deficit == 0.5, "waiting prompts fill the one engine"
    assert found["prefill"].load.ttft_p95_s is None, "where a measured time was spent is not known"


def test_a_role_with_bounds_is_asked_for_while_none_of_it_is_there() -> None:
    found = {
        one.load.role: one for one in PoolScaling({"chat": None}, lambda: 5.0, {"chat": BY_ROLE}).look([worker(0, 0, 0, 0, *PAIRS[1:])])
    }
    prefill = found["prefill"]
    assert prefill.load.backends == 0 and prefill.wanted is not None and prefill.wanted.wanted == 1


def test_engines_that_may_have_roles_and_have_none_are_a_pool_as_any_other() -> None:
    plain = PoolScaling({"chat": ScaleSettings()}, lambda: 5.0).look([worker(5, 5, 5, 5, *BUSY)])
    paired = PoolScaling({"chat": ScaleSettings()}, lambda: 5.0, {"chat": {}}).look([worker(5, 5, 5, 5, *BUSY)])
    assert plain == paired


def test_the_time_that_prompts_took_is_that_of_the_last_minute_and_of_engines_that_say_it() -> None:
    now = [0.0]
    scaling = PoolScaling({"chat": ScaleSettings()}, lambda: now[0])

    def look(*computed: int | None) -> float | None:
        backends = [engine(f"e{at}", running=1, prefill_tokens=tokens) for at, tokens in enumerate(computed)]
        (chat,) = scaling.look([worker(0, 0, 0, 0, *backends)])
        return chat.load.prefilled

    assert look(1_000_000, None) is None, "a counter says nothing before its second look"
    now[0] = 5.0
    assert look(1_010_000, None) is None, "nor within a few seconds"
    now[0] = 20.0
    assert look(1_060_000, None) == pytest.approx(60_000 / 10_000 / 20)
    now[0] = 60.0
    assert look(1_060_000, None) == pytest.approx(60_000 / 10_000 / 60)
    now[0] = 75.0
    assert look(1_060_000, None) == pytest.approx(50_000 / 10_000 / 70), "the looks of the last minute, and the one before"
    now[0] = 90.0
    assert look(1_000, None) is None, "an engine that was started anew begins again"
    now[0] = 110.0
    assert look(21_000, None) == pytest.approx(20_000 / 10_000 / 20)
