"""`tests/unit` mirrors the source tree, so that a file's test is where one looks for it."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = sorted((ROOT / "tests" / "unit").rglob("test_*.py"))


@pytest.mark.parametrize("test", TESTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_unit_test_has_its_source(test: Path) -> None:
    folder = ROOT / test.relative_to(ROOT / "tests" / "unit").parent
    module = test.stem.removeprefix("test_")
    assert (folder / f"{module}.py").is_file() or (folder / module / "__init__.py").is_file(), f"{test} tests nothing that exists"
