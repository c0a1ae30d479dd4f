"""Dashboards for Grafana: they keep to its schema, and the files in the project are those of the code."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from gateway.dashboards.boards import DASHBOARDS
from gateway.dashboards.grafana import TYPES, UNITS, WIDTH, grafana
from gateway.dashboards.panels import Dashboard

ROOT = Path(__file__).parents[4]
SCHEMA = json.loads((Path(__file__).parent / "grafana_dashboard.schema.json").read_text())
"""Made of the types that Grafana publishes for its dashboards; it refuses every key that they do not have."""
BY_UID = [pytest.param(board, id=board.uid) for board in DASHBOARDS]


def document(board: Dashboard) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(grafana(board))
    return decoded


def mistakes(of: dict[str, Any]) -> list[str]:
    return [f"{list(error.absolute_path)}: {error.message}" for error in Draft202012Validator(SCHEMA).iter_errors(of)]


@pytest.mark.parametrize("board", BY_UID)
def test_a_dashboard_keeps_to_grafanas_schema(board: Dashboard) -> None:
    assert mistakes(document(board)) == []


def test_the_schema_finds_mistakes() -> None:
    """Else the test above says nothing."""
    for change in (
        {"titel": "x"},
        {"graphTooltip": 7},
        {"panels": [{"type": "timeseries", "titel": "x"}]},
        {"panels": [{"type": "timeseries", "targets": [{"expression": "up", "refId": "A"}]}]},
        {"panels": [{"type": "timeseries", "fieldConfig": {"defaults": {"unit": 7}, "overrides": []}}]},
        {"panels": [{"type": "bargauge", "options": {"displayMode": "pretty"}}]},
        {"panels": [{"type": "timeseries", "fieldConfig": {"defaults": {"custom": {"stacking": {"mode": "up"}}}, "overrides": []}}]},
    ):
        assert mistakes(document(DASHBOARDS[0]) | change) != [], change


@pytest.mark.parametrize("board", BY_UID)
def test_the_file_in_the_project_is_that_of_the_code(board: Dashboard) -> None:
    file = ROOT / "charts" / "dashboards" / f"{board.uid}.json"
    assert file.read_bytes() == grafana(board), "run tidegate export-dashboards"


def test_there_are_no_files_of_dashboards_that_are_gone() -> None:
    assert {file.stem for file in (ROOT / "charts" / "dashboards").iterdir()} == {board.uid for board in DASHBOARDS}


@pytest.mark.parametrize("board", BY_UID)
def test_panels_do_not_overlap_and_have_numbers_of_their_own(board: Dashboard) -> None:
    panels = document(board)["panels"]
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        own = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not own & cells
        assert place["x"] + place["w"] <= WIDTH
        cells |= own
    numbers = [panel["id"] for panel in panels]
    assert len(set(numbers)) == len(numbers) == len(list(board.panels)) + len(board.rows)


def test_every_unit_and_kind_has_its_word_in_grafana() -> None:
    panels = [panel for board in DASHBOARDS for panel in board.panels]
    assert {panel.unit for panel in panels} <= set(UNITS)
    assert {panel.kind for panel in panels} == set(TYPES)


def test_colours_go_from_bad_to_good_where_more_is_better() -> None:
    panels = {panel["title"]: panel for panel in document(DASHBOARDS[0])["panels"]}
    steps = panels["Availability"]["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert [(step["value"], step["color"]) for step in steps] == [(None, "red"), (0.99, "yellow"), (0.999, "green")]
    steps = panels["Added by the gateway"]["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert [(step["value"], step["color"]) for step in steps] == [(None, "green"), (0.005, "yellow"), (0.025, "red")]


def test_the_description_says_what_an_empty_panel_waits_for() -> None:
    panels = {panel["title"]: panel for panel in document(DASHBOARDS[0])["panels"]}
    assert panels["Promises kept"]["description"].endswith("Empty until a policy makes promises (ttft_slo_s, tpot_slo_s).")


def test_a_page_of_charts_can_be_imported_under_any_data_source() -> None:
    for board in DASHBOARDS:
        for panel in document(board)["panels"]:
            assert all(target["datasource"]["uid"] == "${datasource}" for target in panel.get("targets", ()))
