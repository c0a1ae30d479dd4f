"""Dashboards as Grafana reads them: the JSON that its page Import and its provisioning take.

The JSON keeps to what Grafana 10.1 knows, schema version 38; newer releases migrate it when they load it. The data source is a variable of
the dashboard, so that the same file works with any name of it.
"""

from typing import Any, Final

import msgspec

from gateway.dashboards.panels import EVERY, Dashboard, Kind, Panel, Threshold, Unit

SCHEMA_VERSION: Final = 38
"""The version of the dashboard schema that Grafana 10.1 writes."""
WIDTH: Final = 24
"""Columns of Grafana's grid."""
PANEL_WIDTH: Final = 8
PANEL_HEIGHT: Final = 8
SOURCE: Final[dict[str, str]] = {"type": "prometheus", "uid": "${datasource}"}
UNITS: Final[dict[Unit, str]] = {
    "count": "short",
    "times": "suffix: times",
    "seconds": "s",
    "ratio": "percentunit",
    "yes or no": "bool_yes_no",
    "requests/s": "reqps",
    "tokens/s": "suffix: tokens/s",
    "tokens/J": "suffix: tokens/J",
    "per second": "cps",
    "bytes": "bytes",
    "bytes/s": "Bps",
    "usd": "currencyUSD",
    "usd/h": "suffix: USD/h",
    "watts": "watt",
}
TYPES: Final[dict[Kind, str]] = {"lines": "timeseries", "stacked": "timeseries", "value": "stat", "bars": "bargauge"}
GOOD, WARN, BAD = "green", "yellow", "red"
SEVERAL: Final = "multi"


def grafana(board: Dashboard) -> bytes:
    """The dashboard as an indented JSON document with a line feed at its end."""
    return msgspec.json.format(msgspec.json.encode(_document(board)), indent=2) + b"\n"


def _document(board: Dashboard) -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    for row in board.rows:
        panels.append(
            {"type": "row", "id": len(panels) + 1, "title": row.title, "collapsed": False, "gridPos": _at(0, y, WIDTH, 1), "panels": []}
        )
        y += 1
        for at, panel in enumerate(row.panels):
            column, line = at % (WIDTH // PANEL_WIDTH), at // (WIDTH // PANEL_WIDTH)
            place = _at(column * PANEL_WIDTH, y + line * PANEL_HEIGHT, PANEL_WIDTH, PANEL_HEIGHT)
            panels.append(_panel(panel, len(panels) + 1, place))
        y += -(-len(row.panels) * PANEL_WIDTH // WIDTH) * PANEL_HEIGHT
    return {
        "uid": board.uid,
        "title": board.title,
        "description": board.description,
        "tags": ["tidegate"],
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,  # one cross-hair in all panels
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "schemaVersion": SCHEMA_VERSION,
        "templating": {"list": [_data_source(), *map(_variable, board.choices)]},
        "annotations": {"list": [_restarts()]},
        "links": [_others()],
        "panels": panels,
    }


def _at(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    empty = f" Empty until {panel.empty_until}." if panel.empty_until else ""
    return {
        "type": TYPES[panel.kind],
        "id": number,
        "title": panel.title,
        "description": panel.description + empty,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend or "__auto",
                "range": panel.kind in ("lines", "stacked"),
                "instant": panel.kind not in ("lines", "stacked"),
            }
            for at, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": _field(panel), "overrides": []},
        "options": _options(panel.kind),
    }


def _field(panel: Panel) -> dict[str, Any]:
    field: dict[str, Any] = {
        "unit": UNITS[panel.unit],
        "min": 0,
        "color": {"mode": "palette-classic" if panel.kind in ("lines", "stacked") else "thresholds"},
        "thresholds": {"mode": "absolute", "steps": _steps(panel.thresholds, panel.most)},
    }
    if panel.most is not None:
        field["max"] = panel.most
    if panel.kind in ("lines", "stacked"):
        field["custom"] = {
            "fillOpacity": 30 if panel.kind == "stacked" else 8,
            "stacking": {"mode": "normal" if panel.kind == "stacked" else "none", "group": "A"},
            "thresholdsStyle": {"mode": "line" if panel.thresholds else "off"},
        }
    return field


def _steps(thresholds: tuple[Threshold, ...], most: float | None) -> list[dict[str, Any]]:
    """Colours from below to above. Where the highest value is the best, thresholds that are not bad lead up to it."""
    if thresholds and most is not None and not any(threshold.is_bad for threshold in thresholds):
        colours = [BAD, *([WARN] * (len(thresholds) - 1)), GOOD]
    else:
        colours = [GOOD, *(BAD if threshold.is_bad else WARN for threshold in thresholds)]
    values = [None, *(threshold.value for threshold in thresholds)]
    return [{"value": value, "color": colour} for value, colour in zip(values, colours, strict=True)]


def _options(kind: Kind) -> dict[str, Any]:
    if kind == "value":
        return {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "value", "graphMode": "area"}
    if kind == "bars":
        reduced = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        return {"reduceOptions": reduced, "displayMode": "basic", "orientation": "horizontal", "showUnfilled": True}
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
    return {"legend": legend, "tooltip": {"mode": SEVERAL, "sort": "desc"}}


def _data_source() -> dict[str, Any]:
    return {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus", "hide": 0}


FROM: Final = {"pool": "tidegate_backend_up", "model": "tidegate_requests_total", "tenant": "tidegate_tokens_total"}
"""Families that every value of a variable is a label of."""


def _variable(name: str) -> dict[str, Any]:
    values = f"label_values({FROM[name]}, {name})"
    return {
        "type": "query",
        "name": name,
        "label": name.capitalize(),
        "datasource": SOURCE,
        "query": {"query": values, "refId": "values"},
        "refresh": 2,  # when the time range changes
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": EVERY,
        "current": {"text": "All", "value": "$__all"},
        "hide": 0,
    }


def _restarts() -> dict[str, Any]:
    return {
        "name": "Unexpected ends of processes",
        "datasource": SOURCE,
        "enable": True,
        "hide": False,
        "iconColor": "red",
        "expr": "sum by (worker) (increase(tidegate_worker_restarts_total[1m])) > 0",
    }


def _others() -> dict[str, Any]:
    return {
        "type": "dashboards",
        "title": "Tidegate",
        "tags": ["tidegate"],
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "icon": "external link",
        "tooltip": "",
        "url": "",
    }
