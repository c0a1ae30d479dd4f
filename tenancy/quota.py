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
from tenancy.counting import KINDS, Calendar, Plan, Prepared, shared
from tenancy.forgetting import Forgetting
from tenancy.hold import Admission, Admitted, Beat, Hold, LineState, Standing
from tenancy.limits import MOST_LABELS, Amounts, Group
from tenancy.seeds import Seed
from tenancy.standing import line_states, refusal, standings


class Quota:
    """Every tag's books. Time is microseconds since the Unix epoch, handed in; it must not go backwards.

    Args:
        most_labels: end users of a tag with limits of their own; those that come when there are so many share one more.
    """

    __slots__ = ("_books", "_calendar", "_forgetting", "_most_labels", "_prepared", "crowded")

    def __init__(self, most_labels: int = MOST_LABELS) -> None:
        self._most_labels = most_labels
        self.crowded = 0
        """Decisions about end users beyond that."""
        self._books: dict[str, Books] = {}
        """By tag: bounded by the tenants, models and organisations there were since the start; 2 KB each."""
        self._prepared = Prepared()
        self._calendar = Calendar()
        self._forgetting = Forgetting()

    def admit(self, hold: Hold, now_us: int) -> Admission:
        """Reserve `hold.amounts` in every line of every group, or nothing in any. Reaps what has expired first."""
        self._calendar.turn_to(now_us)
        vector, ends_us = hold.amounts.vector(), self._calendar.ends_us
        decided: list[tuple[Books, Plan, list[int] | None]] = []
        for group in hold.groups:
            books = self._of(group.tag)
            books.reap(now_us)
            plan = self._own_or_shared(books, self._prepared.plan(group), now_us)
            self.crowded += bool(group.label and not plan.label)
            afters = None
            if not books.knows(hold.id, now_us):
                afters = books.decide(plan, vector, now_us)
                if afters is None:
                    return refusal(plan, vector, books.positions(plan, now_us), now_us, ends_us)
            decided.append((books, plan, afters))
        statuses: tuple[Standing, ...] = ()
        for books, plan, afters in decided:
            if afters is None:
                statuses += standings(plan, NOTHING, books.positions(plan, now_us), now_us, ends_us)
            else:
                books.open(hold.id, plan, vector, afters, now_us)
                if plan.label:
                    books.users.keep(plan.label, plan.keep_us, now_us)
                statuses += standings(plan, vector, afters, now_us, ends_us)
        return Admitted(statuses)

    def beat(self, beats: Sequence[Beat], now_us: int) -> None:
        """Extend leases, note what was delivered, and hold no more (and no less) than the worst case that is known by now."""
        self._calendar.turn_to(now_us)
        unknown: list[tuple[Books, Plan, Beat]] = []
        for beat in beats:
            for group in beat.hold.groups:
                books, plan = self._of(group.tag), self._prepared.plan(group)
                if books.knows(beat.hold.id, now_us):
                    books.beat(beat.hold.id, plan, beat.delivered.vector(), beat.at_most.vector(), now_us)
                else:
                    unknown.append((books, plan, beat))
        # what is given back counts first, as in the scripts, which are told the lines of unknown holds in a second call
        for books, plan, beat in unknown:
            if plan.label and not books.knows(beat.hold.id, now_us):
                plan = self._own_or_shared(books, plan, now_us)
                if plan.label:
                    books.users.keep(plan.label, plan.keep_us, now_us)
            books.beat(beat.hold.id, plan, beat.delivered.vector(), beat.at_most.vector(), now_us)

    def settle(self, hold: Hold, actual: Amounts, now_us: int) -> None:
        """Close a hold with what it used."""
        self._calendar.turn_to(now_us)
        vector = actual.vector(concurrent=0)
        for group in hold.groups:
            self._of(group.tag).settle(hold.id, vector, now_us)

    def reap(self, tag: str, now_us: int) -> int:
        """Close expired holds of a tag with what they had delivered; returns how many. Every `admit` and `look` does so too."""
        self._calendar.turn_to(now_us)
        return self._of(tag).reap(now_us)

    def look(self, group: Group, now_us: int) -> list[LineState]:
        """How each line of a group stands now."""
        self._calendar.turn_to(now_us)
        # prepared for this once: who looks brings groups that nobody decides on
        books, plan = self._of(group.tag), Prepared().plan(group)
        books.reap(now_us)
        plan = self._own_or_shared(books, plan, now_us)
        return line_states(plan, [books.counted(line, now_us) for line in plan.lines], now_us, self._calendar.ends_us)

    def seed(self, tag: str, seeds: Sequence[Seed], now_us: int) -> list[int | None]:
        """Set what is settled of calendar counters: see `tenancy.seeds`. Expired holds are closed first: the ledger has what they used,
        so that it would be counted twice when they are closed later."""
        self._calendar.turn_to(now_us)
        books = self._of(tag)
        books.reap(now_us)
        return [books.seed(KINDS[seed.window], seed, now_us) for seed in seeds]

    def _own_or_shared(self, books: Books, plan: Plan, now_us: int) -> Plan:
        return shared(plan) if plan.label and books.users.crowded_out(plan.label, self._most_labels, now_us) else plan

    def _of(self, tag: str) -> Books:
        books = self._books.get(tag)
        if books is None:
            books = self._books[tag] = Books(self._calendar, self._forgetting)
        return books
