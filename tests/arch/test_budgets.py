"""Sizes and names: what keeps every file readable in one go."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("domain", "gateway", "routing", "tenancy", "backends", "policies")
SOURCES = sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.py"))
BANNED = {"utils", "common", "manager", "helper", "helpers", "base", "impl", "misc"}

MAX_LINES = 500
MAX_STATEMENTS = 60
MAX_LIFECYCLE_LINES = 150


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_there_are_sources() -> None:
    assert len(SOURCES) > 50


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_file_is_short_documented_and_well_named(path: Path) -> None:
    text = path.read_text()
    limit = MAX_LIFECYCLE_LINES if _name(path) == "gateway/lifecycle.py" else MAX_LINES
    assert text.count("\n") <= limit, f"{_name(path)} has two subjects"
    tree = ast.parse(text)
    assert ast.get_docstring(tree), f"{_name(path)} does not say what it is responsible for"
    assert not BANNED & set(re.split(r"[_.]", path.stem)), f"{_name(path)}: the name says nothing"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            statements = sum(isinstance(inner, ast.stmt) for inner in ast.walk(node)) - 1
            assert statements <= MAX_STATEMENTS, f"{_name(path)}:{node.lineno} {node.name} has {statements} statements"


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_exceptions_to_the_rules_give_a_reason(path: Path) -> None:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if "# noqa" in line or "type: ignore" in line:
            assert re.search(r"(noqa: [A-Z0-9, ]+ - \S)|(type: ignore\[[a-z-, ]+\]  # \S)", line), f"{_name(path)}:{number} says not why"
