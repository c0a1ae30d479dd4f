"""Prometheus and Alertmanager beside the demo: started as processes on loopback with the shipped alerts, and asked for every chart.

Prometheus is needed for `--observe`; Alertmanager is started where it is installed. Both are found by their names on the PATH.
"""

import contextlib
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import yaml

from gateway.cli.demo_engines import READY_WITHIN_S, fail_with_log, free_port, spawn
from gateway.cli.printing import fail
from gateway.dashboards.boards import DASHBOARDS, OVERVIEW
from gateway.dashboards.panels import Dashboard, Panel, promql

SCRAPE_S: Final = 1
"""Between two scrapes; a demo is looked at at once. 5 to 15 s are usual."""
CONSOLE_SCRAPE_S: Final = 5
"""What the demo's settings say of it to the console, so that rates in its charts are over 20 s: a demo has few requests."""
WINDOW: Final = "1m"
"""The window of rates: it covers all of the demo's requests."""
CHARTS_WITHIN_S: Final = 30.0
"""Longest wait for every chart that needs no more than a request; on a quiet machine they are there two scrapes after it."""
ALERTMANAGERS: Final = ("prometheus-alertmanager", "alertmanager")
"""Its command in Debian, and in its own releases."""
DRAWN: Final = 4
"""Charts on one page of Prometheus; their queries stand in its address."""
MISSING: Final = (
    "The command prometheus is not installed; --observe needs it. Any of these helps:\n"
    "  apt install prometheus prometheus-alertmanager   on Debian and Ubuntu\n"
    "  https://prometheus.io/download                   its releases; put the command on the PATH\n"
    "  the demo without --observe (without OBSERVE=1)   needs neither"
)


@dataclass(frozen=True)
class Observed:
    """The running Prometheus, and the Alertmanager it sends alerts to."""

    url: str
    alertmanager_url: str
    """Empty where it is not installed."""


@dataclass(frozen=True)
class Charts:
    """Which charts have data."""

    filled: dict[str, list[Panel]]
    """By the dashboard's title."""
    empty: list[Panel]

    @property
    def late(self) -> list[Panel]:
        """Charts without data although any request is enough for them."""
        return [panel for panel in self.empty if not panel.empty_until]


def prometheus_url() -> str:
    """A free address for Prometheus. Settings of the gateway name it before it listens."""
    return f"http://127.0.0.1:{free_port()}"


def console_settings(url: str) -> str:
    """The lines of `tidegate.yaml` with which the console draws its charts from this Prometheus."""
    return f'console: {{prometheus_url: "{url}", scrape_s: {CONSOLE_SCRAPE_S}}}\n'


def need_prometheus() -> str:
    """The path of Prometheus; ends the command with what to install when there is none."""
    path = shutil.which("prometheus")
    if path is None:
        fail(MISSING)
    return path


