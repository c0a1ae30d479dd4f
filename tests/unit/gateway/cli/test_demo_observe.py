"""Prometheus beside the demo: what it reads, where its own pages are, and what is said where it is not installed."""

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import typer

from gateway.cli.demo_observe import DRAWN, charts_now, need_prometheus, pages, wait_for_scrape
from gateway.dashboards.boards import OVERVIEW
from gateway.dashboards.panels import Dashboard, Panel, Query, Row


def test_a_missing_prometheus_is_said_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(typer.Exit):
        need_prometheus()
    said = capsys.readouterr().err
    assert "apt install prometheus prometheus-alertmanager" in said
    assert "without OBSERVE=1" in said


@contextlib.contextmanager
def prometheus(answers: dict[str, list[str]], classic: bool = True) -> Iterator[str]:
    """A server that answers queries as Prometheus does: by the query, the values of its series; a query that is not there is refused."""

    class Api(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            if url.path == "/classic/graph":
                self.send_response(200 if classic else 404)
                self.end_headers()
                return
            query = parse_qs(url.query)["query"][0]
            if query in answers:
                result = [{"metric": {}, "value": [0, value]} for value in answers[query]]
                body = {"status": "success", "data": {"resultType": "vector", "result": result}}
            else:
                body = {"status": "error", "error": "parse error"}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def panel(title: str, *expressions: str, empty_until: str = "") -> Panel:
    return Panel(title, "Some text.", tuple(map(Query, expressions)), "count", empty_until=empty_until)


BOARD = Dashboard(
    "uid",
    "Tidegate: test",
    "Some text.",
    (
        Row(
            "Row",
            (
                panel("full", "a[$__rate_interval]"),
                panel("half", "nothing", "b"),
                panel("divided", "nan"),
                panel("empty", "nothing"),
                panel("waits", "nothing", empty_until="something happens"),
            ),
        ),
    ),
)
ANSWERS = {"a[30s]": ["1"], "b": ["0", "NaN"], "nan": ["NaN"], "nothing": []}


def test_a_chart_has_data_when_one_of_its_queries_gives_a_number() -> None:
    with prometheus(ANSWERS) as url:
        charts = charts_now(url, [BOARD], "30s")
    assert [panel.title for panel in charts.filled["Tidegate: test"]] == ["full", "half"]
    assert [panel.title for panel in charts.empty] == ["divided", "empty", "waits"]
    assert [panel.title for panel in charts.late] == ["divided", "empty"]


def test_a_query_that_prometheus_refuses_ends_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with prometheus({}) as url, pytest.raises(typer.Exit):
        charts_now(url, [BOARD])
    assert "Prometheus refuses a query: parse error" in capsys.readouterr().err


def test_it_waits_until_requests_are_seen() -> None:
    with prometheus({"sum(tidegate_requests_total)": ["3"]}) as url:
        wait_for_scrape(url, 3)


@pytest.mark.parametrize("classic", [True, False])
def test_the_pages_are_those_that_this_prometheus_has(classic: bool) -> None:
    with prometheus({}, classic=classic) as url:
        charts, alerts = pages(url)
    root = f"{url}/classic" if classic else url
    assert alerts == f"{root}/alerts"
    assert charts.startswith(f"{root}/graph?g0.expr=")
    asked = parse_qs(urlsplit(charts).query)
    assert len([name for name in asked if name.endswith(".expr")]) == DRAWN
    assert asked["g0.expr"] == ["sum by (result) (rate(tidegate_class_requests_total[1m]))"]
    assert next(iter(OVERVIEW.panels)).queries[0].expr.startswith("sum by (result)")
