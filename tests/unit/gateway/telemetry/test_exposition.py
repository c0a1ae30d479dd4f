"""What a scrape says: parsed back with the official parser, compared with what was counted and with the docs."""

import re
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from backends.kv_blocks import KvState
from backends.signals import Signals
from domain.usage import Usage
from gateway.story import GAP_BOUNDS_S, Record
from gateway.telemetry.exposition import Scrape, describe, render
from gateway.telemetry.families import MAX_SERIES
from gateway.telemetry.metrics import Metrics, MetricsSnapshot, merge
from gateway.worker_link import BackendState, SlotState, State, Supervision, WorkerSnapshot

ROOT = Path(__file__).parents[4]
RECORD = Record(
    request_id="r",
    at_unix=0.0,
    outcome="ok",
    status=200,
    duration_s=0.3,
    overhead_s=0.00004,
    tenant='ac"me\n',
    endpoint="/v1/chat/completions",
    model="llama",
    pool="p",
    backend="b1",
    attempts=1,
    stream=True,
    usage=Usage(100, 20, 64, 5),
    closing="settle",
    ttft_s=0.25,
    events=20,
    decode_s=0.38,
    gaps=tuple(19 if at == 5 else 0 for at in range(len(GAP_BOUNDS_S) + 1)),
)


def worker(index: int, up: bool = True, state: State = "ready") -> WorkerSnapshot:
    metrics = Metrics(["llama"])
    metrics.in_flight, metrics.connections = 3, 5
    metrics.observe(RECORD)
    fleet = (BackendState("p", "b1", up=True), BackendState("p", "b2", up=up, why="" if up else "refused"))
    return WorkerSnapshot(
        index=index,
        pid=10 + index,
        state=state,
        started_at=1.0,
        fleet=fleet,
        metrics=metrics.snapshot(2),
    )


def samples(*workers: WorkerSnapshot, expected: int = 2) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    supervision = Supervision(1, 2, 3, (SlotState("admin", 5, 1, 0), SlotState("worker-0", 4, 7, 2, "SIGKILL")))
    totals = merge(one.metrics for one in workers if one.metrics)
    text, content_type = render(Scrape(totals, workers, supervision, expected, "0.1.0"))
    assert content_type.startswith("text/plain")
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"a series twice: {key}"
            found[key] = sample.value
    return found


def test_two_workers_are_one_sum() -> None:
    found = samples(worker(0), worker(1))
    labels = (("endpoint", "/v1/chat/completions"), ("model", "llama"), ("outcome", "ok"), ("status_class", "2xx"))
    assert found["tidegate_requests_total", labels] == 2
    assert found["tidegate_tokens_total", (("model", "llama"), ("tenant", 'ac"me\n'), ("type", "cached"))] == 128
    assert found["tidegate_hold_closings_total", (("closing", "settle"),)] == 2
    assert found["tidegate_in_flight_requests", ()] == 6
    assert found["tidegate_connections", ()] == 10
    assert found["tidegate_access_log_dropped_total", ()] == 4
    assert found["tidegate_worker_restarts_total", (("worker", "0"),)] == 7
    assert found["tidegate_worker_restarts_total", (("worker", "admin"),)] == 1
    assert found["tidegate_build_info", (("version", "0.1.0"),)] == 1


def test_histograms_are_cumulative_and_aliased() -> None:
    found = samples(worker(0), worker(1))
    own, alias = "tidegate_time_to_first_token_seconds", "gen_ai_server_time_to_first_token_seconds"
    labels, model = (("model", "llama"), ("pool", "p")), (("gen_ai_request_model", "llama"),)
    assert found[f"{own}_bucket", (("le", "0.15"), *labels)] == 0
    assert found[f"{own}_bucket", (("le", "0.25"), *labels)] == 2
    assert found[f"{own}_bucket", (("le", "+Inf"), *labels)] == found[f"{own}_count", labels] == 2
    assert found[f"{own}_sum", labels] == found[f"{alias}_sum", model] == 0.5
    assert found[f"{alias}_count", model] == 2
    assert found["tidegate_inter_token_seconds_count", labels] == 38
    assert found["tidegate_time_per_output_token_seconds_sum", labels] == pytest.approx(0.04)


