"""`tidegate export-dashboards`: writes the dashboards for Grafana and the alerts for Prometheus."""

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from gateway.cli.printing import fail, out
from gateway.dashboards.boards import DASHBOARDS
from gateway.dashboards.grafana import grafana
from gateway.dashboards.objectives import AVAILABILITY, PROMISES
from gateway.dashboards.rules import RULES_FILE, rules
from gateway.docs_links import docs_base

NOWHERE: Final = Path("/nonexistent")
"""The pages of this machine are none that an alert may name: it is read elsewhere."""


def export_dashboards(
    folder: Annotated[Path, typer.Option(help="Its subfolders dashboards and alerts get the files.")] = Path("charts"),
    availability: Annotated[
        float, typer.Option(min=50, max=99.9999, help="The share of requests that have to be answered, in percent.")
    ] = AVAILABILITY * 100,
    promises: Annotated[
        float,
        typer.Option(
            min=1, max=99.9999, help="The share of the promises of policies (ttft_slo_s, tpot_slo_s) that have to be kept, in percent."
        ),
    ] = PROMISES * 100,
) -> None:
    """Write the dashboards for Grafana and the alerts for Prometheus.

    Alerts name their runbooks below the address in TIDEGATE_DOCS_URL, else by their paths in the project.
    """
    texts = {Path("dashboards", f"{board.uid}.json"): grafana(board) for board in DASHBOARDS}
    docs = docs_base(None, os.environ, NOWHERE)
    texts[Path("alerts", RULES_FILE)] = rules(round(availability / 100, 8), round(promises / 100, 8), docs).encode()
    for name, text in texts.items():
        target = folder / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text)
        except OSError as error:
            fail(f"{target} cannot be written: {error.strerror or error}")
        out.print(f"wrote {target}", markup=False, soft_wrap=True)
