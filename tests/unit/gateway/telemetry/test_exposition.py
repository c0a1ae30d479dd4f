"""What a scrape says: parsed back with the official parser, compared with what was counted and with the docs."""

import re
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from backends.kv.blocks import KvState
from backends.load_reports import PushState
from backends.signals import Signals
from domain.membership import SourceState
from domain.usage import Usage
from gateway.ledger.bookkeeper import BookingState
from gateway.ledger.reconcile import LimitsState, ReconcileState
from gateway.ledger.writer import UsageLogState
from gateway.placement.backend_state import BackendState, LimitView
from gateway.process.snapshots import IssuerState, SlotState, State, Supervision, WorkerSnapshot
from gateway.record import GAP_BOUNDS_S, Record
from gateway.telemetry.exposition import Scrape, describe, render
from gateway.telemetry.families import MAX_SERIES
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.snapshot import MetricsSnapshot, merge

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
        tasks=7,
    )


def samples(
    *workers: WorkerSnapshot, expected: int = 2, booking: BookingState | None = None
) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    supervision = Supervision(1, 2, 3, (SlotState("admin", 5, 1, 0), SlotState("worker-0", 4, 7, 2, "SIGKILL")))
    totals = merge(one.metrics for one in workers if one.metrics)
    text, content_type = render(Scrape(totals, workers, supervision, expected, "0.1.0", booking))
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
    assert found["tidegate_tasks", ()] == 14
    assert found["tidegate_access_log_dropped_total", ()] == 4
    assert found["tidegate_worker_restarts_total", (("worker", "0"),)] == 7
    assert found["tidegate_worker_restarts_total", (("worker", "admin"),)] == 1
    assert found["tidegate_build_info", (("version", "0.1.0"),)] == 1


def test_histograms_are_cumulative_and_stand_beside_those_of_opentelemetry() -> None:
    found = samples(worker(0), worker(1))
    own, theirs = "tidegate_time_to_first_token_seconds", "gen_ai_server_time_to_first_token_seconds"
    labels = (("model", "llama"), ("pool", "p"))
    of_theirs = (
        ("gen_ai_operation_name", "chat"),
        ("gen_ai_provider_name", "_none"),
        ("gen_ai_request_model", "llama"),
        ("gen_ai_response_model", "llama"),
    )
    assert found[f"{own}_bucket", (("le", "0.15"), *labels)] == 0
    assert found[f"{own}_bucket", (("le", "0.25"), *labels)] == 2
    assert found[f"{own}_bucket", (("le", "+Inf"), *labels)] == found[f"{own}_count", labels] == 2
    assert found[f"{own}_sum", labels] == found[f"{theirs}_sum", of_theirs] == 0.5
    assert found[f"{theirs}_count", of_theirs] == 2
    assert found["tidegate_inter_token_seconds_count", labels] == 38
    assert found["tidegate_time_per_output_token_seconds_sum", labels] == pytest.approx(0.04)


def test_the_cost_is_shown_in_dollars_too() -> None:
    metrics = Metrics(["llama"])
    metrics.observe(msgspec.structs.replace(RECORD, cost_nanousd=1_500_000_000, tenant="acme"))
    found = samples(msgspec.structs.replace(worker(0), metrics=metrics.snapshot()))
    labels = (("model", "llama"), ("tenant", "acme"))
    assert found["tidegate_cost_nanousd_total", labels] == 1.5e9
    assert found["tidegate_cost_usd_total", labels] == 1.5


def test_an_hour_of_a_backend_has_its_own_price_or_that_of_its_pool_or_none() -> None:
    fleet = (BackendState("p", "dear", True, usd_per_hour=4.0), BackendState("p", "usual", True), BackendState("free", "none", True))
    workers = [msgspec.structs.replace(worker(at), fleet=fleet) for at in range(2)]
    text, _ = render(Scrape(MetricsSnapshot(), workers, None, 2, "0", usd_per_hour={"p": 2.5}))
    prices = [line for line in text.decode().splitlines() if line.startswith("tidegate_backend_usd_per_hour{")]
    assert prices == [
        'tidegate_backend_usd_per_hour{backend="dear",pool="p"} 4.0',
        'tidegate_backend_usd_per_hour{backend="usual",pool="p"} 2.5',
    ]


