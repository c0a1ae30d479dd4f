"""A worker follows the purges of its database."""

from cache.ports import Selection
from domain.cache_purges import CachePurge
from gateway.answers.purges import PurgeWatch
from tenancy.stores.memory import MemoryCachePurges


class Store:
    """A store of answers that is away while `away`."""

    def __init__(self) -> None:
        self.done: list[Selection] = []
        self.away = False

    async def purge(self, selection: Selection) -> int:
        if self.away:
            raise ConnectionError("away")
        self.done.append(selection)
        return 1


async def test_every_purge_is_done_once_and_those_from_before_the_start_too() -> None:
    purges, store = MemoryCachePurges(), Store()
    await purges.add(CachePurge(owner="acme", model="m", namespace="n", user="u", before_unix=3.0), 1.0)
    watch = PurgeWatch(purges, store.purge)
    await watch.look()
    await watch.look()
    assert store.done == [Selection(owner="acme", model="m", namespace="n", user="u", before=3.0)]
    await purges.add(CachePurge(owner="bolt"), 2.0)
    await watch.look()
    assert store.done[1:] == [Selection(owner="bolt")]


async def test_a_purge_waits_for_a_store_that_is_away() -> None:
    purges, store = MemoryCachePurges(), Store()
    watch = PurgeWatch(purges, store.purge)
    store.away = True
    await purges.add(CachePurge(owner="acme"), 1.0)
    await watch.look()
    assert store.done == []
    store.away = False
    await watch.look()
    assert store.done == [Selection(owner="acme")]
