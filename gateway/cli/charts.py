"""`tidegate export-charts`: writes what the Helm charts carry of this program: dashboards, alerts and launch configurations.

A chart is read without the rest of the repository, so it has files of its own; they are written from the same values as the files that
`tidegate export-dashboards` and `tidegate engine` have, and a test compares them.
"""

import json
from pathlib import Path
from typing import Annotated

import typer

from backends.launch.catalogue import load, names
from backends.launch.chart import chart_form, known_flags
from backends.launch.manifest import manifests
from gateway.cli.printing import fail, out
from gateway.dashboards.boards import DASHBOARDS
from gateway.dashboards.grafana import grafana
from gateway.dashboards.rules import RULES_FILE, rules


def chart_files() -> dict[Path, bytes]:
    """The files by their path below the folder of the charts.

    Alerts name their runbooks by their paths in the project; the chart of the gateway puts an address in front of them.
    """
    gateway, engines = Path("tidegate", "files"), Path("engines", "files")
    files = {gateway / "dashboards" / f"{board.uid}.json": grafana(board) for board in DASHBOARDS}
    files[gateway / RULES_FILE] = rules().encode()
    for name in names():
        files[engines / "launch" / f"{name}.json"] = (json.dumps(chart_form(load(name)), indent=1) + "\n").encode()
    for (engine, version), manifest in manifests().items():
        files[engines / "flags" / f"{engine}-{version}.json"] = (json.dumps(known_flags(manifest)) + "\n").encode()
    return files


def export_charts(folder: Annotated[Path, typer.Option(help="The folder of the charts.")] = Path("charts")) -> None:
    """Write the files of the Helm charts: dashboards and alerts of the gateway's, launch configurations of the engines'."""
    for name, text in chart_files().items():
        target = folder / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text)
        except OSError as error:
            fail(f"{target} cannot be written: {error.strerror or error}")
    out.print(f"wrote {len(chart_files())} files below {folder}", markup=False, soft_wrap=True)