def test_revisions_of_backends_and_what_discovery_leaves_out_are_shown() -> None:
    fleet = (BackendState("p", "new", True, revision="r2"), BackendState("p", "other", True))
    sources = (SourceState("Kubernetes engines/p", "p", "kubernetes", 1, left_out=3), SourceState("DNS p", "p", "dns", 1))
    found = samples(msgspec.structs.replace(worker(0), fleet=fleet, sources=sources))
    revisions = {labels: value for (name, labels), value in found.items() if name == "tidegate_backend_revision"}
    assert revisions == {(("backend", "new"), ("pool", "p"), ("revision", "r2")): 1.0}
    left_out = {labels: value for (name, labels), value in found.items() if name == "tidegate_discovery_left_out"}
    assert left_out == {(("pool", "p"), ("source", "kubernetes")): 3.0}


def test_of_two_processes_at_one_place_the_longer_slice_is_shown() -> None:
    workers = [msgspec.structs.replace(worker(0), slice_s=held_s) for held_s in (0.002, 0.001)]
    assert samples(*workers)["tidegate_scrape_slice_seconds", (("worker", "0"),)] == 0.002


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


def test_what_is_given_to_an_engine_is_told_and_where_nothing_is_limited_it_has_no_sample() -> None:
    limited = [
        BackendState("p", "b1", True, limit=LimitView(40.0, tokens, own), processes=n) for tokens, own, n in ((None, 8.0, 4), (9e3, 9.0, 5))
    ]
    found = samples(*(msgspec.structs.replace(worker(at), fleet=(one, BackendState("p", "b2", True))) for at, one in enumerate(limited)))
    b1 = (("backend", "b1"), ("pool", "p"))
    names = ("requests", "tokens", "own_requests", "processes")
    assert [found[f"tidegate_backend_limit_{name}", b1] for name in names] == [40, 9000, 17, 4]
    assert not [name for name, labels in found if "limit_" in name and ("backend", "b2") in labels]


def test_a_push_is_heard_when_every_worker_hears_it() -> None:
    def hearing(index: int, reason: str, age_s: float) -> WorkerSnapshot:
        metrics = Metrics(["llama"])
        metrics.count_load_reports("p", "b1", 5, index)
        told = BackendState("p", "b1", True, "", 0, Signals(read_at=0.0), 0.9, load_age_s=age_s, push=PushState(reason))
        fleet = (told, BackendState("p", "b2", True))
        return msgspec.structs.replace(worker(index), fleet=fleet, metrics=metrics.snapshot(0))

    found = samples(hearing(0, "", 0.1), hearing(1, "rank 0 is silent for 4 s", 0.2))
    b1, b2 = (("backend", "b1"), ("pool", "p")), (("backend", "b2"), ("pool", "p"))
    assert found["tidegate_backend_load_pushed", b1] == 0
    assert found["tidegate_backend_load_age_seconds", b1] == 0.1
    assert found["tidegate_backend_load_reports_total", b1] == 10
    assert found["tidegate_backend_load_report_gaps_total", b1] == 1
    assert not [name for name, labels in found if labels == b2 and "_load_" in name]


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


def test_issuers_show_the_worst_of_all_workers() -> None:
    def seen(index: int, *issuers: IssuerState) -> WorkerSnapshot:
        return msgspec.structs.replace(worker(index), issuers=issuers)

    one = seen(0, IssuerState("https://a", 2, 30.0), IssuerState("https://b", 0, None, "refused"))
    other = seen(1, IssuerState("https://a", 1, 90.0, "503"), IssuerState("https://b", 0, None, "refused"))
    found = samples(one, other)
    assert found["tidegate_jwks_keys", (("issuer", "https://a"),)] == 1
    assert found["tidegate_jwks_age_seconds", (("issuer", "https://a"),)] == 90
    assert found["tidegate_jwks_keys", (("issuer", "https://b"),)] == 0
    assert ("tidegate_jwks_age_seconds", (("issuer", "https://b"),)) not in found


