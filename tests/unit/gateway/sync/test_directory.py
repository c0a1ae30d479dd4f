import asyncio
import stat
from pathlib import Path

import msgspec
import pytest

from domain.identity import KeyId, TenantId
from gateway.sync.directory import ADMIN_STALE_S, MAX_SEALED_AGE_S, SAVE_EVERY_S, DirectoryFile, DirectoryWatch
from tenancy.accounts import DEFAULT_PROJECT, Contents, Tenant
from tenancy.directory import Directory
from tenancy.directory_ports import EVERYWHERE
from tenancy.keys import ENTROPY_BYTES, KeyRecord, Minted, Pepper, digest_of, mint, mint_again, revoked, rotated
from tenancy.stores.memory import MemoryDirectory

PEPPER = Pepper("k1", b"p" * 32)
ACME = TenantId("acme")


class Flaky(MemoryDirectory):
    """A store that can be away, and counts how often it is read whole."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.loads = 0

    async def version(self) -> int:
        if self.away:
            raise ConnectionError("the database is away")
        return await super().version()

    async def load(self) -> Contents:
        self.loads += 1
        return await super().load()


class Site:
    """A store, a watch over it and what the watch keeps current; the time is told."""

    def __init__(self, folder: Path) -> None:
        self.now = 1_000_000.0
        self.store = Flaky()
        self.path = folder / "tidegate.directory"
        self.directory: Directory
        self.watch = self.another()

    def another(self, pepper: Pepper = PEPPER) -> DirectoryWatch:
        """A watch as another process has it."""
        return DirectoryWatch(self.store, pepper, DirectoryFile(self.path, pepper, lambda: self.now), lambda: self.now, closed)

    async def begin(self) -> "Site":
        async with self.store.transaction() as change:
            await change.tenants.create(Tenant(ACME))
        self.directory = await self.watch.load()
        return self

    async def add(self, seed: int) -> tuple[Minted, KeyRecord]:
        minted = mint("live", bytes([seed]) * ENTROPY_BYTES)
        record = KeyRecord(minted.id, ACME, DEFAULT_PROJECT, "k1", (digest_of(PEPPER.secret, minted.secret),))
        async with self.store.transaction() as change:
            return minted, await change.keys.create(EVERYWHERE, record)

    async def put(self, record: KeyRecord) -> KeyRecord:
        async with self.store.transaction() as change:
            return await change.keys.update(EVERYWHERE, record)

    def takes(self, key: Minted) -> bool:
        return self.directory.keys.authenticate(key.text, self.now) is not None


async def closed() -> None: ...


@pytest.fixture
async def site(tmp_path: Path) -> Site:
    return await Site(tmp_path).begin()


async def test_nothing_is_read_again_while_nothing_changed(site: Site) -> None:
    before, loads = site.directory, site.store.loads
    for _ in range(5):
        await site.watch.refresh(site)
    assert (site.store.loads, site.directory) == (loads, before)


@pytest.mark.req("R34")
async def test_a_new_key_works_and_a_revoked_one_does_not_after_one_refresh(site: Site) -> None:
    first, record = await site.add(1)
    await site.watch.refresh(site)
    assert site.takes(first)  # and is remembered as verified
    second, _ = await site.add(2)
    await site.put(revoked(record, site.now))
    await site.watch.refresh(site)
    assert (site.takes(first), site.takes(second)) == (False, True)


@pytest.mark.req("R35")
async def test_a_rotation_fails_no_call_and_the_old_secret_ends_on_time(site: Site) -> None:
    old, record = await site.add(1)
    await site.watch.refresh(site)
    new = mint_again("live", record.id, b"n" * 32)
    start = site.now
    await site.put(rotated(record, "k1", digest_of(PEPPER.secret, new.secret), start, 60.0))
    refused_old = []
    for tick in range(1000):  # a second of them every 70 ms; the counter is polled every 2 s
        site.now = start + tick * 0.07
        if tick % 28 == 0:
            await site.watch.refresh(site)
        if not site.takes(old):
            refused_old.append(site.now - start)
        assert tick < 28 or site.takes(new)
    assert 60.0 <= min(refused_old) < 60.0 + 5.0


@pytest.mark.req("R35")
async def test_a_rotation_without_overlap_ends_the_old_secret_with_the_next_refresh(site: Site) -> None:
    old, record = await site.add(1)
    await site.watch.refresh(site)
    new = mint_again("live", record.id, b"n" * 32)
    await site.put(rotated(record, "k1", digest_of(PEPPER.secret, new.secret), site.now, 0.0))
    await site.watch.refresh(site)
    assert (site.takes(old), site.takes(new)) == (False, True)


@pytest.mark.req("R36")
async def test_keys_outlive_their_store_and_catch_up_when_it_is_back(site: Site) -> None:
    key, record = await site.add(1)
    await site.watch.refresh(site)
    site.store.away = True
    for _ in range(300):
        site.now += 2.0
        await site.watch.refresh(site)
        assert site.takes(key)
    assert site.watch.age_s == 600.0
    await site.put(revoked(record, site.now))
    site.store.away = False
    await site.watch.refresh(site)
    assert not site.takes(key)
    assert site.watch.age_s == 0.0


@pytest.mark.req("R36")
async def test_a_gateway_starts_with_the_kept_directory_while_the_store_is_away(site: Site) -> None:
    key, record = await site.add(1)
    await site.watch.refresh(site)
    site.store.away = True
    site.now += 3600.0
    watch = site.another()
    site.directory = await watch.load()
    assert site.takes(key)
    assert watch.age_s == 3600.0
    await site.put(revoked(record, site.now))
    site.store.away = False
    await watch.refresh(site)
    assert not site.takes(key)


@pytest.mark.req("R36")
async def test_admin_keys_are_not_believed_when_they_may_be_revoked_for_a_minute(site: Site) -> None:
    site.store.away = True
    site.now += ADMIN_STALE_S
    await site.watch.refresh(site)
    assert site.watch.believes_admins
    site.now += 0.1
    assert not site.watch.believes_admins
    started = site.another()
    await started.load()
    assert not started.believes_admins
    site.store.away = False
    await site.watch.refresh(site)
    assert site.watch.believes_admins


async def test_the_kept_directory_says_how_old_it_really_is(site: Site) -> None:
    for _ in range(1 + int(SAVE_EVERY_S)):
        site.now += 1.0
        await site.watch.refresh(site)
    site.store.away = True
    watch = site.another()
    await watch.load()
    assert watch.age_s <= SAVE_EVERY_S


async def test_a_revocation_is_in_the_kept_directory_too(site: Site) -> None:
    key, record = await site.add(1)
    await site.watch.refresh(site)
    await site.put(revoked(record, site.now))
    await site.watch.refresh(site)
    site.store.away = True
    site.directory = await site.another().load()
    assert not site.takes(key)


@pytest.mark.parametrize("why", ["missing", "too old", "damaged", "another pepper"])
async def test_without_a_store_and_a_file_to_believe_there_is_nothing_to_serve(site: Site, why: str) -> None:
    site.store.away = True
    watch = site.another(Pepper("k2", b"q" * 32) if why == "another pepper" else PEPPER)
    if why == "missing":
        site.path.unlink()
    elif why == "too old":
        site.now += MAX_SEALED_AGE_S + 1.0
    elif why == "damaged":
        data = bytearray(site.path.read_bytes())
        data[-1] ^= 1
        site.path.write_bytes(data)
    with pytest.raises(ConnectionError):
        await watch.load()


async def test_the_kept_directory_is_its_owners_alone_and_holds_no_secret(site: Site) -> None:
    key, _ = await site.add(1)
    await site.watch.refresh(site)
    assert stat.S_IMODE(site.path.stat().st_mode) == 0o600
    assert key.secret not in site.path.read_bytes()
    assert [file.name for file in site.path.parent.iterdir()] == ["tidegate.directory"]


async def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    site = await Site(tmp_path / "missing").begin()
    key, _ = await site.add(1)
    await site.watch.refresh(site)
    assert site.takes(key)


async def test_a_store_that_never_answers_counts_as_away(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent() -> int:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(site.store, "version", silent)
    monkeypatch.setattr("gateway.sync.directory.READ_WITHIN_S", 0.01)
    site.now += 5.0
    await site.watch.refresh(site)
    assert site.watch.age_s == 5.0


async def test_contents_that_take_longer_than_an_answer_are_no_outage(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    key, _ = await site.add(1)
    answer_s, contents = 0.01, await site.store.load()

    async def slow() -> Contents:
        late: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(3 * answer_s, late.set_result, None)
        await late
        return contents

    monkeypatch.setattr(site.store, "load", slow)
    monkeypatch.setattr("gateway.sync.directory.READ_WITHIN_S", answer_s)
    await site.watch.refresh(site)
    assert site.takes(key)


async def test_a_revocation_among_many_keys_is_in_force_before_the_others_are_read(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    key, record = await site.add(1)
    other, _ = await site.add(2)
    await site.watch.refresh(site)
    monkeypatch.setattr("gateway.sync.directory.MANY_KEYS", 1)
    async with site.store.transaction() as change:
        await change.keys.update(EVERYWHERE, revoked(record, site.now))
    seen = []

    async def slow() -> Contents:
        seen.append((site.takes(key), site.takes(other)))
        raise ConnectionError("the database is away")

    with monkeypatch.context() as patched:
        patched.setattr(site.store, "load", slow)
        await site.watch.refresh(site)
        assert seen == [(False, True)]
        await site.watch.refresh(site)
        assert not site.takes(key)  # though the contents were not read
    await site.watch.refresh(site)
    assert not site.takes(key)
    assert site.takes(other)


async def test_few_keys_are_read_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never() -> dict[KeyId, float]:
        raise AssertionError

    await site.add(1)
    await site.watch.refresh(site)
    monkeypatch.setattr(site.store, "revocations", never)
    key, _ = await site.add(2)
    await site.watch.refresh(site)
    assert site.takes(key)


async def test_a_disabled_tenant_takes_its_keys_along(site: Site) -> None:
    key, _ = await site.add(1)
    async with site.store.transaction() as change:
        tenant = await change.tenants.get(EVERYWHERE, ACME)
        await change.tenants.update(EVERYWHERE, msgspec.structs.replace(tenant, disabled=True))
    await site.watch.refresh(site)
    assert not site.takes(key)
