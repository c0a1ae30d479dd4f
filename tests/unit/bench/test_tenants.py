"""A short form of `bench.tenants`, and how its table reads."""

from pathlib import Path

from bench.tenants import measured, of_metrics, table


def test_every_part_is_measured() -> None:
    found = measured(20)
    assert all(value > 0 for name, value in found.items() if "kib" not in name and "bytes" not in name)  # a few pages may be there already
    assert {"directory_kib_tenant", "valkey_bytes_tenant", "policies_kib_tenant", "series", "alerts_round_s"} <= found.keys()


def test_series_do_not_grow_with_tenants(tmp_path: Path) -> None:
    assert of_metrics(tmp_path, 1200)["series"] == of_metrics(tmp_path, 600)["series"]


def test_a_figure_stands_beside_its_ratio_to_the_number_before() -> None:
    lines = table({1_000: {"a": 2.0, "b": 1.0}, 10_000: {"a": 20.0}}).splitlines()
    assert lines[0] == "| measured | 1,000 tenants | 10,000 tenants |"
    assert lines[2:] == ["| `a` | 2 | 20 (10.00x) |", "| `b` | 1 |  |"]
