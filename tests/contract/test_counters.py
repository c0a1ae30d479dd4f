"""Counters of holds: one suite over memory and a real Valkey. In both the time is the test's (for the scripts another text stands
in the place of their call of TIME), except where real time is what is tested."""

import asyncio
import multiprocessing
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis.asyncio

from domain.identity import TenantId
from tenancy.grant import digest_of_label
from tenancy.hold import LEASE_S, Admitted, Beat, Hold, LimitUsage, Refused
from tenancy.limits import MAX_AMOUNT, MAX_RATE, Amounts, Group, Level, Limit, Meter, Scope, Window, line_of
from tenancy.periods import period_around
from tenancy.ports import CountersAway
from tenancy.seeds import Seed
from tenancy.stores.memory import MemoryCounters
from tenancy.stores.valkey import TEXTS, ValkeyCounters
from tests.scale import scaled
from tests.valkey_server import RedisPyScripts, open_client, valkey_server

START_S = 1_795_219_200.0 + 3_600
"""2026-11-21 01:00 UTC."""


class Store:
    """Counters, and the hands of their clock."""

    counters: MemoryCounters | ValkeyCounters
    now_us: int

    def __init__(self) -> None:
        self.now_us = int(START_S * 1e6)
        self.set_time: Callable[[int], Awaitable[Any]] | None = None
        self.client: redis.asyncio.Redis | None = None

    async def wait_us(self, us: int) -> None:
        self.now_us += us
        if self.set_time is not None:
            await self.set_time(self.now_us)

    async def wait(self, seconds: float) -> None:
        await self.wait_us(int(seconds * 1e6))

    async def fields(self, key: str) -> int:
        """How many fields a hash of the store has; none in memory."""
        return len(await self.client.hkeys(key)) if self.client is not None else 0

    async def state(self, group: Group, meter: Meter, window: Window) -> LimitUsage:
        return next(s for s in await self.counters.look(group) if s.line.meter == meter and s.line.window is window)


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with valkey_server(tmp_path_factory.mktemp("valkey")) as path:
        yield path


