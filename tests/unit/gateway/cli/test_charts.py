"""`tidegate export-charts`: the charts carry what this program says, and nothing that it says no more."""

import json
from pathlib import Path

import pytest

from gateway.cli import app
from gateway.cli.charts import chart_files
from tests.command_line import Commands

CHARTS = Path(__file__).parents[4] / "charts"


def test_the_charts_have_the_files_of_this_program() -> None:
    for name, text in chart_files().items():
        assert (CHARTS / name).read_bytes() == text, f"{name}: run tidegate export-charts"
    kept = {Path(chart, "files", folder) for chart, folder in (("tidegate", "dashboards"), ("engines", "launch"), ("engines", "flags"))}
    there = {file.relative_to(CHARTS) for folder in kept for file in (CHARTS / folder).iterdir()}
    assert there <= set(chart_files()), "a file that nobody writes any more"


def test_dashboards_and_alerts_are_those_of_export_dashboards() -> None:
    for file in (CHARTS / "dashboards").iterdir():
        assert chart_files()[Path("tidegate", "files", "dashboards", file.name)] == file.read_bytes()
    rules = (CHARTS / "alerts" / "tidegate.rules.yml").read_bytes()
    assert chart_files()[Path("tidegate", "files", "tidegate.rules.yml")] == rules


def test_the_command_writes_every_file(tmp_path: Path) -> None:
    done = Commands().invoke(app, ["export-charts", "--folder", str(tmp_path)])
    assert done.exit_code == 0, done.output
    for name, text in chart_files().items():
        assert (tmp_path / name).read_bytes() == text


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "tidegate").write_text("a file")
    done = Commands().invoke(app, ["export-charts", "--folder", str(tmp_path)], env={"COLUMNS": "300"})
    assert done.exit_code == 1
    assert "cannot be written" in done.stderr


@pytest.mark.parametrize("chart", ["tidegate", "engines"])
def test_the_schema_of_the_values_is_strict_and_knows_every_value(chart: str) -> None:
    """Without helm: every value of values.yaml is in the schema, and every object of it refuses others."""
    import yaml

    schema = json.loads((CHARTS / chart / "values.schema.json").read_text())
    values = yaml.safe_load((CHARTS / chart / "values.yaml").read_text())
    free = {"settings", "podSelector", "namespaceSelector", "matchLabels"}

    def walk(at: str, found: dict[str, object], part: dict[str, object]) -> None:
        known = part.get("properties")
        if not isinstance(known, dict) or at.rpartition(".")[2] in free:
            return
        assert part.get("additionalProperties") is False, at
        for key, value in found.items():
            assert key in known, f"{at}.{key}"
            if isinstance(value, dict):
                walk(f"{at}.{key}", value, known[key])

    walk(chart, values, schema)
    assert "default" not in json.dumps(schema["properties"].get("mode", {})), "defaults stand in values.yaml alone"
