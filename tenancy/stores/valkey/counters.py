"""Counters in Valkey or Redis, for any number of gateway processes: every decision is a script, in the server's own time.

The groups of a hold lie in different slots: each is decided by a script of its own, the tenant's first, and reservations are released
when a later group refuses. A process that dies in between leaves a hold that ends with its lease.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from tenancy.decisions import limit_statuses, line_states, refusal
from tenancy.hold import Admission, Admitted, Beat, Hold, LimitStatus, LimitUsage
from tenancy.limits import MOST_LABELS, Amounts, Group
from tenancy.ports import CountersAway
from tenancy.quota import NOTHING
from tenancy.rates import DAY, EVER, HOUR_US, MONTH, NOW, RATE, Calendar, CompiledGroup, Prepared, days_of, is_dated
from tenancy.seeds import Seed
from tenancy.stores.valkey.client import Scripts

LATE_AT_MOST: Final = 10_000
"""Settlements kept for a store that is away; holds whose settlement is dropped beyond it are reaped, and charged with what was
delivered."""
BEATS_AT_ONCE: Final = 64
"""Holds per script run: a server does nothing else while it runs a script."""
SEEDS_AT_ONCE: Final = 256
"""Counters set per script run."""
PACKED_AT_MOST: Final = 8192
"""Groups that are kept packed for scripts."""
_KINDS: Final = {RATE: "r:", DAY: "d:", MONTH: "m:", EVER: "e:", NOW: "g:"}
_DATED: Final = "c:"
_REFUSED, _ADMITTED = 0, 1
_STALE: Final = 3
_TURNS: Final = 3
"""How often a decision is asked for whose periods were over at the store: its clock moves on once between two questions."""
_CROWDED: Final = 4
"""Added to the verdict of a script where the end user is beyond the bound."""

_pack = msgspec.msgpack.Encoder().encode
_numbers = msgspec.msgpack.Decoder(list[int]).decode


class _Packed(NamedTuple):
    """A group in the form in which scripts take it."""

    group: Group
    plan: CompiledGroup
    state: bytes
    deadlines: bytes
    holds: bytes
    lines: bytes
    current: tuple[int, int] | None
    """From when and until when the periods of its dated counters are the current ones; None where it has none."""


class ValkeyCounters:
    """Counters in Valkey (`tenancy.ports.Counters`, `tenancy.seeds.Tallies`). To be used on one event loop."""

    in_process = False

    def __init__(self, scripts: Scripts, most_labels: int = MOST_LABELS) -> None:
        self._scripts = scripts
        self._most_labels = most_labels
        self.crowded = 0
        """Decisions about end users beyond the bound on a tenant's end users, which share one counter."""
        self._prepared = Prepared()
        self._packed: dict[int, _Packed] = {}
        self._calendar = Calendar()
        self._late: deque[tuple[Group, bytes, bytes]] = deque(maxlen=LATE_AT_MOST)

    async def admit(self, hold: Hold) -> Admission:
        """Implements the port. Raises CountersAway."""
        vector = hold.amounts.vector()
        packed_vector = _pack(vector)
        hold_id = hold.id.encode()
        statuses: tuple[LimitStatus, ...] = ()
        for place, group in enumerate(hold.groups):
            try:
                at, verdict, now_us, heres = await self._decide(group, hold_id, packed_vector)
            except CountersAway:
                await self._undo(hold.groups[:place], hold_id)
                raise
            if verdict >= _CROWDED:
                verdict -= _CROWDED
                self.crowded += 1
            if verdict == _REFUSED:
                await self._undo(hold.groups[:place], hold_id)
                lines = len(at.plan.lines)
                fits_us = [hour * HOUR_US for hour in heres[lines:]]
                return refusal(at.plan, vector, heres[:lines], now_us, self._calendar.ends_us, fits_us)
            came = vector if verdict == _ADMITTED else NOTHING
            statuses += limit_statuses(at.plan, came, heres, now_us, self._calendar.ends_us)
        return Admitted(statuses)

    async def beat(self, beats: Sequence[Beat]) -> None:
        """Implements the port; settlements that could not be made before are made first. Raises CountersAway when any heartbeat or
        settlement could not be delivered; in a cluster those for nodes that answer have been."""
        away: CountersAway | None = None
        for _ in range(len(self._late)):
            if not self._late:
                break  # another beat runs at the same time, as one does when the store has just come back, and has made the rest
            late = self._late.popleft()
            try:
                await self._settle(*late)
            except CountersAway as error:
                self._late.append(late)
                away = error
        by_tag: dict[str, list[tuple[_Packed, bytes, bytes, bytes]]] = {}
        for beat in beats:
            hold_id = beat.hold.id.encode()
            delivered = _pack(beat.delivered.vector())
            at_most = _pack(beat.at_most.vector())
            for group in beat.hold.groups:
                by_tag.setdefault(group.tag, []).append((self._pack(group), hold_id, delivered, at_most))
        for alive in by_tag.values():
            try:
                for start in range(0, len(alive), BEATS_AT_ONCE):
                    batch = alive[start : start + BEATS_AT_ONCE]
                    unknown = await self._beat(batch, lines=False)
                    if unknown:
                        await self._beat([batch[place - 1] for place in unknown], lines=True)
            except CountersAway as error:
                away = error
        if away is not None:
            raise away

    async def settle(self, hold: Hold, actual: Amounts) -> None:
        """Implements the port. A settlement that cannot be made now is made with the next beat."""
        hold_id = hold.id.encode()
        vector = _pack(actual.vector(concurrent=0))
        for group in hold.groups:
            try:
                await self._settle(group, hold_id, vector)
            except CountersAway:
                self._late.append((group, hold_id, vector))

    async def look(self, group: Group) -> list[LimitUsage]:
        for _ in range(_TURNS):
            at = self._pack(group)
            now_us, *numbers = _numbers(await self._scripts.run("look", (at.state, at.deadlines), (at.lines,)))
            self._calendar.turn_to(now_us)
            if at.current is None or at.current[0] <= now_us < at.current[1]:
                break
        rates = len(at.plan.rates)
        cells = 2 * len(at.plan.cells)
        counted = [(ahead_us, 0) for ahead_us in numbers[:rates]]
        counted += zip(numbers[rates : rates + cells : 2], numbers[rates + 1 : rates + cells : 2], strict=True)
        windows = len(numbers) - 2 * len(at.plan.rolling)
        counted += [(0, held) for held in numbers[rates + cells : windows]]
        counted += zip(numbers[windows::2], numbers[windows + 1 :: 2], strict=True)
        return line_states(at.plan, counted, now_us, self._calendar.ends_us)

    async def seed(self, tag: str, seeds: Sequence[Seed]) -> list[int | None]:
        settled: list[int | None] = []
        own = f"tg:{{{tag}}}:".encode()
        for start in range(0, len(seeds), SEEDS_AT_ONCE):
            wanted: list[int | str] = []
            for seed in seeds[start : start + SEEDS_AT_ONCE]:
                kind = seed.kind
                instead_of = -1 if seed.instead_of is None else seed.instead_of
                if days := days_of(kind):
                    wanted += [seed.key, -days, seed.period, seed.settled, instead_of]
                else:
                    wanted += [_KINDS.get(kind, _DATED) + seed.key, 0 if is_dated(kind) else kind, seed.period, seed.settled, instead_of]
            reply = await self._scripts.run("seed", (own + b"s", own + b"d"), (_pack(wanted),))
            settled += (None if amount < 0 else amount for amount in _numbers(reply))
        return settled

    async def _decide(self, group: Group, hold_id: bytes, vector: bytes) -> tuple[_Packed, int, int, list[int]]:
        """The verdict of the script about one group, the store's time, and where each line stands; behind them, where a line refuses,
        the hour at which each rolling window has room. Raises CountersAway."""
        for _ in range(_TURNS):
            at = self._pack(group)
            current = at.current or ()
            reply = await self._scripts.run("admit", (at.state, at.deadlines, at.holds + hold_id), (hold_id, at.lines, vector, *current))
            verdict, now_us, *heres = _numbers(reply)
            self._calendar.turn_to(now_us)
            if verdict != _STALE:
                return at, verdict, now_us, heres
        raise CountersAway("the counter store's clock jumps")

    async def _settle(self, group: Group, hold_id: bytes, vector: bytes, forget: int = 0) -> None:
        at = self._pack(group)
        await self._scripts.run("settle", (at.state, at.deadlines, at.holds + hold_id), (hold_id, vector, forget))

    async def _beat(self, alive: Sequence[tuple[_Packed, bytes, bytes, bytes]], lines: bool) -> Sequence[int]:
        first = alive[0][0]
        keys = [first.state, first.deadlines]
        args: list[bytes] = []
        for at, hold_id, delivered, at_most in alive:
            keys.append(at.holds + hold_id)
            args += [hold_id, delivered, at_most, at.lines if lines else b""]
        unknown: Sequence[int] = await self._scripts.run("beat", keys, args)
        return unknown

    async def _undo(self, groups: Sequence[Group], hold_id: bytes) -> None:
        """Release what other groups had reserved before this admission failed; where that fails too, the lease ends the hold."""
        nothing = _pack(NOTHING)
        for group in groups:
            with suppress(CountersAway):
                await self._settle(group, hold_id, nothing, forget=1)

    def _pack(self, group: Group) -> _Packed:
        packed = self._packed.get(id(group))
        if packed is not None and packed.current is not None:
            calendar = self._calendar
            if not packed.current[0] <= calendar.from_us < packed.current[1]:
                packed = None
        if packed is None:
            if len(self._packed) >= PACKED_AT_MOST:
                self._packed.clear()
            plan = self._prepared.plan(group)
            lines: list[int | str] = [len(plan.rates), len(plan.cells), len(plan.gauges)]
            for line in plan.lines[: len(plan.lines) - len(plan.rolling)]:
                # Lua counts meters from 1
                field = _KINDS.get(line.kind, _DATED) + line.key
                if line.kind == RATE:
                    lines += [field, line.meter + 1, line.amount, line.burst, line.burst_us]
                elif line.kind == NOW:
                    lines += [field, line.amount]
                else:
                    kind = self._calendar.periods[line.kind] if is_dated(line.kind) else line.kind
                    lines += [field, kind, line.meter + 1, line.amount]
            if plan.label:
                lines += [plan.label, plan.keep_us, self._most_labels]
            if plan.rolling:
                lines += [*(() if plan.label else (False, 0, 0)), len(plan.rolling)]
                for days, meter, key, amount in plan.rolling:
                    lines += [key, days, meter + 1, amount]
            own = f"tg:{{{group.tag}}}:".encode()
            dated = any(is_dated(kind) for kind, _, _, _ in plan.cells)
            current = (self._calendar.from_us, self._calendar.until_us) if dated else None
            packed = self._packed[id(group)] = _Packed(group, plan, own + b"s", own + b"d", own + b"h:", _pack(lines), current)
        return packed
