"""The backends that should be in the fleet: reads every source, keeps the last good answer of each, and hands the merged set to the
roster.

A source that cannot be read changes nothing: its last answer stays in use, the log says so once, and a gauge shows it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from math import inf
from typing import Final

import msgspec
import structlog

from domain.clock import Clock
from domain.membership import ConnectedSource, Member, MemberSource, Owner, SelectiveSource, SourceError, SourceState, merged
from gateway.fleet.loops import Loops
from gateway.fleet.roster import Roster
from gateway.fleet.sources import LastGood, OrdersUnreadable
from gateway.ticks import next_tick

log = structlog.get_logger("tidegate.discovery")

Orders = Callable[[], Mapping[str, float]]
"""Reads the backends that an operator has drained at this gateway: grace in seconds by id. Raises OrdersUnreadable."""


ORDERS_EVERY_S: Final = 0.5
"""How often the drains of this gateway are read: one small file."""


KEEP_AGAIN_S: Final = 30.0
"""How often an unchanged answer is saved anew, so that later workers see its true age."""


MAX_LABELS_SHOWN: Final = 5
"""Labels of engines that are left out, in the log and in a source's state."""


class _Answer:
    """The last answer of one source."""

    __slots__ = ("at", "left_out", "members", "saved_at", "trouble")

    def __init__(self) -> None:
        self.members: Sequence[Member] = ()
        self.at: float | None = None
        """When the source was read last; None before the first success."""
        self.trouble = ""
        """Why the source cannot be read; empty while it can."""
        self.left_out: Counter[str] = Counter()
        """How many engines the source leaves out, by the labels that are the reason."""
        self.saved_at: float | None = None
        """When the answer was saved for later workers."""


