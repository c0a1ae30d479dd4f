"""Refusals of a shared store that this process repeats by itself for a moment: a caller that floods costs the store next to nothing.

Without them every refused request is a script in the store. Enough of them make the store answer too late for all, and a store that
answers too late counts as away, so that limits stop being exact (`tenancy.stores.fallback_counters`).

    kept        for the limit that refused, with the amount that was asked for and how all limits of its group stood; for requests that
                ask for at least as much of it
    dropped     when the limit would let the request pass, when it is changed
    asked anew  at once when a hold of the group is settled or beats here, by a few requests at a time, and `ASK_EVERY_S` after the store's
                last answer, by one; the others go on being refused until the answer is there

A rolling window has its hours at the store alone: a request that asks for more than the one that was refused is told no time.

The refusal that is repeated is the one that the store would give if nothing else had happened since, for this request's own amounts: a
caller that waits as long as it says finds the store's own decision. What another process has changed is seen within `ASK_EVERY_S`.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from domain.clock import Clock
from tenancy.decisions import Ends, refusal
from tenancy.hold import Admission, Beat, Hold, LimitUsage, Refused
from tenancy.limits import Amounts, Group, LimitLine
from tenancy.ports import Counters, CountersAway
from tenancy.rates import RATE, CompiledGroup, Prepared, cost_us, days_of

ASK_EVERY_S: Final = 1.0
"""The longest time for which one answer of the store is repeated: a change by another process is seen within it."""
ASKING: Final = 8
"""Requests that ask at the same time after a hold has ended here: what it gives back may be enough for several, and the store is to be
spared the whole flood."""
MOST_KEPT: Final = 10_000
"""Refusals kept at a time, and tags whose changes are counted: some 500 bytes each. Beyond it all are dropped, and the store is asked."""

_Key = tuple[str, str]


class _Kept(msgspec.Struct):
    """One refusal, and the state of its group right after it."""

    line: LimitLine
    amount: int
    """What was asked for, of the limit's meter."""
    place: int
    """The limit's place in the plan."""
    plan: CompiledGroup
    heres: tuple[int, ...]
    """Where each line of the plan stood: microseconds ahead for a rate, else how much was counted."""
    ends_us: Ends
    """The ends of the periods in microseconds after `answered_at`."""
    asked_at: float
    answered_at: float
    """The state is of a moment between these two."""
    ask_at: float
    """When the store is asked again."""
    wait_us: int = 0
    """For a rolling window: how long the request that was refused has to wait, from `answered_at` on."""
    changed: bool = False
    """Whether a hold of the group has ended here since."""
    asking: int = 0
    """Requests that ask the store now."""

    def refuses(self, amount: int, now: float) -> bool:
        """Whether the limit certainly still refuses this amount, if nothing was given back."""
        line = self.plan.lines[self.place]
        here = self.heres[self.place]
        if line.kind != RATE:
            end_us = self.wait_us if days_of(line.kind) else self.ends_us[line.kind]
            over = bool(end_us) and (now - self.asked_at) * 1e6 >= end_us
            return not over and here + amount > line.amount
        if not line.amount or amount > line.burst:
            return True
        return here - int((now - self.asked_at) * 1e6) + cost_us(amount, line.amount) > line.burst_us

    def repeated(self, vector: Sequence[int], now: float) -> Refused:
        """The refusal of a request with these amounts, as the store would word it now."""
        passed_us = int((now - self.answered_at) * 1e6)
        lines = zip(self.plan.lines, self.heres, strict=True)
        heres = [max(here - passed_us, 0) if line.kind == RATE else here for line, here in lines]
        told = refusal(self.plan, vector, heres, passed_us, self.ends_us, [self.wait_us] * len(self.plan.rolling))
        rolling = self.plan.lines[self.place]
        if days_of(rolling.kind) and vector[rolling.meter] > self.amount and not told.never:
            return msgspec.structs.replace(told, wait_us=None)
        return told

    def asks_for_another_wait(self, vector: Sequence[int]) -> bool:
        """Whether a further rolling window refuses these amounts: only the store knows for how long."""
        lines = list(zip(self.plan.lines, self.heres, strict=True))
        further = lines[len(lines) - len(self.plan.rolling) :]
        return any(line.line.key != self.line.key and here + vector[line.meter] > line.amount for line, here in further)


