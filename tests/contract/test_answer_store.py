"""The answer cache's store in Redis and Valkey, on every kind of real server; the laws that a store in memory holds too."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest

from cache.answers import Answer, Sealer
from cache.ports import AnswerStore, Selection
from cache.stores import valkey as stored
from cache.stores.memory import MemoryAnswers
from cache.stores.valkey import REST_S, TEXTS, ValkeyAnswers
from domain.usage import Usage
from tenancy.counter_url import parse_counter_url
from tenancy.ports import CountersAway
from tenancy.stores.valkey.client import ValkeyScripts
from tenancy.stores.valkey.topology import slot_of
from tests.valkey_servers import FaultProxy, Server, ask

NOW = 4_000_000_000.0
"""Far behind the wall clock of the servers, so that nothing ends by itself."""
SECRET = b"s" * 32


class At:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def answer(key: str, owner: str = "acme", *, size: int = 100, at: float = NOW, **rest: str) -> Answer:
    noise = random.Random(key).randbytes(size)
    return Answer(owner, key.encode(), noise, Usage(3, 4), rest.pop("model", "m"), at, at + 60, **rest)


@contextlib.asynccontextmanager
async def opened(url: str, secret: bytes = SECRET, owner_bytes: int = 10**9, clock: At | None = None) -> AsyncIterator[ValkeyAnswers]:
    scripts = ValkeyScripts(parse_counter_url(url), TEXTS)
    try:
        assert await scripts.start(60.0), scripts.why
        yield ValkeyAnswers(scripts, CountersAway, Sealer(secret), owner_bytes, clock or At())
    finally:
        await scripts.close()


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch, patient: None) -> None:
    """No look-up is given up, however busy the machine is."""
    monkeypatch.setattr(stored, "PATIENCE_S", 60.0)
    monkeypatch.setattr(stored, "WRITE_PATIENCE_S", 60.0)


@pytest.fixture(params=["memory", "single", "sentinel", "cluster"])
async def store(request: pytest.FixtureRequest, unhurried: None) -> AsyncIterator[AnswerStore]:
    if request.param == "memory":
        yield MemoryAnswers(10**9)
        return
    name = {"single": "valkey_url", "sentinel": "sentinel_url", "cluster": "cluster_url"}[request.param]
    async with opened(str(request.getfixturevalue(name))) as made:
        yield made


async def test_what_is_kept_is_found_whole(store: AnswerStore) -> None:
    kept = [answer(key, size=size, namespace="n", user="u", writer="w") for key, size in (("a", 1), ("b", 5_000), ("c", 300_000))]
    await store.put(kept)
    assert await store.get([b"a", b"x", b"b", b"c"], "acme", NOW) == [kept[0], None, *kept[1:]]


async def test_a_batch_may_be_long(store: AnswerStore) -> None:
    kept = [answer(f"{number}") for number in range(600)]
    await store.put(kept)
    assert await store.get([one.key for one in kept], "acme", NOW) == kept


async def test_an_answer_is_not_given_behind_its_time(store: AnswerStore) -> None:
    await store.put([answer("a")])
    assert await store.get([b"a"], "acme", NOW + 60) == [None]


@pytest.mark.req("R4", "R50")
async def test_nobody_finds_answers_of_others(store: AnswerStore) -> None:
    rng = random.Random(4)
    owners = ["acme", "acme2", "bolt", "group:all"]
    await store.put([answer("shared", "bolt")])
    for owner in owners[:2]:
        await store.put([answer(f"{owner}{number}", owner) for number in range(50)])
    probes = [f"{rng.choice(owners)}{rng.randrange(60)}".encode() for _ in range(500)]
    for owner in owners:
        for found in await store.get([*probes, b"shared"], owner, NOW):
            assert found is None or found.owner == owner


@pytest.mark.parametrize(
    ("selection", "left"),
    [
        (Selection(owner="acme"), ""),
        (Selection(owner="acme", model="m"), "b"),
        (Selection(owner="acme", namespace="n"), "ab"),
        (Selection(owner="acme", user="u"), "bc"),
        (Selection(owner="acme", before=NOW + 1), "c"),
        (Selection(owner="acme", model="m", user="u"), "bc"),
        (Selection(owner="bolt"), "abc"),
    ],
)
async def test_a_purge_removes_what_it_selects(store: AnswerStore, selection: Selection, left: str) -> None:
    await store.put([answer("a", user="u"), answer("b", model="other"), answer("c", at=NOW + 1, namespace="n")])
    await store.put([answer("z", "carl")])
    assert await store.purge(selection) == 3 - len(left)
    found = await store.get([b"a", b"b", b"c"], "acme", NOW)
    assert "".join(key for key, one in zip("abc", found, strict=True) if one is not None) == left
    assert await store.get([b"z"], "carl", NOW) == [answer("z", "carl")]


async def test_a_purge_reaches_every_page(valkey_url: str, unhurried: None) -> None:
    async with opened(valkey_url) as store:
        await store.put([answer(f"{number}", model="m" if number % 2 else "other") for number in range(1_500)])
        assert await store.purge(Selection(owner="acme", model="m")) == 750
        assert (await store.held("acme"))[0] == 750
        assert await store.purge(Selection(owner="acme")) == 750
        assert await store.held("acme") == (0, 0)


async def test_an_owner_has_no_more_bytes_than_it_may(valkey_url: str, unhurried: None) -> None:
    async with opened(valkey_url, owner_bytes=20_000) as store:
        for number in range(50):
            await store.put([answer(f"{number:02}", size=1_000, at=NOW + number)])
            assert (await store.held("acme"))[1] <= 20_000
        await store.put([answer("bolt", "bolt", size=15_000), answer("whale", "bolt", size=25_000)])
        entries, size = await store.held("acme")
        found = await store.get([f"{number:02}".encode() for number in range(50)], "acme", NOW)
        assert [one is not None for one in found] == [False] * (50 - entries) + [True] * entries, "the oldest made room"
        assert store.evicted == 50 - entries > 0
        assert size > 15_000
        assert [one is not None for one in await store.get([b"bolt", b"whale"], "bolt", NOW)] == [True, False]


async def test_entries_whose_time_is_over_leave_nothing(valkey_url: str, unhurried: None, valkey_server: Server) -> None:
    async with opened(valkey_url) as store:
        await store.put([answer("a", at=-60 + 1e-3)])  # over long ago
        assert await store.held("acme") == (0, 0)
        assert ask(valkey_server.port, "DBSIZE") == 0


async def test_what_others_wrote_is_no_answer(valkey_url: str, unhurried: None, valkey_server: Server) -> None:
    """Somebody who can write to the store, without the secret of the gateways, plants nothing (poisoning)."""
    async with opened(valkey_url) as store, opened(valkey_url, b"t" * 32) as stranger:
        await store.put([answer("a"), answer("b")])
        await stranger.put([answer("c")])
        copied = ask(valkey_server.port, "GET", "tga:{acme}:" + b"a".hex())
        ask(valkey_server.port, "SET", "tga:{acme}:" + b"d".hex(), copied)
        ask(valkey_server.port, "SET", "tga:{bolt}:" + b"a".hex(), copied)
        ask(valkey_server.port, "SET", "tga:{acme}:" + b"b".hex(), "x")
        assert await store.get([b"a", b"b", b"c", b"d"], "acme", NOW) == [answer("a"), None, None, None]
        assert await store.get([b"a"], "bolt", NOW) == [None]
        assert store.refused == 4


async def test_a_store_that_is_away_has_no_answers_and_rests(valkey_server: Server) -> None:
    ask(valkey_server.port, "FLUSHALL")
    clock = At()
    async with FaultProxy(valkey_server.port) as proxy, opened(proxy.url, clock=clock) as store:
        proxy.delay_s = 3600.0
        assert await store.get([b"a"], "acme", NOW) == [None]
        proxy.delay_s = 0.0
        asked = store.misses_away
        assert await store.get([b"a"] * 3, "acme", NOW) == [None] * 3
        await store.put([answer("a")])
        assert (store.misses_away, store.lost) == (asked + 1, 1)
        while not any(await store.get([b"a"], "acme", NOW)):
            clock.now += REST_S
            await store.put([answer("a")])
            await asyncio.sleep(0.01)


async def test_one_owner_lies_on_one_node_of_a_cluster() -> None:
    names = [stored._entry("acme", bytes([number])) for number in range(20)] + stored._of("acme")
    assert len({slot_of(name) for name in names}) == 1


async def test_entries_are_listed_without_their_content(store: AnswerStore) -> None:
    await store.put(
        [
            answer(f"{number:04}", at=NOW + number / 1000, writer="w", namespace="n", model="m" if number % 2 else "other")
            for number in range(450)
        ]
    )
    await store.put([answer("u", user="ann")])
    await store.put([answer("z", "carl")])
    found = await store.entries(Selection(owner="acme", model="m", namespace="n"), 1_000, NOW)
    assert {bytes.fromhex(one.key) for one in found} == {f"{number:04}".encode() for number in range(1, 450, 2)}
    assert {(one.model, one.namespace, one.writer) for one in found} == {("m", "n", "w")}
    assert all(one.bytes > 100 and one.expires_at == pytest.approx(one.kept_at + 60, abs=0.002) for one in found)
    assert [bytes.fromhex(one.key) for one in await store.entries(Selection(owner="acme", user="ann"), 5, NOW)] == [b"u"]
    assert len(await store.entries(Selection(owner="acme"), 3, NOW)) == 3
    few = await store.entries(Selection(owner="acme", namespace="n", before=NOW + 0.002), 10, NOW)
    assert {one.key for one in few} == {b"0000".hex(), b"0001".hex()}
    for nothing in (Selection(owner="nobody"), Selection(owner="carl", model="other")):
        assert await store.entries(nothing, 5, NOW) == []
    assert await store.entries(Selection(owner="acme"), 5, NOW + 61) == []
