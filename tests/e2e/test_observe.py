"""Real Prometheus and Alertmanager beside a real gateway: every query is run, alerts arrive, and the demo shows its charts at once."""

import asyncio
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from gateway.cli.demo_observe import SCRAPE_S, charts_now, console_settings, prometheus_url, start_prometheus, wait_for_scrape
from gateway.dashboards.boards import DASHBOARDS
from gateway.dashboards.rules import rules
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tenancy.prices import Price, TokenRates
from tests.e2e.test_admin_api import TOKEN
from tests.e2e.test_serve import Served, ask, serving, tidegate
from tests.replicas import Tenancy
from tests.timing import hang_s, timely

pytestmark = pytest.mark.slow

SETTINGS = """
data: {{bind: "127.0.0.1:0"}}
admin: {{bind: "127.0.0.1:0"}}
workers: {workers}
drain: {{accept_s: {accept_s}, grace_s: {grace_s}}}
metrics: {{language_share: 1.0}}
pools:
  - name: chat
    model: sim
    usd_per_hour: 4.0
    backends:
      - {{id: e0, url: "{url}"}}
      - {{id: e1, url: "{backend}"}}
"""
POLICY = """
tenant: "*"
models:
  - {name: sim, pool: chat}
ttft_slo_s: 5.0
tpot_slo_s: 1.0
expose_headers: true
cache: {}
guards:
  rules:
    - {id: people, kind: pii, types: [email], mode: shadow}
"""
DCGM = """DCGM_FI_DEV_GPU_UTIL{gpu="0",backend="e0"} 87
DCGM_FI_DEV_FB_USED{gpu="0",backend="e0"} 70000
DCGM_FI_DEV_POWER_USAGE{gpu="0",backend="e0"} 412.5
DCGM_FI_DEV_POWER_USAGE{gpu="0",backend="e1"} 398.5
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="0",backend="e0"} 0.31
DCGM_FI_PROF_DRAM_ACTIVE{gpu="0",backend="e0"} 0.62
"""
"""As the exporter writes it, with the label that our documentation adds."""

WINDOW = "10m"
"""Of rates: the whole test."""
LOOKS = 20
"""At the charts, one a second; what the gateway looks at by itself, as what tenants have left, takes a few."""
STAY_EMPTY = {
    "Queue wait",
    "Refused by the queue",
    "Degraded, fallen back, hedged, continued, pulled back",
    "Drain rate of the queue",
    "Prefill rate",
    "KV events trusted",
    "Adapters",
    "Sound",
    "Soft limits crossed",
    "Messages about budgets",
    "Lost by its stores",
    "Rules that could not judge",
    "Questions to detectors",
    "Time of a detector's answer",
    "Share of the canary",
    "Difference to the baseline",
    "Judgement",
    "Refused connections",
    "Certificates expire in",
    "Checks of tokens",
    "Lines of batches",
    "Ratings by callers",
    "Scores by the judge",
    "Agreement of the judge",
    "Comparisons for rollouts",
    "Samples of the judge",
    "Traces",
}
"""Panels about what does not happen in this test; each says what it waits for."""


@pytest.fixture(autouse=True)
def _needs_prometheus() -> None:
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed: make observe-tools")


