"""What `tidegate top` shows: figures of two looks at a gateway, and the tables that a terminal of any width has room for.

A look is the fleet (`GET /backends`) and the metrics (`GET /metrics`). Rates are the differences of two looks; a counter that fell began
anew, so its whole value is new. Pure.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gateway.placement.backend_state import BackendState

Labels = tuple[tuple[str, str], ...]
Figures = dict[str, Any]
"""The fields of one row; None for what is not known."""

FLEET: Final = ("backend", "pool", "state", "in_flight", "limit", "running", "waiting", "kv", "cached", "tokens_per_s", "usd_per_h")
TENANTS: Final = ("tenant", "tokens_per_s", "cached", "usd_per_h", "rate_left", "budget_left", "cache_hits", "findings_per_s")
FLEET_EXPENDABLE: Final = ("usd_per_h", "cached", "running", "limit", "pool")
TENANTS_EXPENDABLE: Final = ("findings_per_s", "cache_hits", "cached")
"""Columns that a narrow terminal may do without, the least important first."""
SHARES: Final = frozenset({"kv", "cached", "rate_left", "budget_left", "cache_hits"})
RATES: Final = frozenset({"tokens_per_s", "findings_per_s"})
MONEY: Final = frozenset({"usd_per_h"})
UNBOUNDED: Final = 100_000
QUANTILE: Final = 0.95


class Look(msgspec.Struct, frozen=True):
    """A gateway at one moment."""

    at_s: float
    fleet: list[BackendState]
    samples: dict[str, dict[Labels, float]]
    """Values by the name of the series and its labels."""

    def total(self, name: str, **matching: str) -> float:
        """The sum of the series with these labels."""
        return sum(value for labels, value in self.samples.get(name, {}).items() if matching.items() <= dict(labels).items())

    def by(self, name: str, label: str) -> dict[str, float]:
        """The least value of each value of a label."""
        least: dict[str, float] = {}
        for labels, value in self.samples.get(name, {}).items():
            key = dict(labels).get(label, "")
            least[key] = min(value, least.get(key, value))
        return least


def look(at_s: float, fleet: list[BackendState], page: str) -> Look:
    """A look, of a page of metrics in Prometheus's text format. Raises ValueError when it is none."""
    samples: defaultdict[str, dict[Labels, float]] = defaultdict(dict)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            samples[sample.name][tuple(sorted(sample.labels.items()))] = sample.value
    return Look(at_s, fleet, dict(samples))


def figures(before: Look, now: Look) -> Figures:
    """Everything that is shown, between two looks."""
    passed_s = max(now.at_s - before.at_s, 1e-3)

    def rates(name: str, label: str, **matching: str) -> dict[str, float]:
        """The rate of each value of a label."""
        added: defaultdict[str, float] = defaultdict(float)
        for labels, value in now.samples.get(name, {}).items():
            named = dict(labels)
            if matching.items() <= named.items():
                old = before.samples.get(name, {}).get(labels, 0.0)
                added[named.get(label, "")] += (value - old if value >= old else value) / passed_s
        return added

    return {
        "gateway": _gateway(before, now, rates),
        "fleet": [_backend(backend, rates, now) for backend in now.fleet],
        "tenants": _tenants(now, rates),
    }


Rates = Callable[..., Mapping[str, float]]


def _gateway(before: Look, now: Look, rates: Rates) -> Figures:
    results = rates("tidegate_class_requests_total", "result")
    states = rates("tidegate_tokens_total", "type")
    return {
        "requests_per_s": sum(rates("tidegate_requests_total", "outcome").values()),
        "failures_per_s": results.get("gateway", 0.0) + results.get("engine", 0.0),
        "refused_per_s": results.get("caller", 0.0),
        "in_flight": now.total("tidegate_in_flight_requests"),
        "queued": now.total("tidegate_queue_depth"),
        "connections": now.total("tidegate_connections"),
        "prompt_tokens_per_s": states.get("prompt", 0.0),
        "completion_tokens_per_s": states.get("completion", 0.0),
        "ttft_p95_s": quantile_s(QUANTILE, before, now, "tidegate_time_to_first_token_seconds_bucket"),
        "usd_per_h": sum(rates("tidegate_cost_usd_total", "model").values()) * 3600,
        "workers_ready": now.total("tidegate_worker_state", state="ready"),
        "workers_missing": now.total("tidegate_worker_state", state="missing"),
    }


