import pytest

from domain.identity import ProjectId, TenantId
from gateway.deps import Live
from gateway.key_watch import KeyWatch
from tenancy.keys import ENTROPY_BYTES, KeyRecord, Minted, Pepper, digest_of, mint
from tenancy.stores.memory import MemoryKeyStore

PEPPER = Pepper("k1", b"p" * 32)
ACME = TenantId("acme")


class Flaky(MemoryKeyStore):
    """A store that can be away, and counts how often it is read whole."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.loads = 0

    async def version(self) -> int:
        if self.away:
            raise ConnectionError("the database is away")
        return await super().version()

    async def load(self) -> list[KeyRecord]:
        self.loads += 1
        return await super().load()


def key(seed: int) -> tuple[Minted, KeyRecord]:
    minted = mint("live", bytes([seed]) * ENTROPY_BYTES)
    return minted, KeyRecord(minted.id, ACME, ProjectId("default"), "k1", (digest_of(PEPPER.secret, minted.secret),))


async def closed() -> None: ...


async def watched() -> tuple[Flaky, KeyWatch, Live, Minted]:
    store = Flaky()
    await store.create_tenant(ACME, 0.0)
    minted, record = key(1)
    await store.add_key(record)
    watch = KeyWatch(store, PEPPER, closed)
    return store, watch, Live(await watch.load(), None, None), minted  # type: ignore[arg-type]  # only the keys are looked at


async def test_nothing_is_read_again_while_nothing_changed() -> None:
    store, watch, live, minted = await watched()
    before = live.keys
    for _ in range(5):
        await watch.refresh(live)
    assert (store.loads, live.keys) == (1, before)
    assert live.keys.authenticate(minted.text, 0.0) is not None


@pytest.mark.req("R34")
async def test_a_new_key_works_and_a_revoked_one_does_not_after_one_refresh() -> None:
    store, watch, live, minted = await watched()
    assert live.keys.authenticate(minted.text, 0.0) is not None  # remembered as verified
    second, record = key(2)
    await store.add_key(record)
    await store.revoke_key(minted.id, 1.0)
    await watch.refresh(live)
    assert live.keys.authenticate(second.text, 2.0) is not None
    assert live.keys.authenticate(minted.text, 2.0) is None


async def test_keys_outlive_their_store_and_catch_up_when_it_is_back() -> None:
    store, watch, live, minted = await watched()
    store.away = True
    await watch.refresh(live)
    assert live.keys.authenticate(minted.text, 0.0) is not None
    await store.revoke_key(minted.id, 1.0)
    store.away = False
    await watch.refresh(live)
    assert live.keys.authenticate(minted.text, 2.0) is None


async def test_without_a_first_snapshot_there_is_nothing_to_serve() -> None:
    store = Flaky()
    store.away = True
    with pytest.raises(ConnectionError):
        await KeyWatch(store, PEPPER, closed).load()
