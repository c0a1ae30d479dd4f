"""R34 during an outage of the database: a key is refused on this gateway at once, and in the database once it is back."""

import asyncio
import contextlib
import math
import stat
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from domain.identity import KeyId
from gateway.sync.directory import DirectoryFile, DirectoryWatch
from gateway.sync.revocations import KEEP_S, PendingRevocation, PendingRevocations, RevocationWriter, TooManyPending
from tenancy.audit import Entry
from tenancy.keys import revoked
from tests.unit.gateway.sync.test_directory import ACME, PEPPER, Site, closed


class Outage(Site):
    """A site whose database can be away for the writer as well."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.pending = PendingRevocations(folder / "pending")
        self.watch = self.with_pending()
        self.rows: list[Entry] = []
        self.kept_unix = math.inf
        self.writer = RevocationWriter(PendingRevocations(folder / "pending"), self.change, lambda: self.now, lambda: self.kept_unix)

    def with_pending(self) -> DirectoryWatch:
        file = DirectoryFile(self.path, PEPPER, lambda: self.now)
        return DirectoryWatch(self.store, PEPPER, file, lambda: self.now, closed, PendingRevocations(self.path.with_name("pending")))

    @contextlib.asynccontextmanager
    async def change(self) -> AsyncIterator[Any]:
        async def write_down(entry: Entry) -> None:
            self.rows.append(entry)

        if self.store.away:
            raise ConnectionError("the database is away")
        async with self.store.transaction() as directory:
            yield SimpleNamespace(change=SimpleNamespace(write_down=write_down), directory=directory)

    def revoke(self, key_id: KeyId) -> None:
        self.pending.add(PendingRevocation(key_id, ACME, self.now, "bootstrap", "owner", "127.0.0.1"))


@pytest.fixture
async def site(tmp_path: Path) -> Outage:
    made = Outage(tmp_path)
    await made.begin()
    return made


@pytest.mark.req("R34")
async def test_a_key_is_revoked_while_the_database_is_away_and_after_it(site: Outage) -> None:
    first, record = await site.add(1)
    second, _ = await site.add(2)
    await site.watch.refresh(site)
    site.store.away = True
    site.revoke(record.id)
    await site.watch.refuse_revoked(site)
    assert (site.takes(first), site.takes(second)) == (False, True)
    await site.watch.refresh(site)
    assert not site.takes(first)
    site.directory = await site.with_pending().load()  # a restart of the gateway
    assert (site.takes(first), site.takes(second)) == (False, True)
    await site.writer.write()
    assert site.rows == []
    site.store.away = False
    await site.writer.write()
    await site.writer.write()
    (row,) = site.rows
    assert (row.action, row.actor, row.target, row.tenant) == ("key.revoke", "bootstrap", f"tenant/acme/key/{record.id}", "acme")
    assert {key.id: key.revoked_unix for key in (await site.store.load()).keys}[record.id] == site.now
    site.now += KEEP_S
    await site.writer.write()
    assert not site.path.with_name("pending").exists()
    await site.watch.refresh(site)
    assert (site.takes(first), site.takes(second)) == (False, True)


async def test_what_the_database_knows_already_or_no_longer_has_is_not_written_again(site: Outage) -> None:
    _, record = await site.add(1)
    await site.put(revoked(record, 5.0))
    site.revoke(record.id)
    site.revoke(KeyId("abcdefghij"))
    await site.writer.write()
    assert site.rows == []
    assert [entry.written_unix for entry in site.pending.entries()] == [site.now, site.now]
    (kept,) = (await site.store.load()).keys
    assert kept.revoked_unix == 5.0


@pytest.mark.req("R34")
async def test_an_entry_stays_until_the_kept_directory_has_it(site: Outage) -> None:
    """The database came back for one transaction only: a start without it reads the kept directory, where the key is still valid."""
    _, record = await site.add(1)
    site.revoke(record.id)
    site.kept_unix = site.now
    await site.writer.write()
    site.now += 10 * KEEP_S
    await site.writer.write()
    assert list(site.pending.revoked()) == [record.id]
    site.kept_unix = site.now
    await site.writer.write()
    assert site.pending.entries() == ()


@pytest.mark.req("R34")
async def test_a_folder_that_takes_no_file_ends_no_loop(site: Outage, monkeypatch: pytest.MonkeyPatch) -> None:
    _, record = await site.add(1)
    site.revoke(record.id)
    tries = 0

    async def passed(_: float) -> None:
        nonlocal tries
        tries += 1
        if tries > 3:
            raise asyncio.CancelledError

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gateway.sync.revocations.asyncio.sleep", passed)
    monkeypatch.setattr(PendingRevocations, "replace", full)
    with pytest.raises(asyncio.CancelledError):
        await site.writer.run()
    assert tries == 4
    assert list(site.pending.revoked()) == [record.id]


def test_many_revocations_at_once_are_all_kept(tmp_path: Path) -> None:
    pending = PendingRevocations(tmp_path / "pending")
    entries = [PendingRevocation(KeyId(f"k{number}"), ACME, 1.0, "bootstrap", "owner", "") for number in range(40)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(pending.add, entries))
    assert set(pending.revoked()) == {entry.key_id for entry in entries}


async def test_the_file_is_its_owners_and_keeps_the_first_entry_of_a_key(site: Outage) -> None:
    for actor in ("bootstrap", "key abc"):
        site.pending.add(PendingRevocation(KeyId("k"), ACME, 1.0, actor, "owner", ""))
    (entry,) = PendingRevocations(site.path.with_name("pending")).entries()
    assert (entry.actor, stat.S_IMODE(site.path.with_name("pending").stat().st_mode)) == ("bootstrap", 0o600)


async def test_a_damaged_file_revokes_nobody_and_a_full_one_takes_no_more(site: Outage, monkeypatch: pytest.MonkeyPatch) -> None:
    site.path.with_name("pending").write_text("{")
    assert site.pending.revoked() == {}
    monkeypatch.setattr("gateway.sync.revocations.MAX_PENDING", 1)
    site.revoke(KeyId("a"))
    with pytest.raises(TooManyPending):
        site.revoke(KeyId("b"))


async def test_a_file_says_that_it_is_unchanged_only_while_reading_it_would_say_the_same(site: Outage) -> None:
    reader = PendingRevocations(site.path.with_name("pending"))
    assert reader.is_unchanged(), "no file, and no entry known"
    site.revoke(KeyId("a"))
    assert not reader.is_unchanged()
    assert list(reader.revoked()) == ["a"] and reader.is_unchanged()
    site.revoke(KeyId("b"))
    assert not reader.is_unchanged()
    assert list(reader.revoked()) == ["a", "b"] and reader.is_unchanged()
    site.path.with_name("pending").unlink()
    assert not reader.is_unchanged()
    assert reader.revoked() == {} and reader.is_unchanged()
