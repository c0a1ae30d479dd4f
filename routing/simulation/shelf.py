"""The adapters of one engine: so many slots, the least recently used unused one goes, and loading takes its time."""

from collections import OrderedDict, deque
from collections.abc import Sequence

from routing.ports import Adapters


class Shelf:
    """Bounded by its slots, and its queue by the requests on the engine."""

    __slots__ = ("_loaded", "load_s", "slots", "waiting")

    def __init__(self, slots: int, load_s: float) -> None:
        self.slots = slots
        self.load_s = load_s
        self._loaded: OrderedDict[str, list[float]] = OrderedDict()  # name -> [when it is there, users]
        self.waiting: deque[tuple[str, object]] = deque()
        """Requests for whose adapter there is no slot now."""

    @property
    def there(self) -> frozenset[str]:
        """Adapters that are loaded or being loaded."""
        return frozenset(self._loaded)

    @property
    def busy(self) -> bool:
        """Whether every slot is in use: another adapter would have to wait for one."""
        return len(self._loaded) >= self.slots and all([users for _, users in self._loaded.values()])

    def take(self, name: str, now: float) -> float | None:
        """Use an adapter. Returns when it is there, or None when every slot is in use by others."""
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
        """A request with it is over."""
        if name in self._loaded:
            self._loaded[name][1] -= 1

    def clear(self) -> None:
        """The engine has started anew."""
        self._loaded.clear()
        self.waiting.clear()


def adapters_for(name: str, engines: Sequence[str], shelves: Sequence[Shelf]) -> Adapters:
    """Where an adapter is, and who takes none; who has no slot free takes none while another engine has, as in the gateway."""
    there = [engine for engine, shelf in zip(engines, shelves, strict=True) if name in shelf.there]
    unable = {engine: "takes no adapters" for engine, shelf in zip(engines, shelves, strict=True) if not shelf.slots}
    busy = {
        engine: "every slot is in use" for engine, shelf in zip(engines, shelves, strict=True) if shelf.busy and name not in shelf.there
    }
    if len(unable.keys() | busy.keys()) < len(engines):
        unable = {**busy, **unable}
    return Adapters(there, unable, max(shelf.load_s for shelf in shelves))
