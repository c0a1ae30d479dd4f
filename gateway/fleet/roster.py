"""Who is in the fleet of this worker now: takes the wanted set of backends and makes the difference true.

A backend joins unknown and takes requests once a poll found it right. One that leaves, or is drained, gets nothing new (the last
one that is up stays until one of those that replace it is up, too); what runs on it finishes within a grace, what is left then ends
with an error event, and only when nothing is in flight any more it is forgotten: connections, its row and its prefixes, signals,
names and loops. Decides nothing about who is wanted (`gateway/fleet/membership.py`) and knows no source.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec
import structlog

from backends.ports import Upstream
from domain.faults import Fault, Kind, Retry
from domain.membership import OWNED_BY, Member
from gateway.deps import Deps
from routing.fleet import Backend, State

log = structlog.get_logger("tidegate.fleet")

TICK_S: Final = 0.05
"""How often a draining backend is looked at; nothing looks while none drains."""

RELIEF_S: Final = 10.0
"""How long the last one that is up stays for those that replace it: twice the polls that it takes them to be up. An engine that is gone
itself is found down much sooner."""

Detach = Callable[[], Awaitable[None]]
"""Lets a backend go: takes effect when called, what it returns ends when everything is closed."""

Attach = Callable[[Member], Detach]
"""Begins to do something for a backend: to poll it, to read its signals."""


class _Entry:
    __slots__ = ("attached", "cut", "leaving", "member", "stays_until", "until", "upstream")

    def __init__(self, member: Member, upstream: Upstream, attached: list[Detach]) -> None:
        self.member = member
        self.upstream = upstream
        self.attached = attached
        self.until: float | None = None
        """When the grace ends, on the deps' clock; None while it takes requests."""
        self.stays_until: float | None = None
        """When it leaves at the latest, of one that nobody names any more and that has to be relieved first."""
        self.leaving = False
        """Whether it is forgotten once it is empty, or only drained."""
        self.cut = False


