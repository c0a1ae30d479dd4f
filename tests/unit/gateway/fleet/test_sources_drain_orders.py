import re
from functools import partial
from pathlib import Path

import pytest

from gateway.fleet.sources import DRAINS_FILE, OrdersUnreadable, end_drain, order_drain, read_orders


def test_orders_are_given_read_and_ended(tmp_path: Path) -> None:
    assert read_orders(tmp_path) == {}
    order_drain(tmp_path, "a", 5.0)
    order_drain(tmp_path, "b", 0.0)
    order_drain(tmp_path, "a", 7.5)
    assert read_orders(tmp_path) == {"a": 7.5, "b": 0.0}
    assert end_drain(tmp_path, "a") is True
    assert end_drain(tmp_path, "a") is False
    assert read_orders(tmp_path) == {"b": 0.0}
    assert (tmp_path / DRAINS_FILE).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("content", [b"{", b"", b'{"drained":{"a":"soon"}}', b'{"drained":{"\xff":1}}', None])
def test_what_cannot_be_read_is_not_taken_for_nothing_and_not_written_over(tmp_path: Path, content: bytes | None) -> None:
    if content is None:
        (tmp_path / DRAINS_FILE).mkdir()
    else:
        (tmp_path / DRAINS_FILE).write_bytes(content)
    for act in (partial(read_orders, tmp_path), partial(order_drain, tmp_path, "a", 1.0), partial(end_drain, tmp_path, "a")):
        with pytest.raises(OrdersUnreadable, match=re.escape(f"{tmp_path / DRAINS_FILE}: ")):
            act()
    assert content is None or (tmp_path / DRAINS_FILE).read_bytes() == content
