"""The backends in the fleet of this worker: takes the wanted set, and lets backends join, drain, resume and leave accordingly.

A backend joins in the state unknown and takes requests once a poll succeeded. A backend that leaves, or is drained, gets no new
requests (the last one that is up stays until a replacement is up, too). Its running requests may finish within a grace; those left
after it end with an error event. Only when nothing is in flight any more the backend is forgotten: its connections, its row in the
load table, its prefixes, signals, names and loops. `gateway/fleet/membership.py` decides which backends are wanted; the roster knows
no source.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec
import structlog

from backends.ports import Upstream
from domain import retry_after
from domain.faults import Fault, Kind
from domain.membership import OWNED_BY, Member
from gateway.deps import Deps
from routing.fleet import Availability, Backend

log = structlog.get_logger("tidegate.fleet")

TICK_S: Final = 0.05
"""How often draining backends are checked; nothing runs while none drains."""

RELIEF_S: Final = 10.0
"""How long the last backend that is up stays for its replacements: twice the polls that a replacement needs to be up. When the engine
itself is gone, it is found down much sooner."""

Detach = Callable[[], Awaitable[None]]
"""Stops the work for a backend: takes effect when called; the awaitable that is returned ends when everything is closed."""

Attach = Callable[[Member], Detach]
"""Starts a kind of work for a backend: to poll it, to read its signals."""


class _RosterEntry:
    """One backend of the fleet, with its place between joining and leaving."""

    __slots__ = ("attached", "cut", "leaving", "member", "stays_until", "until", "upstream")

    def __init__(self, member: Member, upstream: Upstream, attached: list[Detach]) -> None:
        self.member = member
        self.upstream = upstream
        self.attached = attached
        self.until: float | None = None
        """When the grace of the drain ends, on the deps' clock; None while the backend takes requests."""
        self.stays_until: float | None = None
        """When a backend that is no longer wanted leaves at the latest, while it waits for a replacement to be up; else None."""
        self.leaving = False
        """Whether the backend is forgotten once nothing is in flight (True), or only drained."""
        self.cut = False
        """Whether the grace is over and the requests left are being ended."""


