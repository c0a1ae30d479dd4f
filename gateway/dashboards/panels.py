"""Panels, rows and dashboards as values: the one source of what Grafana, the console and the tests draw of the metrics.

A query is PromQL with three kinds of words of its own: `$__rate_interval`, the window of a rate, which depends on how often Prometheus
scrapes; and `$pool`, `$model` and `$tenant`, which a viewer chooses. Grafana fills them in itself; everything else calls `promql`.
`metric_names` and `label_names` read what a query uses, so that a test can compare it with the registry of metrics.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final, Literal

import msgspec

WINDOW: Final = "$__rate_interval"
"""Grafana's word for a window of at least four scrapes."""
CHOICES: Final = ("pool", "model", "tenant")
"""Labels that a viewer chooses values of; each is a variable of the same name."""
EVERY: Final = ".*"
"""The value of a variable that leaves nothing out."""

Kind = Literal["lines", "stacked", "value", "bars"]
"""How a panel is drawn: lines over time, areas on each other, the present value, or one bar of the present value for each series."""
Unit = Literal[
    "count",
    "times",
    "seconds",
    "ratio",
    "yes or no",
    "requests/s",
    "tokens/s",
    "tokens/J",
    "per second",
    "bytes",
    "bytes/s",
    "usd",
    "usd/h",
    "watts",
]

_SUFFIXES: Final = ("_bucket", "_sum", "_count")
_METRIC: Final = re.compile(r"\b((?:tidegate|gen_ai|DCGM)_\w+)\s*(?:\{([^}]*)\})?")
_MATCHER: Final = re.compile(r"([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)\s*\"")
_GROUPED: Final = re.compile(r"\b(?:by|on|group_left|group_right)\s*\(([^)]*)\)")
_LEGEND: Final = re.compile(r"\{\{(\w+)\}\}")
_NO_WORD: Final = re.compile(r"[^a-z0-9]+")


class Query(msgspec.Struct, frozen=True):
    """One query of a panel."""

    expr: str
    legend: str = ""
    """The name of each series, with `{{label}}` for a label; empty where the panel's title says enough."""


class Threshold(msgspec.Struct, frozen=True):
    """From this value on a panel's value is a warning, or bad."""

    value: float
    is_bad: bool = True


class Panel(msgspec.Struct, frozen=True):
    """One chart."""

    title: str
    description: str
    """What it shows, and what to conclude from it."""
    queries: tuple[Query, ...]
    unit: Unit
    kind: Kind = "lines"
    thresholds: tuple[Threshold, ...] = ()
    """In ascending order."""
    most: float | None = None
    """The highest value that there is; the axis begins at 0."""
    empty_until: str = ""
    """What has to happen before the panel shows anything; empty where any request is enough."""

    @property
    def id(self) -> str:
        """The title as a part of an address, as `time-to-the-first-token`; no two panels of a dashboard have the same one."""
        return _NO_WORD.sub("-", self.title.lower()).strip("-")

    @property
    def over_time(self) -> bool:
        """Whether it is drawn over time, and not of the present values."""
        return self.kind in ("lines", "stacked")


class Row(msgspec.Struct, frozen=True):
    """Panels about one thing, under one heading."""

    title: str
    panels: tuple[Panel, ...]


class Dashboard(msgspec.Struct, frozen=True):
    """One page of charts."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]

    @property
    def panels(self) -> Iterator[Panel]:
        """Every panel, in order."""
        for row in self.rows:
            yield from row.panels

    @property
    def choices(self) -> tuple[str, ...]:
        """The variables that its queries use."""
        text = " ".join(query.expr for panel in self.panels for query in panel.queries)
        return tuple(name for name in CHOICES if f"${name}" in text)


def pattern_of(values: Collection[str]) -> str:
    """The regular expression of exactly these values as it stands between the quotes of a query; every value where there are none."""
    whole = "|".join(re.escape(value) for value in values)
    return whole.replace("\\", "\\\\").replace('"', '\\"') if values else EVERY


def named(legend: str, labels: Mapping[str, str]) -> str:
    """The name of a series: its query's legend with the labels filled in, or the labels' values where the legend has none."""
    return _LEGEND.sub(lambda found: labels.get(found[1], ""), legend).strip() or ", ".join(labels.values())


def promql(expr: str, window: str, **chosen: str) -> str:
    """The query as Prometheus takes it.

    Args:
        window: of rates, as `1m`; at least four times what lies between two scrapes.
        chosen: a regular expression for each variable; every value where there is none.
    """
    text = expr.replace(WINDOW, window)
    for name in CHOICES:
        text = text.replace(f'"${name}"', f'"{chosen.get(name, EVERY)}"')
    return text


def quantile(share: float, family: str, by: str = "", where: str = "") -> str:
    """The query for a quantile of a histogram: `by` is a label, or several with commas; `where` the inside of the braces."""
    labels = f"{by}, le" if by else "le"
    matched = f"{{{where}}}" if where else ""
    return f"histogram_quantile({share}, sum by ({labels}) (rate({family}_bucket{matched}[{WINDOW}])))"


def metric_names(expr: str) -> set[str]:
    """The families that a query reads; the parts of a histogram count as the histogram."""
    return {family_of(found[1]) for found in _METRIC.finditer(expr)}


def family_of(series: str) -> str:
    """The family that a series belongs to, as `describe` of `telemetry.exposition` names it."""
    for suffix in _SUFFIXES:
        if series.endswith(suffix):
            return series.removesuffix(suffix)
    return series


def label_names(expr: str, legend: str = "") -> dict[str, set[str]]:
    """The labels that a query names, by family: in its own braces, and under `""` those of groupings and of the legend."""
    labels: dict[str, set[str]] = {"": set(_LEGEND.findall(legend))}
    for found in _METRIC.finditer(expr):
        labels.setdefault(family_of(found[1]), set()).update(_MATCHER.findall(found[2] or ""))
    for grouped in _GROUPED.findall(expr):
        labels[""].update(filter(None, (name.strip() for name in grouped.split(","))))
    return labels