class KeptRefusals:
    """Implements `tenancy.ports.Counters` around shared counters, and repeats their refusals.

    Args:
        shared: the counters that decide.
    """

    in_process = False

    def __init__(self, shared: Counters, clock: Clock) -> None:
        self._shared = shared
        self._clock = clock
        self._prepared = Prepared()
        self._kept: dict[_Key, _Kept] = {}
        """By tag and key of the limit."""
        self._changes: dict[str, int] = {}
        """How often a hold of a tag was settled or beat here: a refusal decided before that is not kept after it."""
        self.repeated = 0
        """Refusals that the store was not asked for."""

    @property
    def crowded(self) -> int:
        return self._shared.crowded

    async def admit(self, hold: Hold) -> Admission:
        asking: _Kept | None = None
        if self._kept:
            kept = self._refusal(hold)
            if isinstance(kept, Refused):
                self.repeated += 1
                return kept
            asking = kept
        if asking is None:
            return await self._ask(hold)
        asking.asking += 1
        try:
            return await self._ask(hold)
        finally:
            asking.asking -= 1

    async def _ask(self, hold: Hold) -> Admission:
        before = [self._changes.get(group.tag, 0) for group in hold.groups]
        admission = await self._shared.admit(hold)
        if isinstance(admission, Refused):
            await self._keep(hold, admission, before)
        return admission

    async def beat(self, beats: Sequence[Beat]) -> None:
        for beat in beats:
            self._changed(beat.hold.groups)
        await self._shared.beat(beats)
        for beat in beats:
            self._changed(beat.hold.groups)

    async def settle(self, hold: Hold, actual: Amounts) -> None:
        self._changed(hold.groups)  # before and after: a refusal that was decided in between may be of either state
        await self._shared.settle(hold, actual)
        self._changed(hold.groups)

    async def look(self, group: Group) -> list[LimitUsage]:
        return await self._shared.look(group)

    def _changed(self, groups: Sequence[Group]) -> None:
        changes = self._changes
        for group in groups:
            if group.tag not in changes and len(changes) >= MOST_KEPT:
                self._kept.clear()
                changes.clear()
            changes[group.tag] = changes.get(group.tag, 0) + 1
            if self._kept:
                for line in group.lines:
                    if (kept := self._kept.get((group.tag, line.key))) is not None:
                        kept.changed = True

    async def _keep(self, hold: Hold, refused: Refused, before: Sequence[int]) -> None:
        """Keep a refusal, with the state of its group; nothing is kept where something changed since the question."""
        found = [(group, count) for group, count in zip(hold.groups, before, strict=True) if refused.line in group.lines]
        if not found:
            return
        group, count = found[0]
        key = (group.tag, refused.line.key)
        known = self._kept.get(key)
        amount = hold.amounts.vector()[refused.line.meter]
        now = self._clock()
        if known is not None and known.amount < amount and now < known.ask_at and not known.changed and known.refuses(amount, now):
            return  # the smaller request is refused as well
        plan = self._prepared.plan(group)
        try:
            states = await self._shared.look(group)
        except CountersAway:
            return
        if self._changes.get(group.tag, 0) != count:
            return
        if key not in self._kept and len(self._kept) >= MOST_KEPT:
            self._kept.clear()
        ends: dict[int, int] = {}
        for line, state in zip(plan.lines, states, strict=True):
            if line.kind != RATE:
                ends[line.kind] = max(ends.get(line.kind, 0), state.reset_us)
        place = next(at for at, line in enumerate(plan.lines) if line.key == refused.line.key)
        heres = tuple([state.reset_us if line.kind == RATE else state.used for line, state in zip(plan.lines, states, strict=True)])
        answered_at = self._clock()
        kept = _Kept(
            line=refused.line,
            amount=amount,
            place=place,
            plan=plan,
            heres=heres,
            ends_us=ends,
            asked_at=now,
            answered_at=answered_at,
            ask_at=answered_at + ASK_EVERY_S,
            wait_us=refused.wait_us or 0,
        )
        if kept.refuses(amount, answered_at):
            self._kept[key] = kept
        else:
            self._kept.pop(key, None)

    def _refusal(self, hold: Hold) -> Refused | _Kept | None:
        """The refusal to repeat; where the store has to be asked, the refusal that this is to renew, if any."""
        now = self._clock()
        vector = hold.amounts.vector()
        for group in hold.groups:
            for line in group.lines:
                kept = self._kept.get((group.tag, line.key))
                if kept is None or vector[line.meter] < kept.amount:
                    continue
                late = now >= kept.ask_at + ASK_EVERY_S
                if kept.plan.rolling and kept.asks_for_another_wait(vector):
                    return None
                if late or (kept.line is not line and kept.line != line) or not kept.refuses(vector[line.meter], now):
                    del self._kept[group.tag, line.key]
                elif kept.asking < (ASKING if kept.changed else 1 if now >= kept.ask_at else 0):
                    return kept
                else:
                    return kept.repeated(vector, now)
        return None
