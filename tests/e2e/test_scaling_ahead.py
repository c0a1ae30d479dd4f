"""A real gateway with a real Prometheus that has a day of its history: what is recommended ahead of the load, and why."""

import asyncio
import json
import shutil
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import yaml

from backends.simengine import SimEngine, SimSettings
from gateway.cli.demo_observe import console_settings, prometheus_url, start_prometheus
from routing.forecast import DAY_S
from tests.e2e.test_admin_api import TOKEN, command
from tests.e2e.test_metrics import scraped, when
from tests.e2e.test_serve import serving
from tests.timing import HANG_S

SETTINGS = """
data: {{bind: "127.0.0.1:0"}}
admin: {{bind: "127.0.0.1:0"}}
workers: {workers}
drain: {{accept_s: {accept_s}, grace_s: {grace_s}}}
secrets: {{admin_token: {{file: token}}}}
pools:
  - name: chat
    model: sim
    dialect: vllm
    backends: [{{id: e0, url: "{url}"{backend}}}]
    scale: {{max: 20, predict: {{lead_s: 5400}}}}
"""


def settings(home: Path) -> str:
    (home / "token").write_text(TOKEN)
    return SETTINGS.replace("file: token", f"file: {home}/token")


def backfilled(home: Path, now: float) -> None:
    """Give Prometheus a day and a half in which the load grew from 1 to 6 backends at this time of the day, an hour from now."""
    lines = ["# TYPE tidegate_pool_load_backends gauge"]
    for at in range(int(now - 1.5 * DAY_S), int(now - 1800), 120):
        grown = 0 < (at - (now - DAY_S + 3000)) < 9000
        lines.append(f'tidegate_pool_load_backends{{instance="before",pool="chat",role="both"}} {6 if grown else 1} {at}')
    (home / "history").write_text("\n".join([*lines, "# EOF", ""]))
    written = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(home / "history"), str(home / "prometheus-data")]
    subprocess.run(written, check=True, capture_output=True, timeout=HANG_S)


@pytest.mark.slow
async def test_backends_are_recommended_before_the_load_of_yesterday_comes(tmp_path: Path) -> None:
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        pytest.skip("prometheus is not installed: make observe-tools")
    url = prometheus_url()
    await asyncio.to_thread(backfilled, tmp_path, time.time())
    with ExitStack() as stack:
        await asyncio.to_thread(start_prometheus, stack, tmp_path, {}, "groups: []\n", url)
        engine = SimEngine(SimSettings(models=("sim",)))
        async with engine, serving(tmp_path / "gateway", engine.url, settings=settings(tmp_path), more=console_settings(url)) as served:
            async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
                chat = (("pool", "chat"), ("role", "both"))
                samples, _ = await when(served, client, lambda seen: seen.get(("tidegate_pool_forecast_backends", chat), 0) > 5)
                assert samples["tidegate_pool_forecast_backends", chat] == pytest.approx(5 / 0.8, abs=0.1)
                assert samples["tidegate_pool_wanted_backends", chat] == 7
                assert samples["tidegate_pool_load_backends", chat] == 0
                answer = await client.get(f"{served.admin}/admin/v1/scaling", headers={"authorization": f"Bearer {TOKEN}"})
            shown = await asyncio.to_thread(command, served, "scaling")
            hours = await asyncio.to_thread(command, served, "scaling", "--hours", "chat")
            none = await asyncio.to_thread(command, served, "scaling", "--hours", "nowhere")
    (pool,) = answer.json()["pools"]
    assert (pool["present"], pool["wanted"], pool["forecast"]) == (1, 7, 6.25)
    assert pool["why"] == "5.0 more are expected within 5400 s, after 1 day before: the load fills 0.0 backends now"
    assert pool["forecast_why"] == "5.0 more are expected within 5400 s, after 1 day before"
    assert "forecast" in shown.stdout and "5.0 more are expected" in shown.stdout, shown.stderr
    (written,) = yaml.safe_load_all(hours.stdout[hours.stdout.index("autoscaling:") :])
    assert (written["autoscaling"]["min"], written["autoscaling"]["max"]) == (2, 8)
    assert max(one["engines"] for one in written["autoscaling"]["schedule"]) == 8
    assert none.returncode == 1 and "No pool 'nowhere' with both engines has a section predict" in none.stderr


@pytest.mark.slow
async def test_without_an_answer_of_prometheus_there_is_no_forecast_and_the_recommendation_stays(tmp_path: Path) -> None:
    engine = SimEngine(SimSettings(models=("sim",)))
    more = console_settings(prometheus_url())
    async with engine, serving(tmp_path / "gateway", engine.url, settings=settings(tmp_path), more=more) as served:
        async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
            samples, _ = await scraped(served, client)
            shown = await asyncio.to_thread(command, served, "scaling", "--json")
    assert samples["tidegate_pool_wanted_backends", (("pool", "chat"), ("role", "both"))] == 1
    assert not [name for name, _ in samples if name == "tidegate_pool_forecast_backends"]
    (pool,) = json.loads(shown.stdout)
    assert (pool["forecast"], pool["wanted"]) == (None, 1)
    assert pool["forecast_why"] == "no forecast: Prometheus cannot be reached (ConnectError)"
