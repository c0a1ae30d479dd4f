from pathlib import Path

from gateway.fleet.drain_orders import FILE, end_drain, order_drain, read_orders


def test_orders_are_given_read_and_ended(tmp_path: Path) -> None:
    assert read_orders(tmp_path) == {}
    order_drain(tmp_path, "a", 5.0)
    order_drain(tmp_path, "b", 0.0)
    order_drain(tmp_path, "a", 7.5)
    assert read_orders(tmp_path) == {"a": 7.5, "b": 0.0}
    assert end_drain(tmp_path, "a") is True
    assert end_drain(tmp_path, "a") is False
    assert read_orders(tmp_path) == {"b": 0.0}
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0


def test_what_cannot_be_read_orders_nothing(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{")
    assert read_orders(tmp_path) == {}
