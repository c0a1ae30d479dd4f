"""`tests/unit` mirrors the source tree, so that a file's test is where one looks for it."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = sorted((ROOT / "tests" / "unit").rglob("test_*.py"))


def _has_source(folder: Path, module: str) -> bool:
    return (folder / f"{module}.py").is_file() or (folder / module / "__init__.py").is_file()


@pytest.mark.parametrize("test", TESTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_unit_test_has_its_source(test: Path) -> None:
    """`test_MODULE.py`, or `test_MODULE_PART.py` where one module has several test files."""
    folder = ROOT / test.relative_to(ROOT / "tests" / "unit").parent
    words = test.stem.removeprefix("test_").split("_")
    candidates = ["_".join(words[:length]) for length in range(len(words), 0, -1)]
    assert any(_has_source(folder, module) for module in candidates), f"{test} tests nothing that exists"