def start_prometheus(stack: ExitStack, home: Path, targets: Mapping[str, str], rule_file: str, url: str) -> Observed:
    """Start Prometheus, and Alertmanager before it where there is one.

    Args:
        url: where it listens, `http://127.0.0.1:PORT`; the gateway's settings name it for the console's charts.
        targets: the addresses, `host:port`, that Prometheus reads metrics from, by the name of their job.
        rule_file: the text of its rules.
    """
    command = need_prometheus()
    alertmanager_url = _start_alertmanager(stack, home)
    (home / "tidegate.rules.yml").write_text(rule_file)
    settings: dict[str, Any] = {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
        "rule_files": ["tidegate.rules.yml"],
        "scrape_configs": [{"job_name": job, "static_configs": [{"targets": [target]}]} for job, target in targets.items()],
    }
    if alertmanager_url:
        settings["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [alertmanager_url.removeprefix("http://")]}]}]}
    (home / "prometheus.yml").write_text(yaml.safe_dump(settings))
    arguments = [command, f"--config.file={home / 'prometheus.yml'}", f"--storage.tsdb.path={home / 'prometheus-data'}"]
    _start(stack, home, "prometheus", [*arguments, f"--web.listen-address={url.removeprefix('http://')}"], url)
    return Observed(url, alertmanager_url)


def _start_alertmanager(stack: ExitStack, home: Path) -> str:
    """The address of the started Alertmanager; empty where it is not installed. It tells nobody: the demo's alerts are looked at there."""
    command = next(filter(None, map(shutil.which, ALERTMANAGERS)), None)
    if command is None:
        return ""
    (home / "alertmanager.yml").write_text(yaml.safe_dump({"route": {"receiver": "nobody"}, "receivers": [{"name": "nobody"}]}))
    url = f"http://127.0.0.1:{free_port()}"
    arguments = [command, f"--config.file={home / 'alertmanager.yml'}", f"--storage.path={home / 'alertmanager-data'}"]
    arguments += [f"--web.listen-address={url.removeprefix('http://')}", "--cluster.listen-address="]  # alone
    _start(stack, home, "alertmanager", arguments, url)
    return url


def _start(stack: ExitStack, home: Path, name: str, command: list[str], url: str) -> None:
    # imported only here: the import takes longer than all of `--help`
    import httpx

    log_path = home / f"{name}.log"
    log = stack.enter_context(log_path.open("wb"))
    process = spawn(stack, command, stdout=log, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/-/ready", timeout=1, trust_env=False).status_code == 200:
                return
        time.sleep(0.05)
    fail_with_log(f"{name} did not become ready", log_path)


def wait_for_scrape(url: str, requests: int) -> None:
    """Wait until Prometheus has seen so many requests. A rate is the difference of two scrapes, so requests after this one show in it,
    also when all of them take less than what lies between two scrapes."""
    import httpx

    deadline = time.monotonic() + CHARTS_WITHIN_S
    while time.monotonic() < deadline:
        answer = httpx.get(f"{url}/api/v1/query", params={"query": "sum(tidegate_requests_total)"}, trust_env=False, timeout=10).json()
        if sum(_values(answer)) >= requests:
            return
        time.sleep(SCRAPE_S / 10)


def wait_for_charts(url: str) -> Charts:
    """Ask for every chart until each that needs no more than a request has data, or the time is over."""
    deadline = time.monotonic() + CHARTS_WITHIN_S
    while (charts := charts_now(url, DASHBOARDS)).late and time.monotonic() < deadline:
        time.sleep(SCRAPE_S / 2)
    return charts


def charts_now(url: str, boards: Sequence[Dashboard], window: str = WINDOW) -> Charts:
    """Which charts Prometheus has data for."""
    import httpx

    with httpx.Client(base_url=url, trust_env=False, timeout=10) as client:

        def has_data(panel: Panel) -> bool:
            return any(_values(client.get("/api/v1/query", params={"query": promql(query.expr, window)}).json()) for query in panel.queries)

        filled = {board.title: [panel for panel in board.panels if has_data(panel)] for board in boards}
    return Charts(filled, [panel for board in boards for panel in board.panels if panel not in filled[board.title]])


def _values(answer: dict[str, Any]) -> list[float]:
    """The numbers of an answer; a division of nothing by nothing is none."""
    if answer["status"] != "success":
        fail(f"Prometheus refuses a query: {answer['error']}")
    numbers = [float(series["value"][1]) for series in answer["data"]["result"]]
    return [number for number in numbers if number == number]  # NaN is not itself


def pages(url: str) -> tuple[str, str]:
    """The addresses of Prometheus's own pages: the first charts of the first dashboard, and the alerts."""
    import httpx

    drawn = [panel for panel in OVERVIEW.panels if not panel.empty_until][:DRAWN]
    query: list[tuple[str, str]] = []
    for at, panel in enumerate(drawn):
        query += [(f"g{at}.expr", promql(panel.queries[0].expr, WINDOW)), (f"g{at}.tab", "0"), (f"g{at}.range_input", "5m")]
    # Debian's package has the classic pages only, releases from 3 on only the others
    classic = httpx.get(f"{url}/classic/graph", trust_env=False, timeout=10).status_code == 200
    root = f"{url}/classic" if classic else url
    return f"{root}/graph?{urlencode(query)}", f"{root}/alerts"
