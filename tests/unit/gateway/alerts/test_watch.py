"""Budget alerts from the counters to the receiver, over a real database and with a clock of the test's own."""

import hmac
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.alerts.watch import FIRST_PAUSE_S, GIVEN_UP_AFTER_S, AlertWatch
from gateway.signed_webhook import SIGNATURE
from tenancy.hold import LimitUsage
from tenancy.limits import Group, Level, Limit, Meter, Rolling, Scope, Window
from tenancy.money import NANO
from tenancy.stores.sql import SqlAlerts, open_engine
from tests.databases import migrated_file

SECRET = b"s" * 32
BUDGET = Limit(Scope(Level.TENANT, "acme"), Meter.COST_NANOUSD, Window.MONTH, 50 * NANO)
ROLLING = Limit(BUDGET.scope, BUDGET.meter, Rolling(30), 50 * NANO)


class Receiver:
    """Counters, clock and receiver of one gateway with any number of admin processes."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.now = 1_800_000_000.0
        self.limits = [BUDGET]
        self.used = 0
        self.held = 0
        self.status: int | Exception = 204
        self.got: list[dict[str, Any]] = []
        self.looks = 0

    def process(self, percents: Sequence[int] = (50, 80, 100)) -> AlertWatch:
        return AlertWatch(
            SqlAlerts(self.engine),
            lambda: [("acme", limit) for limit in self.limits],
            self.look,
            self.post,
            SECRET,
            percents=percents,
            meters=frozenset({Meter.COST_NANOUSD}),
            every_s=30,
            wall=lambda: self.now,
            sleep=self.sleep,
        )

    async def look(self, group: Group) -> Sequence[LimitUsage]:
        self.looks += 1
        ends = 1_801_000_020.0
        return [LimitUsage(line, self.used, self.held, 0, int((ends - self.now) * 1e6)) for line in group.lines]

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    async def post(self, body: bytes, headers: Mapping[str, str]) -> int:
        at, _, mac = headers[SIGNATURE].partition(",")
        assert at == f"t={int(self.now)}"
        assert mac == "v1=" + hmac.new(SECRET, b"%d." % int(self.now) + body, "sha256").hexdigest()
        if isinstance(self.status, Exception):
            raise self.status
        if self.status == 204:
            self.got.append(json.loads(body))
        return self.status

    async def turn(self, *watches: AlertWatch) -> list[int]:
        """One round of each process; returns the percentages that arrived in it."""
        before = len(self.got)
        for watch in watches:
            await watch.look_round()
            await watch.deliver()
        self.now += 30
        return [message["threshold_percent"] for message in self.got[before:]]


@pytest.fixture
async def receiver(tmp_path: Path) -> AsyncIterator[Receiver]:
    await migrated_file(tmp_path / "a.db")
    engine = open_engine(f"sqlite:///{tmp_path / 'a.db'}")
    yield Receiver(engine)
    await engine.dispose()


async def test_each_percentage_is_told_once(receiver: Receiver) -> None:
    watch = receiver.process()
    told = []
    for dollars in (10, 24, 25, 30, 41, 41, 50, 50):
        receiver.used = dollars * NANO
        told.append(await receiver.turn(watch))
    assert told == [[], [], [50], [], [80], [], [100], []]
    first = receiver.got[0]
    assert (first["event"], first["limit"]) == ("budget.threshold", "tenant:acme:cost_usd:month")
    assert (first["used"], first["amount"], first["used_percent"]) == ("25.00", "50.00", 50.0)
    assert first["at"].endswith("Z")
    assert first["resets_at"] == "2027-01-26T21:47:00Z"
    assert watch.counts.sent == 3


async def test_a_jump_over_several_percentages_is_one_message(receiver: Receiver) -> None:
    watch = receiver.process()
    receiver.used = 45 * NANO
    assert await receiver.turn(watch) == [80]
    receiver.used = 46 * NANO
    assert await receiver.turn(watch) == []
    assert {alert.percent: alert.result for alert in await SqlAlerts(receiver.engine).newest(9)} == {50: "superseded", 80: "sent"}


async def test_reservations_tell_nothing(receiver: Receiver) -> None:
    receiver.used, receiver.held = 60 * NANO, 40 * NANO
    assert await receiver.turn(receiver.process()) == []


async def test_two_processes_and_a_restart_tell_nothing_twice(receiver: Receiver) -> None:
    one, other = receiver.process(), receiver.process()
    receiver.used = 30 * NANO
    assert await receiver.turn(one, other) == [50]
    assert await receiver.turn(receiver.process()) == []


async def test_a_raise_is_a_new_budget(receiver: Receiver) -> None:
    watch = receiver.process()
    receiver.used = 45 * NANO
    assert await receiver.turn(watch) == [80]
    receiver.limits = [Limit(BUDGET.scope, BUDGET.meter, BUDGET.window, 100 * NANO)]
    assert await receiver.turn(watch) == [], "45 of 100 dollars are below half"
    receiver.used = 81 * NANO
    assert await receiver.turn(watch) == [80]
    receiver.limits = [Limit(BUDGET.scope, BUDGET.meter, BUDGET.window, 60 * NANO)]
    assert await receiver.turn(watch) == [100], "a budget that is lowered below its usage is told at once"


async def test_more_than_all_of_a_budget_is_told_where_it_was_lowered(receiver: Receiver) -> None:
    watch = receiver.process((100, 120, 200))
    receiver.used = 48 * NANO
    assert await receiver.turn(watch) == []
    receiver.limits = [Limit(BUDGET.scope, BUDGET.meter, BUDGET.window, 40 * NANO)]
    assert await receiver.turn(watch) == [120]
    assert receiver.got[-1]["used_percent"] == 120.0


async def test_a_rolling_window_is_told_again_once_its_usage_was_clearly_below(receiver: Receiver) -> None:
    receiver.limits = [ROLLING]
    watch, other = receiver.process(), receiver.process()
    told = []
    for dollars in (25, 24, 25, 22, 25, 40, 34, 41):
        receiver.used = dollars * NANO
        told.append(await receiver.turn(watch, other))
    assert told == [[50], [], [], [], [50], [80], [], [80]]
    first = receiver.got[0]
    assert (first["limit"], first["window"], first["resets_at"]) == ("tenant:acme:cost_usd:rolling-30d", "rolling-30d", None)


async def test_a_rolling_window_whose_usage_falls_while_no_process_looks_is_told_again(receiver: Receiver) -> None:
    receiver.limits = [ROLLING]
    receiver.used = 30 * NANO
    assert await receiver.turn(receiver.process()) == [50]
    receiver.used = 10 * NANO
    restarted = receiver.process()
    assert await receiver.turn(restarted) == []
    receiver.used = 30 * NANO
    assert await receiver.turn(restarted) == [50]


async def test_a_rolling_window_whose_usage_falls_before_its_message_arrives_is_told_again_afterwards(receiver: Receiver) -> None:
    receiver.limits = [ROLLING]
    watch, receiver.used, receiver.status = receiver.process(), 30 * NANO, 503
    assert await receiver.turn(watch) == []
    receiver.used, receiver.status = 10 * NANO, 204
    assert await receiver.turn(watch) == [50], "what was reached is told, however late"
    assert await receiver.turn(watch) == []
    receiver.used = 30 * NANO
    assert await receiver.turn(watch) == [50]


async def test_a_message_waits_for_a_receiver_that_is_away(receiver: Receiver) -> None:
    watch = receiver.process()
    receiver.used = 30 * NANO
    receiver.status = ConnectionError("refused")
    assert await receiver.turn(watch) == []
    receiver.status = 503
    assert await receiver.turn(watch) == []
    receiver.status = 204
    assert await receiver.turn(receiver.process()) == [50], "another process delivers what is due"
    assert FIRST_PAUSE_S < 30


async def test_pauses_grow_and_a_day_later_it_is_given_up_and_can_be_seen(receiver: Receiver) -> None:
    watch = receiver.process()
    receiver.used = 30 * NANO
    receiver.status = 500
    begun = receiver.now
    await watch.look_round()
    posts = 0
    while receiver.now < begun + GIVEN_UP_AFTER_S + 7200:
        before = watch.counts.failed + watch.counts.given_up
        await watch.deliver()
        posts += watch.counts.failed + watch.counts.given_up - before
        receiver.now += 30
    assert (watch.counts.given_up, watch.counts.sent) == (1, 0)
    assert 20 < posts < 60
    (alert,) = await SqlAlerts(receiver.engine).newest(9)
    assert (alert.result, alert.next_try_unix) == ("given_up", None)


async def test_other_meters_and_limits_per_minute_are_not_even_read(receiver: Receiver) -> None:
    receiver.limits = [Limit(BUDGET.scope, Meter.TOKENS, Window.DAY, 10), Limit(BUDGET.scope, Meter.REQUESTS, Window.MINUTE, 10)]
    receiver.used = 100
    assert await receiver.turn(receiver.process()) == []
    assert receiver.looks == 0
