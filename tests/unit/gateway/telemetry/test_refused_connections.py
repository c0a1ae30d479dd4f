"""Every refused connection is counted, and a flood of them writes few lines."""

import pytest

from gateway.http.edge.listener import RefusedFor
from gateway.telemetry.families import CONNECTION_REFUSALS
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.refused_connections import TELL_EVERY_S, RefusedConnections


class Lines:
    def __init__(self) -> None:
        self.fields: list[dict[str, object]] = []

    def warning(self, event: str, **fields: object) -> None:
        assert event == "connection closed without an answer"
        self.fields.append(fields)


def test_a_flood_is_counted_and_writes_a_line_now_and_then() -> None:
    now, lines, metrics = [0.0], Lines(), Metrics()
    refused = RefusedConnections(metrics.count_refused_connection, lines, lambda: now[0])
    for number in range(1000):
        refused.note("address", f"192.0.2.{number % 256}", "too many")
    refused.note("proxy_header", "10.0.0.1", "no header")
    assert [(line["reason"], line["peer"], line["not_logged"]) for line in lines.fields] == [
        ("address", "192.0.2.0", 0),
        ("proxy_header", "10.0.0.1", 0),
    ]
    now[0] += TELL_EVERY_S
    refused.note("address", "192.0.2.9", "too many")
    assert (lines.fields[-1]["peer"], lines.fields[-1]["not_logged"]) == ("192.0.2.9", 999)
    assert metrics.snapshot().families["tidegate_refused_connections_total"] == [((), [0, 1, 1001])]


def test_the_listeners_reasons_are_the_metrics() -> None:
    assert RefusedFor.__args__ == CONNECTION_REFUSALS  # type: ignore[attr-defined]  # what Literal was given
    with pytest.raises(ValueError):
        Metrics().count_refused_connection("odd")
