"""Four gateways on one Valkey and one database admit exactly what one limit allows (R6, R7, R53, R61)."""

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from backends.simengine import SimEngine, SimSettings
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tenancy.stores.valkey.watch import LOOK_S
from tests.replicas import Replica, Reply, Tenancy, burst, replicas, statuses
from tests.scale import scaled
from tests.timing import skip_stalled
from tests.valkey_servers import single_server

pytestmark = pytest.mark.slow

SIM = SimSettings(models=("sim",), speed=1000)
ATTEMPTS = 5


def refilled(replies: Sequence[Reply], per_minute: int) -> int:
    """What a rate gives back between the first question and the last answer."""
    return math.floor((max(reply.at for reply in replies) - min(reply.at - reply.took_s for reply in replies)) * per_minute / 60)


async def undisturbed(made: list[Replica], tenancy: Tenancy, kind: str, count: int, at_most: int, **fields: Any) -> list[Reply]:
    """So many requests, all decided by the store, and as many at once as this machine can: all of them at first.

    A machine that stalls for longer than the 50 ms that a request waits for the store makes gateways decide alone: then no more
    than the published bound is admitted, and another tenant with the same limit is asked, by a quarter as many at once (not fewer than 64).
    """
    for attempt in range(ATTEMPTS):
        replies = await burst(made, tenancy.keys[f"{kind}{attempt}"], count, max(count >> 2 * attempt, 64), **fields)
        for reply in replies:
            assert reply.status in (200, 429), reply
            if reply.status == 429 and reply.json["error"]["code"] == "rate_limit_exceeded" and not reply.degraded:
                assert int(reply.headers["retry-after-ms"]) > 0
        if not any(reply.degraded for reply in replies):
            return replies
        # the store's amount and the sum of the shares, which are rounded up, and what a rate gives back meanwhile in both
        assert statuses(replies)[200] <= 2 * at_most + len(made) + 2 * refilled(replies, at_most)
        await asyncio.sleep(3.0)
    skip_stalled(f"for longer than a request waits for the store, {ATTEMPTS} times of {ATTEMPTS}")


@pytest.mark.fault("clock wrong")
@pytest.mark.req("R6")
@pytest.mark.req("R7")
@pytest.mark.req("R53")
@pytest.mark.parametrize("ahead_s", [0.0, 300.0])
async def test_four_gateways_admit_exactly_the_limit(ahead_s: float, tmp_path: Path, record_property: Any) -> None:
    kinds: dict[str, tuple[Meter, Window, int, int | None]] = {
        "hundred": (Meter.REQUESTS, Window.MINUTE, 100, None),
        "odd": (Meter.REQUESTS, Window.MINUTE, 97, None),
        "slow": (Meter.REQUESTS, Window.MINUTE, 1, 100),
        "daily": (Meter.REQUESTS, Window.DAY, 97, None),
        "tokens": (Meter.TOKENS, Window.MINUTE, 3000, None),
    }
    named = [(f"{kind}{attempt}", what) for kind, what in kinds.items() for attempt in range(ATTEMPTS)]
    limits = [Limit(Scope(Level.TENANT, name), meter, window, amount, burst) for name, (meter, window, amount, burst) in named]
    tenancy = Tenancy([name for name, _ in named], limits)
    said = []
    with single_server(tmp_path / "valkey") as valkey:
        async with (
            SimEngine(SIM) as engine,
            replicas(tmp_path, 4, tenancy, engine=engine.url, counters=valkey.url, ahead_s=[ahead_s]) as made,
        ):
            await asyncio.sleep(2 * LOOK_S)  # a share goes by how many gateways have been seen: all four, from the next look on
            for kind, amount in (("hundred", 100), ("odd", 97)):
                replies = await undisturbed(made, tenancy, kind, 1000, amount)
                admitted, again = statuses(replies)[200], refilled(replies, amount)
                assert amount <= admitted <= amount + again
                said.append(f"{admitted} of 1000 at {amount} a minute (+{again} refilled)")
            replies = await undisturbed(made, tenancy, "slow", 1000, 100)
            assert statuses(replies) == {200: 100, 429: 900}
            replies = await undisturbed(made, tenancy, "daily", 1000, 97)
            assert statuses(replies) == {200: 97, 429: 903}
            assert {r.json["error"]["code"] for r in replies if r.status == 429} == {"insufficient_quota"}

            replies = await undisturbed(made, tenancy, "tokens", 64, 64, max_tokens=20)
            settled = sum(reply.json["usage"]["total_tokens"] for reply in replies if reply.status == 200)
            said.append(f"{settled} tokens settled by {statuses(replies)[200]} of 64 calls at 3000 a minute")
            assert 0 < statuses(replies)[200] < 64
            assert settled <= 3000 + refilled(replies, 3000)
    record_property("figure", f"4 gateways, one clock {ahead_s:+g} s: {'; '.join(said)}")


@pytest.mark.req("R61")
async def test_waiting_exactly_as_told_passes_and_a_tenth_less_does_not(tmp_path: Path, record_property: Any) -> None:
    """Each end user has a limit of its own, so that many can wait at the same time."""
    users, rounds = 25, scaled(2, 40)
    tenancy = Tenancy(["acme"], [Limit(Scope(Level.USER, "acme"), Meter.REQUESTS, Window.MINUTE, 30, burst=1)])
    passed = failed = 0

    async def user(made: list[Replica], number: int) -> None:
        nonlocal passed, failed
        await asyncio.sleep(number * 0.08)
        key, name = tenancy.keys["acme"], f"user-{number}"
        assert (await made[number % 2].ask(key, user=name)).status == 200
        for _ in range(rounds):
            refused = await made[number % 2].ask(key, user=name)
            assert refused.status == 429
            wait_s = int(refused.headers["retry-after-ms"]) / 1000
            assert int(refused.headers["retry-after"]) == math.ceil(wait_s)
            await asyncio.sleep(max(0.0, refused.at + 0.9 * wait_s - asyncio.get_running_loop().time()))
            failed += (await made[(number + 1) % 2].ask(key, user=name)).status == 429
            await asyncio.sleep(max(0.0, refused.at + wait_s - asyncio.get_running_loop().time()))
            passed += (await made[number % 2].ask(key, user=name)).status == 200

    with single_server(tmp_path / "valkey") as valkey:
        async with SimEngine(SIM) as engine, replicas(tmp_path, 2, tenancy, engine=engine.url, counters=valkey.url) as made:
            await asyncio.gather(*(user(made, number) for number in range(users)))
    refusals = users * rounds
    record_property("figure", f"{refusals} refusals: {passed} passed after retry-after-ms, {failed} failed 10 % sooner")
    assert passed >= 0.99 * refusals
    assert failed >= 0.95 * refusals
