"""The dashboards that there are: every alert and every page that they name exists."""

import re
from pathlib import Path

from gateway.dashboards.boards import DASHBOARDS

ROOT = Path(__file__).parents[4]


def test_the_first_dashboard_is_the_one_to_begin_with() -> None:
    assert [board.uid for board in DASHBOARDS] == [
        *("tidegate-overview", "tidegate-fleet", "tidegate-tenants", "tidegate-answers", "tidegate-gateway")
    ]
    assert "Begin here" in DASHBOARDS[0].description


def test_what_a_viewer_can_choose_is_what_queries_use() -> None:
    assert {board.uid: board.choices for board in DASHBOARDS} == {
        "tidegate-overview": ("pool", "model"),
        "tidegate-fleet": ("pool",),
        "tidegate-tenants": ("tenant",),
        "tidegate-answers": ("model", "tenant"),
        "tidegate-gateway": (),
    }


def test_pages_that_panels_name_exist() -> None:
    texts = [panel.description for board in DASHBOARDS for panel in board.panels]
    pages = {page for text in texts for page in re.findall(r"docs/[\w/-]+\.md", text)}
    assert pages
    assert [page for page in sorted(pages) if not (ROOT / page).is_file()] == []
