"""OpenTelemetry's names: the labels of its conventions, and nothing that the conventions do not want counted."""

from bisect import bisect_left

import msgspec
import pytest

from domain.ask import Endpoint
from domain.usage import Usage
from gateway.record import GAP_BOUNDS_S, Record
from gateway.telemetry.families import (
    ENDPOINTS,
    ERROR_TYPES,
    GEN_AI_DURATION,
    GEN_AI_DURATION_BOUNDS_S,
    GEN_AI_TOKEN_BOUNDS,
    GEN_AI_TOKENS,
    GEN_AI_TPOT,
    GEN_AI_TTFT,
    MAX_SERIES,
)
from gateway.telemetry.gen_ai import GENERATING, OPERATIONS
from gateway.telemetry.metrics import Metrics

CHAT = Record(
    request_id="r",
    at_unix=1.7e9,
    outcome="ok",
    status=200,
    duration_s=0.3,
    overhead_s=0.0,
    tenant="acme",
    endpoint="/v1/chat/completions",
    model="small",
    asked_model="large",
    pool="p",
    backend="b",
    stream=True,
    usage=Usage(100, 21),
    closing="settle",
    ttft_s=0.1,
    events=21,
    decode_s=0.2,
    gaps=tuple(20 if at == 5 else 0 for at in range(len(GAP_BOUNDS_S) + 1)),
)
LABELS = ("large", "small", "vllm", "chat")


def counted(*records: Record) -> dict[str, dict[tuple[str, ...], list[float]]]:
    metrics = Metrics(["large", "small"], providers={"p": "vllm"})
    for record in records:
        metrics.observe(record)
    return {name: dict(rows) for name, rows in metrics.snapshot().families.items()}


def test_a_streamed_chat_is_in_all_four_histograms() -> None:
    seen = counted(CHAT)
    duration = seen[GEN_AI_DURATION.name][*LABELS, ""]
    assert duration[bisect_left(GEN_AI_DURATION_BOUNDS_S, 0.3)] == 1 and duration[-1] == 0.3
    assert seen[GEN_AI_TTFT.name][LABELS][-1] == 0.1
    assert seen[GEN_AI_TPOT.name][LABELS][-1] == pytest.approx(0.01)
    for token_type, tokens in (("input", 100), ("output", 21)):
        cell = seen[GEN_AI_TOKENS.name][*LABELS, token_type]
        assert cell[bisect_left(GEN_AI_TOKEN_BOUNDS, tokens)] == 1 and cell[-1] == tokens


def test_a_request_with_a_trace_is_the_exemplar_of_its_buckets_and_one_without_is_none() -> None:
    """Each value stands in the bucket that it is counted in."""
    metrics = Metrics(["large", "small"], providers={"p": "vllm"})
    metrics.observe(CHAT)
    assert not [name for name in metrics.snapshot().exemplars if name.startswith("gen_ai_")]
    metrics.observe(msgspec.structs.replace(CHAT, trace_id="4bf92f3577b34da6a3ce929d0e0e4736"))
    snapshot = metrics.snapshot()
    expected = {
        (GEN_AI_DURATION, (*LABELS, "")): 0.3,
        (GEN_AI_TTFT, LABELS): 0.1,
        (GEN_AI_TPOT, LABELS): 0.01,
        (GEN_AI_TOKENS, (*LABELS, "input")): 100,
        (GEN_AI_TOKENS, (*LABELS, "output")): 21,
    }
    for (family, labels), value in expected.items():
        ((bucket, (trace_id, kept, at_unix)),) = dict(snapshot.exemplars[family.name])[labels]
        assert (trace_id, at_unix) == ("4bf92f3577b34da6a3ce929d0e0e4736", 1.7e9 + 0.3)
        assert kept == pytest.approx(value)
        assert dict(snapshot.families[family.name])[labels][bucket] == 2


def test_a_failure_has_the_side_that_it_was_on_and_no_time_to_first_token() -> None:
    seen = counted(msgspec.structs.replace(CHAT, outcome="engine_busy", status=503, closing="release", asked_model=""))
    assert set(seen[GEN_AI_DURATION.name]) == {("small", "small", "vllm", "chat", "engine")}
    assert seen[GEN_AI_TTFT.name] == seen[GEN_AI_TPOT.name] == seen[GEN_AI_TOKENS.name] == {}


def test_an_estimate_is_no_usage_and_a_plain_answer_has_no_first_token() -> None:
    seen = counted(msgspec.structs.replace(CHAT, closing="estimate", stream=False))
    assert seen[GEN_AI_TOKENS.name] == seen[GEN_AI_TTFT.name] == {}
    assert len(seen[GEN_AI_DURATION.name]) == 1


def test_only_operations_of_a_model_are_counted() -> None:
    seen = counted(msgspec.structs.replace(CHAT, endpoint="/v1/models"), msgspec.structs.replace(CHAT, model="", asked_model=""))
    assert seen[GEN_AI_DURATION.name] == {}


def test_every_endpoint_that_computes_is_an_operation() -> None:
    assert {endpoint.value for endpoint in Endpoint if endpoint.computes} <= set(OPERATIONS) <= ENDPOINTS
    assert {OPERATIONS[endpoint.value] for endpoint in Endpoint if endpoint.generates} == GENERATING


@pytest.mark.req("R38")
def test_twenty_models_that_fail_in_every_way_have_labels_of_their_own() -> None:
    names = [f"model-{at}" for at in range(20)]
    metrics = Metrics(names, providers={"p": "vllm"})
    for name in names:
        for outcome in ("ok", "engine_busy", "invalid_value", "overloaded"):
            metrics.observe(msgspec.structs.replace(CHAT, model=name, asked_model="", outcome=outcome))
    rows = metrics.snapshot().families[GEN_AI_DURATION.name]
    assert {labels[0] for labels, _ in rows} == set(names)
    assert len(rows) == 20 * len(ERROR_TYPES) and len(rows) * GEN_AI_DURATION.series <= MAX_SERIES
