"""The LoRA adapters of simulated engines: what is loaded where, and which engines a request may go to."""

from collections import OrderedDict
from collections.abc import Sequence

from routing.ports import Adapters
from routing.room import NO_SLOT


class SimulatedAdapters:
    """The loaded adapters, bounded by the slots. Who needs another one while requests use every slot waits in the gateway."""

    __slots__ = ("_loaded", "load_s", "moves", "slots")

    def __init__(self, slots: int, load_s: float) -> None:
        self.slots = slots
        self.load_s = load_s
        self._loaded: OrderedDict[str, list[float]] = OrderedDict()  # name -> [when the load ends, users]
        self.moves = 0
        """Number of changes that may have given a waiting request what it needs: a load, or an adapter that nobody uses any more."""

    @property
    def there(self) -> frozenset[str]:
        """Adapters that are loaded or being loaded."""
        return frozenset(self._loaded)

    @property
    def busy(self) -> bool:
        """Whether every slot is in use: another adapter would have to wait for one."""
        return len(self._loaded) >= self.slots and all([users for _, users in self._loaded.values()])

    def comes(self, name: str) -> bool:
        """Whether the adapter is loaded or being loaded: a further request needs no load of its own."""
        return name in self._loaded

    def take(self, name: str, now: float) -> float:
        """Use an adapter, which has or gets a slot. Returns when it is loaded."""
        entry = self._loaded.get(name)
        if entry is None:
            if len(self._loaded) >= self.slots:
                del self._loaded[next(adapter for adapter, (_, users) in self._loaded.items() if not users)]
            self.moves += 1
            entry = self._loaded[name] = [now + self.load_s, 0]
        self._loaded.move_to_end(name)
        entry[1] += 1
        return max(now, entry[0])

    def give_back(self, name: str) -> None:
        """End one use of an adapter."""
        if name in self._loaded:
            entry = self._loaded[name]
            entry[1] -= 1
            self.moves += not entry[1]

    def clear(self) -> None:
        """Forget everything: the engine has restarted."""
        self._loaded.clear()
        self.moves += 1


def adapters_for(name: str, engines: Sequence[str], shelves: Sequence[SimulatedAdapters]) -> Adapters:
    """Where an adapter is loaded, and which engines cannot load it, or not before a request that uses one of their slots has ended."""
    there = [engine for engine, shelf in zip(engines, shelves, strict=True) if shelf.comes(name)]
    unable = {}
    for engine, shelf in zip(engines, shelves, strict=True):
        if not shelf.slots:
            unable[engine] = "takes no adapters"
        elif shelf.busy and not shelf.comes(name):
            unable[engine] = f"{NO_SLOT}all {shelf.slots} are in use"
    return Adapters(there, unable, max(shelf.load_s for shelf in shelves))
