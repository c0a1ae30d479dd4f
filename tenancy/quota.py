"""The life of a hold over many limits: one decision over all of them, and what becomes of the reservation. Pure.

This is the reference: the memory store is a shell around it, and the scripts of the Valkey store are its twin; one Hypothesis
machine drives both (tests/property/test_quota.py).

    admit    nothing -> open                every line decided before any is written; a refusal writes nothing
    beat     open, reaped, unknown -> open  lives on, with the worst case that is known by now
    settle   open, reaped -> settled        what was used takes the place of what was counted before
    reap     open -> reaped                 no beat for LEASE_S: what was delivered takes the place of what was held

An admit of a known hold, a settlement of a settled or unknown one, and a beat of a settled one change nothing. A request that
failed is settled with nothing, `Amounts(requests=0)`. The amounts to reserve come from `tenancy/estimate.py`.

`TagCounters` keeps the state of every limit whose group has one tag, as plain integers in dictionaries: the hottest code of admission,
which loops once per kind of limit and calls no function per limit.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from tenancy.decisions import limit_statuses, line_states, refusal
from tenancy.expiry import EndUsers, Forgetting
from tenancy.hold import LEASE_S, Admission, Admitted, Beat, Hold, LimitStatus, LimitUsage
from tenancy.limits import MINUTE_US, MOST_LABELS, Amounts, Group, Meter, Vector
from tenancy.rates import (
    HOUR_US,
    HOURS_A_DAY,
    MAX_AHEAD_US,
    MAX_COUNT,
    NOW,
    RATE,
    Calendar,
    CompiledGroup,
    CompiledLimit,
    Prepared,
    cost_us,
    days_of,
    shared_plan,
)
from tenancy.rolling import RollingWindow
from tenancy.seeds import Seed

LEASE_US: Final = int(LEASE_S * 1_000_000)
SETTLED_US: Final = 120_000_000
"""How long a settled hold is remembered: longer than a settlement is retried, and longer than a call can be delayed."""
REAPED_US: Final = 3_600_000_000
"""How long a reaped hold waits for a late settlement; afterwards the charge for what the last heartbeat reported is final."""
REAP_AT_MOST: Final = 64
"""The most expired holds that one decision reaps: the request that is being decided waits meanwhile."""

NOTHING: Final[Vector] = (0,) * len(Meter)  # type: ignore[assignment]  # the length is that of a Vector
_OPEN, _REAPED, _SETTLED = range(3)
_COUNTED, _HELD = 1, 2
"""Indexes into a cell; at index 0 it has the number of its period."""


class _Record(msgspec.Struct, eq=False):
    """One hold in one group. `vector` is what is counted for it now: held while open, charged when reaped."""

    plan: CompiledGroup
    cells: list[tuple[int, list[int]]]
    """Meter and cell of each of its calendar lines, in the periods it was opened in: it is counted there, whenever it is settled."""
    vector: Vector
    delivered: Vector
    """Usage that the last heartbeat reported as delivered; before the first one only the request itself."""
    hour: int
    """The hour it was opened in: rolling windows count it there."""
    until_us: int
    """The end of its lease; once it is reaped, the end of the time for which it is remembered."""
    phase: int = _OPEN


class TagCounters:
    """The counters of one tag. State that no decision depends on any more is dropped while new state is made, so that memory follows
    the limits and labels in use, and the requests of the last two minutes.

    Args:
        forgetting: shared by all tags, so that a tag's settled holds are forgotten by the next decision on any tag.
    """

    __slots__ = (
        "_calendar",
        "_cells",
        "_forgetting",
        "_gauges",
        "_open",
        "_rolling",
        "_tats",
        "_unswept",
        "due_us",
        "records",
        "settled",
        "users",
    )

    def __init__(self, calendar: Calendar, forgetting: Forgetting) -> None:
        self._calendar = calendar
        self._forgetting = forgetting
        self._tats: dict[str, int] = {}
        self._cells: dict[str, list[int]] = {}
        """By key of a calendar line: the period, the settled amount, the held amount."""
        self._gauges: dict[str, int] = {}
        self._rolling: dict[str, RollingWindow] = {}
        self.records: dict[str, _Record] = {}
        """Open and reaped holds, by id."""
        self._open: dict[str, _Record] = {}
        """Open holds in the order in which they expire: all leases have one length, and a heartbeat moves a hold to the end."""
        self.due_us = 0
        """No open hold expires before this time."""
        self.settled: dict[str, int] = {}
        """By id of a settled hold, when the id is forgotten. Nothing else is kept: there are as many as requests in two minutes."""
        self._unswept: list[str] = []
        self.users = EndUsers()

    def knows(self, hold_id: str, now_us: int) -> bool:
        """Whether there is such a hold, and its time to be remembered is not over."""
        record = self.records.get(hold_id)
        if record is None:
            return self.settled.get(hold_id, 0) > now_us
        return record.phase == _OPEN or record.until_us > now_us

    def decide(self, plan: CompiledGroup, vector: Vector, now_us: int) -> list[int] | None:
        """Where every line of the plan would stand with `vector` added, rates in microseconds ahead; None when a line refuses."""
        afters: list[int] = []
        state = self._tats.get
        for meter, key, amount, burst, burst_us, each_us in plan.rates:
            n = vector[meter]
            if n > burst or not amount:
                return None
            after = n * each_us if each_us else -(-n * MINUTE_US // amount)
            tat = state(key)
            if tat is not None and tat > now_us:
                after += tat - now_us
            if after > burst_us and n:  # whatever asks for nothing of a meter passes its limit, an overdrawn one too
                return None
            afters.append(after)
        periods = self._calendar.periods
        state_of = self._cells.get
        for kind, meter, key, amount in plan.cells:
            after = vector[meter]
            cell = state_of(key)
            if cell is not None and cell[0] == periods[kind]:
                after += cell[1] + cell[2]
            if (after > amount and vector[meter]) or not amount:
                return None
            afters.append(after)
        count = self._gauges.get
        for key, amount in plan.gauges:
            after = count(key, 0) + 1
            if after > amount:
                return None
            afters.append(after)
        for _, meter, key, amount in plan.rolling:
            after = vector[meter]
            window = self._rolling.get(key)
            if window is not None:
                window.turn_to(now_us // HOUR_US)
                after += window.settled + window.held
            if (after > amount and vector[meter]) or not amount:
                return None
            afters.append(after)
        return afters

    def open(self, hold_id: str, plan: CompiledGroup, vector: Vector, afters: list[int], now_us: int) -> None:
        """Open a hold: store the positions that `decide` has returned."""
        at = 0
        tats = self._tats
        for _, key, _, _, _, _ in plan.rates:
            after = afters[at]
            at += 1
            if after:
                if key not in tats:
                    self._sweep(now_us)
                tats[key] = now_us + after
        cells = self._cells_now(plan, now_us) if plan.cells else []
        for meter, cell in cells:
            cell[_HELD] += vector[meter]
        at += len(cells)
        gauges = self._gauges
        for key, _ in plan.gauges:
            gauges[key] = afters[at]
            at += 1
        hour = now_us // HOUR_US
        for days, meter, key, _ in plan.rolling:
            self._window_now(key, days, now_us).move(hour, hour, (0, 0), (0, vector[meter]))
        delivered = (vector[0], 0, 0, 0, 0, 0, 0, 0, 0)
        self.records[hold_id] = self._open[hold_id] = _Record(plan, cells, vector, delivered, hour, now_us + LEASE_US)

    def beat(self, hold_id: str, plan: CompiledGroup, delivered: Vector, at_most: Vector, now_us: int) -> None:
        """Extend the lease of a hold and hold `at_most` for it; open it again when it is reaped or unknown."""
        if not self.knows(hold_id, now_us):
            record = _Record(plan, self._cells_now(plan, now_us), NOTHING, NOTHING, now_us // HOUR_US, now_us + LEASE_US)
            self._move(record, at_most, _REAPED, _OPEN, now_us)
        elif hold_id in self.records:
            record = self.records[hold_id]
            self._move(record, at_most, record.phase, _OPEN, now_us)
        else:
            return
        record.delivered = delivered
        record.phase = _OPEN
        record.until_us = now_us + LEASE_US
        self._open.pop(hold_id, None)
        self.records[hold_id] = self._open[hold_id] = record

    def settle(self, hold_id: str, actual: Vector, now_us: int) -> None:
        """Put `actual` in the place of what is counted for a hold; nothing happens for a settled or an unknown one."""
        record = self.records.get(hold_id)
        if record is None or (record.phase == _REAPED and record.until_us <= now_us):
            return
        self._move(record, actual, record.phase, _SETTLED, now_us)
        del self.records[hold_id]
        self._open.pop(hold_id, None)
        self._forgetting.remember(self.settled, hold_id, now_us + SETTLED_US)

    def reap(self, now_us: int) -> int:
        """Reap expired holds, at most `REAP_AT_MOST`, and forget those whose time is over; returns how many were reaped."""
        self._forgetting.forget(now_us)
        if now_us < self.due_us:
            return 0
        expired: list[str] = []
        self.due_us = now_us + LEASE_US
        for hold_id, record in self._open.items():
            if record.until_us > now_us or len(expired) == REAP_AT_MOST:
                self.due_us = record.until_us
                break
            expired.append(hold_id)
        for hold_id in expired:
            record = self._open.pop(hold_id)
            charged = tuple(map(min, record.delivered, record.vector))
            self._move(record, charged, _OPEN, _REAPED, now_us)  # type: ignore[arg-type]  # map keeps the length
            record.phase = _REAPED
            record.until_us = now_us + REAPED_US
            self._forgetting.at(record.until_us, partial(self._forget, hold_id, record.until_us))
        return len(expired)

    def seed(self, kind: int, seed: Seed, now_us: int) -> int | None:
        """Set the settled amount of a calendar counter, or of one hour of a rolling window, as `tenancy.seeds.Seed` says; returns the
        amount after it, None where the seed is for another period than the current one, or for an hour outside of the window."""
        if days := days_of(kind):
            return self._seed_hour(days, seed, now_us)
        if seed.period != self._calendar.periods[kind]:
            return None
        cell = self._cells.get(seed.key)
        had = cell[_COUNTED] if cell is not None and cell[0] == seed.period else 0
        new = seed.instead(had)
        if new == had:
            return had
        if cell is None or cell[0] != seed.period:
            cell = self._new_cell(seed.key, seed.period, now_us)
        cell[_COUNTED] = min(new, MAX_COUNT)
        return cell[_COUNTED]

    def _seed_hour(self, days: int, seed: Seed, now_us: int) -> int | None:
        hour = now_us // HOUR_US
        if not hour - HOURS_A_DAY * days <= seed.period <= hour:
            return None
        window = self._rolling.get(seed.key)
        had = window.settled_of(seed.period) if window is not None else 0
        new = seed.instead(had)
        if new == had:
            return had
        window = self._window_now(seed.key, days, now_us)
        window.move(seed.period, hour, (had, new), (0, 0))
        return window.settled_of(seed.period)

    def counted(self, line: CompiledLimit, now_us: int) -> tuple[int, int]:
        """How a line is used: settled and held amount of a counter, 0 and held of a gauge; microseconds ahead and 0 of a rate."""
        if line.kind == RATE:
            return max(self._tats.get(line.key, 0) - now_us, 0), 0
        if line.kind == NOW:
            return 0, self._gauges.get(line.key, 0)
        if days_of(line.kind):
            window = self._rolling.get(line.key)
            if window is None:
                return 0, 0
            window.turn_to(now_us // HOUR_US)
            return window.settled, window.held
        cell = self._cells.get(line.key)
        return (cell[1], cell[2]) if cell is not None and cell[0] == self._calendar.periods[line.kind] else (0, 0)

    def positions(self, plan: CompiledGroup, now_us: int) -> list[int]:
        """Where each line of a plan stands: microseconds ahead for a rate, else the settled and held amounts together."""
        return [sum(self.counted(line, now_us)) for line in plan.lines]

    def fits_us(self, plan: CompiledGroup, vector: Vector, now_us: int) -> list[int]:
        """When each rolling window of a plan has room for `vector`; 0 for now, and where it never has. Comes after `positions`."""
        times_us: list[int] = []
        for _, meter, key, amount in plan.rolling:
            window = self._rolling.get(key)
            n = vector[meter]
            times_us.append(window.fits_at(n, amount) * HOUR_US if window is not None and n <= amount else 0)
        return times_us

    def _move(self, record: _Record, new: Vector, before: int, after: int, now_us: int) -> None:
        """Put `new` in the place of what is counted for a hold. Amounts of an open hold are held, those of every other are settled."""
        old = record.vector
        record.vector = new
        tats = self._tats
        for meter, key, amount, _, _, each_us in record.plan.rates:
            was, n = old[meter], new[meter]
            if n == was or not amount:
                continue
            more = cost_us(n, amount) - cost_us(was, amount) if not each_us else (n - was) * each_us
            tat = tats.get(key, 0)
            ahead = more + tat - now_us if tat > now_us else more
            if ahead > 0:
                if not tat:
                    self._sweep(now_us)
                tats[key] = now_us + (ahead if ahead < MAX_AHEAD_US else MAX_AHEAD_US)
            elif tat > now_us:
                tats[key] = now_us  # it stays until it is swept: the next request of this limit would make it again
        away = _HELD if before == _OPEN else _COUNTED
        to = _HELD if after == _OPEN else _COUNTED
        for meter, cell in record.cells:
            rest = cell[away] - old[meter]
            cell[away] = rest if rest > 0 else 0  # a correction may have taken it away already
            count = cell[to] + new[meter]
            cell[to] = count if count < MAX_COUNT else MAX_COUNT
        for days, meter, key, _ in record.plan.rolling:
            was, n = old[meter], new[meter]
            settled = (0 if before == _OPEN else was, 0 if after == _OPEN else n)
            held = (was if before == _OPEN else 0, n if after == _OPEN else 0)
            self._window_now(key, days, now_us).move(record.hour, now_us // HOUR_US, settled, held)
        if before != after and (before == _OPEN or after == _OPEN):
            step = 1 if after == _OPEN else -1
            gauges = self._gauges
            for key, _ in record.plan.gauges:
                gauges[key] = gauges.get(key, 0) + step

    def _cells_now(self, plan: CompiledGroup, now_us: int) -> list[tuple[int, list[int]]]:
        """The meter and the cell of each calendar line, in the current periods."""
        cells = []
        periods = self._calendar.periods
        for kind, meter, key, _ in plan.cells:
            cell = self._cells.get(key)
            if cell is None or cell[0] != periods[kind]:
                cell = self._new_cell(key, periods[kind], now_us)
            cells.append((meter, cell))
        return cells

    def _new_cell(self, key: str, period: int, now_us: int) -> list[int]:
        self._sweep(now_us)
        cell = self._cells[key] = [period, 0, 0]
        return cell

    def _window_now(self, key: str, days: int, now_us: int) -> RollingWindow:
        hour = now_us // HOUR_US
        window = self._rolling.get(key)
        if window is None:
            self._sweep(now_us)
            window = self._rolling[key] = RollingWindow(days, hour)
        window.turn_to(hour)
        return window

    def _forget(self, hold_id: str, until_us: int) -> None:
        """Forget a reaped hold, unless a heartbeat has opened it again or it was reaped anew since."""
        record = self.records.get(hold_id)
        if record is not None and record.phase == _REAPED and record.until_us == until_us:
            del self.records[hold_id]

    def _sweep(self, now_us: int) -> None:
        """Check two older entries for each new one, so that entries no longer needed never outnumber the others for long."""
        if not self._unswept:
            self._unswept = [*self._tats, *self._cells, *self._gauges, *self._rolling]
        for _ in range(min(2, len(self._unswept))):
            key = self._unswept.pop()
            if self._tats.get(key, now_us) < now_us:
                del self._tats[key]
            elif key in self._cells and self._calendar.is_over(self._cells[key][0], now_us):
                del self._cells[key]
            elif not self._gauges.get(key, 1):
                del self._gauges[key]
            elif (window := self._rolling.get(key)) is not None:
                window.turn_to(now_us // HOUR_US)
                if not len(window):
                    del self._rolling[key]


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
        self._counters: dict[str, TagCounters] = {}
        """By tag: bounded by the tenants, models and organisations there were since the start; 2 KB each."""
        self._prepared = Prepared()
        self._calendar = Calendar()
        self._forgetting = Forgetting()

    def admit(self, hold: Hold, now_us: int) -> Admission:
        """Reserve `hold.amounts` in every line of every group, or nothing in any. Reaps expired holds first."""
        calendar = self._calendar
        if not calendar.from_us <= now_us < calendar.until_us:
            calendar.turn_to(now_us)
        ends_us = calendar.ends_us
        amounts = hold.amounts
        prompt, output = amounts.input_tokens, amounts.output_tokens
        # as `Amounts.vector` does it, without the call
        cost, seconds, sound = amounts.cost_nanousd, amounts.audio_seconds, amounts.audio_bytes
        vector = (amounts.requests, prompt, output, prompt + output, amounts.units, cost, 1, seconds, sound)
        decided: list[tuple[TagCounters, CompiledGroup, list[int] | None]] = []
        for group in hold.groups:
            counters = self._counters.get(group.tag) or self._counters_of(group.tag)
            if now_us >= counters.due_us or now_us >= self._forgetting.due_us:
                counters.reap(now_us)
            prepared = self._prepared.plans.get(id(group))
            plan = prepared[1] if prepared is not None else self._prepared.plan(group)
            if plan.label:
                plan = self._own_or_shared(counters, plan, now_us)
                self.crowded += not plan.label
            afters = None
            known = (hold.id in counters.records or hold.id in counters.settled) and counters.knows(hold.id, now_us)
            if not known:
                afters = counters.decide(plan, vector, now_us)
                if afters is None:
                    fits_us = counters.fits_us(plan, vector, now_us) if plan.rolling else ()
                    return refusal(plan, vector, counters.positions(plan, now_us), now_us, ends_us, fits_us)
            decided.append((counters, plan, afters))
        statuses: tuple[LimitStatus, ...] = ()
        for counters, plan, afters in decided:
            if afters is None:
                statuses += limit_statuses(plan, NOTHING, counters.positions(plan, now_us), now_us, ends_us)
            else:
                counters.open(hold.id, plan, vector, afters, now_us)
                if plan.label:
                    counters.users.keep(plan.label, plan.keep_us, now_us)
                statuses += limit_statuses(plan, vector, afters, now_us, ends_us)
        return Admitted(statuses)

    def beat(self, beats: Sequence[Beat], now_us: int) -> None:
        """Extend leases, note what was delivered, and hold no more (and no less) than the worst case that is known by now."""
        self._calendar.turn_to(now_us)
        unknown: list[tuple[TagCounters, CompiledGroup, Beat]] = []
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
        calendar = self._calendar
        if not calendar.from_us <= now_us < calendar.until_us:
            calendar.turn_to(now_us)
        vector = actual.vector(concurrent=0)
        for group in hold.groups:
            self._counters_of(group.tag).settle(hold.id, vector, now_us)

    def reap(self, tag: str, now_us: int) -> int:
        """Close expired holds of a tag with what they had delivered; returns how many. Every `admit` and `look` does so too."""
        self._calendar.turn_to(now_us)
        return self._counters_of(tag).reap(now_us)

    def look(self, group: Group, now_us: int) -> list[LimitUsage]:
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
        return [counters.seed(seed.kind, seed, now_us) for seed in seeds]

    def _own_or_shared(self, counters: TagCounters, plan: CompiledGroup, now_us: int) -> CompiledGroup:
        return shared_plan(plan) if plan.label and counters.users.crowded_out(plan.label, self._most_labels, now_us) else plan

    def _counters_of(self, tag: str) -> TagCounters:
        counters = self._counters.get(tag)
        if counters is None:
            counters = self._counters[tag] = TagCounters(self._calendar, self._forgetting)
        return counters
