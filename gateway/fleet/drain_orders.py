"""Backends that an operator has drained at this gateway: the admin process writes the list, every worker reads it.

The file lies in the run directory, so the drains hold for all workers, also for workers started later, and end with the gateway.
Drains of registered backends are not here: they are stored with the registration, for every gateway on the database.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from gateway.worker_link import publish

FILE: Final = "drains.json"
MAX_BYTES: Final = 1024 * 1024
"""A thousand ids of 64 characters take 90 KB."""


class DrainOrders(msgspec.Struct, frozen=True):
    """Grace in seconds by backend id."""

    drained: dict[str, float] = {}


class OrdersUnreadable(Exception):
    """The file of drains exists and cannot be read; the message names the file and the reason."""


def read_orders(run_dir: Path) -> Mapping[str, float]:
    """The active drains: grace in seconds by backend id; empty when there is no file. Raises OrdersUnreadable."""
    try:
        with open(run_dir / FILE, "rb") as file:
            return msgspec.json.decode(file.read(MAX_BYTES), type=DrainOrders).drained
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise OrdersUnreadable(f"{run_dir / FILE}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OrdersUnreadable(f"{run_dir / FILE}: {error}") from None


def order_drain(run_dir: Path, backend_id: str, grace_s: float) -> None:
    """Drain a backend at this gateway. Raises OSError when the file cannot be written, OrdersUnreadable when earlier drains would be
    lost."""
    publish(run_dir, FILE, DrainOrders({**read_orders(run_dir), backend_id: grace_s}))


def end_drain(run_dir: Path, backend_id: str) -> bool:
    """End the drain of a backend; False when it was not drained at this gateway. Raises as `order_drain` does."""
    orders = dict(read_orders(run_dir))
    if orders.pop(backend_id, None) is None:
        return False
    publish(run_dir, FILE, DrainOrders(orders))
    return True
