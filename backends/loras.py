"""Which adapters are on which engine, and what has to go before another one fits. Pure: times are handed in.

Residency is believed, not known: from the engine's own model list, polled, and from the calls this process made itself. What
is believed wrongly mends itself: an engine that does not know an adapter says so, and the adapter is loaded again.

The bound: of the adapters on an engine, those being loaded counted, there are never more than its slots. Least recently
used goes first, and never one that has requests on it. Several gateway processes share an engine without talking to each
other; each reads the engine's list right before it decides, so they can overrun the bound only by deciding within the same
round trip, and the next one to load evicts what is too many.
"""

import re
from collections.abc import Collection, Iterable
from enum import Enum
from typing import Final

import msgspec

DIGEST_CHARS: Final = 12
"""Hexadecimal digits of an adapter's digest in its engine-side name: 48 bits keep apart every version there will ever be of
one name, and the name stays readable."""

HOLD_OFF_S: Final = 10.0
"""After an engine could not load an adapter, for how long it is not asked again: long enough that a wrong path costs next
to nothing, short enough that a mended one is noticed before anybody looks."""

SETTLE_S: Final = 0.25
"""For so long after a request of ours is over, an engine's word that its adapter is in use may still be about that request:
engines are read ten times a second, and what they report follows their last step."""

_OURS: Final = re.compile(rf".+@[0-9a-f]{{{DIGEST_CHARS}}}")


class Adapter(msgspec.Struct, frozen=True):
    """One adapter, pinned to its content. Other bytes have another digest, so another name: an engine never has to reload a
    name in place, and what it has cached under a name stays true."""

    name: str
    digest: str
    """SHA-256 of its files (`backends.lora_digest`), 64 hexadecimal digits."""
    path: str
    """Where the engine finds it."""
    served: str = ""
    """The engine-side name, `name@` and the first digits of the digest; filled in here."""

    def __post_init__(self) -> None:
        """Name it."""
        msgspec.structs.force_setattr(self, "served", f"{self.name}@{self.digest[:DIGEST_CHARS]}")


class LoraUnavailable(Exception):
    """The adapter cannot be had on this engine now; the message says why, for operators."""


class InUse(msgspec.Struct, frozen=True):
    """The adapters that an engine itself reports as in use, by whomever, and when it said so (monotonic seconds)."""

    names: Collection[str] = ()
    read_at: float = 0.0


NONE: Final = InUse()
"""An engine that says nothing of it."""


class _Is(Enum):
    LOADING = "loading"
    RESIDENT = "resident"
    LEAVING = "leaving"
    UNSURE = "unsure"
    """A call about it was lost, so it may be there or not: it holds a slot and serves nobody until the engine lists it or not."""


class _Place:
    __slots__ = ("state", "used_at")

    def __init__(self, state: _Is, used_at: float) -> None:
        self.state = state
        self.used_at = used_at


