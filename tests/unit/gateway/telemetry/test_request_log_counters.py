"""Counters of the request log: each loss is a series, and a log that is off has none."""

from prometheus_client.parser import text_string_to_metric_families

from gateway.telemetry.exposition import Scrape, render
from gateway.telemetry.request_log_counters import AT_SINKS, LOST, RequestLogCounts, request_log_counts
from gateway.telemetry.snapshot import MetricsSnapshot


def test_what_was_lost_and_what_became_of_requests_at_each_sink_is_counted() -> None:
    counts = RequestLogCounts(3, {"otlp": (5, 1, 2, 4), "parquet": (9, 0, 0, 0)})
    text, _ = render(Scrape(MetricsSnapshot(), (), None, 1, "0", request_log=counts))
    samples = [sample for family in text_string_to_metric_families(text.decode()) for sample in family.samples]
    assert [sample.value for sample in samples if sample.name == LOST] == [3]
    at_sinks = {(one.labels["sink"], one.labels["result"]): one.value for one in samples if one.name == AT_SINKS}
    otlp = {"sent": 5, "dropped": 1, "rejected": 2, "failed": 4}
    assert {result: number for (sink, result), number in at_sinks.items() if sink == "otlp"} == otlp
    assert at_sinks["parquet", "sent"] == 9
    assert len(at_sinks) == 8


def test_a_log_that_is_off_has_no_series() -> None:
    assert list(request_log_counts(None)) == []
    text, _ = render(Scrape(MetricsSnapshot(), (), None, 1, "0"))
    assert f"\n{LOST} ".encode() not in text
