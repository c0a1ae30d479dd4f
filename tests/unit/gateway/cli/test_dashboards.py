"""`tidegate export-dashboards`: what it writes where, for which objectives, and what it says when it cannot."""

from pathlib import Path

import pytest
import yaml

from gateway.cli import app
from gateway.dashboards.boards import DASHBOARDS
from gateway.dashboards.grafana import grafana
from gateway.dashboards.rules import rules
from tests.command_line import Commands, Result


def export(folder: Path, *arguments: str, docs: str = "") -> Result:
    environ = {"TIDEGATE_DOCS_URL": docs, "COLUMNS": "200"}
    return Commands().invoke(app, ["export-dashboards", "--folder", str(folder), *arguments], env=environ)


def test_every_dashboard_and_the_alerts_are_written(tmp_path: Path) -> None:
    done = export(tmp_path)
    assert done.exit_code == 0, done.output
    for board in DASHBOARDS:
        assert (tmp_path / "dashboards" / f"{board.uid}.json").read_bytes() == grafana(board)
    assert (tmp_path / "alerts" / "tidegate.rules.yml").read_text() == rules()
    assert done.stdout.count("wrote ") == len(DASHBOARDS) + 1


def test_objectives_are_percent(tmp_path: Path) -> None:
    assert export(tmp_path, "--availability", "99.5", "--promises", "90").exit_code == 0
    assert (tmp_path / "alerts" / "tidegate.rules.yml").read_text() == rules(0.995, 0.9)


@pytest.mark.parametrize("share", ["0.999", "100"])
def test_an_objective_that_is_no_percentage_is_refused(tmp_path: Path, share: str) -> None:
    done = export(tmp_path, "--availability", share)
    assert done.exit_code == 2
    assert "--availability" in done.stderr
    assert not (tmp_path / "alerts").exists()


def test_runbooks_are_below_the_address_of_the_documentation_and_never_on_this_machine(tmp_path: Path) -> None:
    def runbook() -> str:
        groups = yaml.safe_load((tmp_path / "alerts" / "tidegate.rules.yml").read_text())["groups"]
        url: str = groups[1]["rules"][0]["annotations"]["runbook_url"]
        return url

    export(tmp_path, docs="https://docs.example/tidegate")
    assert runbook() == "https://docs.example/tidegate/reference/alerts/availability-budget-burns-fast.md"
    export(tmp_path)
    assert runbook() == "docs/reference/alerts/availability-budget-burns-fast.md"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "dashboards").write_text("a file")
    done = export(tmp_path)
    assert done.exit_code == 1
    assert "tidegate-overview.json cannot be written" in done.stderr