def _backend(backend: BackendState, rates: Rates, now: Look) -> Figures:
    signals = backend.signals
    tokens = rates("tidegate_backend_tokens_total", "type", pool=backend.pool, backend=backend.backend)
    own = {"pool": backend.pool, "backend": backend.backend}
    priced = any(own.items() <= dict(labels).items() for labels in now.samples.get("tidegate_backend_usd_per_hour", {}))
    return {
        **own,
        "state": (backend.state or ("up" if backend.up else "down"))
        + (f", breaker {backend.breaker.replace('_', ' ')}" if backend.breaker else ""),
        "why": backend.why,
        "in_flight": backend.in_flight,
        "limit": None if backend.limit is None else round(backend.limit.own),
        "running": signals.running if signals else None,
        "waiting": signals.waiting if signals else None,
        "kv": signals.kv_usage if signals else None,
        "cached": _share(tokens.get("cached", 0.0), tokens.get("prompt", 0.0)),
        "tokens_per_s": tokens.get("completion", 0.0),
        "usd_per_h": now.total("tidegate_backend_usd_per_hour", **own) if priced else None,
    }


def _tenants(now: Look, rates: Rates) -> list[Figures]:
    prompt, cached, completion = (rates("tidegate_tokens_total", "tenant", type=kind) for kind in ("prompt", "cached", "completion"))
    cost = rates("tidegate_cost_usd_total", "tenant")
    limits, budgets = (now.by(f"tidegate_{kind}_headroom_ratio", "tenant") for kind in ("limit", "budget"))
    looked_up, missed = rates("tidegate_cache_lookups_total", "tenant"), rates("tidegate_cache_lookups_total", "tenant", result="miss")
    found = rates("tidegate_guard_findings_total", "tenant")
    names = sorted({*prompt, *completion, *cost, *limits, *budgets} - {""})
    return [
        {
            "tenant": name,
            "tokens_per_s": prompt.get(name, 0.0) + completion.get(name, 0.0),
            "cached": _share(cached.get(name, 0.0), prompt.get(name, 0.0)),
            "usd_per_h": cost.get(name, 0.0) * 3600,
            "rate_left": limits.get(name),
            "budget_left": budgets.get(name),
            "cache_hits": _share(looked_up.get(name, 0.0) - missed.get(name, 0.0), looked_up.get(name, 0.0)),
            "findings_per_s": found.get(name, 0.0),
        }
        for name in names
    ]


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def quantile_s(share: float, before: Look, now: Look, buckets: str) -> float | None:
    """A quantile of what a histogram counted between two looks, by straight lines within its buckets; None when it counted nothing."""
    added: defaultdict[float, float] = defaultdict(float)
    for labels, value in now.samples.get(buckets, {}).items():
        old = before.samples.get(buckets, {}).get(labels, 0.0)
        added[float(dict(labels)["le"])] += value - old if value >= old else value
    edges = sorted(added)
    if not edges or not added[edges[-1]]:
        return None
    wanted, low, below = share * added[edges[-1]], 0.0, 0.0
    for edge in edges:
        if added[edge] >= wanted:
            if edge == float("inf"):
                return low
            return low + (edge - low) * (wanted - below) / (added[edge] - below)
        low, below = edge, added[edge]
    return low


def ordered(rows: Iterable[Figures], by: str, reverse: bool) -> list[Figures]:
    """The rows by one column: numbers from the highest, texts from A, the other way with `reverse`; unknown ones are always last."""
    rows = list(rows)
    known = [row for row in rows if row[by] is not None]
    numbers = any(isinstance(row[by], int | float) for row in known)
    known.sort(key=lambda row: row[by], reverse=numbers != reverse)
    return known + [row for row in rows if row[by] is None]


def cell_of(name: str, value: Any) -> str:
    """One figure as text; `?` for an unknown one, which is not zero."""
    if value is None:
        return "?"
    if name in SHARES:
        return f"{value:.0%}"
    if name in RATES:
        return f"{value:,.0f}" if value >= 10 or not value else f"{value:.1f}"
    if name in MONEY:
        return f"${value:,.2f}"
    return str(value)