class Shelf:
    """The adapters of one engine. Adapters are meant by their engine-side names.

    Args:
        slots: adapters it can hold at once.
        loads: whether it can be told to load one; those that cannot serve what they list and nothing else.
    """

    __slots__ = ("_barred", "_in_use", "_places", "changes", "loads", "slots")

    def __init__(self, slots: int, *, loads: bool = True) -> None:
        self.slots = slots
        self.loads = loads
        self.changes = 0
        """Counts what this process did here; see `reported`."""
        self._places: dict[str, _Place] = {}
        # what has been asked for or listed; the first is bounded by the configuration, the second by the size of a list
        self._in_use: dict[str, int] = {}
        self._barred: dict[str, tuple[float, str]] = {}

    # --- what requests need -------------------------------------------------------------------------------------------

    def has(self, served: str) -> bool:
        """Whether requests for it can be sent now."""
        place = self._places.get(served)
        return place is not None and place.state is _Is.RESIDENT

    def comes(self, served: str) -> bool:
        """Whether it is there or being loaded."""
        place = self._places.get(served)
        return place is not None and place.state in (_Is.RESIDENT, _Is.LOADING)

    def charge(self, served: str, now: float) -> None:
        """A request needs it from now on, be it there or not; pair with `release`. What is needed is not evicted."""
        self._in_use[served] = self._in_use.get(served, 0) + 1
        place = self._places.get(served)
        if place is not None:
            place.used_at = now

    def release(self, served: str, now: float) -> None:
        """The request is over."""
        place = self._places.get(served)
        if place is not None:
            place.used_at = now
        left = self._in_use[served] - 1
        if left:
            self._in_use[served] = left
        else:
            del self._in_use[served]

    def resident(self) -> tuple[str, ...]:
        """Everything on it, in order of names."""
        return tuple(sorted(name for name, place in self._places.items() if place.state is _Is.RESIDENT))

    @property
    def idle(self) -> bool:
        """Whether no request needs anything of it, and nothing is being loaded or unloaded."""
        return not self._in_use and not any(place.state in (_Is.LOADING, _Is.LEAVING) for place in self._places.values())

    # --- deciding -----------------------------------------------------------------------------------------------------

    def obstacle(self, served: str, now: float, busy: InUse) -> str:
        """Why it cannot be had here, in words for an operator; empty when it is there, coming, or can be loaded.

        Args:
            busy: what the engine itself reports as in use.
        """
        if self.comes(served):
            return ""
        if not self.loads:
            return f"does not list {served}, and this kind of engine cannot be told to load it"
        until, why = self._barred.get(served, (now, ""))
        if now < until:
            return why
        place = self._places.get(served)
        if place is not None and place.state is _Is.UNSURE:
            return f"it is not known whether {served} is loaded; the next poll tells"
        return self._victims(served, busy)[1]

    def begin(self, served: str, now: float, busy: InUse) -> tuple[str, ...]:
        """Take a slot for an adapter that is about to be loaded. What is returned has to be unloaded first.

        Raises:
            LoraUnavailable: it cannot be had, see `obstacle`; nothing was changed.
        """
        why = self.obstacle(served, now, busy)
        if not why and served in self._places:
            why = f"{served} is being loaded or unloaded"
        if why:
            raise LoraUnavailable(why)
        victims, _ = self._victims(served, busy)
        for victim in victims:
            self._places[victim].state = _Is.LEAVING
        self._places[served] = _Place(_Is.LOADING, now)
        self.changes += 1
        return victims

    def used_at(self, served: str) -> float:
        """When it was last used here; 0 when it is not known."""
        place = self._places.get(served)
        return place.used_at if place is not None else 0.0

    def put_back(self, served: str, used_at: float) -> bool:
        """Take a slot for what was evicted in vain and is about to be loaded again; False when that would need an eviction, or
        somebody sees to it already."""
        if served in self._places or self._victims(served, NONE) != ((), ""):
            return False
        self._places[served] = _Place(_Is.LOADING, used_at)
        self.changes += 1
        return True

    def _victims(self, served: str, busy: InUse) -> tuple[tuple[str, ...], str]:
        """What to evict, and why nothing can be. Those that leave already do so for the sake of another one that is counted."""
        places = self._places
        holding = [name for name, place in places.items() if place.state is not _Is.LEAVING and name != served]
        excess = len(holding) + 1 - self.slots
        if excess <= 0:
            return (), ""
        free = [
            (places[name].used_at, name)
            for name in holding
            if places[name].state is _Is.RESIDENT and not self._used(name, busy) and _OURS.fullmatch(name)
        ]
        if len(free) < excess:
            return (), f"all {self.slots} adapter slots are in use: {', '.join(sorted(holding)[:10])}"
        return tuple(name for _, name in sorted(free)[:excess]), ""

    def _used(self, name: str, busy: InUse) -> bool:
        return name in self._in_use or (name in busy.names and busy.read_at > self._places[name].used_at + SETTLE_S)

    # --- what became of it --------------------------------------------------------------------------------------------

    def loaded(self, served: str, now: float) -> None:
        """The engine has loaded it, or says that it had it already."""
        self._places[served] = _Place(_Is.RESIDENT, now)
        self._barred.pop(served, None)
        self.changes += 1

    def failed(self, served: str, why: str, until: float, *, sure: bool) -> None:
        """It was not loaded; not `sure` when the answer was lost. Not tried again before `until`."""
        if sure:
            self._places.pop(served, None)
        else:
            self._places[served].state = _Is.UNSURE
        self.bar(served, why, until)
        self.changes += 1

    def unloaded(self, served: str) -> None:
        """The engine has unloaded it, or did not have it."""
        self._places.pop(served, None)
        self.changes += 1

    def lost(self, served: str) -> None:
        """The engine does not know it, though it was believed to be there: it was restarted, or somebody else unloaded it."""
        if self.has(served):
            del self._places[served]
            self.changes += 1

    def stays(self, served: str, *, sure: bool) -> None:
        """It was not unloaded; not `sure` when the answer was lost."""
        place = self._places.get(served)
        if place is not None:
            place.state = _Is.RESIDENT if sure else _Is.UNSURE
        self.changes += 1

    def doubted(self) -> None:
        """Another process may be behind the address: what was loaded serves nobody until the engine lists it. What is in use or
        being loaded still counts, for those requests and calls are not over."""
        for place in self._places.values():
            if place.state is _Is.RESIDENT:
                place.state = _Is.UNSURE
        self._barred.clear()
        self.changes += 1

    def bar(self, served: str, why: str, until: float) -> None:
        """Keep requests for it away until then."""
        self._barred[served] = (until, why)

    def reported(self, listed: Iterable[str], changes: int) -> None:
        """The engine's own list, asked for when `changes` was this. A list that was asked for before something was done here is
        older than what was done, and says nothing."""
        if changes != self.changes:
            return
        on_engine, places = set(listed), self._places
        for name in [n for n, place in places.items() if n not in on_engine and place.state in (_Is.RESIDENT, _Is.UNSURE)]:
            del places[name]
        for name in on_engine:
            place = places.get(name)
            if place is None:
                places[name] = _Place(_Is.RESIDENT, 0.0)  # used by nobody here: the first to go
            elif place.state is _Is.UNSURE:
                place.state = _Is.RESIDENT
            self._barred.pop(name, None)
