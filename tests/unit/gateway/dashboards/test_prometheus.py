"""Panels asked of a Prometheus: what is asked, how answers are read, and what is said of one that is away, slow, wrong or too long."""

import asyncio
import http.server
import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from gateway.dashboards.boards import DASHBOARDS
from gateway.dashboards.panels import Dashboard, Panel, Query, Row, Threshold
from gateway.dashboards.prometheus import (
    AT_ONCE,
    MAX_BYTES,
    MAX_POINTS,
    MAX_RANGE_S,
    MAX_SERIES,
    PRESENT_S,
    USUAL_POINTS,
    HttpPrometheus,
    PanelReader,
    PrometheusAway,
)

NOW = 1_800_000_007.0
LINES = Panel(
    "Lines", "", (Query('rate(tidegate_requests_total{model=~"$model"}[$__rate_interval])', "{{model}}"), Query("tidegate_up")), "count"
)
VALUE = Panel("Value", "", (Query("sum(rate(tidegate_requests_total[$__rate_interval]))"),), "ratio", "value", (Threshold(1),))
BOARD = Dashboard("b", "B", "", (Row("r", (LINES, VALUE)),))


class Answers:
    """A Prometheus that gives one answer to everything, and remembers what it was asked."""

    def __init__(self, result: Any = (), status: int = 200, hold: asyncio.Event | None = None) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.result = result
        self.status = status
        self.hold = hold
        self.under_way = self.most = 0
        self.body: bytes | None = None

    async def get(self, path: str, params: list[tuple[str, str]]) -> tuple[int, bytes]:
        self.asked.append((path, dict(params)))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            if self.hold is not None:
                await self.hold.wait()
        finally:
            self.under_way -= 1
        data = {"resultType": "matrix", "result": list(self.result)} if "label" not in path else list(self.result)
        return self.status, msgspec.json.encode({"status": "success", "data": data}) if self.body is None else self.body

    async def close(self) -> None:
        pass


def reader(prometheus: Answers, scrape_s: float = 15.0, within_s: float = 10.0) -> PanelReader:
    return PanelReader(prometheus, scrape_s, lambda: NOW, within_s)


def series(labels: Mapping[str, str], *points: tuple[float, str]) -> dict[str, Any]:
    return {"metric": labels, "values": points}


async def test_a_panel_over_time_asks_its_own_queries_on_a_grid() -> None:
    prometheus = Answers()
    made = reader(prometheus)
    data = await made.panel(LINES, made.span(3600), {"model": ["a.b"]})
    assert [path for path, _ in prometheus.asked] == ["/api/v1/query_range"] * 2
    asked = prometheus.asked[0][1]
    assert asked["query"] == 'rate(tidegate_requests_total{model=~"a\\\\.b"}[60s])'
    assert (asked["start"], asked["end"], asked["step"]) == ("1799996400.000", "1800000000.000", "15")
    assert len(data.times) == USUAL_POINTS + 1 == 3600 / 15 + 1
    assert all(time % 15 == 0 for time in data.times)


async def test_present_values_are_asked_for_once_and_rates_of_them_are_over_minutes() -> None:
    prometheus = Answers([{"metric": {}, "value": (NOW, "0.5")}])
    made = reader(prometheus)
    data = await made.panel(VALUE, made.span(86_400), {})
    ((path, asked),) = prometheus.asked
    assert (path, asked["time"]) == ("/api/v1/query", f"{NOW:.3f}")
    assert f"[{PRESENT_S}s]" in asked["query"]
    assert (data.times, [one.values for one in data.series], data.series[0].label) == ([NOW], [[0.5]], "Value")


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board.uid)
async def test_no_word_of_our_own_is_left_in_a_question(board: Dashboard) -> None:
    prometheus = Answers()
    made = reader(prometheus)
    for panel in board.panels:
        await made.panel(panel, made.span(3600), {"pool": ["p"], "tenant": []})
    assert [asked["query"] for _, asked in prometheus.asked if "$" in asked["query"]] == []


def test_a_span_has_as_many_points_as_a_chart_has_room_for() -> None:
    made = reader(Answers())
    for range_s in (60, 3600, 86_400, MAX_RANGE_S):
        assert len(made.span(range_s).times) <= USUAL_POINTS + 1
        assert made.span(range_s).step_s >= 15
    assert len(made.span(7500, 7.5).times) == MAX_POINTS + 1
    with pytest.raises(ValueError, match="more than 1000 points"):
        made.span(7500, 7.4)
    assert made.span(60, 15, end_s=105.0).times == [45, 60, 75, 90, 105]