@contextmanager
def exporter(text: str) -> Iterator[str]:
    """A page of metrics at `host:port`."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@asynccontextmanager
async def observed(home: Path, rule_file: str, tenancy: Tenancy | None = None) -> AsyncIterator[tuple[AsyncExitStack, Served, Any]]:
    """A gateway with two engines, which the yielded stack stops, and Prometheus."""
    with exporter(DCGM) as dcgm, ExitStack() as stack:
        async with AsyncExitStack() as engines:
            first, second = [await engines.enter_async_context(SimEngine(SimSettings(models=("sim",), speed=20))) for _ in range(2)]
            url = prometheus_url()
            (home / "token").write_text(TOKEN)
            more = console_settings(url) + "secrets: {admin_token: {file: token}}\n"
            written = {"settings": SETTINGS, "policy": POLICY, "more": more, "tenancy": tenancy}
            async with serving(home, first.url, backend=second.url, workers=2, **written) as served:  # type: ignore[arg-type]
                targets = {"tidegate": served.admin.removeprefix("http://"), "dcgm": dcgm}
                yield engines, served, await asyncio.to_thread(start_prometheus, stack, home, targets, rule_file, url)


async def traffic(client: httpx.AsyncClient, headers: dict[str, str]) -> None:
    """Requests of many kinds, each of which some panel shows."""
    words = "the ships in the harbour wait for the wind of the morning " * 20
    for fields in (
        {"stream": True, "messages": [{"role": "user", "content": words}], "max_tokens": 20},
        {"stream": True, "messages": [{"role": "user", "content": words}], "max_tokens": 20},
        {"temperature": 0, "max_tokens": None},  # an answer that was cut by a number of tokens is not kept
        {"temperature": 0, "max_tokens": None},
        {"temperature": 0.5, "logprobs": True},
        {"messages": [{"role": "user", "content": "write to nobody@example.org"}]},
        {"model": "another"},
    ):
        asked = {name: value for name, value in ask(**fields).items() if value is not None}
        reply = await client.post("/v1/chat/completions", json=asked, headers=headers)
        assert reply.status_code == (404 if "model" in fields else 200), reply.text


async def by_the_console(served: Served) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """The panels that the admin API has asked for, by dashboard and id, and those of them with a value."""
    asked, drawn = set(), set()
    async with httpx.AsyncClient(base_url=f"{served.admin}/admin/v1", trust_env=False, timeout=60) as client:
        client.headers["authorization"] = f"Bearer {TOKEN}"
        listed = (await client.get("/dashboards")).json()
        assert listed["prometheus"]
        for board in listed["dashboards"]:
            found = (await client.get(f"/dashboards/{board['uid']}/choices")).json()["choices"]
            assert set(found) == set(board["choices"])
            assert all(found.values()), found
            for panel in (panel for row in board["rows"] for panel in row["panels"]):
                reply = await client.get(f"/dashboards/{board['uid']}/panels/{panel['id']}", params={"range_s": 600})
                assert reply.status_code == 200, reply.text
                asked.add((board["uid"], panel["id"]))
                if any(value is not None for series in reply.json()["series"] for value in series["values"]):
                    drawn.add((board["uid"], panel["id"]))
    return asked, drawn


@pytest.mark.req("R38")
async def test_every_panel_of_every_dashboard_shows_something_or_is_known_not_to(tmp_path: Path) -> None:
    small = Scope(Level.TENANT, "small")
    tenancy = Tenancy(
        ["small"],
        [
            Limit(small, Meter.REQUESTS, Window.MINUTE, 1),
            Limit(small, Meter.REQUESTS, Window.DAY, 1000),
            Limit(Scope(Level.MODEL, "sim"), Meter.REQUESTS, Window.DAY, 1_000_000),
            Limit(Scope(Level.GLOBAL, ""), Meter.CONCURRENT_REQUESTS, Window.NOW, 1000),
        ],
        [Price("p", "sim", "*", 0.0, TokenRates(10**9, 10**8, 10**9))],
    )
    async with (
        observed(tmp_path, rules(), tenancy) as (_, served, prometheus),
        httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=60) as client,
    ):
        for seen in (9, 18, 27):  # a rate is the difference of two scrapes; what needs a first measurement happens from the second round on
            await traffic(client, served.headers)
            for _ in range(2):
                await client.post("/v1/chat/completions", json=ask(), headers={"authorization": f"Bearer {tenancy.keys['small']}"})
            await asyncio.to_thread(wait_for_scrape, prometheus.url, seen)
        late = ["unknown"]
        for _ in range(LOOKS):
            charts = await asyncio.to_thread(charts_now, prometheus.url, DASHBOARDS, WINDOW)
            late = [panel.title for panel in charts.empty if panel.title not in STAY_EMPTY]
            if not late:
                break
            await asyncio.sleep(SCRAPE_S)
        filled = {(board.uid, panel.id) for board in DASHBOARDS for panel in charts.filled[board.title]}
        for _ in range(LOOKS):  # the points of a chart lie on a grid of 5 s
            asked, drawn = await by_the_console(served)
            if filled <= drawn:
                break
            await asyncio.sleep(SCRAPE_S)
        top = await asyncio.to_thread(tidegate, "top", "--once", "--json", "--admin", served.admin, home=tmp_path)
    assert late == [], late
    # the admin API asks the same queries for the console, and finds what Prometheus has
    assert asked == {(board.uid, panel.id) for board in DASHBOARDS for panel in board.panels}
    assert sorted(filled - drawn) == []
    empty = {panel.title: panel.empty_until for panel in charts.empty}
    assert [title for title, why in empty.items() if not why] == []
    assert sorted(STAY_EMPTY - set(empty)) == [], "remove these from the list: they show something"
    # the same metrics in a terminal
    shown = json.loads(top.stdout)
    assert [(backend["backend"], backend["state"], backend["usd_per_h"]) for backend in shown["fleet"]] == [
        ("e0", "up", 4.0),
        ("e1", "up", 4.0),
    ]
    tenants = {tenant["tenant"]: tenant for tenant in shown["tenants"]}
    assert (tenants["acme"]["rate_left"], tenants["small"]["budget_left"]) == (None, pytest.approx(1.0, abs=0.05))
    assert shown["gateway"]["workers_ready"] == 2


async def test_alerts_arrive_in_alertmanager_and_end(tmp_path: Path) -> None:
    """The alerts as they are shipped, but for how long they have to hold."""
    hasty = re.sub(r"^( +for:) \w+$", r"\1 1s", rules(), flags=re.MULTILINE)
    async with observed(tmp_path, hasty) as (engines, served, prometheus), httpx.AsyncClient(trust_env=False, timeout=60) as client:
        if not prometheus.alertmanager_url:
            pytest.skip("prometheus-alertmanager is not installed: make observe-tools")

        async def alerts() -> dict[str, dict[str, Any]]:
            listed = (await client.get(f"{prometheus.alertmanager_url}/api/v2/alerts")).json()
            return {alert["labels"]["alertname"]: alert for alert in listed}

        await asyncio.to_thread(wait_for_scrape, prometheus.url, 0)
        assert {"PoolOut", "EngineOut", "GatewayAway"}.isdisjoint(await alerts())
        await engines.aclose()
        async with asyncio.timeout(hang_s()):
            while not {"PoolOut", "EngineOut"} <= set(found := await alerts()):
                await asyncio.sleep(SCRAPE_S)
        out = found["PoolOut"]
        assert (out["labels"]["pool"], out["labels"]["severity"]) == ("chat", "page")
        assert out["annotations"] == {
            "summary": "Pool chat has no engine that takes requests",
            "runbook_url": "docs/reference/alerts/pool-out.md",
        }
        assert found["EngineOut"]["labels"]["backend"] in ("e0", "e1")
        served.process.terminate()
        async with asyncio.timeout(hang_s()):
            while "GatewayAway" not in await alerts():
                await asyncio.sleep(SCRAPE_S)


def test_the_demo_shows_its_charts_within_ten_seconds_of_the_first_request() -> None:
    command = [sys.executable, "-m", "gateway", "demo", "--engine", "sim", "--once", "--observe"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    ((took_s, have),) = re.findall(r"^charts +with data ([\d.]+) s after the first request began: (.*)$", done.stdout, re.MULTILINE)
    timely(float(took_s), 10.0)
    counts = {name: int(count) for name, count in re.findall(r"([a-z ]+?) (\d+)(?:, |$)", have)}
    assert all(count > 0 for count in counts.values())
    assert len(counts) == len(DASHBOARDS)
    assert "tidegate demo --engine sim --observe" in done.stdout


def test_a_demo_without_prometheus_says_what_to_install(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gateway", "demo", "--engine", "sim", "--observe"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env={**os.environ, "PATH": str(tmp_path)})
    assert done.returncode == 1
    assert "apt install prometheus prometheus-alertmanager" in done.stderr
    assert done.stdout == "", "nothing was started"