class Membership:
    """Merges the sources into the wanted set of backends.

    Args:
        sources: every source; each fills one pool, or any.
        pools: the names of the pools.
        orders: reads which backends are drained at this gateway; called every `ORDERS_EVERY_S`.
        kept: the last answers of earlier workers; None when there is no run directory.
    """

    def __init__(
        self,
        sources: Sequence[MemberSource],
        pools: Collection[str],
        roster: Roster,
        clock: Clock,
        orders: Orders = dict,
        kept: LastGood | None = None,
    ) -> None:
        self._sources = tuple(sources)
        self._pools = frozenset(pools)
        self._roster = roster
        self._clock = clock
        self._orders = orders
        self._kept = kept
        self._drained: Mapping[str, float] = {}
        self._orders_trouble = False
        self._answers = [_Answer() for _ in self._sources]
        self.clashes: tuple[str, ...] = ()
        """Members that lost against another source's member, or name the same engine twice, in words."""

    async def first(self) -> None:
        """Read every source once; a source that cannot be read stays empty until it can."""
        self._drained = self._ordered()
        await asyncio.gather(*(self._read(i) for i in range(len(self._sources))))
        self._apply()

    async def run(self) -> None:
        """Read every source again and again until cancelled."""
        loops: Loops[int] = Loops()
        for i in range(len(self._sources)):
            loops.add(i, partial(self._follow_source, i))
        loops.add(-1, self._follow_orders)
        await loops.run()

    async def _follow_source(self, i: int) -> None:
        if self._sources[i].every_s == inf:
            return  # the source cannot change
        while True:
            await asyncio.sleep(self._sources[i].every_s)
            if await self._read(i):
                self._apply()

    async def _follow_orders(self) -> None:
        while True:
            await next_tick(ORDERS_EVERY_S)
            orders = self._ordered()
            if orders != self._drained:
                self._drained = orders
                self._apply()

    def _ordered(self) -> Mapping[str, float]:
        """The drains that are active; while the file cannot be read the last known ones, because no operator has ended them."""
        try:
            orders = self._orders()
        except OrdersUnreadable as error:
            if not self._orders_trouble:
                log.error("drains cannot be read, keeping the last ones", reason=str(error), drained=len(self._drained))
            self._orders_trouble = True
            return self._drained
        if self._orders_trouble:
            log.info("drains can be read again")
        self._orders_trouble = False
        return orders

    async def _read(self, i: int) -> bool:
        """Read a source; returns whether its answer changed."""
        source = self._sources[i]
        answer = self._answers[i]
        try:
            members = await source.read()
        except SourceError as error:
            trouble = str(error)
            if trouble != answer.trouble:
                log.warning("source cannot be read, keeping its last answer", source=source.name, pool=source.pool, reason=trouble)
                answer.trouble = trouble
            if answer.at is None and self._recall(i):
                return True
            if answer.members and answer.at is not None and self._clock() - answer.at > source.keep_s:
                log.error("the last answer is too old, giving it up", source=source.name, pool=source.pool, backends=len(answer.members))
                answer.members = ()
                return True
            return False
        trouble = source.trouble if isinstance(source, SelectiveSource) else ""
        if trouble and trouble != answer.trouble:
            log.warning("a part of a source cannot be read, keeping what was known", source=source.name, pool=source.pool, reason=trouble)
        elif answer.trouble and not trouble:
            log.info("source can be read again", source=source.name, pool=source.pool)
        changed = list(members) != list(answer.members)
        answer.members = members
        answer.trouble = trouble
        if not trouble or answer.at is None:
            answer.at = self._clock()
        if isinstance(source, SelectiveSource) and not trouble:
            _tell_left_out(source, answer, source.left_out)
        self._save(source, answer, changed=changed)
        return changed

    def _save(self, source: MemberSource, answer: _Answer, *, changed: bool) -> None:
        if self._kept is None or source.every_s == inf:
            return
        now = self._clock()
        if changed or answer.saved_at is None or now - answer.saved_at >= KEEP_AGAIN_S:
            answer.saved_at = now
            self._kept.save(source, answer.members)

    def _recall(self, i: int) -> bool:
        """Take the answer that earlier workers saved, for a source that this worker never could read; returns whether there is one."""
        source = self._sources[i]
        answer = self._answers[i]
        remembered = self._kept.load(source) if self._kept is not None else None
        if remembered is None:
            return False
        members, age_s = remembered
        answer.members = members
        answer.at = self._clock() - age_s
        log.info("taking the last answer of an earlier worker", source=source.name, pool=source.pool, backends=len(members))
        return True

    def _apply(self) -> None:
        wanted = [member for answer in self._answers for member in answer.members]
        members, lost = merged(wanted, self._pools)
        clashes = tuple(clash.why for clash in lost)
        for clash in clashes:
            if clash not in self.clashes:
                log.warning("two sources disagree", reason=clash)
        self.clashes = clashes
        drained = self._drained
        ordered = {i: msgspec.structs.replace(m, drain_grace_s=drained[i]) if i in drained else m for i, m in members.items()}
        self._roster.apply(ordered)

    async def close(self) -> None:
        """Close the connections of sources that keep one; nothing reads any more."""
        for source in self._sources:
            if isinstance(source, ConnectedSource):
                await source.close()

    def states(self) -> tuple[SourceState, ...]:
        """The state of every source: its members, its trouble, and the age of its answer."""
        now = self._clock()
        return tuple(
            SourceState(
                s.name,
                s.pool,
                s.owner,
                len(a.members),
                a.trouble,
                None if a.at is None else now - a.at,
                a.left_out.total(),
                tuple(why for why, _ in a.left_out.most_common(MAX_LABELS_SHOWN)),
            )
            for s, a in zip(self._sources, self._answers, strict=True)
        )


def _tell_left_out(source: MemberSource, answer: _Answer, left_out: Mapping[str, int]) -> None:
    """Keeps what the source leaves out, and logs labels that are new among it."""
    before, answer.left_out = answer.left_out, Counter(left_out)
    if new := sorted(answer.left_out.keys() - before.keys())[:MAX_LABELS_SHOWN]:
        log.info("engines are left out by their labels", source=source.name, pool=source.pool, engines=answer.left_out.total(), labels=new)


class StaticSource:
    """The backends of `tidegate.yaml` as a source; they never change."""

    name = "tidegate.yaml"
    owner: Owner = "static"
    pool = ""
    every_s = inf
    keep_s = inf

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = tuple(members)

    async def read(self) -> Sequence[Member]:
        return self._members