class Roster:
    """The members of one worker's fleet.

    Args:
        deps: the collaborators of requests; the roster keeps its fleet, upstreams, pool states, names and signals.
        upstream: makes the upstream of a backend.
        attach: the other kinds of work that are started for each backend.
        grace_s: how long requests on a backend that leaves may go on.
    """

    def __init__(self, deps: Deps, upstream: Callable[[Member], Upstream], attach: Sequence[Attach], grace_s: float) -> None:
        self._deps = deps
        self._upstream = upstream
        self._attach = tuple(attach)
        self._grace_s = grace_s
        self._entries: dict[str, _RosterEntry] = {}
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
        """Make `wanted` (by id) the fleet. Never waits: `run` drains the backends that leave."""
        self._wanted = wanted
        for backend_id, entry in self._entries.items():
            member = wanted.get(backend_id)
            if member is not None and member.same_place(entry.member) and member.traits != entry.member.traits:
                self._deps.pool_states.configure(backend_id, member.traits)
            if member is None or not member.same_place(entry.member):
                if not entry.leaving and entry.stays_until is None:
                    self._leave(entry, member)
            elif member.drain_grace_s is not None:
                if entry.until is None or entry.leaving or entry.member.drain_grace_s != member.drain_grace_s:
                    self._drain(entry, member.drain_grace_s, self._why_drained(member))
                entry.leaving = False
                entry.stays_until = None
                entry.member = member
            else:
                entry.member = member
                entry.stays_until = None
                if entry.until is not None:
                    self._resume(entry)
        self._join_missing()

    def _leave(self, entry: _RosterEntry, now_wanted: Member | None) -> None:
        if now_wanted is None and entry.until is None and self._has_to_be_relieved(entry.member):
            entry.stays_until = self._deps.clock() + RELIEF_S
            log.info("backend stays until another one is up", pool=entry.member.pool, backend=entry.member.id)
            self._draining.set()
            return
        self._leave_now(entry, now_wanted)

    def _leave_now(self, entry: _RosterEntry, now_wanted: Member | None) -> None:
        entry.leaving = True
        entry.stays_until = None
        self._drain(entry, self._grace_s, self._why_leaving(entry.member, now_wanted))

    def _has_to_be_relieved(self, member: Member) -> bool:
        """Whether this backend is the only one of its role in its pool that is up, while others are wanted there."""
        up = [b.id for b in self._deps.live.fleet.pools[member.pool].backends if b.state is Availability.UP and b.role == member.role]
        return up == [member.id] and any(
            other.pool == member.pool and other.role == member.role and other.drain_grace_s is None for other in self._wanted.values()
        )

    @staticmethod
    def _why_drained(member: Member) -> str:
        # an operator may have drained one of these, too; then both names are right
        return "terminating in Kubernetes, or drained by an operator" if member.owner == "kubernetes" else "drained by an operator"

    @staticmethod
    def _why_leaving(member: Member, now_wanted: Member | None) -> str:
        return f"leaving: {OWNED_BY[member.owner]} no longer names it" if now_wanted is None else "leaving: its address has changed"

    def _join_missing(self) -> None:
        for backend_id, member in self._wanted.items():
            if backend_id not in self._entries:
                self._join(member)

    def _join(self, member: Member) -> None:
        deps = self._deps
        upstream = self._upstream(member)
        deps.pool_states.add(member.pool, member.id, member.traits)
        deps.upstreams[member.id] = upstream
        deps.live.fleet = deps.live.fleet.with_member(_unpolled(member))
        entry = self._entries[member.id] = _RosterEntry(member, upstream, [attach(member) for attach in self._attach])
        log.info("backend joins", pool=member.pool, backend=member.id, source=member.owner)
        if member.drain_grace_s is not None:
            self._drain(entry, member.drain_grace_s, self._why_drained(member))

    def _drain(self, entry: _RosterEntry, grace_s: float, why: str) -> None:
        deps = self._deps
        member = entry.member
        entry.until = deps.clock() + grace_s
        entry.cut = False
        # out of the upstreams at once: a request that was routed before this moment and retries must not be sent here either
        deps.upstreams.pop(member.id, None)
        deps.loras.end_waits(member.id)
        draining = msgspec.structs.replace(_unpolled(member), state=Availability.DRAINING, reason=why)
        deps.live.fleet = deps.live.fleet.with_member(draining)
        log.info("backend draining", pool=member.pool, backend=member.id, reason=why, in_flight=self._in_flight(entry), grace_s=grace_s)
        self._draining.set()

    def _resume(self, entry: _RosterEntry) -> None:
        """Take requests again, with all knowledge of the backend reset: the process behind the address may be a new one."""
        deps = self._deps
        member = entry.member
        entry.until = None
        entry.leaving = False
        entry.cut = False
        self._detach(entry)
        self._forget(member.id)
        deps.upstreams[member.id] = entry.upstream
        deps.live.fleet = deps.live.fleet.with_member(_unpolled(member))
        entry.attached = [attach(member) for attach in self._attach]
        log.info("backend resumes", pool=member.pool, backend=member.id)

    def _in_flight(self, entry: _RosterEntry) -> int:
        return self._deps.pool_states.in_flight(entry.member.id)

    async def run(self) -> None:
        """Carry drains out until cancelled."""
        while True:
            await self._draining.wait()
            self.tick()
            await asyncio.sleep(TICK_S)

    def tick(self) -> None:
        """Check every draining backend once: remove it, or end its requests when the grace is over."""
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
        self._join_missing()  # a backend may have waited for its predecessor under the same id to leave

    def _cut(self, entry: _RosterEntry) -> None:
        """End the requests that run after the grace. Called at every tick: a request may be between two attempts at the first one."""
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
                        retry=retry_after.SOON,
                    )
                )

    def _remove(self, entry: _RosterEntry) -> None:
        deps = self._deps
        member = entry.member
        del self._entries[member.id]
        deps.live.fleet = deps.live.fleet.without(member.pool, member.id)
        deps.pool_states.drop(member.id)
        self._detach(entry)
        self._forget(member.id)
        self._later(entry.upstream.close())
        log.info("backend left", pool=member.pool, backend=member.id)

    def _forget(self, backend_id: str) -> None:
        live = self._deps.live
        for by_backend in (live.names, live.unproven, live.signals, live.prefill):
            by_backend.pop(backend_id, None)
        self._deps.loras.forget(backend_id)

    def _detach(self, entry: _RosterEntry) -> None:
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
        """Close every upstream; the worker has drained."""
        for entry in self._entries.values():
            self._detach(entry)
            self._later(entry.upstream.close())
        self._entries.clear()
        self._deps.upstreams.clear()
        await asyncio.gather(*self._closing, return_exceptions=True)


def _unpolled(member: Member) -> Backend:
    """The routing view of a member before it has answered a poll."""
    return Backend(member.id, member.pool, role=member.role, bootstrap=member.bootstrap)