def headline(gateway: Figures) -> list[str]:
    """The gateway in two lines."""
    ttft_s = gateway["ttft_p95_s"]
    first = "none" if ttft_s is None else f"{ttft_s * 1000:,.0f} ms"
    missing = f", {gateway['workers_missing']:.0f} missing" if gateway["workers_missing"] else ""
    return [
        f"{gateway['requests_per_s']:.1f} requests/s, {gateway['failures_per_s']:.1f} failed, {gateway['refused_per_s']:.1f} refused  "
        f"{gateway['in_flight']:.0f} in flight, {gateway['queued']:.0f} wait",
        f"{gateway['prompt_tokens_per_s']:,.0f} in, {gateway['completion_tokens_per_s']:,.0f} out tokens/s  first token p95 {first}  "
        f"${gateway['usd_per_h']:,.2f}/h  {gateway['workers_ready']:.0f} workers{missing}",
    ]


def table(title: str, rows: Sequence[Figures], columns: Sequence[str], expendable: Sequence[str], width: int, sorted_by: str) -> Table:
    """The rows as a table no wider than `width`: columns are left out, then texts are cut."""
    left_out: list[str] = []
    droppable = list(expendable)
    while True:
        shown = [name for name in columns if name not in left_out]
        made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in shown:
            text = isinstance(rows[0][name], str) if rows else name in ("backend", "pool", "state", "tenant")
            heading = name.replace("_per_s", "/s").replace("_per_h", "/h").replace("_", " ")
            style = "bold underline" if name == sorted_by else "bold"
            made.add_column(heading, justify="left" if text else "right", header_style=style, no_wrap=True, overflow="ellipsis")
        for row in rows:
            made.add_row(*(Text(cell_of(name, row[name])) for name in shown), style="red" if row.get("why") else None)
        if not droppable or Console(width=UNBOUNDED).measure(made).maximum <= width:
            return made
        left_out.append(droppable.pop(0))


def screen(shown: Figures, view: "View", width: int, height: int | None) -> RenderableType:
    """One frame: at most `height` lines with the keys below, or all of it."""
    lines = [Text(line, overflow="ellipsis", no_wrap=True) for line in (*headline(shown["gateway"]), *view.notes)]
    parts: list[RenderableType] = [*lines]
    room = UNBOUNDED if height is None else height - len(lines) - 1  # the line of keys
    tables = [kind for kind in ("fleet", "tenants") if view.tables in (kind, "both")][: max(room // 4, 1)]
    for at, kind in enumerate(tables):
        columns, expendable = (FLEET, FLEET_EXPENDABLE) if kind == "fleet" else (TENANTS, TENANTS_EXPENDABLE)
        sort = view.sort if view.sort in columns else columns[0]
        rows = ordered(shown[kind], sort, view.reverse)
        most = max(room // (len(tables) - at) - 3, 1)  # an empty line, the title and the headings
        title = f"{kind} ({len(rows)})" if len(rows) <= most else f"{kind} ({most} of {len(rows)})"
        parts += [Text(""), table(title, rows[:most], columns, expendable, width, sort)]
        room -= 3 + min(most, len(rows))
    if height is None:
        return Group(*parts)
    return Group(
        *parts, Text("q quit  s sort  r reverse  v fleet, tenants or both  p pause", style="dim", overflow="ellipsis", no_wrap=True)
    )


class View(msgspec.Struct):
    """What the reader has chosen."""

    tables: str = "both"
    """`fleet`, `tenants` or `both`."""
    sort: str = ""
    """A column; the first one of a table that does not have it."""
    reverse: bool = False
    paused: bool = False
    notes: tuple[str, ...] = ()
    """Sentences below the headline."""

    def next_sort(self) -> None:
        """Sort by the next column of the tables that are shown."""
        columns = list(dict.fromkeys((FLEET if self.tables != "tenants" else ()) + (TENANTS if self.tables != "fleet" else ())))
        self.sort = columns[(columns.index(self.sort) + 1) % len(columns)] if self.sort in columns else columns[1]

    def next_tables(self) -> None:
        """Show the next choice of tables."""
        choices = ("both", "fleet", "tenants")
        self.tables = choices[(choices.index(self.tables) + 1) % len(choices)]
