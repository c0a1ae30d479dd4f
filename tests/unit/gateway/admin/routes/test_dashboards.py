"""The dashboards over the admin API: what they are, what Prometheus says of a panel, and that nothing else can be asked of it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.dashboards.boards import DASHBOARDS
from gateway.dashboards.prometheus import PanelReader
from tests.admin_harness import API, Admin, admin_port, bearer
from tests.unit.gateway.dashboards.test_prometheus import NOW, Answers

VIEWER = bearer("auditor")
PANEL = f"{API}/dashboards/tidegate-overview/panels/requests-by-model"


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[Admin]:
    async with admin_port(tmp_path) as admin:
        yield admin


def with_prometheus(port: Admin, prometheus: Answers) -> Answers:
    object.__setattr__(port.parts, "charts", PanelReader(prometheus, 15.0, lambda: NOW))
    return prometheus


async def test_the_dashboards_are_those_of_grafana(port: Admin) -> None:
    shown = (await port.client.get(f"{API}/dashboards", headers=VIEWER)).json()
    assert shown["prometheus"] is False
    assert [(board["uid"], board["title"]) for board in shown["dashboards"]] == [(board.uid, board.title) for board in DASHBOARDS]
    overview = shown["dashboards"][0]
    assert overview["choices"] == ["pool", "model"]
    panel = next(panel for row in overview["rows"] for panel in row["panels"] if panel["id"] == "requests-by-model")
    assert (panel["title"], panel["kind"], panel["unit"], panel["most"]) == ("Requests by model", "stacked", "requests/s", None)
    assert panel["queries"][0]["legend"] == "{{model}}"


async def test_a_panel_shows_what_prometheus_says_of_its_own_queries(port: Admin) -> None:
    end = 1_800_000_000.0
    prometheus = with_prometheus(port, Answers([{"metric": {"model": "sim"}, "values": [(end, "2.5")]}]))
    reply = await port.client.get(PANEL, params={"range_s": 900, "model": ["sim", "other"]}, headers=VIEWER)
    assert reply.status_code == 200, reply.text
    shown = reply.json()
    assert (shown["times"][-1], shown["step_s"], shown["left_out"]) == (end, 15, 0)
    assert [(one["label"], one["values"][-1], len(one["values"])) for one in shown["series"]] == [("sim", 2.5, 61)]
    ((_, asked),) = prometheus.asked
    assert 'model=~"sim|other"' in asked["query"]
    choices = await port.client.get(f"{API}/dashboards/tidegate-overview/choices", headers=VIEWER)
    assert choices.status_code == 503, "the answer to this question is a list of labels"


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"range_s": 86_400 * 32}, "range_s"),
        ({"range_s": 59}, "range_s"),
        ({"range_s": "nan"}, "range_s"),
        ({"range_s": 3600, "step_s": 1}, "step_s"),
        ({"step_s": 0}, "step_s"),
        ({"end_unix": -1}, "end_unix"),
        ({"model": [f"m{at}" for at in range(21)]}, "model"),
        ({"model": "a\nb"}, "model.0"),
        ({"model": ""}, "model.0"),
        ({"query": "up"}, "query"),
        ({"expr": "up"}, "expr"),
    ],
)
async def test_no_other_query_and_no_longer_time_is_asked(port: Admin, query: dict[str, Any], param: str) -> None:
    prometheus = with_prometheus(port, Answers())
    reply = await port.client.get(PANEL, params=query, headers=VIEWER)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text
    assert prometheus.asked == []


async def test_an_unknown_panel_is_said_and_so_is_a_missing_prometheus(port: Admin) -> None:
    for path in ("nothing/panels/requests", "tidegate-overview/panels/nothing", "nothing/choices"):
        reply = await port.client.get(f"{API}/dashboards/{path}", headers=VIEWER)
        assert reply.status_code == 404, path
        assert "nothing" in reply.json()["error"]["message"]
    reply = await port.client.get(PANEL, headers=VIEWER)
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_prometheus")
    assert "set console.prometheus_url" in reply.json()["error"]["message"]


async def test_what_prometheus_refuses_is_passed_on_in_words(port: Admin) -> None:
    prometheus = with_prometheus(port, Answers(status=422))
    prometheus.body = msgspec.json.encode({"status": "error", "error": "query processing would load too many samples into memory"})
    reply = await port.client.get(PANEL, headers=VIEWER)
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "prometheus_unavailable")
    assert reply.json()["error"]["message"] == (
        "Prometheus answered 422: query processing would load too many samples into memory. The gateway asks it at console.prometheus_url."
    )
