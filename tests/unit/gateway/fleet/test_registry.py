import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from backends.reach import Reach, networks_of
from domain.membership import KvEvents, Member, Owner
from gateway.fleet.drain_orders import FILE, read_orders
from gateway.fleet.registry import Refusal, Registry
from tenancy.stores.memory import MemoryMemberStore

SEEN: Mapping[str, Owner] = {"s": "static", "f": "file", "d": "dns", "r": "registered"}


class Away(MemoryMemberStore):
    async def set_drain(self, backend_id: str, grace_s: float | None) -> bool:
        raise ConnectionError("away")


async def resolve(host: str, _port: int) -> Sequence[str]:
    if host == "nowhere":
        raise OSError("no such name")
    return [host if host[0].isdigit() else "10.0.0.9"]


async def nothing() -> None: ...


def registry(run_dir: Path, store: MemoryMemberStore | None = None) -> Registry:
    return Registry(
        pools=["chat"],
        static=["s"],
        store=store or MemoryMemberStore(),
        reach=Reach(networks_of(["10.0.0.0/8"])),
        resolve=resolve,
        run_dir=run_dir,
        grace_s=120.0,
        wall=lambda: 5.0,
        close=nothing,
    )


def body(**fields: object) -> bytes:
    return json.dumps({"pool": "chat", "id": "x", "url": "http://engine:8000", **fields}).encode()


async def test_what_is_registered_is_stored_and_audited(tmp_path: Path) -> None:
    store = MemoryMemberStore()
    with capture_logs() as said:
        made = await registry(tmp_path, store).register(body(kv_events={"endpoint": "tcp://10.0.0.9:5557"}), {})
    assert made == Member("chat", "x", "http://engine:8000", "registered", kv_events=KvEvents("tcp://10.0.0.9:5557"))
    assert await store.load() == [made]
    assert [(line["event"], line["who"], line["backend"]) for line in said] == [("backend registered", "admin token", "x")]


@pytest.mark.parametrize(
    ("sent", "status", "says"),
    [
        (b"{", 400, "is not JSON"),
        (b"5", 400, "the body"),
        (b"\xff", 400, "is not JSON"),
        (body(pool="chta"), 400, "There is no pool 'chta'; there are: chat"),
        (body(id="a b"), 400, "id:"),
        (body(url="http://u:p@10.0.0.1"), 400, "url: holds credentials"),
        (body(weight=2), 400, "weight: is no known field"),
        (body(url="http://nowhere:1"), 400, "does not resolve"),
        (body(url="http://11.0.0.1:1"), 400, "11.0.0.1 is outside engines.register_networks"),
        (body(id="s"), 409, "taken by a backend of tidegate.yaml"),
        (body(id="f"), 409, "taken by a backend of the pool's discover.file"),
        (body(kv_events={"endpoint": "ipc:///run/x"}), 400, "write tcp://address:port"),
        (body(kv_events={"endpoint": "tcp://127.0.0.1:5557"}), 400, "outside engines.register_networks"),
        (body(kv_events={"endpoint": "tcp://engine:5557"}), 400, "is no IP address"),
        (body(kv_events={"endpoint": "tcp://10.0.0.9:5557", "bind": True}), 400, "is no known field"),
    ],
)
async def test_what_cannot_be_registered_is_refused_with_a_sentence(tmp_path: Path, sent: bytes, status: int, says: str) -> None:
    store = MemoryMemberStore()
    with pytest.raises(Refusal) as refused:
        await registry(tmp_path, store).register(sent, SEEN)
    assert refused.value.status == status
    assert says in str(refused.value)
    assert await store.load() == []


async def test_an_id_is_registered_once(tmp_path: Path) -> None:
    store = MemoryMemberStore()
    await registry(tmp_path, store).register(body(), {})
    with pytest.raises(Refusal, match="registered already") as refused:
        await registry(tmp_path, store).register(body(), {"x": "registered"})
    assert refused.value.status == 409


async def test_a_registered_backend_is_drained_in_the_store_and_others_at_this_gateway(tmp_path: Path) -> None:
    store = MemoryMemberStore()
    made = registry(tmp_path, store)
    await made.register(body(), {})
    assert await made.drain("x", "3", SEEN) == ("registered", 3.0)
    assert (await store.load())[0].drain_grace_s == 3.0
    for backend_id, owner in (("s", "static"), ("f", "file"), ("d", "dns")):
        assert await made.drain(backend_id, None, SEEN) == (owner, 120.0)
    assert read_orders(tmp_path) == {"s": 120.0, "f": 120.0, "d": 120.0}
    assert await made.resume("x", SEEN) == "registered"
    assert await made.resume("f", SEEN) == "file"
    assert ((await store.load())[0].drain_grace_s, set(read_orders(tmp_path))) == (None, {"s", "d"})
    with pytest.raises(Refusal, match="is not drained"):
        await made.resume("f", SEEN)


async def test_a_drain_that_would_lose_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{")
    made = registry(tmp_path)
    for refused_work in (made.drain("s", None, SEEN), made.resume("s", SEEN)):
        with pytest.raises(Refusal, match=f"cannot be read .*{FILE}.*nothing was changed") as refused:
            await refused_work
        assert refused.value.status == 503


@pytest.mark.parametrize("grace", ["-1", "nan", "inf", "x", "86401", ""])
async def test_a_grace_is_a_number_of_seconds(tmp_path: Path, grace: str) -> None:
    with pytest.raises(Refusal, match="grace_s is no number of seconds"):
        await registry(tmp_path).drain("s", grace, SEEN)
    assert read_orders(tmp_path) == {}


async def test_only_what_is_registered_can_be_removed_and_owners_are_named(tmp_path: Path) -> None:
    store = MemoryMemberStore()
    made = registry(tmp_path, store)
    await made.register(body(), {})
    await made.remove("x", SEEN)
    assert await store.load() == []
    for backend_id, owner in (("s", "tidegate.yaml"), ("f", "discover.file"), ("d", "discover.dns")):
        with pytest.raises(Refusal, match=owner) as refused:
            await made.remove(backend_id, SEEN)
        assert refused.value.status == 409
    for gone in ("x", "r"):
        with pytest.raises(Refusal) as refused:
            await made.remove(gone, SEEN)
        assert refused.value.status == 404


async def test_a_database_that_is_away_changes_nothing_and_is_said(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="nothing was changed") as refused:
        await registry(tmp_path, Away()).drain("s", None, SEEN)
    assert refused.value.status == 503
    assert read_orders(tmp_path) == {}
