from typing import Any

import pytest

from backends.launch.catalogue import load
from backends.launch.manifest import manifest_for
from backends.launch.resolve import resolve
from gateway.cli.admin_client import AdminClient, RefusedByGateway
from gateway.cli.engine_run import Place, PoolSeen

POOL = PoolSeen("chat", "m", "sglang")


class Picky(AdminClient):
    """Refuses bodies that hold one of these fields, as a gateway of another version or network does."""

    def __init__(self, *refuses: str) -> None:
        self.refuses = refuses
        self.taken: list[dict[str, Any]] = []

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        for name in self.refuses:
            if name in (body or {}):
                raise RefusedByGateway(f"{name}: is not known")
        self.taken.append(dict(body or {}))


def place(admin: AdminClient, host: str = "10.0.0.5") -> Place:
    launch = resolve(load("sglang-8b"), manifest_for("sglang", "0.5.23"), {"host": host, "served_name": "m"})
    return Place(admin, POOL, launch, launch.url, with_events=True)


def test_where_it_pushes_its_load_is_registered() -> None:
    admin = Picky()
    place(admin).take()
    (body,) = admin.taken
    assert body["load_push"] == {"endpoint": "tcp://10.0.0.5:5558", "ranks": 1}
    place(admin, "127.0.0.1").take()
    assert "load_push" not in admin.taken[1], "on loopback it pushes none"


@pytest.mark.parametrize("refused", [("load_push",), ("kv_events",), ("load_push", "kv_events")])
def test_an_engine_whose_extras_are_refused_is_registered_without_them(refused: tuple[str, ...]) -> None:
    admin = Picky(*refused)
    place(admin).take()
    (body,) = admin.taken
    assert set(body) == {"pool", "id", "url", "kv_events", "load_push"} - set(refused)


def test_what_is_refused_for_another_reason_ends_the_command() -> None:
    with pytest.raises(RefusedByGateway):
        place(Picky("url")).take()
