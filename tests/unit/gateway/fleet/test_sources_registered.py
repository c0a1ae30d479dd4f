import pytest

from domain.membership import Member, SourceError
from gateway.fleet.sources import RegisteredSource
from tenancy.stores.memory import MemoryMemberStore

X = Member("chat", "x", "http://h:1", "registered")


class Counting(MemoryMemberStore):
    def __init__(self) -> None:
        super().__init__()
        self.loads = 0
        self.away = False

    async def version(self) -> int:
        if self.away:
            raise ConnectionError("away")
        return await super().version()

    async def load(self) -> list[Member]:
        self.loads += 1
        return await super().load()


async def test_rows_are_read_only_when_something_changed() -> None:
    store = Counting()
    source = RegisteredSource(store)
    assert [await source.read() for _ in range(3)] == [[], [], []]
    await store.add(X, 0.0)
    assert [await source.read() for _ in range(2)] == [[X], [X]]
    assert store.loads == 2


async def test_a_database_that_is_away_is_said_and_what_changed_meanwhile_is_read_after() -> None:
    store = Counting()
    source = RegisteredSource(store)
    await source.read()
    store.away = True
    with pytest.raises(SourceError, match="the database cannot be read"):
        await source.read()
    store.away = False
    await store.add(X, 0.0)
    assert await source.read() == [X]