@pytest.fixture(params=["memory", "valkey"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    store = Store()
    if request.param == "memory":
        store.counters = MemoryCounters(lambda: store.now_us / 1e6)
        yield store
        return
    client = open_client(request.getfixturevalue("socket"))
    await client.flushall()
    store.client = client
    texts = {name: text.replace("redis.call('TIME')", "redis.call('HMGET', 'now', 's', 'us')") for name, text in TEXTS.items()}
    store.set_time = lambda now_us: client.hset("now", mapping={"s": now_us // 1_000_000, "us": now_us % 1_000_000})
    store.counters = ValkeyCounters(RedisPyScripts(client, texts))
    await store.wait(0)
    yield store
    await client.aclose()


@pytest.fixture
async def real(socket: Path) -> AsyncIterator[Callable[[], ValkeyCounters]]:
    """Makes counters of a gateway of their own each, in the server's real time."""
    clients: list[redis.asyncio.Redis] = []

    def make() -> ValkeyCounters:
        clients.append(open_client(socket))
        return ValkeyCounters(RedisPyScripts(clients[-1]))

    make()
    await clients[0].flushall()
    yield make
    for client in clients:
        await client.aclose()


def group(*limits: Limit, tag: str = "acme") -> Group:
    return Group(tag, tuple(line_of(limit, START_S) for limit in limits))


def tenant_limit(meter: Meter, window: Window, amount: int, **more: Any) -> Limit:
    return Limit(Scope(more.pop("level", Level.TENANT), more.pop("name", "acme")), meter, window, amount, **more)


def hold(hold_id: str, amounts: Amounts, *groups: Group) -> Hold:
    return Hold(hold_id, TenantId("acme"), amounts, groups)


RPM_100 = group(tenant_limit(Meter.REQUESTS, Window.MINUTE, 100))
FOUR_BY_FOUR = [
    tenant_limit(meter, window, amount, level=level, name=name)
    for level, name in ((Level.TENANT, "acme"), (Level.PROJECT, "acme/app"), (Level.KEY, "k1"), (Level.USER, "acme"))
    for meter, window, amount in (
        (Meter.REQUESTS, Window.MINUTE, 1000),
        (Meter.TOKENS, Window.MINUTE, 100_000),
        (Meter.CONCURRENT_REQUESTS, Window.NOW, 50),
        (Meter.COST_NANOUSD, Window.MONTH, 10**9),
    )
]


@pytest.mark.req("GATEWAYS-9")
@pytest.mark.parametrize("place", range(16))
async def test_a_refusal_by_any_of_16_lines_consumes_nothing_in_any(store: Store, place: int) -> None:
    tight = list(FOUR_BY_FOUR)
    old = tight[place]
    tight[place] = Limit(old.scope, old.meter, old.window, 1)
    wide, narrow = group(*FOUR_BY_FOUR), group(*tight)
    wants = Amounts(600, 400, 1_000_000, 20_000, requests=2)
    before = await store.counters.look(wide)
    if old.meter is Meter.CONCURRENT_REQUESTS:
        assert isinstance(await store.counters.admit(hold("first", Amounts(0, 0), group(tight[place]))), Admitted)
        before = await store.counters.look(wide)
    refused = await store.counters.admit(hold("second", wants, narrow))
    assert isinstance(refused, Refused)
    assert refused.line.limit == tight[place]
    assert await store.counters.look(wide) == before
    assert isinstance(await store.counters.admit(hold("second", wants, wide)), Admitted)


async def test_several_groups_all_or_nothing_and_the_same_id_may_ask_again(store: Store) -> None:
    own = group(tenant_limit(Meter.REQUESTS, Window.DAY, 10))
    shared = group(tenant_limit(Meter.CONCURRENT_REQUESTS, Window.NOW, 1, level=Level.MODEL, name="m"), tag="model/m")
    first, second = hold("a", Amounts(1, 1), own, shared), hold("b", Amounts(1, 1), own, shared)
    assert isinstance(await store.counters.admit(first), Admitted)
    for _ in range(3):
        refused = await store.counters.admit(second)
        assert isinstance(refused, Refused)
        assert refused.wait_us is None
        assert not refused.never
        assert (await store.state(own, Meter.REQUESTS, Window.DAY)).used == 1
    await store.counters.settle(first, Amounts(1, 1))
    admitted = await store.counters.admit(second)
    assert isinstance(admitted, Admitted)
    assert [standing.remaining for standing in admitted.limit_statuses] == [8, 0]
    assert (await store.state(own, Meter.REQUESTS, Window.DAY)).used == 2


async def test_a_repeated_id_reserves_nothing_more_and_a_second_settlement_charges_nothing(store: Store) -> None:
    day = group(tenant_limit(Meter.TOKENS, Window.DAY, 1000), tenant_limit(Meter.CONCURRENT_REQUESTS, Window.NOW, 5))
    one = hold("a", Amounts(100, 50), day)
    for _ in range(3):
        assert isinstance(await store.counters.admit(one), Admitted)
    assert (await store.state(day, Meter.TOKENS, Window.DAY)).held == 150
    assert (await store.state(day, Meter.CONCURRENT_REQUESTS, Window.NOW)).held == 1
    await store.counters.settle(one, Amounts(100, 7))
    await store.counters.settle(one, Amounts(1000, 1000))
    assert isinstance(await store.counters.admit(one), Admitted)
    state = await store.state(day, Meter.TOKENS, Window.DAY)
    assert (state.used, state.held, state.remaining) == (107, 0, 893)
    assert (await store.state(day, Meter.CONCURRENT_REQUESTS, Window.NOW)).held == 0


@pytest.mark.req("GATEWAYS-5")
@pytest.mark.req("R8")
async def test_a_hold_without_beats_is_charged_with_what_was_delivered_and_its_slot_is_free(store: Store) -> None:
    both = group(tenant_limit(Meter.TOKENS, Window.DAY, 1000), tenant_limit(Meter.CONCURRENT_REQUESTS, Window.NOW, 10))
    holds = [hold(f"h{n}", Amounts(10, 40), both) for n in range(11)]
    admitted = [isinstance(await store.counters.admit(each), Admitted) for each in holds]
    assert admitted == [True] * 10 + [False]
    await store.wait(5)
    await store.counters.beat([Beat(each, Amounts(10, 8), Amounts(10, 30)) for each in holds[:5]])
    assert (await store.state(both, Meter.TOKENS, Window.DAY)).held == 5 * 40 + 5 * 50
    await store.wait(LEASE_S - 5)
    assert (await store.state(both, Meter.CONCURRENT_REQUESTS, Window.NOW)).held == 5
    await store.wait(5)
    state = await store.state(both, Meter.TOKENS, Window.DAY)
    assert (state.used, state.held) == (5 * 18, 0)
    assert isinstance(await store.counters.admit(holds[10]), Admitted)
    await store.counters.settle(holds[0], Amounts(10, 25))  # its gateway was only slow
    await store.counters.settle(holds[0], Amounts(10, 39))
    state = await store.state(both, Meter.TOKENS, Window.DAY)
    assert state.used - state.held == 4 * 18 + 35


@pytest.mark.parametrize("ends", ["settled", "reaped"])
async def test_a_hold_of_a_version_without_meters_of_audio_ends_like_any_other(store: Store, ends: str) -> None:
    if store.client is None:
        pytest.skip("memory counters end with their process, whose version is one")
    limits = group(tenant_limit(Meter.AUDIO_SECONDS, Window.DAY, 100), tenant_limit(Meter.TOKENS, Window.DAY, 100))
    old = hold("r1", Amounts(10, 20), limits)
    await store.counters.admit(old)
    shorten = """local hold = cmsgpack.unpack(redis.call('GET', KEYS[1]))
        for m = 8, 9 do hold[6][m], hold[7][m] = nil, nil end
        return redis.call('SET', KEYS[1], cmsgpack.pack(hold))"""
    await store.client.eval(shorten, 1, "tg:{acme}:h:r1")
    if ends == "settled":
        await store.counters.settle(old, Amounts(10, 5, audio_seconds=3))
    else:
        await store.wait(LEASE_S + 1)
        await store.counters.admit(hold("r2", Amounts(), limits))
    seconds = await store.state(limits, Meter.AUDIO_SECONDS, Window.DAY)
    tokens = await store.state(limits, Meter.TOKENS, Window.DAY)
    assert (seconds.used, tokens.used, tokens.held) == ((3, 15, 0) if ends == "settled" else (0, 0, 0))


async def test_beats_extend_and_shrink_and_open_again_what_is_lost(store: Store) -> None:
    both = group(tenant_limit(Meter.TOKENS, Window.MINUTE, 60_000), tenant_limit(Meter.CONCURRENT_REQUESTS, Window.NOW, 3))
    alive, lost, done = (hold(name, Amounts(100, 5000), both) for name in ("alive", "lost", "done"))
    await store.counters.admit(alive)
    await store.counters.admit(done)
    await store.counters.settle(done, Amounts(100, 0))
    for _ in range(12):
        await store.wait(5)
        await store.counters.beat([Beat(each, Amounts(100, 10), Amounts(100, 900)) for each in (alive, lost, done)])
    assert (await store.state(both, Meter.CONCURRENT_REQUESTS, Window.NOW)).held == 2
    await store.counters.settle(lost, Amounts(100, 50))
    await store.counters.settle(alive, Amounts(100, 50))
    state = await store.state(both, Meter.CONCURRENT_REQUESTS, Window.NOW)
    assert (state.used, state.held) == (0, 0)


@pytest.mark.parametrize(
    ("window", "zone", "at", "end"),
    [
        (Window.HOUR, "", datetime(2026, 11, 21, 22, 59, 50, tzinfo=UTC), datetime(2026, 11, 21, 23, tzinfo=UTC)),
        (Window.WEEK, "", datetime(2026, 11, 22, 23, 59, 50, tzinfo=UTC), datetime(2026, 11, 23, tzinfo=UTC)),
        (Window.DAY, "Asia/Kathmandu", datetime(2026, 11, 21, 18, 14, 50, tzinfo=UTC), datetime(2026, 11, 21, 18, 15, tzinfo=UTC)),
        (Window.DAY, "Europe/Berlin", datetime(2027, 3, 27, 23, tzinfo=UTC), datetime(2027, 3, 28, 22, tzinfo=UTC)),
        (Window.DAY, "Europe/Berlin", datetime(2027, 10, 30, 22, tzinfo=UTC), datetime(2027, 10, 31, 23, tzinfo=UTC)),
        (Window.WEEK, "America/New_York", datetime(2026, 11, 23, 4, 59, 50, tzinfo=UTC), datetime(2026, 11, 23, 5, tzinfo=UTC)),
        (Window.MONTH, "Europe/Berlin", datetime(2026, 12, 31, 22, 59, 50, tzinfo=UTC), datetime(2026, 12, 31, 23, tzinfo=UTC)),
        (Window.DAY, "", datetime(2026, 11, 21, 23, 59, 50, tzinfo=UTC), datetime(2026, 11, 22, tzinfo=UTC)),
        (Window.MONTH, "", datetime(2026, 11, 30, 23, 59, 50, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)),
        (Window.MONTH, "", datetime(2028, 2, 29, 23, 59, 50, tzinfo=UTC), datetime(2028, 3, 1, tzinfo=UTC)),
        (Window.MONTH, "", datetime(2026, 12, 31, 23, 59, 50, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)),
    ],
)
async def test_a_hold_counts_in_the_period_it_began_in(store: Store, window: Window, zone: str, at: datetime, end: datetime) -> None:
    money = group(msgspec.structs.replace(tenant_limit(Meter.COST_NANOUSD, window, 1000), zone=zone))
    await store.wait(at.timestamp() - START_S)
    over_midnight = hold("a", Amounts(cost_nanousd=700), money)
    assert isinstance(await store.counters.admit(over_midnight), Admitted)
    refused = await store.counters.admit(hold("b", Amounts(cost_nanousd=301), money))
    assert isinstance(refused, Refused)
    assert refused.wait_us == (end - at) // timedelta(microseconds=1)
    await store.wait_us(refused.wait_us - 9_000_000)
    await store.counters.beat([Beat(over_midnight, Amounts(), over_midnight.amounts)])
    refused = await store.counters.admit(hold("b", Amounts(cost_nanousd=301), money))
    assert isinstance(refused, Refused) and refused.wait_us == 9_000_000
    await store.wait_us(refused.wait_us - 1)
    assert isinstance(await store.counters.admit(hold("b", Amounts(cost_nanousd=301), money)), Refused)
    await store.wait_us(1)
    assert isinstance(await store.counters.admit(hold("b", Amounts(cost_nanousd=301), money)), Admitted)
    await store.counters.settle(over_midnight, Amounts(cost_nanousd=650))
    state = await store.state(money, Meter.COST_NANOUSD, window)
    assert (state.used, state.held, state.remaining) == (301, 301, 699)


async def test_spent_for_ever_names_no_wait(store: Store) -> None:
    ever = group(tenant_limit(Meter.COST_NANOUSD, Window.EVER, 100), tenant_limit(Meter.COST_NANOUSD, Window.DAY, 100))
    assert isinstance(await store.counters.admit(hold("a", Amounts(cost_nanousd=100), ever)), Admitted)
    refused = await store.counters.admit(hold("b", Amounts(cost_nanousd=1), ever))
    assert isinstance(refused, Refused)
    assert (refused.line.window, refused.wait_us, refused.never) == (Window.EVER, None, False)


@pytest.mark.parametrize(
    ("limit", "wants", "never"),
    [
        (tenant_limit(Meter.REQUESTS, Window.MINUTE, 0), Amounts(1, 1), True),
        (tenant_limit(Meter.TOKENS, Window.DAY, 0), Amounts(0, 0), True),
        (tenant_limit(Meter.CONCURRENT_REQUESTS, Window.NOW, 0), Amounts(1, 1), True),
        (tenant_limit(Meter.TOKENS, Window.MINUTE, 1000), Amounts(900, 101), True),
        (tenant_limit(Meter.TOKENS, Window.MINUTE, 1000, burst=500), Amounts(400, 101), True),
        (tenant_limit(Meter.TOKENS, Window.MINUTE, 1000, burst=5000), Amounts(4000, 1000), False),
        (tenant_limit(Meter.OUTPUT_TOKENS, Window.MONTH, 1000), Amounts(5, 1001), True),
        (tenant_limit(Meter.OUTPUT_TOKENS, Window.MINUTE, MAX_RATE), Amounts(0, MAX_RATE), False),
        (tenant_limit(Meter.COST_NANOUSD, Window.EVER, MAX_AMOUNT), Amounts(cost_nanousd=MAX_AMOUNT), False),
    ],
    ids=str,
)
async def test_larger_than_a_whole_limit_never_passes(store: Store, limit: Limit, wants: Amounts, never: bool) -> None:
    answer = await store.counters.admit(hold("a", wants, group(limit)))
    assert isinstance(answer, Refused) is never
    if isinstance(answer, Refused):
        assert answer.never
        assert answer.wait_us is None


async def test_the_soft_threshold_is_crossed_once(store: Store) -> None:
    soft = group(
        tenant_limit(Meter.TOKENS, Window.DAY, 100, soft=80),
        tenant_limit(Meter.REQUESTS, Window.MINUTE, 10, soft=8),
        tenant_limit(Meter.CONCURRENT_REQUESTS, Window.NOW, 10, soft=8),
    )
    crossed = []
    for n in range(10):
        answer = await store.counters.admit(hold(f"h{n}", Amounts(5, 5), soft))
        assert isinstance(answer, Admitted)
        crossed.append([standing.soft_crossed for standing in answer.limit_statuses])
    assert crossed == [[False] * 3] * 7 + [[True] * 3] + [[False] * 3] * 2


@pytest.mark.req("R61")
async def test_exactly_the_wait_passes_and_less_does_not(store: Store, record_property: Any) -> None:
    dice = random.Random(61)
    refusals = scaled(250, 1000)
    exact = sooner = 0
    for n in range(refusals):
        amount = dice.choice([1, 7, 60, 100, 1000, 99_991, 1_000_000])
        minute = group(tenant_limit(Meter.TOKENS, Window.MINUTE, amount, burst=dice.randint(1, amount)), tag=f"t{n}")
        wants = Amounts(dice.randint(minute.lines[0].burst // 20 + 1, minute.lines[0].burst))
        answer: Any = None
        for k in range(100):
            asked = hold(f"{n}-{k}", wants, minute)
            answer = await store.counters.admit(asked)
            if isinstance(answer, Refused):
                break
            await store.counters.settle(asked, wants)  # or its lease would end while we wait
            await store.wait_us(dice.randint(0, 1000))
        assert answer.wait_us > 0
        early = max(answer.wait_us // 10, 1)
        await store.wait_us(answer.wait_us - early)
        sooner += isinstance(await store.counters.admit(hold("early", wants, minute)), Refused)
        await store.wait_us(early)
        exact += isinstance(await store.counters.admit(hold("exact", wants, minute)), Admitted)
    record_property("figure", f"{refusals} refusals: {exact} passed after the wait, {sooner} failed 10 % sooner")
    assert (exact, sooner) == (refusals, refusals)


@pytest.mark.req("R7")
@pytest.mark.req("GATEWAYS-4")
async def test_parallel_calls_settle_at_most_the_burst(store: Store) -> None:
    minute = group(tenant_limit(Meter.TOKENS, Window.MINUTE, 10_000))
    dice = random.Random(7)
    settled = 0

    async def call(n: int) -> None:
        nonlocal settled
        asked = hold(f"h{n}", Amounts(dice.randint(1, 400), dice.randint(1, 400)), minute)
        if isinstance(await store.counters.admit(asked), Admitted):
            used = Amounts(asked.amounts.input_tokens, dice.randint(0, asked.amounts.output_tokens))
            await store.counters.settle(asked, used)
            settled += used.tokens

    await asyncio.gather(*(call(n) for n in range(64)))
    assert 0 < settled <= 10_000
    state = await store.state(minute, Meter.TOKENS, Window.MINUTE)
    assert state.used == settled


async def test_limits_of_a_label_are_its_own(store: Store) -> None:
    limit = tenant_limit(Meter.REQUESTS, Window.DAY, 1, level=Level.USER)
    first, second = (Group("acme", (line_of(limit, START_S, label),)) for label in ("0a", "0b"))
    answers = [await store.counters.admit(hold(str(n), Amounts(1), each)) for n, each in enumerate((first, second, first))]
    assert [isinstance(answer, Admitted) for answer in answers] == [True, True, False]


@pytest.mark.req("GATEWAYS-1")
async def test_state_of_labels_that_are_gone_is_dropped(store: Store) -> None:
    rate = tenant_limit(Meter.REQUESTS, Window.MINUTE, 60, level=Level.USER)
    day = tenant_limit(Meter.TOKENS, Window.DAY, 60, level=Level.USER)
    labels = scaled(2000, 40_000)
    for n in range(labels):
        await store.wait_us(100_003)
        one = hold(f"h{n}", Amounts(1), Group("acme", tuple(line_of(limit, START_S, f"{n:032x}") for limit in (rate, day))))
        await store.counters.admit(one)
        await store.counters.settle(one, Amounts(1))
        if n == labels // 2:
            await store.wait(86_400)
    if isinstance(store.counters, MemoryCounters):
        books = store.counters._quota._counters["acme"]
        states, records = len(books._tats) + len(books._cells), len(books.records) + len(books.settled)
    else:
        client = store.counters._scripts._scripts["look"].registered_client  # type: ignore[attr-defined]
        states, records = await client.hlen("tg:{acme}:s"), 0
        assert await client.zcard("tg:{acme}:d") == 0
    assert states < 1.75 * labels, "of both days, two or three fields a label"
    assert records < 2500


SERVER_US = """
local time = redis.call('TIME')
return time[1] * 1000000 + time[2]
"""


def ask(socket: str, barrier: Any, offset_s: float, calls: int, found: Any) -> None:
    """One gateway process of four; its own clock is `offset_s` wrong."""

    async def asked() -> None:
        client = open_client(socket)
        counters = ValkeyCounters(RedisPyScripts(client))
        await client.ping()
        barrier.wait()
        begun = await client.eval(SERVER_US, 0)
        answers = await asyncio.gather(*(counters.admit(hold(f"{os.getpid()}-{n}", Amounts(1), RPM_100)) for n in range(calls)))
        ended = await client.eval(SERVER_US, 0)
        await client.aclose()
        found.put((sum(isinstance(answer, Admitted) for answer in answers), begun, ended))

    right = time.time
    time.time = lambda: right() + offset_s  # type: ignore[assignment]
    asyncio.run(asked())


@pytest.mark.req("R6")
@pytest.mark.req("R53")
@pytest.mark.req("GATEWAYS-6")
@pytest.mark.parametrize("offset_s", [0.0, 300.0])
async def test_four_gateways_admit_exactly_the_limit_whatever_their_clocks_say(
    socket: Path, real: Any, offset_s: float, record_property: Any
) -> None:
    context = multiprocessing.get_context("spawn")
    found: Any = context.Queue()
    barrier = context.Barrier(4)
    gateways = [
        context.Process(target=ask, args=(str(socket), barrier, offset_s if n == 0 else 0.0, 250, found), daemon=True) for n in range(4)
    ]
    for gateway in gateways:
        gateway.start()
    counts = [found.get() for _ in gateways]  # four interpreters start, which a busy machine takes a minute for
    for gateway in gateways:
        gateway.join()
    admitted = sum(count for count, _, _ in counts)
    lasted_us = max(ended for _, _, ended in counts) - min(begun for _, begun, _ in counts)
    again = lasted_us // 600_000  # what a bucket of 100 a minute refills meanwhile
    record_property("figure", f"{admitted} of 1000 admitted by 4 processes in {lasted_us / 1000:.0f} ms, one clock {offset_s:+g} s")
    assert 100 <= admitted <= 100 + again
    assert again or admitted == 100


async def test_in_real_time_a_wait_is_exact(real: Any) -> None:
    counters = real()
    minute = group(tenant_limit(Meter.REQUESTS, Window.MINUTE, 120, burst=1))
    assert isinstance(await counters.admit(hold("a", Amounts(1), minute)), Admitted)
    turns = count()
    while isinstance(refused := await counters.admit(hold(f"a-{next(turns)}", Amounts(1), minute)), Admitted):
        pass  # half a second has passed since the last one: the machine stood still
    assert refused.wait_us is not None
    assert 0 < refused.wait_us <= 500_000
    await asyncio.sleep(refused.wait_us / 1e6)
    assert isinstance(await counters.admit(hold("b", Amounts(1), minute)), Admitted)


@pytest.mark.req("R8")
async def test_concurrency_never_exceeds_its_limit_over_four_gateways(real: Any, record_property: Any) -> None:
    ten = group(tenant_limit(Meter.CONCURRENT_REQUESTS, Window.NOW, 10), tenant_limit(Meter.REQUESTS, Window.MINUTE, MAX_RATE))
    gateways = [real() for _ in range(4)]
    dice = random.Random(8)
    open_now = most = served = refused = 0

    async def client(gateway: ValkeyCounters, name: str) -> None:
        nonlocal open_now, most, served, refused
        for n in range(scaled(40, 2000)):
            asked = hold(f"{name}-{n}", Amounts(1, 1), ten)
            if isinstance(await gateway.admit(asked), Admitted):
                open_now += 1
                most = max(most, open_now)
                served += 1
                await asyncio.sleep(dice.random() * 0.004)
                open_now -= 1
                await gateway.settle(asked, Amounts(1, 1))
            else:
                refused += 1

    await asyncio.gather(*(client(gateway, f"{g}-{n}") for g, gateway in enumerate(gateways) for n in range(8)))
    record_property("figure", f"at most {most} open of {served} served over 4 connections")
    assert most <= 10
    assert refused, "the store had ten open, which callers learn one after the other"
    assert (await gateways[0].look(ten))[-1].used == 0


class Away:
    """A connection that is away when told so."""

    def __init__(self, scripts: RedisPyScripts) -> None:
        self.scripts = scripts
        self.fails = ""

    async def run(self, script: str, keys: Any, args: Any) -> Any:
        if self.fails and keys[0].startswith(self.fails.encode()):
            raise CountersAway("down")
        return await self.scripts.run(script, keys, args)


async def test_settlements_wait_for_a_store_that_is_away(socket: Path, real: Any) -> None:
    away = Away(real()._scripts)
    counters = ValkeyCounters(away)
    day = group(tenant_limit(Meter.TOKENS, Window.DAY, 1000))
    shared = group(tenant_limit(Meter.REQUESTS, Window.DAY, 1000, level=Level.GLOBAL, name=""), tag="global")
    one, two = hold("a", Amounts(100, 100), day), hold("b", Amounts(100, 100), day, shared)
    await counters.admit(one)
    away.fails = "tg:{global}"
    with pytest.raises(CountersAway):
        await counters.admit(two)
    assert (await counters.look(day))[0].used == 200
    away.fails = "tg:{acme}"
    await counters.settle(one, Amounts(100, 10))
    with pytest.raises(CountersAway):
        await counters.look(day)
    with pytest.raises(CountersAway):
        await counters.beat([])
    away.fails = ""
    await counters.beat([])
    assert [(state.used, state.held) for state in await counters.look(day)] == [(110, 0)]


async def test_periods_of_the_scripts_are_those_of_the_calendar(socket: Path) -> None:
    client = open_client(socket)
    days = [*range(20_400, 20_400 + 800), *range(0, 80_000, 97)]
    books = TEXTS["look"].partition("local function cost_us")[0].replace("redis.call('TIME')", "{ARGV[1], 0}")
    script = client.register_script(books + "return {day, month}")
    for day in days:
        date = datetime.fromtimestamp(day * 86_400, UTC)
        for second in (0, 86_399):
            found = await script(keys=["s", "d"], args=[day * 86_400 + second])
            assert found == [day, date.year * 12 + date.month - 1]
    await client.aclose()


DAILY = group(tenant_limit(Meter.TOKENS, Window.DAY, 1000), tenant_limit(Meter.COST_NANOUSD, Window.EVER, MAX_AMOUNT))
TODAY = int(START_S // 86_400)


def seed(settled: int, instead_of: int | None = None, period: int = TODAY, line: int = 0) -> Seed:
    of = DAILY.lines[line]
    return Seed(of.key, of.window, period, settled, instead_of)


async def test_a_seed_raises_what_is_settled_and_leaves_what_is_held(store: Store) -> None:
    own = hold("a", Amounts(100, 0), DAILY)
    assert isinstance(await store.counters.admit(own), Admitted)
    assert await store.counters.seed("acme", [seed(500), seed(7 * 10**14, period=0, line=1)]) == [500, 7 * 10**14]
    assert await store.counters.seed("acme", [seed(400), seed(0)]) == [500, 500], "it never lowers, and one of nothing only asks"
    state = await store.state(DAILY, Meter.TOKENS, Window.DAY)
    assert (state.used, state.held, state.remaining) == (600, 100, 400)
    assert isinstance(await store.counters.admit(hold("b", Amounts(401, 0), DAILY)), Refused)
    await store.counters.settle(own, Amounts(10, 0))
    assert (await store.state(DAILY, Meter.TOKENS, Window.DAY)).used == 510
    assert (await store.state(DAILY, Meter.COST_NANOUSD, Window.EVER)).used == 7 * 10**14


async def test_what_a_dead_gateway_used_is_not_counted_twice_when_the_ledger_has_it_first(store: Store) -> None:
    """Nobody of the tenant asks after its gateway died, so nothing closes the hold before the ledger's word comes."""
    own = hold("a", Amounts(100, 0), DAILY)
    await store.counters.admit(own)
    await store.counters.beat([Beat(own, Amounts(60, 0), own.amounts)])
    await store.wait(LEASE_S)
    assert await store.counters.seed("acme", [seed(60)]) == [60]
    state = await store.state(DAILY, Meter.TOKENS, Window.DAY)
    assert (state.used, state.held) == (60, 0)


async def test_a_late_seed_for_yesterday_changes_nothing(store: Store) -> None:
    await store.wait(86_400)
    assert await store.counters.seed("acme", [seed(500), seed(5, period=TODAY + 1)]) == [None, 5]
    assert (await store.state(DAILY, Meter.TOKENS, Window.DAY)).used == 5


@pytest.mark.parametrize(("window", "zone"), [(Window.HOUR, ""), (Window.WEEK, ""), (Window.DAY, "Asia/Kathmandu")])
async def test_counters_of_every_calendar_are_set_in_their_period_only(store: Store, window: Window, zone: str) -> None:
    of = group(msgspec.structs.replace(tenant_limit(Meter.TOKENS, window, 1000), zone=zone))
    (line,) = of.lines
    end_s = period_around(window, zone, int(START_S))[1]
    right = Seed(line.key, window, end_s, 600, zone=zone)
    assert await store.counters.seed("acme", [right]) == [600]
    assert isinstance(await store.counters.admit(hold("a", Amounts(401, 0), of)), Refused)
    assert isinstance(await store.counters.admit(hold("a", Amounts(400, 0), of)), Admitted)
    await store.wait(end_s - START_S)
    assert await store.counters.seed("acme", [right]) == [None]
    assert (await store.state(of, Meter.TOKENS, window)).used == 0


async def test_periods_that_are_over_are_dropped(store: Store) -> None:
    if isinstance(store.counters, MemoryCounters):
        pytest.skip("the property test has those of memory")
    hours = group(tenant_limit(Meter.TOKENS, Window.HOUR, 1000), *(tenant_limit(Meter.TOKENS, Window.WEEK, 1000),))
    for n in range(400):
        await store.counters.settle(asked := hold(f"h{n}", Amounts(1, 0), hours), Amounts(1, 0))
        await store.counters.admit(asked)
        await store.counters.settle(asked, Amounts(1, 0))
        await store.wait(3_600.000_001)
    fields = await store.fields("tg:{acme}:s")
    assert 2 < fields < 150, "two for each of 400 hours otherwise"
    assert (await store.state(hours, Meter.TOKENS, Window.HOUR)).used == 0


async def test_a_correction_may_lower_and_only_what_it_has_seen(store: Store) -> None:
    await store.counters.seed("acme", [seed(500)])
    assert await store.counters.seed("acme", [seed(200, instead_of=400)]) == [500]
    for _ in range(2):  # a script may be run twice
        assert await store.counters.seed("acme", [seed(200, instead_of=500)]) == [200]


async def test_what_a_correction_took_away_is_not_taken_a_second_time(store: Store) -> None:
    """A hold was reaped, and its charge corrected away because the ledger had nothing of it; then its gateway settles."""
    own = hold("a", Amounts(100, 0), DAILY)
    await store.counters.admit(own)
    await store.counters.beat([Beat(own, Amounts(60, 0), own.amounts)])
    await store.wait(LEASE_S)
    assert (await store.state(DAILY, Meter.TOKENS, Window.DAY)).used == 60
    await store.counters.seed("acme", [seed(0, instead_of=60)])
    await store.counters.settle(own, Amounts(70, 0))
    assert (await store.state(DAILY, Meter.TOKENS, Window.DAY)).used == 70


async def test_many_counters_are_set_at_once(store: Store) -> None:
    many = [Seed(f"key:k{n}:tokens:day", Window.DAY, TODAY, n) for n in range(1000)]
    assert await store.counters.seed("acme", many) == list(range(1000))


USERS_DAY = tenant_limit(Meter.REQUESTS, Window.DAY, 2, level=Level.USER)
USERS_NOW = tenant_limit(Meter.CONCURRENT_REQUESTS, Window.NOW, 50, level=Level.USER)


def of_user(name: str, *limits: Limit, tag: str = "acme") -> Group:
    label = digest_of_label(name)
    own = (tenant_limit(Meter.REQUESTS, Window.DAY, 1000), tenant_limit(Meter.TOKENS, Window.MINUTE, 10**6))
    return Group(tag, (*(line_of(each, START_S) for each in own), *(line_of(each, START_S, label) for each in limits)), label=label)


def bounded(store: Store, most: int) -> MemoryCounters | ValkeyCounters:
    """Counters that keep so many end users of a tenant apart."""
    if isinstance(store.counters, MemoryCounters):
        store.counters = MemoryCounters(lambda: store.now_us / 1e6, most)
    else:
        store.counters = ValkeyCounters(store.counters._scripts, most)
    return store.counters


async def test_end_users_beyond_the_bound_share_one_allowance(store: Store) -> None:
    counters = bounded(store, 3)

    async def ask(n: int, name: str, tag: str = "acme") -> bool:
        found = await counters.admit(hold(f"h{n}", Amounts(1, 1), of_user(name, USERS_DAY, USERS_NOW, tag=tag)))
        return isinstance(found, Admitted)

    names = ["ann", "bob", "cid", "dan", "eve", "fay"]
    found = {name: [await ask(10 * n + k, name) for k in range(3)] for n, name in enumerate(names)}
    assert all(found[name] == [True, True, False] for name in names[:3]), "each has its own"
    assert [found[name] for name in names[3:]] == [[True, True, False], [False] * 3, [False] * 3], "as tight as for one"
    assert counters.crowded == 9
    refused = await counters.admit(hold("x", Amounts(1, 1), of_user("eve", USERS_DAY, USERS_NOW)))
    assert isinstance(refused, Refused) and refused.line.limit == USERS_DAY
    assert await ask(900, "eve", tag="bolt"), "another tenant has room of its own"
    whole = await store.state(of_user("eve", USERS_DAY), Meter.REQUESTS, Window.DAY)
    assert whole.used == 8, "the tenant's own limit is nobody's but the tenant's"
    seen = {
        s.line.limit.meter: s.used
        for s in await counters.look(of_user("fay", USERS_DAY, USERS_NOW))
        if s.line.limit.scope.level is Level.USER
    }
    assert seen == {Meter.REQUESTS: 2, Meter.CONCURRENT_REQUESTS: 2}, "what is shared is shown"
    for n, name in enumerate(names):
        for k in range(3):
            await counters.settle(hold(f"h{10 * n + k}", Amounts(1, 1), of_user(name, USERS_DAY, USERS_NOW)), Amounts(requests=0))
    assert await ask(901, "fay"), "failed requests give back what was shared, too"


async def test_a_label_that_is_not_seen_any_more_makes_room(store: Store) -> None:
    counters = bounded(store, 2)
    minute = tenant_limit(Meter.REQUESTS, Window.MINUTE, 1, level=Level.USER)

    async def ask(n: int, name: str) -> bool:
        found = await counters.admit(hold(f"h{n}", Amounts(1, 1), of_user(name, minute)))
        return isinstance(found, Admitted)

    assert [await ask(1, "ann"), await ask(2, "bob"), await ask(3, "cid"), await ask(4, "dan")] == [True, True, True, False]
    await store.wait(2400)
    assert await ask(5, "ann"), "half an hour later it is seen again, and counts for another hour"
    await store.wait(1800)
    assert [await ask(6, "cid"), await ask(7, "dan")] == [True, True], "one for the room that bob had left, one shared"
    assert counters.crowded == 3
    assert [await ask(8, "ann"), await ask(9, "bob")] == [True, False]


async def test_a_refused_request_is_no_end_user(store: Store) -> None:
    counters = bounded(store, 1)
    none = tenant_limit(Meter.REQUESTS, Window.DAY, 0, level=Level.USER)
    assert isinstance(await counters.admit(hold("a", Amounts(1, 1), of_user("ann", none))), Refused)
    assert isinstance(await counters.admit(hold("b", Amounts(1, 1), of_user("bob", USERS_DAY))), Admitted)
    assert counters.crowded == 0


async def test_a_beat_of_a_lost_hold_respects_the_bound(store: Store) -> None:
    counters = bounded(store, 1)
    holds = [hold(name, Amounts(1, 1), of_user(name, USERS_NOW)) for name in ("ann", "bob", "cid")]
    await counters.beat([Beat(one, Amounts(0, 0), one.amounts) for one in holds])
    used = [(await store.state(of_user(name, USERS_NOW), Meter.CONCURRENT_REQUESTS, Window.NOW)).used for name in ("ann", "cid", "new")]
    assert used == [1, 2, 2]
    for one in holds:
        await counters.settle(one, Amounts(1, 1))
    assert (await store.state(of_user("cid", USERS_NOW), Meter.CONCURRENT_REQUESTS, Window.NOW)).used == 0
