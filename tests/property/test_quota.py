"""The life of holds, two ways at once: the reference model and the scripts on a real Valkey get the same random steps, give the
same answers and show the same state, and both agree with a recount from the history of every hold.

Time is handed to the scripts by putting another text in the place of their one call of TIME.
"""

import asyncio
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from domain.identity import TenantId
from tenancy.directory import CALENDAR
from tenancy.hold import Admission, Admitted, Beat, Hold
from tenancy.limits import ZONED, Amounts, Group, Level, Limit, LimitLine, LimitWindow, Meter, Rolling, Scope, Window, line_of
from tenancy.periods import clock_of
from tenancy.quota import LEASE_US, REAPED_US, SETTLED_US, Quota
from tenancy.rates import Calendar, is_dated, kind_of
from tenancy.seeds import Seed
from tenancy.stores.valkey import TEXTS, ValkeyCounters
from tests.scale import scaled
from tests.valkey_server import RedisPyScripts, open_client, valkey_server

ANCHOR = "redis.call('TIME')"
SET_TIME = "redis.call('HMGET', 'now', 's', 'us')"
MIDNIGHT_US = 1_795_219_200_000_000
"""2026-11-21."""
METERS = [meter for meter in Meter if meter is not Meter.CONCURRENT_REQUESTS]
SMALL = st.one_of(st.integers(0, 12), st.integers(0, 60))
LABELS = 2
"""End users with limits of their own, of four."""
AMOUNTS = [0, 1, 7, 30, 100, 100, 100, 180, 180, 180, 1000, 1000, 1000, 1000]
"""Mostly room for several holds at once: what is refused shows little."""


CHANGES_US = [MIDNIGHT_US, 1_774_746_000_000_000, 1_792_890_000_000_000]
"""Midnight in UTC, and when the clocks of Berlin go forward (2026-03-29) and back (2026-10-25)."""
HOUR_US = 3_600_000_000
ROLLING_DAYS = [1, 2, 40]
ZONES = ["", "Europe/Berlin", "Asia/Kathmandu", "America/St_Johns"]


def limit(level: Level, name: str, meter: Meter, window: LimitWindow, amount: int, burst: int, soft: int, zone: str) -> Limit:
    burst_or_none = burst if window is Window.MINUTE and burst else None
    zone = zone if window in ZONED else ""
    return Limit(Scope(level, name), meter, window, amount, burst=burst_or_none, soft=soft if soft else None, zone=zone)


@st.composite
def limits(draw: Any, level: Level) -> list[Limit]:
    windows: list[LimitWindow] = [*(window for window in Window if window is not Window.NOW), *map(Rolling, ROLLING_DAYS)]
    kinds: list[tuple[Meter, LimitWindow]]
    kinds = [(m, w) for m in METERS for w in windows if (w, m) != (Window.MINUTE, Meter.COST_NANOUSD)]
    kinds.append((Meter.CONCURRENT_REQUESTS, Window.NOW))
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4, unique=True))
    amount, burst, soft = st.sampled_from(AMOUNTS), st.integers(0, 120), st.integers(0, 90)
    zone = st.sampled_from(ZONES)
    return [limit(level, "t", meter, window, draw(amount), draw(burst), draw(soft), draw(zone)) for meter, window in chosen]


amounts = st.builds(Amounts, SMALL, SMALL, SMALL, SMALL, requests=st.integers(0, 2), audio_seconds=SMALL, audio_bytes=SMALL)


@dataclass
class Entry:
    """What is known of one hold in one group."""

    hold: Hold
    tag: str
    opened_us: int
    vector: tuple[int, ...]
    delivered: tuple[int, ...]
    phase: str
    until_us: int


