"""Registrations as a worker follows them; their checks are in the tests of the admin route."""

from collections.abc import Mapping
from pathlib import Path

from backends.lora.residency import Adapter
from domain.adapters import RegisteredAdapter
from gateway.fleet.adapters import KEPT_FILE, RegisteredAdapters
from tenancy.stores.memory import MemoryAdapterStore

BOT = RegisteredAdapter("chat", "bot", "ab" * 32, "/adapters/bot")
TAKEN = {"chat": {"bot": Adapter("bot", "ab" * 32, "/adapters/bot")}}


class Counting(MemoryAdapterStore):
    """A store that may be away."""

    def __init__(self) -> None:
        super().__init__()
        self.loads = 0
        self.away = False

    async def version(self) -> int:
        if self.away:
            raise ConnectionError("away")
        return await super().version()

    async def load(self) -> list[RegisteredAdapter]:
        self.loads += 1
        return await super().load()


class Worker:
    """What one worker took."""

    def __init__(self, store: Counting, run_dir: Path) -> None:
        self.taken: list[Mapping[str, Mapping[str, Adapter]]] = []
        self.registered = RegisteredAdapters(store, run_dir, self.taken.append)


async def test_rows_are_read_only_when_something_changed(tmp_path: Path) -> None:
    store = Counting()
    worker = Worker(store, tmp_path)
    await worker.registered.first()
    await worker.registered.look()
    assert (worker.taken, store.loads) == ([{}], 1)
    assert not (tmp_path / KEPT_FILE).exists()
    await store.add(BOT, 0.0)
    await worker.registered.look()
    await worker.registered.look()
    assert (worker.taken[1:], store.loads) == ([TAKEN], 2)
    await store.remove("chat", "bot")
    await worker.registered.look()
    assert worker.taken[2:] == [{}]


async def test_while_the_database_is_away_the_last_registrations_stay_for_running_and_for_new_workers(tmp_path: Path) -> None:
    store = Counting()
    await store.add(BOT, 0.0)
    first = Worker(store, tmp_path)
    await first.registered.first()
    store.away = True
    await first.registered.look()
    assert first.taken == [TAKEN]
    second = Worker(store, tmp_path)
    await second.registered.first()
    assert second.taken == [TAKEN]
    store.away = False
    await store.remove("chat", "bot")
    await second.registered.look()
    assert second.taken == [TAKEN, {}]
    store.away = True
    third = Worker(store, tmp_path)
    await third.registered.first()
    assert third.taken == [{}], "a deletion is kept as well"


async def test_a_kept_file_that_cannot_be_read_is_as_good_as_none(tmp_path: Path) -> None:
    store = Counting()
    store.away = True
    (tmp_path / KEPT_FILE).write_bytes(b"{broken")
    worker = Worker(store, tmp_path)
    await worker.registered.first()
    assert worker.taken == []
