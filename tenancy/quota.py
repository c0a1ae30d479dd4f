"""The life of a hold over many limits: one decision over all of them, and what becomes of the reservation. Pure.

This is the reference: the memory store is a shell around it, and the scripts of the Valkey store are its twin; one Hypothesis
machine drives both (tests/property/test_quota.py).

    admit    nothing -> open                every line decided before any is written; a refusal writes nothing
    beat     open, reaped, unknown -> open  lives on, with the worst case that is known by now
    settle   open, reaped -> settled        what was used takes the place of what was counted before
    reap     open -> reaped                 no beat for LEASE_S: what was delivered takes the place of what was held

An admit of a known hold, a settlement of a settled or unknown one, and a beat of a settled one change nothing. A request that
failed is settled with nothing, `Amounts(requests=0)`.
"""

from collections.abc import Sequence

from tenancy.books import NOTHING, Books
from tenancy.counting import KINDS, Calendar, Plan, Prepared, shared_plan
from tenancy.forgetting import Forgetting
from tenancy.hold import Admission, Admitted, Beat, Hold, LineState, Standing
from tenancy.limits import MOST_LABELS, Amounts, Group
from tenancy.seeds import Seed
from tenancy.standing import line_states, refusal, standings


class Quota:
    """The counters of every tag. Time is microseconds since the Unix epoch, handed in; it must not go backwards.

    Args:
        most_labels: end users of a tag that have counters of their own; further ones share one.
    """

    __slots__ = ("_calendar", "_counters", "_forgetting", "_most_labels", "_prepared", "crowded")

    def __init__(self, most_labels: int = MOST_LABELS) -> None:
        self._most_labels = most_labels
        self.crowded = 0
        """Decisions about end users beyond that bound."""
        self._counters: dict[str, Books] = {}
        """By tag: bounded by the tenants, models and organisations there were since the start; 2 KB each."""
        self._prepared = Prepared()
        self._calendar = Calendar()
        self._forgetting = Forgetting()

    def admit(self, hold: Hold, now_us: int) -> Admission:
        """Reserve `hold.amounts` in every line of every group, or nothing in any. Reaps expired holds first."""
        self._calendar.turn_to(now_us)
        vector = hold.amounts.vector()
        ends_us = self._calendar.ends_us
        decided: list[tuple[Books, Plan, list[int] | None]] = []
        for group in hold.groups:
            counters = self._counters_of(group.tag)
            counters.reap(now_us)
            plan = self._own_or_shared(counters, self._prepared.plan(group), now_us)
            self.crowded += bool(group.label and not plan.label)
            afters = None
            if not counters.knows(hold.id, now_us):
                afters = counters.decide(plan, vector, now_us)
                if afters is None:
                    return refusal(plan, vector, counters.positions(plan, now_us), now_us, ends_us)
            decided.append((counters, plan, afters))
        statuses: tuple[Standing, ...] = ()
        for counters, plan, afters in decided:
            if afters is None:
                statuses += standings(plan, NOTHING, counters.positions(plan, now_us), now_us, ends_us)
            else:
                counters.open(hold.id, plan, vector, afters, now_us)
                if plan.label:
                    counters.users.keep(plan.label, plan.keep_us, now_us)
                statuses += standings(plan, vector, afters, now_us, ends_us)
        return Admitted(statuses)

    def beat(self, beats: Sequence[Beat], now_us: int) -> None:
        """Extend leases, note what was delivered, and hold no more (and no less) than the worst case that is known by now."""
        self._calendar.turn_to(now_us)
        unknown: list[tuple[Books, Plan, Beat]] = []
        for beat in beats:
            for group in beat.hold.groups:
                counters = self._counters_of(group.tag)
                plan = self._prepared.plan(group)
                if counters.knows(beat.hold.id, now_us):
                    counters.beat(beat.hold.id, plan, beat.delivered.vector(), beat.at_most.vector(), now_us)
                else:
                    unknown.append((counters, plan, beat))
        # amounts that are released count first, as in the Lua scripts, which get the lines of unknown holds in a second call
        for counters, plan, beat in unknown:
            if plan.label and not counters.knows(beat.hold.id, now_us):
                plan = self._own_or_shared(counters, plan, now_us)
                if plan.label:
                    counters.users.keep(plan.label, plan.keep_us, now_us)
            counters.beat(beat.hold.id, plan, beat.delivered.vector(), beat.at_most.vector(), now_us)

    def settle(self, hold: Hold, actual: Amounts, now_us: int) -> None:
        """Close a hold with what it used."""
        self._calendar.turn_to(now_us)
        vector = actual.vector(concurrent=0)
        for group in hold.groups:
            self._counters_of(group.tag).settle(hold.id, vector, now_us)

    def reap(self, tag: str, now_us: int) -> int:
        """Close expired holds of a tag with what they had delivered; returns how many. Every `admit` and `look` does so too."""
        self._calendar.turn_to(now_us)
        return self._counters_of(tag).reap(now_us)

    def look(self, group: Group, now_us: int) -> list[LineState]:
        """How each line of a group stands now."""
        self._calendar.turn_to(now_us)
        # compiled for this call only: operators ask about groups that no request is decided on
        counters = self._counters_of(group.tag)
        plan = Prepared().plan(group)
        counters.reap(now_us)
        plan = self._own_or_shared(counters, plan, now_us)
        return line_states(plan, [counters.counted(line, now_us) for line in plan.lines], now_us, self._calendar.ends_us)

    def seed(self, tag: str, seeds: Sequence[Seed], now_us: int) -> list[int | None]:
        """Set the settled amounts of calendar counters (`tenancy.seeds.Seed`). Expired holds are reaped first: the ledger has what they
        used, which would be counted twice if they were reaped later."""
        self._calendar.turn_to(now_us)
        counters = self._counters_of(tag)
        counters.reap(now_us)
        return [counters.seed(KINDS[seed.window], seed, now_us) for seed in seeds]

    def _own_or_shared(self, counters: Books, plan: Plan, now_us: int) -> Plan:
        return shared_plan(plan) if plan.label and counters.users.crowded_out(plan.label, self._most_labels, now_us) else plan

    def _counters_of(self, tag: str) -> Books:
        counters = self._counters.get(tag)
        if counters is None:
            counters = self._counters[tag] = Books(self._calendar, self._forgetting)
        return counters