class Recount:
    """The naive way: keep every hold for ever, and add them up."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.seeded: dict[tuple[str, str, str], int] = {}
        """What seeds have added, by tag, state and period."""

    def known(self, hold: Hold, now_us: int) -> list[Entry]:
        return [e for e in self.entries if e.hold.id == hold.id and (e.phase == "open" or e.until_us > now_us)]

    def open(self, hold: Hold, vector: tuple[int, ...], delivered: tuple[int, ...], now_us: int) -> None:
        there = {entry.tag for entry in self.known(hold, now_us)}
        for tag in {group.tag for group in hold.groups} - there:
            self.entries.append(Entry(hold, tag, now_us, vector, delivered, "open", now_us + LEASE_US))

    def beat(self, beat: Beat, now_us: int) -> None:
        self.open(beat.hold, beat.at_most.vector(), beat.delivered.vector(), now_us)
        for entry in self.known(beat.hold, now_us):
            if entry.phase != "settled":
                self.take_away(entry)
                entry.phase, entry.until_us = "open", now_us + LEASE_US
                entry.vector, entry.delivered = beat.at_most.vector(), beat.delivered.vector()

    def settle(self, hold: Hold, actual: Amounts, now_us: int) -> None:
        for entry in self.known(hold, now_us):
            if entry.phase != "settled":
                self.take_away(entry)
                entry.phase, entry.until_us, entry.vector = "settled", now_us + SETTLED_US, actual.vector()

    def reap(self, now_us: int) -> None:
        for entry in self.entries:
            if entry.phase == "open" and entry.until_us <= now_us:
                entry.phase, entry.until_us = "reaped", now_us + REAPED_US
                entry.vector = tuple(map(min, entry.vector, entry.delivered))

    def used_and_held(self, tag: str, line: LimitLine, now_us: int) -> tuple[int, int]:
        if not isinstance(line.window, Rolling):
            return self.used_and_held_in(tag, line, now_us)
        hours = {e.opened_us // HOUR_US for e in self.entries} | {int(hour) for _, key, hour in self.seeded if key == line.key}
        lowest = now_us // HOUR_US - 24 * line.window.days
        each = [self.used_and_held_in(tag, line, hour * HOUR_US) for hour in hours if hour >= lowest]
        return sum(used for used, _ in each), sum(held for _, held in each)

    def used_and_held_in(self, tag: str, line: LimitLine, us: int) -> tuple[int, int]:
        """In the period around a moment; of a rolling window in the hour around it."""
        mine = [e for e in self.entries if e.tag == tag and line.key in keys_of(e.hold, tag)]
        if line.window is Window.NOW:
            return (sum(e.phase == "open" for e in mine),) * 2
        mine = [e for e in mine if period(line, e.opened_us) == period(line, us)]
        seeded = self.seeded.get((tag, line.key, period(line, us)), 0)
        return seeded + sum(e.vector[line.meter] for e in mine), sum(e.vector[line.meter] for e in mine if e.phase == "open")

    def take_away(self, entry: Entry) -> None:
        """A reaped hold is about to be something else. What was charged for it may have been corrected away, and cannot go twice."""
        lines = {line.key: line for group in entry.hold.groups if group.tag == entry.tag for line in group.lines}
        for line in lines.values():
            if entry.phase == "reaped" and has_amount(line):
                used, held = self.used_and_held_in(entry.tag, line, entry.opened_us)
                if (missing := entry.vector[line.meter] - (used - held)) > 0:
                    key = entry.tag, line.key, period(line, entry.opened_us)
                    self.seeded[key] = self.seeded.get(key, 0) + missing

    def seed(self, tag: str, line: LimitLine, amount: int, us: int) -> None:
        used, held = self.used_and_held_in(tag, line, us)
        key = tag, line.key, period(line, us)
        self.seeded[key] = self.seeded.get(key, 0) + amount - (used - held)


def keys_of(hold: Hold, tag: str) -> set[str]:
    return {line.key for group in hold.groups if group.tag == tag for line in group.lines}


FORMATS = {Window.HOUR: "%Y-%m-%d %H", Window.DAY: "%Y-%m-%d", Window.WEEK: "%G-%V", Window.MONTH: "%Y-%m", Window.EVER: ""}


def has_amount(line: LimitLine) -> bool:
    return line.window in CALENDAR or isinstance(line.window, Rolling)


def period(line: LimitLine, us: int) -> str:
    if isinstance(line.window, Rolling):
        return str(us // HOUR_US)
    zone = clock_of(line.limit.zone) if line.limit.zone else UTC
    return datetime.fromtimestamp(us // 1_000_000, zone).strftime(FORMATS[line.window])


class Twins(RuleBasedStateMachine):
    socket: Path
    admitted = 0
    waits = 0
    refused = 0

    @initialize(
        tenant=limits(Level.TENANT),
        key=limits(Level.KEY),
        shared=limits(Level.GLOBAL),
        users=limits(Level.USER),
        near=st.sampled_from(CHANGES_US),
        start=st.integers(-5_000_000, 5_000_000),
    )
    def begin(self, tenant: list[Limit], key: list[Limit], shared: list[Limit], users: list[Limit], near: int, start: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.client = open_client(self.socket)
        texts = {name: text.replace(ANCHOR, SET_TIME) for name, text in TEXTS.items()}
        assert all(SET_TIME in text and text.count(ANCHOR) == 0 for name, text in texts.items() if name != "turn")
        self.twin = ValkeyCounters(RedisPyScripts(self.client, texts), most_labels=LABELS)
        self.model = Quota(most_labels=LABELS)
        self.run(self.client.flushall())
        self.now = near + start
        self.groups = [
            Group("t", tuple(line_of(each, 0.0) for each in (*tenant, *key))),
            Group("t", tuple(line_of(each, 0.0) for each in tenant)),
            Group("global", tuple(line_of(each, 0.0) for each in shared)),
        ]
        self.of_users = [Group("u", tuple(line_of(each, 0.0, label) for each in users), label=label) for label in "abcd"]
        self.ids = (f"h{n}" for n in itertools.count())
        self.holds: list[Hold] = []
        self.recount = Recount()
        self.pass_time(0)

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.run(self.client.aclose())
            self.loop.close()

    def run(self, awaitable: Any) -> Any:
        return self.loop.run_until_complete(awaitable)

    @rule(
        us=st.one_of(
            st.integers(0, 3_000_000),
            st.integers(0, 90_000_000),
            st.sampled_from([1, LEASE_US, LEASE_US - 1, SETTLED_US, REAPED_US, 7_200_000_000, 86_400_000_000, 32 * 86_400_000_000]),
        )
    )
    def pass_time(self, us: int) -> None:
        self.now += us
        self.run(self.client.hset("now", mapping={"s": self.now // 1_000_000, "us": self.now % 1_000_000}))
        self.recount.reap(self.now)

    def admit_both(self, hold: Hold) -> None:
        expected = self.model.admit(hold, self.now)
        assert self.run(self.twin.admit(hold)) == expected
        Twins.refused += not isinstance(expected, Admitted)
        self.check_wait(hold, expected)
        if isinstance(expected, Admitted):
            Twins.admitted += 1
            self.recount.open(hold, hold.amounts.vector(), Amounts(requests=hold.amounts.requests).vector(), self.now)
            self.holds = [*self.holds[-7:], hold]

    def check_wait(self, hold: Hold, refused: Admission) -> None:
        """A rolling window has room when the refusal says so, and not a moment earlier."""
        if isinstance(refused, Admitted) or not isinstance(refused.line.window, Rolling) or refused.wait_us is None:
            return
        for tag in (group.tag for group in hold.groups if group.tag != "u" and refused.line in group.lines):
            wants, room = hold.amounts.vector()[refused.line.meter], refused.line.amount
            then = self.now + refused.wait_us
            assert self.recount.used_and_held(tag, refused.line, then)[0] + wants <= room
            assert self.recount.used_and_held(tag, refused.line, then - 1)[0] + wants > room
            Twins.waits += 1

    @rule(which=st.sampled_from([(0,), (1,), (2,), (0, 2), (1, 2)]), wants=amounts)
    def admit(self, which: tuple[int, ...], wants: Amounts) -> None:
        self.admit_both(Hold(next(self.ids), TenantId("t"), wants, tuple(self.groups[n] for n in which)))

    @rule(user=st.integers(0, 3), wants=amounts)
    def admit_for_a_user(self, user: int, wants: Amounts) -> None:
        self.admit_both(Hold(next(self.ids), TenantId("t"), wants, (self.groups[1], self.of_users[user])))
        assert self.twin.crowded == self.model.crowded

    @rule(n=st.integers(0, 7))
    def admit_again(self, n: int) -> None:
        if self.holds:
            self.admit_both(self.holds[n % len(self.holds)])

    @rule(n=st.integers(0, 7), delivered=amounts, at_most=amounts)
    def beat(self, n: int, delivered: Amounts, at_most: Amounts) -> None:
        if self.holds:
            beat = Beat(self.holds[n % len(self.holds)], delivered, at_most)
            self.model.beat([beat], self.now)
            self.recount.beat(beat, self.now)
            self.run(self.twin.beat([beat]))

    @rule(delivered=amounts, at_most=amounts)
    def beat_all(self, delivered: Amounts, at_most: Amounts) -> None:
        beats = [Beat(hold, delivered, at_most) for hold in self.holds]
        self.model.beat(beats, self.now)
        self.run(self.twin.beat(beats))
        for beat in beats:
            self.recount.beat(beat, self.now)

    @rule(n=st.integers(0, 7), actual=amounts)
    def settle(self, n: int, actual: Amounts) -> None:
        if self.holds:
            hold = self.holds[n % len(self.holds)]
            self.model.settle(hold, actual, self.now)
            self.run(self.twin.settle(hold, actual))
            self.recount.settle(hold, actual, self.now)

    @rule(n=st.integers(0, 7))
    def release(self, n: int) -> None:
        self.settle(n, Amounts(requests=0))

    @rule(
        n=st.integers(0, 20), amount=st.integers(0, 200), late=st.integers(0, 3), how=st.sampled_from(["raise", "correct", "correct late"])
    )
    def seed(self, n: int, amount: int, late: int, how: str) -> None:
        lines = [(group.tag, line) for group in (self.groups[0], self.groups[2]) for line in group.lines if has_amount(line)]
        if not lines:
            return
        tag, line = lines[n % len(lines)]
        calendar = Calendar()
        calendar.turn_to(self.now)
        kind = kind_of(line.window, line.limit.zone)
        period, us = calendar.periods[kind], self.now
        if isinstance(line.window, Rolling):
            hours_ago = (0, 1, 24 * line.window.days, 24 * line.window.days + 1)[late]
            period, us = period - hours_ago, us - hours_ago * HOUR_US
        elif late == 3:
            period -= 10**8 if is_dated(kind) else 1
        used, held = self.recount.used_and_held_in(tag, line, us)
        instead_of = {"raise": None, "correct": used - held, "correct late": used - held + late}[how]
        seed = Seed(line.key, line.window, period, amount, instead_of, line.limit.zone)
        expected = None if late == 3 else used - held
        if expected is not None and (instead_of == expected or (instead_of is None and amount > expected)):
            self.recount.seed(tag, line, amount, us)
            expected = amount
        assert self.model.seed(tag, [seed], self.now) == [expected]
        assert self.run(self.twin.seed(tag, [seed])) == [expected]

    @invariant()
    def both_show_the_same_and_nothing_is_negative(self) -> None:
        if not hasattr(self, "groups"):
            return
        for group in (self.groups[0], self.groups[2]):
            states = self.model.look(group, self.now)
            assert self.run(self.twin.look(group)) == states
            assert all(state.held >= 0 and state.used >= state.held and state.remaining >= 0 for state in states)
            for state in states:
                if state.line.window is not Window.MINUTE:
                    assert (state.used, state.held) == self.recount.used_and_held(group.tag, state.line, self.now)
        for group in self.of_users:
            assert self.run(self.twin.look(group)) == self.model.look(group, self.now)


@pytest.fixture(scope="module")
def socket() -> Iterator[Path]:
    with TemporaryDirectory() as folder, valkey_server(Path(folder)) as path:
        yield path


@pytest.mark.req("R10")
def test_model_and_scripts_are_twins(socket: Path, record_property: Any) -> None:
    Twins.socket = socket
    examples, steps = scaled(25, 2000), 50
    run_state_machine_as_test(
        Twins,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
        ),
    )
    record_property("figure", f"{examples * steps} steps, {Twins.admitted} admitted, {Twins.refused} refused")
    assert min(Twins.admitted, Twins.refused) > 5, "histories in which nothing happens"


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_rolling_windows_over_days_of_requests(socket: Path, seed: int) -> None:
    """Long histories, of which the short ones above have none: windows that fill up, wait and empty hour by hour."""
    rng = random.Random(seed)
    Twins.socket, Twins.waits = socket, 0
    twins = Twins()

    def some(most: int = 12) -> Amounts:
        return Amounts(*(rng.randint(0, most) for _ in range(4)), requests=rng.randint(0, 2))

    def rolling(level: Level, *meters: tuple[Meter, int, int]) -> list[Limit]:
        return [limit(level, "t", meter, Rolling(days), amount, 0, 0, "") for meter, days, amount in meters]

    try:
        twins.begin(
            tenant=rolling(Level.TENANT, (Meter.TOKENS, 1, 150), (Meter.COST_NANOUSD, 2, 120)),
            key=[limit(Level.KEY, "t", Meter.REQUESTS, Window.DAY, 1000, 0, 0, ""), *rolling(Level.KEY, (Meter.REQUESTS, 1, 40))],
            shared=rolling(Level.GLOBAL, (Meter.UNITS, 40, 2000)),
            users=rolling(Level.USER, (Meter.TOKENS, 2, 60)),
            near=MIDNIGHT_US,
            start=0,
        )
        for _ in range(400):
            step = rng.random()
            if step < 0.35:
                twins.admit(rng.choice([(0,), (1,), (2,), (0, 2)]), some())
            elif step < 0.45:
                twins.admit_for_a_user(rng.randrange(4), some())
            elif step < 0.65:
                twins.settle(rng.randrange(8), some())
            elif step < 0.75:
                twins.beat(rng.randrange(8), some(3), some())
            elif step < 0.82:
                twins.seed(rng.randrange(21), rng.randint(0, 60), rng.randrange(4), rng.choice(["raise", "correct", "correct late"]))
            else:
                twins.pass_time(rng.choice([1, LEASE_US, HOUR_US - 1, HOUR_US, 3 * HOUR_US, 24 * HOUR_US]))
            twins.both_show_the_same_and_nothing_is_negative()
        assert twins.waits > 5, "windows that are never full"
    finally:
        twins.teardown()
