"""Exemplars: the slow request that somebody looks for is there, few are written, and a request without a trace is none."""

import msgspec
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gateway.record import Record
from gateway.telemetry.exemplars import KEPT_S, Exemplar, Slots, latest, note, rows_of
from gateway.telemetry.exposition import Scrape, render
from gateway.telemetry.families import DURATION, GEN_AI_DURATION, TTFT
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.snapshot import merge

RECORD = Record("r", 100.0, "ok", 200, 0.3, 0.0, endpoint="/v1/chat/completions", model="m", pool="p", ttft_s=0.1)
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def test_a_bucket_keeps_its_exemplar_for_a_while() -> None:
    slots: Slots = [None, None]
    for trace, at_unix in (("first", 100.0), ("soon", 100.0 + KEPT_S - 0.1), ("late", 100.0 + KEPT_S)):
        note(slots, 1, trace, 0.5, at_unix)
        assert slots == [None, ("late" if trace == "late" else "first", 0.5, 100.0 + KEPT_S if trace == "late" else 100.0)]


def test_a_clock_that_went_back_does_not_keep_an_exemplar_for_ever() -> None:
    slots: Slots = [("ahead", 0.5, 1e9)]
    note(slots, 0, "now", 0.5, 100.0)
    assert slots == [("now", 0.5, 100.0)]


def test_of_several_workers_the_last_one_is_shown() -> None:
    early: Exemplar = ("a", 0.1, 1.0)
    late: Exemplar = ("b", 0.2, 2.0)
    rows = [rows_of({("x",): [early, late], ("none",): [None, None]}), rows_of({("x",): [late, early]})]
    assert latest(rows) == [(("x",), [(0, late), (1, late)])]


def test_a_rare_slow_request_is_an_exemplar_in_open_metrics_alone() -> None:
    workers = [Metrics(["m"]) for _ in range(2)]
    for worker in workers:
        for at in range(50):
            worker.observe(msgspec.structs.replace(RECORD, at_unix=100.0 + at / 100, trace_id=f"{at:032x}"))
            worker.observe(RECORD)
    workers[1].observe(msgspec.structs.replace(RECORD, duration_s=50.0, ttft_s=None, trace_id=TRACE))
    scrape = Scrape(merge(worker.snapshot() for worker in workers), (), None, 1, "0")
    text, content_type = render(scrape, "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    marked = {
        (family.name, sample.labels["le"]): sample.exemplar
        for family in text_string_to_metric_families(text.decode())  # type: ignore[no-untyped-call]
        for sample in family.samples
        if sample.exemplar is not None
    }
    assert {name for name, _ in marked} == {DURATION.name, TTFT.name, GEN_AI_DURATION.name}
    assert len(marked) == 5, "one for each bucket, not one for each request"
    slow = marked[DURATION.name, "80.0"]
    assert (slow.labels, slow.value, float(slow.timestamp)) == ({"trace_id": TRACE}, 50.0, 150.0)
    assert TRACE.encode() not in render(scrape)[0]


def test_without_traces_there_are_none() -> None:
    metrics = Metrics(["m"])
    metrics.observe(RECORD)
    assert metrics.snapshot().exemplars == {}