def test_the_docs_describe_exactly_the_families_there_are() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    rows = re.findall(r"^\| `([a-z0-9_]+)` \| (counter|gauge|histogram) \|([^|]*)\|", page, re.MULTILINE)
    documented = {name: (kind, tuple(re.findall(r"`([a-z_]+)`", labels))) for name, kind, labels in rows}
    assert documented == describe()


def test_the_ledger_of_all_workers_together() -> None:
    workers = []
    for index in range(2):
        metrics = Metrics()
        metrics.set_ledger(10, index)
        metrics.set_ledger(20, index)
        ledger = UsageLogState(full=index == 1)
        workers.append(msgspec.structs.replace(worker(index), ledger=ledger, metrics=metrics.snapshot()))
    seen = samples(*workers, booking=BookingState(booked=36, damaged=1, waiting_bytes=12, lag_s=3.0, away="refused"))
    assert seen["tidegate_ledger_events_total", (("state", "written"),)] == 40
    assert seen["tidegate_ledger_events_total", (("state", "dropped"),)] == 1
    assert seen["tidegate_ledger_booked_total", (("state", "booked"),)] == 36
    assert seen["tidegate_ledger_booked_total", (("state", "damaged"),)] == 1
    assert seen["tidegate_ledger_waiting_bytes", ()] == 12
    assert seen["tidegate_ledger_lag_seconds", ()] == 3.0
    assert seen["tidegate_ledger_full", ()] == 1
    assert seen["tidegate_ledger_database_up", ()] == 0
    assert ("tidegate_ledger_full", ()) not in samples(worker(0)), "no samples where usage is not written down"


def test_the_limits_of_all_workers_together() -> None:
    workers = []
    for index, drift in enumerate((0.0, 0.25)):
        metrics = Metrics()
        limits = LimitsState(index == 1, 7.0 * index, 3, 2, 5, ReconcileState(unread=index == 0, drift=drift, raised=1, lowered=index), 4)
        metrics.set_limits(limits)
        workers.append(msgspec.structs.replace(worker(index), limits=limits, metrics=metrics.snapshot()))
    seen = samples(*workers)
    gauges = ("degraded", "degraded_seconds", "undelivered_settlements", "open_holds", "unread", "drift_ratio")
    assert [seen[f"tidegate_limits_{name}", ()] for name in gauges] == [1, 7, 6, 10, 1, 0.25]
    assert seen["tidegate_settlements_given_up_total", ()] == 4
    assert seen["tidegate_limits_crowded_total", ()] == 8
    assert seen["tidegate_limits_corrected_total", (("direction", "raised"),)] == 2
    assert seen["tidegate_limits_corrected_total", (("direction", "lowered"),)] == 1
    assert ("tidegate_limits_drift_ratio", ()) not in samples(worker(0))


def test_sound_is_counted_where_there_is_any() -> None:
    metrics = Metrics(["ears"])
    for usage in (Usage(1, 2), Usage(1, 2, audio_seconds=3, audio_bytes=96_000), Usage(0, 0, audio_bytes=500)):
        metrics.observe(Record("r", 0.0, "ok", 200, 0.1, 0.0, tenant="acme", model="ears", usage=usage))
    seen = samples(msgspec.structs.replace(worker(0), metrics=metrics.snapshot()))
    assert seen["tidegate_audio_seconds_total", (("model", "ears"), ("tenant", "acme"))] == 3
    assert seen["tidegate_audio_bytes_total", (("model", "ears"), ("tenant", "acme"))] == 96_500


def test_cost_and_crossed_thresholds() -> None:
    metrics = Metrics(["llama"])
    record = Record("r", 0.0, "ok", 200, 0.1, 0.0, tenant="acme", model="llama", cost_nanousd=1_500, soft_limits=("a", "b"))
    for _ in range(2):
        metrics.observe(record)
    seen = samples(msgspec.structs.replace(worker(0), metrics=metrics.snapshot()))
    assert seen["tidegate_cost_nanousd_total", (("model", "llama"), ("tenant", "acme"))] == 3_000
    assert seen["tidegate_soft_limits_crossed_total", (("tenant", "acme"),)] == 4
