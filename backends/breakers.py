"""The breakers of one worker: which backends a request had better not go to. Pure, as each of them (`backends.breaker`)."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from backends.breaker import Breaker, Verdict
from domain.clock import Rng

NOBODY: Final[Mapping[str, str]] = MappingProxyType({})


class Breakers:
    """Those of one worker, by backend and by the name its engines know an adapter by (empty: the model itself). Bounded: those of
    backends that leave go with them, and those of adapters when they have been closed and calm for a while."""

    __slots__ = ("_by", "_troubled", "opens")

    def __init__(self) -> None:
        self._by: dict[str, dict[str, Breaker]] = {}
        self._troubled: set[tuple[str, str]] = set()
        self.opens: dict[str, int] = {}
        """How often breakers of each backend opened."""

    def of(self, backend: str, served: str = "") -> Breaker:
        """The one for this backend and adapter."""
        found = self._by.get(backend)
        if found is None:
            found = self._by[backend] = {}
        one = found.get(served)
        if one is None:
            one = found[served] = Breaker()
        return one

    def answered(self, backend: str, served: str, who: object, now: float, rng: Rng) -> bool:
        """`ended` with a whole answer, as nearly always: whether the breaker closed by it."""
        one = self.of(backend, served)
        if one.open_until is None:
            one.answered(int(now))
            return False
        return one.ended(Verdict.SUCCESS, who, now, rng)

    def ended(self, backend: str, served: str, verdict: Verdict, who: object, now: float, rng: Rng, why: str = "") -> bool:
        """See `Breaker.ended`."""
        one = self.of(backend, served)
        changed = one.ended(verdict, who, now, rng, why)
        if changed and one.open_until is not None:
            self._troubled.add((backend, served))
            self.opens[backend] = self.opens.get(backend, 0) + 1
        return changed

    def begun(self, backend: str, served: str, who: object, now: float) -> bool:
        """See `Breaker.begun`."""
        return self.of(backend, served).begun(who, now)

    def cool(self, backend: str, served: str, wait_s: float, now: float) -> None:
        """See `Breaker.cool`."""
        self.of(backend, served).cool(wait_s, now)
        self._troubled.add((backend, served))

    def shut(self, served: str, now: float) -> Mapping[str, str]:
        """Backends that a request for this adapter, or for the model itself, should not go to, each with the reason. What the model's own
        breaker says holds for its adapters too."""
        if not self._troubled:
            return NOBODY
        found = {}
        for backend, name in list(self._troubled):
            one = self._by[backend][name]
            if one.open_until is None and now >= one.cool_until:
                self._troubled.discard((backend, name))
            elif name in ("", served) and (why := one.shut(now)):
                found[backend] = why
        return found

    def seen(self, backend: str) -> Iterator[tuple[str, Breaker]]:
        """A backend's, with the adapter of each."""
        yield from self._by.get(backend, {}).items()

    def fresh(self, backend: str) -> None:
        """It was away and has shown a token since, or is another process: what it failed before says nothing any more."""
        for served in self._by.pop(backend, {}):
            self._troubled.discard((backend, served))

    def forget(self, backend: str) -> None:
        """It left."""
        self.fresh(backend)
        self.opens.pop(backend, None)

    def tidy(self, now: float) -> None:
        """Drop what no one needs: breakers of adapters that nobody asked for in a while."""
        for backend, found in self._by.items():
            for served in [name for name, one in found.items() if name and one.idle(now) and (backend, name) not in self._troubled]:
                del found[served]