def test_a_backend_is_up_when_every_worker_says_so() -> None:
    found = samples(worker(0), worker(1, up=False))
    assert found["tidegate_backend_up", (("backend", "b1"), ("pool", "p"))] == 1
    assert found["tidegate_backend_up", (("backend", "b2"), ("pool", "p"))] == 0


@pytest.mark.req("ROUTERS-6")
def test_what_an_engine_does_not_report_has_no_sample() -> None:
    told = BackendState("p", "b1", True, "", 2, Signals(read_at=0.0, running=4, missing=("waiting",)), 0.25, prefill_tokens_per_s=1500.0)
    found = samples(msgspec.structs.replace(worker(0), fleet=(told, BackendState("p", "b2", True))))
    b1, b2 = (("backend", "b1"), ("pool", "p")), (("backend", "b2"), ("pool", "p"))
    assert found["tidegate_backend_running_requests", b1] == 4
    assert found["tidegate_backend_signals_missing", b1] == 1
    assert found["tidegate_backend_prefill_tokens_per_second", b1] == 1500
    assert found["tidegate_backend_signals_age_seconds", b1] == 0.25
    assert found["tidegate_backend_in_flight_requests", b1] == 2
    assert ("tidegate_backend_waiting_requests", b1) not in found
    assert not [name for name, labels in found if labels == b2 and ("signals" in name or "prefill" in name)]


@pytest.mark.req("ROUTERS-11")
def test_kv_events_are_as_sure_as_the_worker_that_knows_least() -> None:
    def knowing(index: int, kv: KvState) -> WorkerSnapshot:
        metrics = Metrics(["llama"])
        metrics.count_kv_events("p", "b1", 5, index)
        fleet = (BackendState("p", "b1", True, kv=kv), BackendState("p", "b2", True))
        return msgspec.structs.replace(worker(index), fleet=fleet, metrics=metrics.snapshot(0))

    found = samples(knowing(0, KvState(90, True)), knowing(1, KvState(100, False, "gap of 3 batches")))
    b1, b2 = (("backend", "b1"), ("pool", "p")), (("backend", "b2"), ("pool", "p"))
    assert found["tidegate_backend_kv_blocks", b1] == 100
    assert found["tidegate_backend_kv_events_trusted", b1] == 0
    assert found["tidegate_backend_kv_event_batches_total", b1] == 10
    assert found["tidegate_backend_kv_event_gaps_total", b1] == 1
    assert not [name for name, labels in found if labels == b2 and "_kv_" in name]


def test_a_place_nobody_answers_from_is_missing() -> None:
    found = samples(worker(0), worker(0, state="starting"), expected=2)
    state = {labels: value for (name, labels), value in found.items() if name == "tidegate_worker_state" and value}
    assert state == {
        (("state", "ready"), ("worker", "0")): 1,
        (("state", "starting"), ("worker", "0")): 1,
        (("state", "missing"), ("worker", "1")): 1,
    }


def test_openmetrics_is_spoken_when_asked_for() -> None:
    text, content_type = render(Scrape(MetricsSnapshot(), (), None, 1, "0"), "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")


@pytest.mark.req("R38")
def test_no_family_exposes_more_series_than_the_ceiling() -> None:
    metrics = Metrics([f"m{at}" for at in range(500)])
    for at in range(5000):
        metrics.observe(msgspec.structs.replace(RECORD, model=f"m{at % 500}", tenant=f"t{at}", pool=f"p{at}", backend=f"b{at}"))
    text, _ = render(Scrape(metrics.snapshot(), (), None, 1, "0"))
    for family in text_string_to_metric_families(text.decode()):
        assert len(family.samples) <= MAX_SERIES, family.name


def test_the_docs_describe_exactly_the_families_there_are() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `([a-z_]+)` \| (counter|gauge|histogram) \|([^|]*)\|", page, re.MULTILINE)
    documented = {name: (kind, tuple(re.findall(r"`([a-z_]+)`", labels))) for name, kind, labels in rows}
    assert documented == describe()
