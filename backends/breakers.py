"""The circuit breakers of one worker: which backends a request should avoid. Pure, like each breaker (`backends.breaker`)."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from backends.breaker import Breaker, Verdict
from domain.clock import Rng

NOBODY: Final[Mapping[str, str]] = MappingProxyType({})


class Breakers:
    """The breakers of one worker, by backend and by the engine's name of the adapter (empty: the model itself). Bounded: a backend's
    breakers are dropped when it leaves, and an adapter's when it has been closed and unused for a while."""

    __slots__ = ("_breakers", "_troubled", "opens")

    def __init__(self) -> None:
        self._breakers: dict[str, dict[str, Breaker]] = {}
        self._troubled: set[tuple[str, str]] = set()
        self.opens: dict[str, int] = {}
        """How often the breakers of each backend opened."""

    def of(self, backend: str, served: str = "") -> Breaker:
        """The breaker of this backend and adapter, made on first use."""
        by_adapter = self._breakers.get(backend)
        if by_adapter is None:
            by_adapter = self._breakers[backend] = {}
        breaker = by_adapter.get(served)
        if breaker is None:
            breaker = by_adapter[served] = Breaker()
        return breaker

    def answered(self, backend: str, served: str, request_id: object, now: float, rng: Rng) -> bool:
        """`ended` with a complete answer, the usual case; returns whether the breaker closed by it."""
        breaker = self.of(backend, served)
        if breaker.open_until is None:
            breaker.answered(int(now))
            return False
        return breaker.ended(Verdict.SUCCESS, request_id, now, rng)

    def ended(self, backend: str, served: str, verdict: Verdict, request_id: object, now: float, rng: Rng, why: str = "") -> bool:
        """Pass the end of an attempt on to `Breaker.ended`, and count openings; returns whether the breaker opened or closed."""
        breaker = self.of(backend, served)
        changed = breaker.ended(verdict, request_id, now, rng, why)
        if changed and breaker.open_until is not None:
            self._troubled.add((backend, served))
            self.opens[backend] = self.opens.get(backend, 0) + 1
        return changed

    def begun(self, backend: str, served: str, request_id: object, now: float) -> bool:
        """Pass a first token on to `Breaker.begun`; returns whether the breaker closed by it."""
        return self.of(backend, served).begun(request_id, now)

    def cool(self, backend: str, served: str, wait_s: float, now: float) -> None:
        """Pass an engine's wish for a pause on to `Breaker.cool`."""
        self.of(backend, served).cool(wait_s, now)
        self._troubled.add((backend, served))

    def shut(self, served: str, now: float) -> Mapping[str, str]:
        """Backends that a request for this adapter (empty: for the model itself) should avoid, each with the reason. The breaker of the
        model itself holds for its adapters too."""
        if not self._troubled:
            return NOBODY
        reasons = {}
        for backend, name in list(self._troubled):
            breaker = self._breakers[backend][name]
            if breaker.open_until is None and now >= breaker.cool_until:
                self._troubled.discard((backend, name))
            elif name in ("", served) and (why := breaker.shut(now)):
                reasons[backend] = why
        return reasons

    def seen(self, backend: str) -> Iterator[tuple[str, Breaker]]:
        """The breakers of a backend, each with its adapter."""
        yield from self._breakers.get(backend, {}).items()

    def fresh(self, backend: str) -> None:
        """Drop a backend's breakers: it was away and has generated a token since, or its process is another one, so its earlier failures
        tell nothing."""
        for served in self._breakers.pop(backend, {}):
            self._troubled.discard((backend, served))

    def forget(self, backend: str) -> None:
        """Drop everything of a backend that left."""
        self.fresh(backend)
        self.opens.pop(backend, None)

    def tidy(self, now: float) -> None:
        """Drop the breakers of adapters that had no requests for a while."""
        for backend, by_adapter in self._breakers.items():
            idle = [name for name, breaker in by_adapter.items() if name and breaker.idle(now) and (backend, name) not in self._troubled]
            for served in idle:
                del by_adapter[served]
