"""A scrape of the largest page there is: bounded in series and labels, and taken in slices of bounded size."""

from collections.abc import Iterator

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from domain.usage import Usage
from gateway.record import GAP_BOUNDS_S, SERVICE_LEVELS, Record
from gateway.telemetry.cells import MAX_NAMES
from gateway.telemetry.exposition import Scrape, render
from gateway.telemetry.families import MAX_SERIES, OTHER
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.snapshot import SLICE_CELLS, FamilyNumbers, MetricsSnapshot, merge, slices

TENANTS, MODELS = 1000, 20
RECORD = Record(
    request_id="r",
    at_unix=1.7e9,
    outcome="ok",
    status=200,
    duration_s=0.3,
    overhead_s=0.0,
    endpoint="/v1/chat/completions",
    backend="b",
    attempts=1,
    stream=True,
    usage=Usage(100, 20, 64),
    closing="settle",
    ttft_s=0.25,
    events=20,
    decode_s=0.38,
    gaps=tuple(19 if at == 5 else 0 for at in range(len(GAP_BOUNDS_S) + 1)),
    cost_nanousd=5,
    soft_limits=("rpm",),
    cache="miss",
    promises=tuple((level, True) for level in SERVICE_LEVELS),
    trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
)


@pytest.fixture(scope="module")
def crowded() -> Metrics:
    """One request of each tenant to each model."""
    metrics = Metrics([f"model-{at}" for at in range(MODELS)], providers={f"pool-{at}": "vllm" for at in range(MODELS)})
    for tenant in range(TENANTS):
        for model in range(MODELS):
            metrics.observe(
                msgspec.structs.replace(
                    RECORD, tenant=f"tenant-{tenant}", model=f"model-{model}", pool=f"pool-{model}", backend=f"b-{model}-{tenant % 4}"
                )
            )
    return metrics


@pytest.mark.req("R38")
def test_a_thousand_tenants_and_twenty_models_are_bounded_on_the_page(crowded: Metrics) -> None:
    text, _ = render(Scrape(merge([crowded.snapshot()] * 4), (), None, 4, "0"))
    tenants = set()
    models = set()
    for family in text_string_to_metric_families(text.decode()):
        assert len(family.samples) <= MAX_SERIES, family.name
        for sample in family.samples:
            tenants |= {sample.labels["tenant"]} if "tenant" in sample.labels else set()
            models |= {sample.labels["model"]} if "model" in sample.labels else set()
    assert len(tenants - {OTHER}) <= MAX_NAMES and OTHER in tenants
    assert models >= {f"model-{at}" for at in range(MODELS)}, "tenants take no room of models"
    found = dict(crowded.snapshot().families["tidegate_goodput_requests_total"])
    assert sum(met for met, _ in found.values()) == TENANTS * MODELS, "and nothing is lost"


def test_the_slices_are_the_snapshot(crowded: Metrics) -> None:
    crowded.in_flight = 7
    *pauses, last = slices(crowded.families(), crowded.totals(3))
    assert pauses == [None] * len(pauses)
    assert last is not None
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(last), type=MetricsSnapshot) == crowded.snapshot(3)
    assert crowded.snapshot().exemplars


def test_no_slice_is_larger_than_its_bound_and_one_family(crowded: Metrics) -> None:
    taken: list[int] = [0]

    def counted() -> Iterator[FamilyNumbers]:
        for family in crowded.families():
            taken[-1] += len(family.rows) + sum(len(found) for _, found in family.exemplars)
            yield family

    for _ in slices(counted(), crowded.totals()):
        taken.append(0)
    assert len(taken) > 4, "the largest page is several slices"
    assert max(taken) <= SLICE_CELLS + MAX_SERIES


def test_a_small_page_is_one_slice() -> None:
    metrics = Metrics(["m"])
    metrics.observe(msgspec.structs.replace(RECORD, model="m", pool="p"))
    assert len(list(slices(metrics.families(), metrics.totals()))) == 1
