"""Residency: the LoRA adapters that are loaded on one engine, and those to evict before another one fits. Pure: times are handed in.

Residency is an estimate: it comes from polls of the engine's own model list, and from the calls that this process made. A wrong estimate
corrects itself: an engine that does not know an adapter says so, and the adapter is loaded again.

The bound: an engine never holds more adapters than its slots, those being loaded included. The least recently used one is evicted first,
and never one that has requests on it. Several gateway processes share an engine without talking to each other; each reads the engine's
list right before it decides, so they can exceed the bound only by deciding within the same round trip, and the next load evicts the excess.
"""

import re
from collections.abc import Collection, Iterable
from enum import Enum
from math import inf
from typing import Final, NamedTuple

import msgspec

DIGEST_CHARS: Final = 12
"""Hexadecimal digits of an adapter's digest in its engine-side name: 48 bits keep apart every version there will ever be of
one name, and the name stays readable."""

HOLD_OFF_S: Final = 10.0
"""Time after a failed load in which the load is not tried again: long enough that a wrong path costs next to nothing, short enough
that a corrected one is noticed before an operator looks."""

SETTLE_S: Final = 0.25
"""Time after the end of one of this process's requests in which the engine's report that its adapter is in use may still mean that
request: engines are read ten times a second, and their reports follow their last step."""

SPARED_S: Final = 0.5
"""Time for which an adapter that another process has just loaded is not evicted: its first request is on the way, and only then the engine
reports it as in use."""

_OURS: Final = re.compile(rf".+@[0-9a-f]{{{DIGEST_CHARS}}}")


class Adapter(msgspec.Struct, frozen=True):
    """One adapter, pinned to its content. Other bytes have another digest, hence another name: an engine never has to reload a
    name in place, and the KV blocks that it cached under a name stay valid."""

    name: str
    digest: str
    """SHA-256 of its files (`backends.lora.digest`), 64 hexadecimal digits."""
    path: str
    """The adapter's folder on the engine's machine."""
    served: str = ""
    """The engine-side name, `name@` and the first digits of the digest; filled in here."""

    def __post_init__(self) -> None:
        """Fill in the engine-side name."""
        msgspec.structs.force_setattr(self, "served", f"{self.name}@{self.digest[:DIGEST_CHARS]}")


class LoraUnavailable(Exception):
    """The adapter cannot be had on this engine now; the message says why, for operators."""


class NoSlot(LoraUnavailable):
    """Requests use every adapter slot of the engine: the adapter can be had there once one of them has ended."""


class Obstacle(NamedTuple):
    """Why an engine cannot have an adapter."""

    why: str
    """In words for an operator."""
    passes: bool
    """Whether it goes away by itself: requests that are in flight use the slots, or the next poll tells."""


class AdaptersInUse(msgspec.Struct, frozen=True):
    """The adapters that an engine itself reports as in use, by requests of any process, and when (monotonic seconds)."""

    names: Collection[str] = ()
    read_at: float = 0.0


NONE: Final = AdaptersInUse()
"""The value for an engine that does not report adapters in use."""


class _State(Enum):
    LOADING = "loading"
    RESIDENT = "resident"
    LEAVING = "leaving"
    UNSURE = "unsure"
    """A reply about the adapter was lost, so it may be loaded or not: it takes a slot and serves no request until the engine's next
    list."""


class _AdapterEntry:
    __slots__ = ("spared_until", "state", "used_at")

    def __init__(self, state: _State, used_at: float, spared_until: float = -inf) -> None:
        self.state = state
        self.used_at = used_at
        self.spared_until = spared_until


