"""Two gateways whose Valkey goes away under load: requests go on, limits hold within what docs/reference/limits.md publishes, money closes
after its grace, and everything is as before when it is back (R17, R45). And a Valkey that is slow (R18)."""

import asyncio
import math
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from backends.simengine import SimEngine, SimSettings
from domain.usage import Usage
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tenancy.prices import Price, TokenRates
from tenancy.stores.valkey.breaker import FAILURES
from tests.replicas import Replica, Reply, Tenancy, replicas
from tests.scale import scaled
from tests.timing import at_most, until
from tests.valkey_servers import FaultProxy, Server, single_server

pytestmark = pytest.mark.slow

SIM = SimSettings(models=("sim",), speed=1000)
R = 2
OUTAGE_S = scaled(8, 300)
"""R17 names five minutes."""
PRICE = Price("p", "sim", "*", 0.0, TokenRates(10**9, 10**9, 10**9))
"""A thousand nano-dollars a token."""
BUDGET = 100_000_000
GRACE = BUDGET // 100
POOR = 60_000_000
"""A budget that is spent before the store goes."""
PER_MINUTE = 60
ENOUGH = 16
"""Replies in a row by which a state is told: four times what is asked at once."""
STORE_WAIT_MS = 50.0
"""Longest that a request waits for the store."""
CALLERS = 4
"""Of each tenant, all of whom may ask one gateway at once."""
OWN = 4
"""Scripts that a gateway itself calls until the breaker opens: its presence, heartbeats and settlements."""
LATER = 40
"""Replies that tell whether anybody waits when the breakers are open."""


def limit(tenant: str, meter: Meter, window: Window, amount: int) -> Limit:
    return Limit(Scope(Level.TENANT, tenant), meter, window, amount)


@dataclass
class Traffic:
    """Asks until told to stop; keeps what came."""

    made: list[Replica]
    key: str
    every_s: float
    max_tokens: int = 2
    replies: list[Reply] = field(default_factory=list)
    stopped: bool = False

    async def ask(self, one: Replica) -> Reply:
        reply = await one.ask(self.key, max_tokens=self.max_tokens, ignore_eos=True)
        self.replies.append(reply)
        return reply

    async def run(self, turn: int) -> None:
        while not self.stopped:
            turn += 1
            await self.ask(self.made[turn % len(self.made)])
            await asyncio.sleep(self.every_s)

    def between(self, begin: float, end: float) -> list[Reply]:
        """Asked and answered in that time."""
        return [reply for reply in self.replies if begin <= reply.at - reply.took_s and reply.at < end]

    def since(self, begin: float) -> list[Reply]:
        """Asked from then on."""
        return self.between(begin, math.inf)


def admitted(replies: list[Reply]) -> int:
    return sum(reply.status == 200 for reply in replies)


def spent(replies: list[Reply]) -> int:
    used = [reply.json["usage"] for reply in replies if reply.status == 200]
    return sum(PRICE.cost_nanousd(Usage(one["prompt_tokens"], one["completion_tokens"])) for one in used)


def quantile_ms(replies: list[Reply], at: float) -> float:
    return sorted(reply.took_s for reply in replies)[int(len(replies) * at)] * 1e3


def spread_ms(replies: list[Reply]) -> float:
    """What the machine alone adds to the slower ones: next to nothing where nothing else runs."""
    return quantile_ms(replies, 0.75) - quantile_ms(replies, 0.5)


def undisturbed(replies: list[Reply]) -> bool:
    """Whether the store decides for both gateways, and has for some time."""
    return len(replies) >= ENOUGH and not any(reply.degraded for reply in replies[-ENOUGH:])


async def until_closed(money: Traffic, one: Replica) -> None:
    """One request after another, until so many in a row are refused that none was refused only for what others held. A budget that does
    not close ends the wait by its own bound."""
    replies: list[Reply] = []
    while not (len(replies) >= ENOUGH and all(reply.status == 503 for reply in replies[-ENOUGH:])) and spent(replies) <= 2 * GRACE:
        replies.append(await money.ask(one))


