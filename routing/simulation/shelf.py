"""The LoRA adapters of one simulated engine: a number of slots, of which the least recently used idle one is evicted, and a load time."""

from collections import OrderedDict, deque
from collections.abc import Sequence

from routing.ports import Adapters


class Shelf:
    """The loaded adapters. Bounded by the slots, the queue by the requests on the engine."""

    __slots__ = ("_loaded", "load_s", "slots", "waiting")

    def __init__(self, slots: int, load_s: float) -> None:
        self.slots = slots
        self.load_s = load_s
        self._loaded: OrderedDict[str, list[float]] = OrderedDict()  # name -> [when the load ends, users]
        self.waiting: deque[tuple[str, object]] = deque()
        """Requests waiting for a free slot: adapter and flight."""

    @property
    def there(self) -> frozenset[str]:
        """Adapters that are loaded or being loaded."""
        return frozenset(self._loaded)

    @property
    def busy(self) -> bool:
        """Whether every slot is in use: another adapter would have to wait for one."""
        return len(self._loaded) >= self.slots and all([users for _, users in self._loaded.values()])

    def take(self, name: str, now: float) -> float | None:
        """Use an adapter. Returns when it is loaded, or None when every slot is in use by other adapters."""
        entry = self._loaded.get(name)
        if entry is None:
            if len(self._loaded) >= self.slots:
                idle = next((adapter for adapter, (_, users) in self._loaded.items() if not users), None)
                if idle is None:
                    return None
                del self._loaded[idle]
            entry = self._loaded[name] = [now + self.load_s, 0]
        self._loaded.move_to_end(name)
        entry[1] += 1
        return max(now, entry[0])

    def give_back(self, name: str) -> None:
        """End one use of an adapter."""
        if name in self._loaded:
            self._loaded[name][1] -= 1

    def clear(self) -> None:
        """Forget everything: the engine has restarted."""
        self._loaded.clear()
        self.waiting.clear()


def adapters_for(name: str, engines: Sequence[str], shelves: Sequence[Shelf]) -> Adapters:
    """Where an adapter is loaded, and which engines cannot load it. An engine without a free slot cannot while another can, as in the
    gateway."""
    there = [engine for engine, shelf in zip(engines, shelves, strict=True) if name in shelf.there]
    unable = {engine: "takes no adapters" for engine, shelf in zip(engines, shelves, strict=True) if not shelf.slots}
    busy = {
        engine: "every slot is in use" for engine, shelf in zip(engines, shelves, strict=True) if shelf.busy and name not in shelf.there
    }
    if len(unable.keys() | busy.keys()) < len(engines):
        unable = {**busy, **unable}
    return Adapters(there, unable, max(shelf.load_s for shelf in shelves))