async def test_values_stand_at_their_moments_and_what_is_no_number_is_missing() -> None:
    first = series({"model": "a"}, (45.0, "1"), (60.0, "NaN"), (90.0, "+Inf"), (105.0, "2.5"), (700.0, "9"))
    made = reader(Answers([first]))
    data = await made.panel(LINES, made.span(60, 15, end_s=105.0), {})
    assert data.series[0].values == [1, None, None, None, 2.5]
    assert [one.label for one in data.series] == ["a", "a (2)"], "two series never have one name"


async def test_the_series_with_the_largest_values_are_shown_in_their_order() -> None:
    many = [series({"model": f"m{at:03}"}, (45.0, str(at))) for at in range(MAX_SERIES)]
    panel = msgspec.structs.replace(LINES, queries=LINES.queries[:1])
    made = reader(Answers([series({"model": "least"}, (45.0, "-1")), *many, series({"model": "none"})]))
    data = await made.panel(panel, made.span(60, 15, end_s=105.0), {})
    assert data.left_out == 2
    assert [one.label for one in data.series] == [f"m{at:03}" for at in range(MAX_SERIES)]
    assert math.isclose(max(value for one in data.series for value in one.values if value is not None), MAX_SERIES - 1)


async def test_choices_are_the_labels_values_in_order() -> None:
    prometheus = Answers(["b", "a"])
    made = reader(prometheus)
    assert await made.choices(BOARD, made.span(3600)) == {"model": ["a", "b"]}
    ((path, asked),) = prometheus.asked
    assert (path, asked["match[]"]) == ("/api/v1/label/model/values", "tidegate_requests_total")


async def test_few_panels_are_asked_for_at_once_and_none_is_waited_for_longer_than_its_time() -> None:
    hold = asyncio.Event()
    prometheus = Answers(hold=hold)
    made = reader(prometheus)
    asking = [asyncio.create_task(made.panel(VALUE, made.span(3600), {})) for _ in range(3 * AT_ONCE)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(prometheus.asked) == AT_ONCE
    hold.set()
    await asyncio.gather(*asking)
    assert (prometheus.most, len(prometheus.asked)) == (AT_ONCE, 3 * AT_ONCE)
    hold.clear()
    hasty = reader(prometheus, within_s=0.001)
    with pytest.raises(PrometheusAway, match=r"did not answer within 0\.001 s"):
        await hasty.panel(VALUE, hasty.span(3600), {})


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (422, b'{"status":"error","errorType":"execution","error":"query timed out\\nin it"}', "answered 422: query timed out in it"),
        (502, b"<html>bad gateway", "answered 502"),
        (302, b"", "answered 302"),
        (200, b"<html>sign in", "sent an answer that is none of Prometheus's API"),
        (200, b'{"data":{"result":[{"metric":{},"value":5}]}}', "sent an answer that is none of Prometheus's API"),
        (200, b"\xff", "sent an answer that is none of Prometheus's API"),
    ],
)
async def test_an_answer_of_another_kind_is_said_in_words(status: int, body: bytes, words: str) -> None:
    prometheus = Answers(status=status)
    prometheus.body = body
    made = reader(prometheus)
    with pytest.raises(PrometheusAway) as away:
        await made.panel(VALUE, made.span(3600), {})
    assert str(away.value) == words


@contextmanager
def served(body: bytes) -> Iterator[str]:
    """The address of a server that answers everything with this body."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body or self.path.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


async def test_a_question_goes_below_the_address_of_the_settings() -> None:
    with served(b"") as url:
        prometheus = HttpPrometheus(f"{url}/prom")
        assert await prometheus.get("/api/v1/query", [("query", 'a{b="c&d"}')]) == (200, b"/prom/api/v1/query?query=a%7Bb%3D%22c%26d%22%7D")
        await prometheus.close()


async def test_one_that_is_away_and_one_that_sends_too_much_are_said() -> None:
    with served(b" " * (MAX_BYTES + 1)) as url:
        prometheus = HttpPrometheus(url)
        with pytest.raises(PrometheusAway, match="sent more than 4 MiB"):
            await prometheus.get("/api/v1/query", [])
        await prometheus.close()
    prometheus = HttpPrometheus(url)
    with pytest.raises(PrometheusAway, match="cannot be reached"):
        await prometheus.get("/api/v1/query", [])
    await prometheus.close()
