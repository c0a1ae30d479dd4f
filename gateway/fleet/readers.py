"""Which worker of a host asks an engine for all of them (`Readers`): for its metrics, and whether it is well."""

from hashlib import blake2b
from typing import Final

from domain.clock import Clock
from gateway.process.sibling_bus import Sibling


class Readers:
    """Each backend has one reader among the workers: the one whose name and the backend's have the highest hash, so that all know who it
    is, and backends are spread evenly. What it told is good for a while; a backend of which nothing came in time is asked by everyone for
    himself, because its reader has ended, is busy, or gets no answer.
    """

    def __init__(self, me: Sibling, clock: Clock) -> None:
        self.me: Final = me
        self.there: Final[set[Sibling]] = set()
        """The other workers of the host."""
        self._clock = clock
        self._reader: dict[str, Sibling] = {}
        """By backend, as far as it was asked for since workers came or went."""
        self._valid_until: dict[str, float] = {}
        """By backend, of what a sibling told last."""

    def told(self, backend: str, valid_until: float) -> None:
        """A sibling has told something of a backend, which is good until then."""
        self._valid_until[backend] = valid_until

    def covered_s(self, backend: str) -> float:
        """For how many seconds this worker need not ask this backend, because another one does; 0 where it has to."""
        left_s = self._valid_until.get(backend, 0.0) - self._clock()
        return left_s if left_s > 0.0 and self._reader_of(backend) != self.me else 0.0

    def joined(self, sibling: Sibling) -> None:
        """Share the backends with it."""
        self.there.add(sibling)
        self._reader.clear()

    def left(self, sibling: Sibling) -> None:
        """Share its backends among those that are left."""
        self.there.discard(sibling)
        self._reader.clear()

    def forget(self, backend: str) -> None:
        """A backend has left the fleet."""
        self._reader.pop(backend, None)
        self._valid_until.pop(backend, None)

    def _reader_of(self, backend: str) -> Sibling:
        reader = self._reader.get(backend)
        if reader is None:
            workers = (*self.there, self.me)
            reader = self._reader[backend] = max(workers, key=lambda one: blake2b(f"{one.number} {one.pid} {backend}".encode()).digest())
        return reader
