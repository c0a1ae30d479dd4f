"""A short form of `bench.reports`, on SQLite; what its plans are is in tests/contract/test_ledger_plans.py."""

from pathlib import Path

from bench.reports import DAYS, MODELS, measured


async def test_every_report_is_measured(tmp_path: Path) -> None:
    tenants = 10
    rows = 2 * tenants * MODELS * DAYS
    found = await measured(f"sqlite:///{tmp_path / 't.db'}", rows, tenants)
    assert found.pop("retention_dropped") == rows / DAYS
    assert all(value > 0 for value in found.values())
    of_totals = await measured(f"sqlite:///{tmp_path / 'totals.db'}", 0, tenants)
    assert {name for name in found if name.startswith("month")} == of_totals.keys()
