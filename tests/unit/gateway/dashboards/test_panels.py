"""Queries of panels: what they read is in the registry of metrics, and what a viewer chooses is filled in."""

import re
from typing import get_args

import pytest

from gateway.console.files import STATIC
from gateway.dashboards.boards import DASHBOARDS
from gateway.dashboards.panels import Panel, Query, Unit, family_of, label_names, metric_names, named, pattern_of, promql, quantile
from gateway.telemetry.exposition import describe

DCGM = {
    "DCGM_FI_DEV_GPU_UTIL": ("backend", "gpu"),
    "DCGM_FI_DEV_FB_USED": ("backend", "gpu"),
    "DCGM_FI_DEV_POWER_USAGE": ("backend", "gpu"),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("backend", "gpu"),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("backend", "gpu"),
}
"""Metrics of the DCGM exporter, whose `backend` is the label that our documentation adds."""
OF_PROMETHEUS = {"instance", "job", "le"}

PANELS = [(board.uid, panel) for board in DASHBOARDS for panel in board.panels]


def registry() -> dict[str, set[str]]:
    """The labels of every family that there is."""
    return {name: set(labels) for name, (_, labels) in describe().items()} | {name: set(labels) for name, labels in DCGM.items()}


def complaints(expr: str, legend: str = "") -> list[str]:
    """What a query names that the registry does not have."""
    families = registry()
    missing = [name for name in metric_names(expr) if name not in families]
    known = OF_PROMETHEUS.union(*(families.get(name, set()) for name in metric_names(expr)))
    for family, labels in label_names(expr, legend).items():
        missing += [f"{family or 'a grouping'}: {label}" for label in labels - (families.get(family, known) | OF_PROMETHEUS)]
    return sorted(missing)


@pytest.mark.parametrize(("board", "panel"), PANELS, ids=lambda value: value.title if isinstance(value, Panel) else value)
def test_a_panel_names_metrics_and_labels_that_there_are(board: str, panel: Panel) -> None:
    assert panel.queries
    for query in panel.queries:
        assert metric_names(query.expr), f"{board}: {panel.title} reads no metric"
        assert complaints(query.expr, query.legend) == []


def test_a_metric_or_label_that_there_is_not_is_found() -> None:
    assert complaints("sum(rate(tidegate_requests_totals[5m]))") == ["tidegate_requests_totals"]
    assert complaints('sum(rate(tidegate_requests_total{teannt="a"}[5m]))') == ["tidegate_requests_total: teannt"]
    assert complaints("sum by (modle) (rate(tidegate_requests_total[5m]))") == ["a grouping: modle"]
    assert complaints("tidegate_backend_up", "{{modle}}") == ["a grouping: modle"]
    assert complaints(quantile(0.5, "tidegate_overhead_seconds", "endpoint"), "{{endpoint}}") == []


def test_the_parts_of_a_histogram_belong_to_it() -> None:
    assert {family_of(f"tidegate_overhead_seconds{part}") for part in ("_bucket", "_sum", "_count")} == {"tidegate_overhead_seconds"}
    assert metric_names("rate(tidegate_a_sum[5m]) / rate(tidegate_a_count[5m])") == {"tidegate_a"}


def test_a_query_is_filled_in() -> None:
    expr = 'sum(rate(tidegate_requests_total{model=~"$model"}[$__rate_interval]))'
    assert promql(expr, "1m") == 'sum(rate(tidegate_requests_total{model=~".*"}[1m]))'
    assert promql(expr, "30s", model="chat") == 'sum(rate(tidegate_requests_total{model=~"chat"}[30s]))'


def test_a_quantile_is_of_all_that_is_not_kept_apart() -> None:
    assert quantile(0.5, "tidegate_a") == "histogram_quantile(0.5, sum by (le) (rate(tidegate_a_bucket[$__rate_interval])))"
    kept = quantile(0.9, "tidegate_a", "model", 'pool="x"')
    assert kept == 'histogram_quantile(0.9, sum by (model, le) (rate(tidegate_a_bucket{pool="x"}[$__rate_interval])))'


def test_titles_tell_panels_and_dashboards_apart() -> None:
    assert len({board.uid for board in DASHBOARDS}) == len(DASHBOARDS)
    for board in DASHBOARDS:
        titles = [panel.title for panel in board.panels]
        assert len(set(titles)) == len(titles), board.uid


@pytest.mark.parametrize(("board", "panel"), PANELS, ids=lambda value: value.title if isinstance(value, Panel) else value)
def test_a_panel_says_what_it_shows(board: str, panel: Panel) -> None:
    assert panel.description.endswith("."), board
    assert list(panel.thresholds) == sorted(panel.thresholds, key=lambda threshold: threshold.value)
    several = len(panel.queries) > 1
    assert not several or all(query.legend for query in panel.queries), "series of several queries need names"


def test_a_panels_id_is_its_own_within_its_dashboard() -> None:
    assert Panel("Compute or memory?", "", (Query("up"),), "count").id == "compute-or-memory"
    for board in DASHBOARDS:
        ids = [panel.id for panel in board.panels]
        assert len(ids) == len(set(ids)), board.uid
        assert all(ids)


def test_chosen_values_are_texts_and_stay_within_their_quotes() -> None:
    expr = 'sum(rate(tidegate_requests_total{model=~"$model"}[$__rate_interval]))'
    assert 'model=~"a|b/c"' in promql(expr, "1m", model=pattern_of(["a", "b/c"]))
    assert 'model=~"llama-3\\\\.1"'.replace("llama-3", "llama\\\\-3") in promql(expr, "1m", model=pattern_of(["llama-3.1"]))
    assert pattern_of([]) == ".*"
    for value in ('"} or vector(1) #', "\\", '\\"', "$pool", '"$tenant"', ".*", "a|b"):
        filled = promql(expr, "1m", model=pattern_of([value]))
        (quoted,) = re.findall(r'model=~"((?:[^"\\]|\\.)*)"\}\[1m\]\)\)$', filled)
        pattern = re.sub(r"\\(.)", r"\1", quoted)
        assert re.fullmatch(pattern, value), value
        assert not re.fullmatch(pattern, f"{value}x")


def test_a_series_is_named_by_its_legend_or_its_labels() -> None:
    labels = {"pool": "chat", "backend": "e0"}
    assert named("{{backend}} of {{pool}}", labels) == "e0 of chat"
    assert named("", labels) == named("{{other}}", labels) == "chat, e0"
    assert named("p50 {{model}}", {}) == "p50"


def test_the_console_knows_every_unit() -> None:
    page = (STATIC / "pages" / "charts.js").read_text()
    table = page[page.index("const UNITS") : page.index("};", page.index("const UNITS"))]
    assert [unit for unit in get_args(Unit) if not re.search(rf'^  "?{re.escape(unit)}"?[:,]', table, re.MULTILINE)] == []