async def until_open(money: Traffic, one: Replica) -> None:
    """Until the store decides about the budget again."""
    while (reply := await money.ask(one)).status != 200 or reply.degraded:
        await asyncio.sleep(0.1)


async def go(server: Server, how: str) -> None:
    if how == "killed":
        await asyncio.to_thread(server.stop, signal.SIGKILL)
    else:
        server.pause()


async def come(server: Server, how: str) -> None:
    if how == "killed":
        await asyncio.to_thread(server.start)
    else:
        server.resume()


@pytest.mark.fault("counter store away")
@pytest.mark.req("R17")
@pytest.mark.req("R45")
@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_requests_go_on_without_the_store(how: str, tmp_path: Path, record_property: Any) -> None:
    limits = [
        limit("wide", Meter.REQUESTS, Window.MINUTE, 1_000_000),
        limit("wide", Meter.CONCURRENT_REQUESTS, Window.NOW, 1000),
        limit("tight", Meter.REQUESTS, Window.MINUTE, PER_MINUTE),
        limit("money", Meter.COST_NANOUSD, Window.EVER, BUDGET),
        limit("poor", Meter.COST_NANOUSD, Window.EVER, POOR),
    ]
    tenancy = Tenancy(["wide", "free", "tight", "money", "poor"], limits, [PRICE])
    valkey = Server(tmp_path / "valkey", options={"appendonly": "yes"}).start()
    try:
        async with SimEngine(SIM) as engine, replicas(tmp_path, R, tenancy, engine=engine.url, counters=valkey.url) as made:
            wide, tight, money = (
                Traffic(made, tenancy.keys[name], pause) for name, pause in (("wide", 0.05), ("tight", 0.1), ("money", 0.1))
            )
            poor = Traffic(made, tenancy.keys["poor"], 0.02, max_tokens=200)
            free = Traffic(made, tenancy.keys["free"], 0.05)  # has no limits, so it asks no store: what it waits is the machine's
            traffics = (wide, free, tight, money, poor)
            began = time.monotonic()
            running = [(traffic, asyncio.create_task(traffic.run(n))) for traffic in traffics for n in range(CALLERS)]
            await until(lambda: spent(poor.replies) > 0.9 * POOR and all(len(one.replies) >= ENOUGH for one in traffics))
            await go(valkey, how)
            gone = time.monotonic()
            await until(lambda: time.monotonic() >= gone + OUTAGE_S and all(len(one.since(gone)) >= ENOUGH for one in traffics))
            money.stopped = True
            await asyncio.gather(*(task for traffic, task in running if traffic is money))
            for one in made:
                await until_closed(money, one)
            after_the_grace = [await money.ask(one) for one in made for _ in range(ENOUGH)]
            back = time.monotonic()
            await come(valkey, how)
            for one in made:
                await until_open(money, one)
            await until(lambda: undisturbed(wide.since(back)))
            for traffic in traffics:
                traffic.stopped = True
            await asyncio.gather(*(task for _, task in running))
            logs = "".join(one.errors for one in made)
    finally:
        valkey.stop(signal.SIGKILL)

    everything = [reply for traffic in traffics for reply in traffic.replies]
    assert {reply.status for reply in everything} <= {200, 429, 503}, "never a 401, and no connection lost"
    assert "Traceback" not in logs
    availability = admitted(wide.replies) / len(wide.replies)
    away = wide.between(gone, back)
    assert all(reply.degraded for reply in away)

    # a rate: the share of each from a fresh start, beside what the store had admitted before and admits afterwards
    alone = admitted(tight.between(gone, back))
    assert alone > 0
    at_most(alone, PER_MINUTE + PER_MINUTE * (back - gone) / 60 + 4, "requests alone")
    lasted_s = time.monotonic() - began
    # the store's bucket fills all the time, and those of the gateways fill while they decide alone; a store that a busy machine lets answer
    # too late is away for that moment too, and each gateway then has its share once more
    at_most(admitted(tight.replies), 2 * PER_MINUTE + PER_MINUTE * (lasted_s + back - gone) / 60 + 4, "requests in all")

    # money: what was spent at the last contact, and a hundredth of the budget for each process
    unchecked = [reply for reply in money.since(gone) if reply.status == 200 and reply.degraded]
    refused = [reply for reply in money.between(gone, back) if reply.status == 503]
    assert {reply.json["error"]["code"] for reply in refused} == {"quota_unavailable"}
    assert all(reply.headers["x-should-retry"] == "true" and int(reply.headers["retry-after"]) >= 5 for reply in refused)
    assert spent(unchecked) <= R * GRACE
    assert [reply.status for reply in after_the_grace] == [503] * len(after_the_grace), "closed after the grace"
    assert spent(money.replies) <= BUDGET
    assert spent(poor.replies) <= POOR + R * POOR // 100
    unlimited = free.between(gone, back)
    added_ms = [quantile_ms(away, q) - quantile_ms(unlimited, q) for q in (0.5, 0.99)]
    record_property(
        "figure",
        f"{how} for {OUTAGE_S} s: {availability:.2%} of {len(wide.replies)} answered, p50 {added_ms[0]:+.1f}, p99 {added_ms[1]:+.1f} ms; "
        f"{alone} alone at {PER_MINUTE} a minute; {spent(unchecked) / BUDGET:.2%} of a budget spent unchecked, {len(refused)} then "
        f"refused; a spent one at {spent(poor.replies) / POOR:.1%}",
    )
    assert availability >= 0.999
    assert added_ms[0] <= STORE_WAIT_MS / 2 + spread_ms(unlimited), "whoever asked the store would wait out its time"


