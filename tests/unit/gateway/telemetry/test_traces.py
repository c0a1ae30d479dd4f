"""Which finished requests are traced, and which exporter gets them."""

from typing import Any

import msgspec
import pytest

from domain.faults import SOURCE, Kind, Source
from gateway.record import Fell, Record
from gateway.request.trace_notes import TraceNotes, TraceTerms
from gateway.telemetry.otlp import BatchExporter, OtlpSender
from gateway.telemetry.traces import TraceReceiver, Traces, is_kept

TERMS = TraceTerms(0.0, 60.0, 5.0)


def record(*, sampled: bool = False, terms: TraceTerms | None = TERMS, **fields: Any) -> Record:
    notes = TraceNotes("1" * 32, "2" * 16, 0.0, terms=terms, settled=True, sampled=sampled)
    healthy = Record("r", 0.0, "ok", 200, 1.0, 0.0, tenant="acme", ttft_s=0.2, trace=notes)
    return msgspec.structs.replace(healthy, **fields)


def test_a_healthy_request_is_traced_when_it_was_sampled() -> None:
    assert is_kept(record(sampled=True))
    assert not is_kept(record())


@pytest.mark.parametrize("kind", list(Kind))
def test_a_failure_is_always_traced_unless_it_is_the_callers(kind: Kind) -> None:
    assert is_kept(record(outcome=kind.value)) is (SOURCE[kind] is not Source.CALLER)


@pytest.mark.parametrize(
    "fields",
    [
        {"duration_s": 60.1},
        {"ttft_s": 5.1},
        {"caller_ttft_s": 5.1},
        {"failed": ("e0",)},
        {"fell_back": (Fell("a", "b", "overload", "overloaded"),)},
        {"promises": (("ttft", True), ("tpot", False))},
    ],
)
def test_what_was_slow_or_needed_a_second_try_is_always_traced(fields: dict[str, Any]) -> None:
    assert is_kept(record(**fields))
    assert not is_kept(record(terms=None, **fields)), "but not of a tenant that is not traced"


def test_a_promise_that_was_kept_and_a_request_without_notes_are_no_reason() -> None:
    assert not is_kept(record(promises=(("ttft", True),)))
    assert not is_kept(msgspec.structs.replace(record(duration_s=100.0), trace=None))


def exporter(name: str, most: int = 10) -> BatchExporter:
    sender = OtlpSender("http://127.0.0.1:9/", {}, timeout_s=1.0, compress=False, rejected_of=lambda _: (0, ""), clock=lambda: 0.0)
    return BatchExporter(name, lambda _: b"", sender, max_pending=most, clock=lambda: 0.0)


def test_each_exporter_gets_its_own_tenants_and_counts_what_it_has_no_room_for() -> None:
    for tenants, others, wanted in (
        (None, (), {"acme", "bolt", ""}),
        (["bolt"], (), {"bolt"}),
        (None, ["acme"], {"bolt", ""}),
    ):
        receiver = TraceReceiver(exporter("one"), None if tenants is None else frozenset(tenants), frozenset(others))
        assert {tenant for tenant in ("acme", "bolt", "") if receiver.wants(tenant)} == wanted
    traces = Traces([TraceReceiver(exporter("main", most=3), None, frozenset())])
    for _ in range(5):
        traces.observe(record(sampled=True))
        traces.observe(record())
    assert traces.figures() == {"main": (0, 2, 0, 0)}