class Roster:
    """The members of one worker's fleet.

    Args:
        deps: what requests work with; its fleet, upstreams, grounds, names and signals are kept here.
        upstream: makes the way to a backend.
        attach: what is done for each backend besides.
        grace_s: how long requests on a backend that leaves may go on.
    """

    def __init__(self, deps: Deps, upstream: Callable[[Member], Upstream], attach: Sequence[Attach], grace_s: float) -> None:
        self._deps = deps
        self._upstream = upstream
        self._attach = tuple(attach)
        self._grace_s = grace_s
        self._entries: dict[str, _Entry] = {}
        self._wanted: Mapping[str, Member] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._draining = asyncio.Event()

    def member(self, backend_id: str) -> Member | None:
        """The member behind an id, leaving ones included."""
        entry = self._entries.get(backend_id)
        return entry.member if entry else None

    def __len__(self) -> int:
        return len(self._entries)

    def apply(self, wanted: Mapping[str, Member]) -> None:
        """Make `wanted` (by id) the fleet. Never waits: who leaves is drained by `run`."""
        self._wanted = wanted
        for backend_id, entry in self._entries.items():
            member = wanted.get(backend_id)
            if member is not None and member.same_place(entry.member) and member.traits != entry.member.traits:
                self._deps.grounds.configure(backend_id, member.traits)
            if member is None or not member.same_place(entry.member):
                if not entry.leaving and entry.stays_until is None:
                    self._leave(entry, member)
            elif member.drain_grace_s is not None:
                if entry.until is None or entry.leaving or entry.member.drain_grace_s != member.drain_grace_s:
                    self._drain(entry, member.drain_grace_s, "drained by an operator")
                entry.leaving, entry.stays_until = False, None
                entry.member = member
            else:
                entry.member, entry.stays_until = member, None
                if entry.until is not None:
                    self._resume(entry)
        self._join_missing()

    def _leave(self, entry: _Entry, now_wanted: Member | None) -> None:
        if now_wanted is None and entry.until is None and self._has_to_be_relieved(entry.member):
            entry.stays_until = self._deps.clock() + RELIEF_S
            log.info("backend stays until another one is up", pool=entry.member.pool, backend=entry.member.id)
            self._draining.set()
            return
        self._leave_now(entry, now_wanted)

    def _leave_now(self, entry: _Entry, now_wanted: Member | None) -> None:
        entry.leaving, entry.stays_until = True, None
        self._drain(entry, self._grace_s, self._why_leaving(entry.member, now_wanted))

    def _has_to_be_relieved(self, member: Member) -> bool:
        """Whether it is the only one of its role in its pool that is up, while others are wanted there."""
        up = [b.id for b in self._deps.live.fleet.pools[member.pool].backends if b.state is State.UP and b.role == member.role]
        return up == [member.id] and any(
            one.pool == member.pool and one.role == member.role and one.drain_grace_s is None for one in self._wanted.values()
        )

    @staticmethod
    def _why_leaving(member: Member, now_wanted: Member | None) -> str:
        return f"leaving: {OWNED_BY[member.owner]} no longer names it" if now_wanted is None else "leaving: its address has changed"

    def _join_missing(self) -> None:
        for backend_id, member in self._wanted.items():
            if backend_id not in self._entries:
                self._join(member)

    def _join(self, member: Member) -> None:
        deps = self._deps
        way = self._upstream(member)
        deps.grounds.add(member.pool, member.id, member.traits)
        deps.upstreams[member.id] = way
        deps.live.fleet = deps.live.fleet.with_member(_unheard(member))
        entry = self._entries[member.id] = _Entry(member, way, [attach(member) for attach in self._attach])
        log.info("backend joins", pool=member.pool, backend=member.id, source=member.owner)
        if member.drain_grace_s is not None:
            self._drain(entry, member.drain_grace_s, "drained by an operator")

    def _drain(self, entry: _Entry, grace_s: float, why: str) -> None:
        deps, member = self._deps, entry.member
        entry.until = deps.clock() + grace_s
        entry.cut = False
        # out of the upstreams at once: a request that was routed before this moment and retries must not come here either
        deps.upstreams.pop(member.id, None)
        deps.loras.let_go(member.id)
        draining = msgspec.structs.replace(_unheard(member), state=State.DRAINING, reason=why)
        deps.live.fleet = deps.live.fleet.with_member(draining)
        log.info("backend draining", pool=member.pool, backend=member.id, reason=why, in_flight=self._in_flight(entry), grace_s=grace_s)
        self._draining.set()

    def _resume(self, entry: _Entry) -> None:
        """Take requests again, from fresh knowledge: the process behind the address may be another one by now."""
        deps, member = self._deps, entry.member
        entry.until, entry.leaving, entry.cut = None, False, False
        self._let_go(entry)
        self._forget(member.id)
        deps.upstreams[member.id] = entry.upstream
        deps.live.fleet = deps.live.fleet.with_member(_unheard(member))
        entry.attached = [attach(member) for attach in self._attach]
        log.info("backend resumes", pool=member.pool, backend=member.id)

    def _in_flight(self, entry: _Entry) -> int:
        return self._deps.grounds.in_flight(entry.member.id)

    async def run(self) -> None:
        """See drains through until cancelled."""
        while True:
            await self._draining.wait()
            self.tick()
            await asyncio.sleep(TICK_S)

    def tick(self) -> None:
        """Look at every draining backend once."""
        now = self._deps.clock()
        unfinished = False
        for entry in [entry for entry in self._entries.values() if entry.stays_until is not None]:
            if now >= (entry.stays_until or 0.0) or not self._has_to_be_relieved(entry.member):
                self._leave_now(entry, self._wanted.get(entry.member.id))
            unfinished = True
        for entry in [entry for entry in self._entries.values() if entry.until is not None]:
            if self._in_flight(entry) == 0:
                if entry.leaving:
                    self._remove(entry)
                continue
            unfinished = True
            if entry.until is not None and now >= entry.until:
                self._cut(entry)
        if not unfinished:
            self._draining.clear()
        self._join_missing()  # one may have waited for its predecessor to go

    def _cut(self, entry: _Entry) -> None:
        """The grace is over. Looked at again and again: a request may have been between two attempts at the first look."""
        member = entry.member
        if not entry.cut:
            log.warning("the grace is over; cutting what still runs", pool=member.pool, backend=member.id, in_flight=self._in_flight(entry))
            entry.cut = True
        for relay in self._deps.watch.relays():
            if relay.backend == member.id and not relay.outcome.done():
                relay.end_with(
                    Fault(
                        Kind.BACKEND_DRAINED,
                        "The engine was taken out of service before the answer was complete. Try again.",
                        retry=Retry(should=True, after_s=1.0),
                    )
                )

    def _remove(self, entry: _Entry) -> None:
        deps, member = self._deps, entry.member
        del self._entries[member.id]
        deps.live.fleet = deps.live.fleet.without(member.pool, member.id)
        deps.grounds.drop(member.id)
        self._let_go(entry)
        self._forget(member.id)
        self._later(entry.upstream.close())
        log.info("backend left", pool=member.pool, backend=member.id)

    def _forget(self, backend_id: str) -> None:
        live = self._deps.live
        for known in (live.names, live.signals, live.prefill):
            known.pop(backend_id, None)
        self._deps.loras.forget(backend_id)

    def _let_go(self, entry: _Entry) -> None:
        for detach in entry.attached:
            self._later(detach())
        entry.attached = []

    def _later(self, closing: Awaitable[None]) -> None:
        async def closed() -> None:
            await closing

        task = self._deps.loop.create_task(closed())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close every way; the worker has drained."""
        for entry in self._entries.values():
            self._let_go(entry)
            self._later(entry.upstream.close())
        self._entries.clear()
        self._deps.upstreams.clear()
        await asyncio.gather(*self._closing, return_exceptions=True)


def _unheard(member: Member) -> Backend:
    """What routing may know of a member before it has answered."""
    return Backend(member.id, member.pool, role=member.role, bootstrap=member.bootstrap)
