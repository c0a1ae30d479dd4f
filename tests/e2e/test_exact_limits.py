"""Four gateways on one Valkey and one database admit exactly what one limit allows (R6, R7, R53, R61)."""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
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
            assert 100 <= statuses(replies)[200] <= 100 + refilled(replies, 1)
            replies = await undisturbed(made, tenancy, "daily", 1000, 97)
            assert statuses(replies) == {200: 97, 429: 903}
            assert {r.json["error"]["code"] for r in replies if r.status == 429} == {"insufficient_quota"}

            replies = await undisturbed(made, tenancy, "tokens", 64, 64, max_tokens=20)
            settled = sum(reply.json["usage"]["total_tokens"] for reply in replies if reply.status == 200)
            said.append(f"{settled} tokens settled by {statuses(replies)[200]} of 64 calls at 3000 a minute")
            assert 0 < statuses(replies)[200] < 64
            assert settled <= 3000 + refilled(replies, 3000)
    record_property("figure", f"4 gateways, one clock {ahead_s:+g} s: {'; '.join(said)}")


EVERY_S = 2.0
"""How often an end user may ask."""


@dataclass
class Told:
    """What became of refusals whose wait was kept to, each judged only where the time of the decision leaves no doubt."""

    passed: list[bool] = field(default_factory=list)
    """One entry for each caller that waited as long as it was told: whether it was admitted."""
    held: list[bool] = field(default_factory=list)
    """One entry for each caller that waited a tenth less: whether it was refused."""


async def waits(one: Replica, other: Replica, key: str, name: str, told: Told) -> None:
    """One end user is admitted, refused, too early by a tenth, and on time.

    A decision was taken between the question and its answer. Whoever is answered later than a limit allows again proves nothing by
    being admitted, and nothing that follows a decision taken without the store is judged.
    """
    first = await one.ask(key, user=name)
    refused = await one.ask(key, user=name)
    if first.degraded or refused.degraded or (refused.status == 200 and refused.at >= first.asked_at + EVERY_S):
        return
    assert (first.status, refused.status) == (200, 429)
    wait_s = int(refused.headers["retry-after-ms"]) / 1000
    assert int(refused.headers["retry-after"]) == math.ceil(wait_s)
    await asyncio.sleep(max(0.0, refused.at + 0.9 * wait_s - time.monotonic()))
    early = await other.ask(key, user=name)
    if early.degraded:
        return
    if early.at < refused.asked_at + wait_s:
        told.held.append(early.status == 429)
    if early.status == 200:
        return
    await asyncio.sleep(max(0.0, refused.at + wait_s - time.monotonic()))
    later = await one.ask(key, user=name)
    if not later.degraded:
        told.passed.append(later.status == 200)


@pytest.mark.req("R61")
async def test_waiting_exactly_as_told_passes_and_a_tenth_less_does_not(tmp_path: Path, record_property: Any) -> None:
    """Each end user has a limit of its own, so that many can wait at the same time."""
    users, rounds = 25, scaled(2, 40)
    wanted = users * rounds
    limit = Limit(Scope(Level.USER, "acme"), Meter.REQUESTS, Window.MINUTE, round(60 / EVERY_S), burst=1)
    tenancy, told = Tenancy(["acme"], [limit]), Told()

    async def user(made: list[Replica], number: int) -> None:
        await asyncio.sleep(number * 0.08)
        for turn in range(ATTEMPTS * rounds):
            if len(told.passed) >= wanted and len(told.held) >= wanted:
                return
            await waits(made[number % 2], made[(number + 1) % 2], tenancy.keys["acme"], f"user-{number}-{turn}", told)

    with single_server(tmp_path / "valkey") as valkey:
        async with SimEngine(SIM) as engine, replicas(tmp_path, 2, tenancy, engine=engine.url, counters=valkey.url) as made:
            await asyncio.gather(*(user(made, number) for number in range(users)))
    passed, held = told.passed, told.held
    record_property("figure", f"{sum(passed)} of {len(passed)} passed after retry-after-ms, {sum(held)} of {len(held)} did not 10 % sooner")
    assert all(passed) and all(held)
    if min(len(passed), len(held)) < wanted / 2:
        skip_stalled(f"only {len(passed)} and {len(held)} of {wanted} waits could be judged")