class LoadedAdapters:
    """The adapters loaded on one engine, by their engine-side names.

    Args:
        slots: adapters that the engine can hold at once.
        loads: whether the engine has calls to load adapters; one without them serves only the adapters that it lists.
    """

    __slots__ = ("_barred", "_entries", "_in_use", "_listed", "changes", "loads", "moves", "slots")

    def __init__(self, slots: int, *, loads: bool = True) -> None:
        self.slots = slots
        self.loads = loads
        self.changes = 0
        """Number of changes that this process made; used by `reported` to recognise an outdated list."""
        self.moves = 0
        """Number of times that an adapter was needed for the first time, or not any more: each may free or take a slot."""
        self._entries: dict[str, _AdapterEntry] = {}
        # adapters requested or listed; the first are bounded by the configuration, the second by the size of a list
        self._in_use: dict[str, int] = {}
        self._barred: dict[str, tuple[float, str]] = {}
        self._listed = False

    # --- what requests need -------------------------------------------------------------------------------------------

    def has(self, served: str) -> bool:
        """Whether the adapter is loaded, so that requests for it can be sent now."""
        entry = self._entries.get(served)
        return entry is not None and entry.state is _State.RESIDENT

    def comes(self, served: str) -> bool:
        """Whether the adapter is loaded or being loaded."""
        entry = self._entries.get(served)
        return entry is not None and entry.state in (_State.RESIDENT, _State.LOADING)

    def charge(self, served: str, now: float) -> None:
        """A request needs the adapter from now on, loaded or not; pair with `release`. A needed adapter is not evicted, and one that has
        still to be loaded has a slot promised."""
        requests = self._in_use.get(served, 0)
        self._in_use[served] = requests + 1
        self.moves += not requests
        entry = self._entries.get(served)
        if entry is not None:
            entry.used_at = now

    def release(self, served: str, now: float) -> None:
        """The request that charged the adapter is over."""
        entry = self._entries.get(served)
        if entry is not None:
            entry.used_at = now
        requests = self._in_use[served] - 1
        if requests:
            self._in_use[served] = requests
        else:
            del self._in_use[served]
            self.moves += 1

    def needed(self, served: str) -> bool:
        """Whether requests in flight need the adapter, loaded or not."""
        return served in self._in_use

    def resident(self) -> tuple[str, ...]:
        """The loaded adapters, in order of names."""
        return tuple(sorted(name for name, entry in self._entries.items() if entry.state is _State.RESIDENT))

    @property
    def idle(self) -> bool:
        """Whether no request needs an adapter here, and none is being loaded or unloaded."""
        return not self._in_use and not any(entry.state in (_State.LOADING, _State.LEAVING) for entry in self._entries.values())

    # --- deciding -----------------------------------------------------------------------------------------------------

    def obstacle(self, served: str, now: float, busy: AdaptersInUse) -> Obstacle | None:
        """Why the engine cannot have the adapter; None when it is loaded, being loaded, or can be loaded in a slot that is not promised to
        another adapter.

        Args:
            busy: the adapters that the engine itself reports as in use.
        """
        if self.comes(served):
            return None
        if why := self.refusal(served, now):
            return Obstacle(why, passes=False)
        entry = self._entries.get(served)
        if entry is not None and entry.state is _State.UNSURE:
            return Obstacle(f"it is not known whether {served} is loaded; the next poll tells", passes=True)
        promised = [name for name in self._in_use if name != served and not self._holds(name)]
        return self._victims(served, now, busy, promised)[1]

    def refusal(self, served: str, now: float) -> str:
        """Why a load would be in vain however many slots were free; empty when nothing is known against it."""
        if not self.loads:
            return f"does not list {served}, and this kind of engine cannot be told to load it"
        until, why = self._barred.get(served, (now, ""))
        return why if now < until else ""

    def begin(self, served: str, now: float, busy: AdaptersInUse) -> tuple[str, ...]:
        """Take a slot for an adapter that is about to be loaded; returns the adapters that must be unloaded first.

        Slots that are promised to adapters whose load has not begun count as free here: who begins first has one.

        Raises:
            LoraUnavailable: the engine cannot have it; nothing was changed. `NoSlot` where that goes away once a request has ended.
        """
        entry = self._entries.get(served)
        if why := self.refusal(served, now):
            raise LoraUnavailable(why)
        if entry is not None:
            raise LoraUnavailable(f"{served} is being loaded or unloaded, or it is not known whether it is loaded")
        victims, obstacle = self._victims(served, now, busy)
        if obstacle is not None:
            raise (NoSlot if obstacle.passes else LoraUnavailable)(obstacle.why)
        for victim in victims:
            self._entries[victim].state = _State.LEAVING
        self._entries[served] = _AdapterEntry(_State.LOADING, now)
        self.changes += 1
        return victims

    def used_at(self, served: str) -> float:
        """When the adapter was last used here; 0 when it is not known."""
        entry = self._entries.get(served)
        return entry.used_at if entry is not None else 0.0

    def put_back(self, served: str, used_at: float) -> bool:
        """Take a slot for an adapter that was evicted in vain and is about to be loaded again; False when that would need an eviction, or
        another call loads it already."""
        if served in self._entries or self._victims(served, used_at, NONE) != ((), None):
            return False
        self._entries[served] = _AdapterEntry(_State.LOADING, used_at)
        self.changes += 1
        return True

    def _victims(
        self, served: str, now: float, busy: AdaptersInUse, promised: Collection[str] = ()
    ) -> tuple[tuple[str, ...], Obstacle | None]:
        """The adapters to evict for this one, and the obstacle when there are not enough. Adapters that are being unloaded already make
        room for another one that is counted, so they do not count.

        Args:
            promised: other adapters that are to be loaded and have no slot yet.
        """
        entries = self._entries
        holding = [name for name, entry in entries.items() if entry.state is not _State.LEAVING and name != served]
        excess = len(holding) + len(promised) + 1 - self.slots
        if excess <= 0:
            return (), None
        ours = [name for name in holding if _OURS.fullmatch(name)]
        free = [
            (entries[name].used_at, name) for name in ours if entries[name].state is _State.RESIDENT and not self._used(name, now, busy)
        ]
        if len(free) < excess:
            # others than ours are never evicted: where they take the slots, no end of a request makes room
            passes = len(ours) + len(promised) >= excess
            return (), Obstacle(f"all {self.slots} adapter slots are in use: {', '.join(sorted([*holding, *promised])[:10])}", passes)
        return tuple(name for _, name in sorted(free)[:excess]), None

    def _holds(self, name: str) -> bool:
        entry = self._entries.get(name)
        return entry is not None and entry.state is not _State.LEAVING

    @property
    def known(self) -> frozenset[str]:
        """The adapters that are loaded, coming or going, as far as this process knows."""
        return frozenset(self._entries)

    def _used(self, name: str, now: float, busy: AdaptersInUse) -> bool:
        entry = self._entries[name]
        return name in self._in_use or now < entry.spared_until or (name in busy.names and busy.read_at > entry.used_at + SETTLE_S)

    # --- what became of it --------------------------------------------------------------------------------------------

    def loaded(self, served: str, now: float) -> None:
        """The engine has loaded the adapter, or replied that it had it already."""
        self._entries[served] = _AdapterEntry(_State.RESIDENT, now)
        self._barred.pop(served, None)
        self.changes += 1

    def failed(self, served: str, why: str, until: float, *, sure: bool) -> None:
        """The load failed; not `sure` when the reply was lost. It is not tried again before `until`."""
        if sure:
            self._entries.pop(served, None)
        else:
            self._entries[served].state = _State.UNSURE
        self.bar(served, why, until)
        self.changes += 1

    def unloaded(self, served: str) -> None:
        """The engine has unloaded the adapter, or did not have it."""
        self._entries.pop(served, None)
        self.changes += 1

    def lost(self, served: str) -> None:
        """The engine does not know an adapter that counted as loaded: it was restarted, or another client unloaded it."""
        if self.has(served):
            del self._entries[served]
            self.changes += 1

    def stays(self, served: str, *, sure: bool) -> None:
        """The unload failed; not `sure` when the reply was lost."""
        entry = self._entries.get(served)
        if entry is not None:
            entry.state = _State.RESIDENT if sure else _State.UNSURE
        self.changes += 1

    def doubted(self) -> None:
        """Another process may be behind the address: loaded adapters serve no request until the engine lists them. Adapters in use or
        being loaded still count, because their requests and calls are not over."""
        for entry in self._entries.values():
            if entry.state is _State.RESIDENT:
                entry.state = _State.UNSURE
        self._barred.clear()
        self.changes += 1

    def bar(self, served: str, why: str, until: float) -> None:
        """Keep requests for the adapter away until then."""
        self._barred[served] = (until, why)

    def reported(self, listed: Iterable[str], changes: int, now: float = -inf) -> None:
        """Take the engine's own list, requested when `self.changes` was `changes`. A list requested before the last change here is outdated
        and ignored.

        Args:
            now: when the list came; adapters that are new in it are spared for a moment, but for those of the first list.
        """
        if changes != self.changes:
            return
        on_engine = set(listed)
        entries = self._entries
        for name in [n for n, entry in entries.items() if n not in on_engine and entry.state in (_State.RESIDENT, _State.UNSURE)]:
            del entries[name]
        for name in on_engine:
            entry = entries.get(name)
            if entry is None:
                # no request of this process used it: the first to be evicted
                entries[name] = _AdapterEntry(_State.RESIDENT, 0.0, now + SPARED_S if self._listed else -inf)
            elif entry.state is _State.UNSURE:
                entry.state = _State.RESIDENT
            self._barred.pop(name, None)
        self._listed = True
