"""Marks and orders the tests that need real engines; `make test` leaves them out, `make test-engines` runs nothing else."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that end a shared engine come last."""
    items.sort(key=lambda item: item.get_closest_marker("ends_engine") is not None)
