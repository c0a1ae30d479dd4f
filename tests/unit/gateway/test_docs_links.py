"""Pages that messages name are addresses that a terminal or an editor opens."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from gateway.docs_links import INSTALLED, docs_base, linked

ROOT = Path(__file__).parents[3]
AT = "https://docs.example.com/tidegate/"


def test_a_page_becomes_its_address_and_the_rest_stays() -> None:
    text = "no route (docs/reference/api.md); see docs/reference/engines.md#thinking, or docs/numbers.md."
    expected = f"no route ({AT}reference/api.md); see {AT}reference/engines.md#thinking, or {AT}numbers.md."
    assert linked(text, AT) == expected
    assert linked(expected, AT) == expected, "an address is not made twice"
    assert linked(text, "") == text


@pytest.mark.parametrize("text", ["/srv/docs/a.md", "../docs/reference/api.md", "https://a/docs/a.md", "docs/schema", "mydocs/a.md"])
def test_other_paths_and_addresses_stay(text: str) -> None:
    assert linked(text, AT) == text


def test_the_variable_comes_before_the_setting_and_the_setting_before_the_installed_pages(tmp_path: Path) -> None:
    environ = {"TIDEGATE_DOCS_URL": "https://one.example/docs"}
    assert docs_base("https://two.example/d/", environ, tmp_path) == "https://one.example/docs/"
    assert docs_base("https://two.example/d", {"TIDEGATE_DOCS_URL": ""}, tmp_path) == "https://two.example/d/"
    assert docs_base(None, {}, tmp_path) == f"{tmp_path.as_uri()}/"
    assert docs_base(None, {}, tmp_path / "none") == "", "a package without pages leaves the path as it is"


def test_a_base_that_is_no_address_is_not_used(tmp_path: Path) -> None:
    for wrong in ("docs.example.com", "javascript:alert(1)", "https://user:secret@a.example/", "https://a.example/x y"):
        assert docs_base(wrong, {"TIDEGATE_DOCS_URL": wrong}, tmp_path) == f"{tmp_path.as_uri()}/"


def test_every_page_that_the_code_names_exists() -> None:
    named = {
        match
        for package in ("gateway", "policies", "routing", "tenancy", "cache", "backends", "domain")
        for file in (ROOT / package).rglob("*.py")
        for match in re.findall(r"(?<![\w/.])docs/[a-z]+/[\w/-]+\.md", file.read_text())
    }
    assert len(named) > 20
    for page in named:
        assert Path(unquote(urlsplit(linked(page, docs_base(None, {}))).path)) == INSTALLED / page.removeprefix("docs/")
        assert (ROOT / page).is_file(), page