@pytest.mark.fault("counter store slow")
@pytest.mark.req("R18")
async def test_nobody_waits_for_a_store_that_is_slow(tmp_path: Path, record_property: Any) -> None:
    """Two seconds late, every answer of it: a few requests wait out their time, until the breakers open, and no other asks the store."""
    tenancy = Tenancy(["wide", "free"], [limit("wide", Meter.REQUESTS, Window.MINUTE, 1_000_000)])
    with single_server(tmp_path / "valkey") as valkey:
        async with SimEngine(SIM) as engine, FaultProxy(valkey.port) as proxy:
            counters = proxy.url
            async with replicas(tmp_path, R, tenancy, engine=engine.url, counters=counters) as made:
                wide, free = (Traffic(made, tenancy.keys[name], 0.03) for name in ("wide", "free"))
                running = [asyncio.create_task(traffic.run(n)) for traffic in (wide, free) for n in range(CALLERS)]
                await until(lambda: undisturbed(wide.replies))
                slow, before = time.monotonic(), proxy.scripts
                proxy.delay_s = 2.0
                await until(lambda: time.monotonic() > slow + scaled(5, 60) and len(wide.since(slow + 1.0)) >= LATER)
                healed, asked = time.monotonic(), proxy.scripts - before
                proxy.delay_s = 0.0
                await until(lambda: undisturbed(wide.since(healed)))
                wide.stopped = free.stopped = True
                await asyncio.gather(*running)
    assert {reply.status for reply in wide.replies} == {200}
    first, later = wide.between(slow, slow + 1.0), wide.between(slow + 1.0, healed)
    unlimited = free.between(slow + 1.0, healed)
    added = quantile_ms(later, 0.5) - quantile_ms(unlimited, 0.5)
    longest = quantile_ms(first, 0.99) - quantile_ms(free.between(slow, slow + 1.0), 0.5) if first else math.nan
    record_property(
        "figure",
        f"+2 s: {len(wide.replies)} of {len(wide.replies)} answered, {longest:.0f} ms longer in the first second, {added:+.1f} ms later; "
        f"{asked} of {len(first) + len(later)} asked the store",
    )
    assert all(reply.degraded for reply in wide.between(slow, healed))
    # a breaker opens after so many, those that were under way then are more, and none is sent while it is open
    assert asked <= R * (FAILURES + CALLERS + OWN), "whoever asked the store would wait out its time"
    assert added <= STORE_WAIT_MS / 2 + spread_ms(unlimited)
