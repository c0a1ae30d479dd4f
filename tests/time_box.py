"""A run with a time of its own: `--within MINUTES` begins no further test when they are over, and counts those left out as skipped.

A pytest plugin, registered by `tests/conftest.py`. The short form of a long suite: what `.ci/run` has time for on a quick machine is the
whole suite, and on one that is six times as slow a part of it. The order of the files goes by the commit (`--order WORD` sets another), so
that commit after commit other tests are left out, and the same ones when a commit is run again at the same speed.
"""

import random
import subprocess
import time
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]


class TimeBox:
    """Skips what has not begun in time, in each process that runs tests."""

    def __init__(self, minutes: float, order: str) -> None:
        self._minutes = minutes
        self._order = order
        self._over_at: float | None = None
        """Set with the first test: collecting is not part of the time."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Files in the order of this run, the tests of a file in their own: they share what is started for them."""
        files = sorted({item.path for item in items})
        random.Random(self._order).shuffle(files)
        place = {file: number for number, file in enumerate(files)}
        items.sort(key=lambda item: place[item.path])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Before anything of the test is set up."""
        if self._over_at is None:
            self._over_at = time.monotonic() + 60.0 * self._minutes
        if time.monotonic() > self._over_at:
            pytest.skip(f"the {self._minutes:g} minutes of this run were over (--within)")


def commit(root: Path = ROOT) -> str:
    """The commit that is checked out; a folder without git has the empty one."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip()
