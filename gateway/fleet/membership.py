"""Who should be in the fleet: reads every source, keeps the last good answer of each, and hands the merged set to the roster.

A source that cannot be read changes nothing: its last answer stays in force, the log says so once, and a gauge shows it.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from math import inf
from typing import Final

import msgspec
import structlog

from domain.clock import Clock
from domain.membership import Member, MemberSource, Owner, SourceError, SourceState, merged
from gateway.fleet.drain_orders import OrdersUnreadable
from gateway.fleet.last_good import LastGood
from gateway.fleet.loops import Loops
from gateway.fleet.roster import Roster

log = structlog.get_logger("tidegate.discovery")

Orders = Callable[[], Mapping[str, float]]
"""Backends an operator has drained at this gateway: grace in seconds by id. Raises OrdersUnreadable."""


ORDERS_EVERY_S: Final = 0.5
"""How often drains of this gateway are looked for: one small file."""


KEEP_AGAIN_S: Final = 30.0
"""How often an answer that stays the same is written down anew, so that its age is told right to later workers."""


class _Answer:
    __slots__ = ("at", "kept_at", "members", "trouble")

    def __init__(self) -> None:
        self.members: Sequence[Member] = ()
        self.at: float | None = None
        self.trouble = ""
        self.kept_at: float | None = None


class Membership:
    """Joins the sources.

    Args:
        sources: all of them; each fills one pool, or any.
        pools: the pools there are.
        orders: who is drained at this gateway; asked at every look.
        kept: the last answers of the workers before this one.
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
        """Wishes that lost against others, or mean the same engine twice, in words."""

    async def first(self) -> None:
        """Read every source once; those that cannot be read stay empty until they can."""
        self._drained = self._ordered()
        await asyncio.gather(*(self._read(i) for i in range(len(self._sources))))
        self._apply()

    async def run(self) -> None:
        """Read on until cancelled."""
        loops: Loops[int] = Loops()
        for i in range(len(self._sources)):
            loops.add(i, partial(self._run_one, i))
        loops.add(-1, self._follow_orders)
        await loops.run()

    async def _run_one(self, i: int) -> None:
        if self._sources[i].every_s == inf:
            return  # it cannot change
        while True:
            await asyncio.sleep(self._sources[i].every_s)
            if await self._read(i):
                self._apply()

    async def _follow_orders(self) -> None:
        while True:
            await asyncio.sleep(ORDERS_EVERY_S)
            orders = self._ordered()
            if orders != self._drained:
                self._drained = orders
                self._apply()

    def _ordered(self) -> Mapping[str, float]:
        """The orders in force; the last ones while they cannot be read, for nobody has ended those."""
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
        """Whether the source's answer is another one now."""
        source, answer = self._sources[i], self._answers[i]
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
        if answer.trouble:
            log.info("source can be read again", source=source.name, pool=source.pool)
        changed = list(members) != list(answer.members)
        answer.members, answer.at, answer.trouble = members, self._clock(), ""
        self._keep(source, answer, changed=changed)
        return changed

    def _keep(self, source: MemberSource, answer: _Answer, *, changed: bool) -> None:
        if self._kept is None or source.every_s == inf:
            return
        now = self._clock()
        if changed or answer.kept_at is None or now - answer.kept_at >= KEEP_AGAIN_S:
            answer.kept_at = now
            self._kept.save(source, answer.members)

    def _recall(self, i: int) -> bool:
        """Take the answer that other workers had, when this one never had any."""
        source, answer = self._sources[i], self._answers[i]
        found = self._kept.load(source) if self._kept is not None else None
        if found is None:
            return False
        answer.members, answer.at = found[0], self._clock() - found[1]
        log.info("taking the last answer of an earlier worker", source=source.name, pool=source.pool, backends=len(found[0]))
        return True

    def _apply(self) -> None:
        wanted = [member for answer in self._answers for member in answer.members]
        members, found = merged(wanted, self._pools)
        clashes = tuple(clash.why for clash in found)
        for clash in clashes:
            if clash not in self.clashes:
                log.warning("two sources disagree", reason=clash)
        self.clashes = clashes
        drained = self._drained
        ordered = {i: msgspec.structs.replace(m, drain_grace_s=drained[i]) if i in drained else m for i, m in members.items()}
        self._roster.apply(ordered)

    def states(self) -> tuple[SourceState, ...]:
        """Every source now."""
        now = self._clock()
        return tuple(
            SourceState(s.name, s.pool, s.owner, len(a.members), a.trouble, None if a.at is None else now - a.at)
            for s, a in zip(self._sources, self._answers, strict=True)
        )


class StaticSource:
    """What stands in the settings; see `domain.membership.MemberSource`."""

    name = "tidegate.yaml"
    owner: Owner = "static"
    pool = ""
    every_s = inf
    keep_s = inf

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = tuple(members)

    async def read(self) -> Sequence[Member]:
        """The same every time."""
        return self._members
