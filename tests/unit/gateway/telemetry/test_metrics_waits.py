import msgspec

from domain.priority import WORDS
from gateway.process.snapshots import WorkerSnapshot
from gateway.queue.refusals import REFUSALS
from gateway.queue.waiter import QueueState
from gateway.record import Fell, Record
from gateway.telemetry.exposition import Scrape, render
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.snapshot import merge


def record(queued: str, word: str = "batch", queue_s: float = 0.0) -> Record:
    return Record("r", 0.0, "ok", 200, 1.0, 0.0, pool="chat", queue_s=queue_s, queued=queued, priority_class=word)


def page(metrics: Metrics, *queues: QueueState) -> dict[str, float]:
    worker = WorkerSnapshot(index=0, pid=1, state="ready", started_at=0.0, queues=queues)
    text, _ = render(Scrape(merge([metrics.snapshot()]), [worker, worker], None, 1, "1"))
    rows = [line.rsplit(" ", 1) for line in text.decode().splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in rows}


def test_waits_are_counted_by_class_and_by_how_they_ended() -> None:
    metrics = Metrics()
    for word in WORDS:
        metrics.observe(record("served", word, 0.3))
    for reason in REFUSALS:
        metrics.observe(record(reason))
    metrics.observe(record("too_long"))
    metrics.observe(record(""))
    seen = page(metrics)
    for word in WORDS:
        assert seen[f'tidegate_queue_wait_seconds_count{{class="{word}",pool="chat"}}'] == 1
        assert seen[f'tidegate_queue_wait_seconds_sum{{class="{word}",pool="chat"}}'] == 0.3
    assert seen['tidegate_queue_refused_total{class="batch",pool="chat",reason="too_long"}'] == 2
    assert all(seen[f'tidegate_queue_refused_total{{class="batch",pool="chat",reason="{reason}"}}'] >= 1 for reason in REFUSALS)


def test_who_gave_its_place_back_is_counted_by_class_however_its_second_wait_ended() -> None:
    metrics = Metrics()
    for queued in ("served", "timed_out", "gone"):
        metrics.observe(msgspec.structs.replace(record(queued), pulled_back=True))
    metrics.observe(record("served"))
    seen = page(metrics)
    assert seen['tidegate_queue_pulled_back_total{class="batch",pool="chat"}'] == 3


def test_what_waits_now_is_the_sum_of_all_workers() -> None:
    seen = page(Metrics(), QueueState("chat", (1, 0, 4, 2), 900.0), QueueState("idle", (0, 0, 0, 0), 0.0))
    assert seen['tidegate_queue_depth{class="critical",pool="chat"}'] == 2
    assert seen['tidegate_queue_depth{class="default",pool="chat"}'] == 8
    assert seen['tidegate_queue_depth{class="batch",pool="idle"}'] == 0
    assert seen['tidegate_queue_drain_tokens_per_second{pool="chat"}'] == 1800
    assert not any("idle" in name and "drain" in name for name in seen)


def test_steps_are_counted_by_the_model_that_was_asked_for() -> None:
    metrics = Metrics(["big", "small"])
    moved = msgspec.structs.replace(record(""), model="small", asked_model="big", steps=("trim_output_tokens", "model=small"))
    trimmed = msgspec.structs.replace(record(""), model="strange", steps=("trim_output_tokens",))
    for one in (moved, moved, trimmed):
        metrics.observe(one)
    seen = {name: value for name, value in page(metrics).items() if "degraded_total" in name}
    assert seen == {
        'tidegate_degraded_total{model="big",step="trim_output_tokens"}': 2,
        'tidegate_degraded_total{model="big",step="model"}': 2,
        'tidegate_degraded_total{model="_other",step="trim_output_tokens"}': 1,
        'tidegate_degraded_total{model="_other",step="model"}': 0,
    }


def test_each_step_to_another_model_is_counted_with_its_condition() -> None:
    metrics = Metrics(["big", "small"])
    steps = (Fell("big", "small", "error", "engine_error"), Fell("small", "strange", "no_capacity", "overloaded"))
    metrics.observe(msgspec.structs.replace(record(""), fell_back=(*steps, Fell("strange", "", "", "overloaded"))))
    metrics.observe(msgspec.structs.replace(record(""), fell_back=steps[:1]))
    seen = {name: value for name, value in page(metrics).items() if "fallbacks_total" in name and value}
    assert seen == {
        'tidegate_fallbacks_total{from="big",on="error",to="small"}': 2,
        'tidegate_fallbacks_total{from="small",on="no_capacity",to="_other"}': 1,
    }


def test_promises_are_counted_as_kept_or_not() -> None:
    metrics = Metrics(["big"])
    for met in (True, True, False):
        metrics.observe(msgspec.structs.replace(record(""), model="big", promises=(("ttft", met), ("tpot", True))))
    seen = {name: value for name, value in page(metrics).items() if "slo_requests_total" in name}
    assert seen == {
        'tidegate_slo_requests_total{met="true",model="big",slo="ttft"}': 2,
        'tidegate_slo_requests_total{met="false",model="big",slo="ttft"}': 1,
        'tidegate_slo_requests_total{met="true",model="big",slo="tpot"}': 3,
        'tidegate_slo_requests_total{met="false",model="big",slo="tpot"}': 0,
    }
