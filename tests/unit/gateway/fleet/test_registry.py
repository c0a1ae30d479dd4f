import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from pydantic import ValidationError

from backends.reach import Reach, networks_of
from domain.membership import KvEvents, LoadPush, Member, Owner
from gateway.fleet.registry import FleetRefusal, Registration, Registry
from gateway.fleet.sources import DRAINS_FILE, read_orders
from tenancy.stores.memory import MemoryMemberStore

SEEN: Mapping[str, Owner] = {"s": "static", "f": "file", "d": "dns", "r": "registered"}


async def resolve(host: str, _port: int) -> Sequence[str]:
    if host == "nowhere":
        raise OSError("no such name")
    return [host if host[0].isdigit() else "10.0.0.9"]


def registry(run_dir: Path) -> Registry:
    return Registry(
        pools=["chat", "silent"],
        pushing=["chat"],
        static=["s"],
        reach=Reach(networks_of(["10.0.0.0/8"])),
        resolve=resolve,
        run_dir=run_dir,
        grace_s=120.0,
        wall=lambda: 5.0,
    )


def wanted(**fields: object) -> Registration:
    return Registration.model_validate({"pool": "chat", "id": "x", "url": "http://engine:8000", **fields})


def body(**fields: object) -> bytes:
    return json.dumps({"pool": "chat", "id": "x", "url": "http://engine:8000", **fields}).encode()


async def add(made: Registry, store: MemoryMemberStore, seen: Mapping[str, Owner] = SEEN, **fields: object) -> Member:
    member = await made.checked(wanted(**fields), seen)
    await made.register(member, store)
    return member


async def test_what_is_registered_is_stored(tmp_path: Path) -> None:
    store = MemoryMemberStore()
    made = await add(registry(tmp_path), store, kv_events={"endpoint": "tcp://10.0.0.9:5557"})
    assert made == Member("chat", "x", "http://engine:8000", "registered", kv_events=KvEvents("tcp://10.0.0.9:5557"))
    assert await store.load() == [made]


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        ({"id": "a b"}, "id"),
        ({"url": "http://u:p@10.0.0.1"}, "holds credentials"),
        ({"weight": 2}, "weight"),
        ({"kv_events": {"endpoint": "tcp://10.0.0.9:5557", "bind": True}}, "bind"),
        ({"load_push": {"endpoint": "ipc:///tmp/x"}}, "is no address of a load push"),
        ({"load_push": {"endpoint": "tcp://10.0.0.1:65535", "ranks": 2}}, "the last rank's port would be 65,536"),
    ],
)
def test_a_registration_is_checked_before_anything_is_asked(sent: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        wanted(**sent)


async def test_where_it_pushes_its_load_is_registered_too(tmp_path: Path) -> None:
    store = MemoryMemberStore()
    made = await add(registry(tmp_path), store, load_push={"endpoint": "tcp://10.0.0.9:5559", "ranks": 4})
    assert made.load_push == LoadPush("tcp://10.0.0.9:5559", 4)
    assert await store.load() == [made]


@pytest.mark.parametrize(
    ("sent", "status", "says"),
    [
        ({"pool": "chta"}, 400, "There is no pool 'chta'; there are: chat, silent"),
        ({"url": "http://nowhere:1"}, 400, "does not resolve"),
        ({"url": "http://11.0.0.1:1"}, 400, "11.0.0.1 is outside engines.register_networks"),
        ({"kv_events": {"endpoint": "ipc:///run/x"}}, 400, "write tcp://address:port"),
        ({"id": "s"}, 409, "taken by a backend of tidegate.yaml"),
        ({"id": "f"}, 409, "taken by a backend of the pool's discover.file"),
        ({"kv_events": {"endpoint": "tcp://127.0.0.1:5557"}}, 400, "outside engines.register_networks"),
        ({"kv_events": {"endpoint": "tcp://engine:5557"}}, 400, "is no IP address"),
        ({"load_push": {"endpoint": "tcp://192.0.2.1:5559"}}, 400, "load_push: tcp://192.0.2.1:5559"),
        ({"load_push": {"endpoint": "tcp://engine:5559"}}, 400, "load_push: tcp://engine:5559"),
        ({"pool": "silent", "load_push": {"endpoint": "tcp://10.0.0.1:5559"}}, 400, "engines of pool 'silent' push no load"),
    ],
)
async def test_what_cannot_be_registered_is_refused_with_a_sentence(
    tmp_path: Path, sent: dict[str, object], status: int, says: str
) -> None:
    with pytest.raises(FleetRefusal) as refused:
        await registry(tmp_path).checked(wanted(**sent), SEEN)
    assert refused.value.status == status
    assert says in str(refused.value)


async def test_an_id_is_registered_once(tmp_path: Path) -> None:
    store = MemoryMemberStore()
    made = registry(tmp_path)
    await add(made, store)
    with pytest.raises(FleetRefusal, match="registered already") as refused:
        await add(made, store, {"x": "registered"})
    assert refused.value.status == 409


async def test_a_registered_backend_is_drained_in_the_store_and_others_at_this_gateway(tmp_path: Path) -> None:
    store = MemoryMemberStore()
    made = registry(tmp_path)
    await add(made, store)
    assert await made.drain("x", 3.0, store, SEEN) == ("registered", 3.0, None)
    assert (await store.load())[0].drain_grace_s == 3.0
    for backend_id in ("s", "f", "d"):
        owner, grace_s, effect = await made.drain(backend_id, None, store, SEEN)
        assert (owner, grace_s) == (SEEN[backend_id], 120.0)
        assert backend_id not in read_orders(tmp_path), "written last, by whoever asked"
        assert effect is not None
        effect()
    assert read_orders(tmp_path) == {"s": 120.0, "f": 120.0, "d": 120.0}
    assert await made.resume("x", store, SEEN) == ("registered", None)
    owner, effect = await made.resume("f", store, SEEN)
    assert (owner, effect is None) == ("file", False)
    assert effect is not None
    effect()
    assert ((await store.load())[0].drain_grace_s, set(read_orders(tmp_path))) == (None, {"s", "d"})
    with pytest.raises(FleetRefusal, match="is not drained"):
        effect()


async def test_a_drain_that_would_lose_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / DRAINS_FILE).write_text("{")
    made, store = registry(tmp_path), MemoryMemberStore()
    effects = [(await made.drain("s", None, store, SEEN))[2], (await made.resume("s", store, SEEN))[1]]
    for effect in effects:
        assert effect is not None
        with pytest.raises(FleetRefusal, match=f"cannot be read .*{DRAINS_FILE}.*nothing was changed") as refused:
            effect()
        assert refused.value.status == 503


async def test_only_what_is_registered_can_be_removed_and_owners_are_named(tmp_path: Path) -> None:
    store = MemoryMemberStore()
    made = registry(tmp_path)
    await add(made, store)
    await made.remove("x", store, SEEN)
    assert await store.load() == []
    for backend_id, owner in (("s", "tidegate.yaml"), ("f", "discover.file"), ("d", "discover.dns")):
        with pytest.raises(FleetRefusal, match=owner) as refused:
            await made.remove(backend_id, store, SEEN)
        assert refused.value.status == 409
    for gone in ("x", "r"):
        with pytest.raises(FleetRefusal) as refused:
            await made.remove(gone, store, SEEN)
        assert refused.value.status == 404
