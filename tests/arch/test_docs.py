"""Documentation that cannot fall behind: links resolve, decisions have their parts, everything registered is described."""

import re
from pathlib import Path

import pytest

from backends.dialects import DIALECTS
from backends.simengine.faults import FAULTS
from domain.faults import Kind
from routing.registry import POLICIES

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "news").glob("*.md")])
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", DECISIONS, ids=lambda p: p.name)
def test_decisions_have_their_parts(page: Path) -> None:
    text = page.read_text()
    assert re.match(r"# \d{4}\. ", text)
    for part in ("Context", "Decision", "Measured", "Consequences"):
        assert f"\n## {part}\n" in text, f"{page.name} lacks {part}"
    assert "_TABLE" not in text, f"{page.name} promises a table"


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("simengine.md", FAULTS),
        ("faults.md", [kind.value for kind in Kind]),
        ("routing.md", POLICIES),
        ("engines.md", DIALECTS),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_everything_registered_is_described(page: str, names: list[str]) -> None:
    text = (ROOT / "docs" / page).read_text()
    assert [name for name in names if f"`{name}`" not in text] == []
