"""Who a canary answers, what its callers see of it, and what a shadow phase costs nobody."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import pytest

from backends.simengine import FaultRule, SimEngine, SimSettings
from gateway.telemetry.access_log import line_of
from policies.rollout.in_force import ActiveRollouts, Running
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tests.gateway_harness import Gateway, chat, gateway, no_engine, stream

pytestmark = pytest.mark.slow

POLICY: Mapping[str, Any] = {"tenant": "*", "models": [{"name": "chat", "pool": "old"}], "expose_headers": True, "choose_arm": True}
HALF = Running("ro_1", "v2", "old", "new", 0.5, 0.0, counting=True, interval_s=10.0)
SHADOW = Running("ro_1", "v2", "old", "new", 0.0, 1.0, counting=True, interval_s=10.0, max_shadows=4)


@contextlib.asynccontextmanager
async def served(
    running: Running, canary_url: str | None = None, faults: tuple[FaultRule, ...] = (), **options: Any
) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient, SimEngine]]:
    async with contextlib.AsyncExitStack() as stack:
        old = await stack.enter_async_context(SimEngine(SimSettings(models=("old",))))
        new = await stack.enter_async_context(SimEngine(SimSettings(models=("new",), faults=faults)))
        urls = {"old": old.url, "new": canary_url or new.url}
        pools = [{"name": n, "model": n, "revision": f"r-{n}", "backends": [{"id": f"{n}-1", "url": url}]} for n, url in urls.items()]
        front = await stack.enter_async_context(gateway(pools=pools, policies=[POLICY], **options))
        front.deps.live.rollouts = ActiveRollouts({"old": running})
        yield front, await stack.enter_async_context(front.client()), new


async def ask(client: httpx.AsyncClient, arm: str = "", **more: Any) -> httpx.Response:
    headers = {"x-tidegate-rollout": arm} if arm else {}
    return await client.post("/v1/chat/completions", json=chat(**{"model": "chat", "max_tokens": 2, **more}), headers=headers)


async def test_end_users_stay_on_their_arm_and_see_one_model() -> None:
    async with served(HALF) as (front, client, _):
        arms: Counter[str] = Counter()
        for n in range(30):
            replies = [await ask(client, user=f"caller-{n}") for _ in range(2)]
            pools = {reply.headers["x-tidegate-pool"] for reply in replies}
            assert len(pools) == 1
            assert {reply.json()["model"] for reply in replies} == {"chat"}
            arms.update(pools)
        records = await front.recorded(60)
    assert 4 <= arms["new"] <= 26  # 15 of 30, give or take four standard deviations
    for record in records:
        assert record.dealt is not None
        assert record.dealt.counted
        assert (record.pool, record.revision) == (("new", "r-new") if record.dealt.arm.value == "canary" else ("old", "r-old"))
    assert b'"rollout":"v2","arm":"' in line_of(records[0])


async def test_a_tester_chooses_the_arm_and_is_not_counted() -> None:
    async with served(HALF) as (front, client, _):
        for arm, pool in (("canary", "new"), ("baseline", "old")):
            assert (await ask(client, arm)).headers["x-tidegate-pool"] == pool
        refused = await ask(client, "green")
        records = await front.recorded(3)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_value")
    assert [one.dealt is not None and one.dealt.counted for one in records] == [False, False, False]


async def test_nobody_notices_that_a_canary_is_away() -> None:
    async with no_engine() as nowhere, served(HALF, canary_url=nowhere) as (front, client, _):
        replies = [await ask(client, user=f"caller-{n}") for n in range(20)]
        records = await front.recorded(20)
    assert {(reply.status_code, reply.headers["x-tidegate-pool"]) for reply in replies} == {(200, "old")}
    assert 2 <= sum(one.dealt is not None and one.dealt.away for one in records) <= 18


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_shadow_is_answered_for_nobody_and_costs_nobody(streamed: bool) -> None:
    limit = Limit(Scope(Level.TENANT, "acme"), Meter.REQUESTS, Window.DAY, 6)
    async with served(SHADOW, limits=[limit]) as (front, client, _):
        for _ in range(3):
            if streamed:
                assert (await stream(client, model="chat", max_tokens=4)).done
            else:
                assert (await ask(client)).headers["x-tidegate-pool"] == "old"
        records = list(await front.recorded(6))
        left = int((await ask(client)).headers["x-ratelimit-remaining-requests"])
    copies = [one for one in records if one.shadow]
    assert [one.pool for one in copies] == ["new"] * 3
    assert all(one.outcome == "ok" and one.usage.completion_tokens for one in copies)
    assert all(not one.closing and not one.cost_nanousd for one in copies), "no hold was opened for it"
    assert left == 2, "four of six: the copies were not counted"


async def test_shadows_are_bounded_and_a_canary_that_hangs_or_fails_holds_nobody_up() -> None:
    async with served(SHADOW, faults=(FaultRule("frozen"),)) as (front, client, _):
        replies = await asyncio.gather(*(ask(client) for _ in range(12)))
        assert {reply.status_code for reply in replies} == {200}
        assert len(front.deps.shadows["ro_1"]) == 4
        assert not [one for one in front.records if one.shadow]
        await asyncio.gather(*(task for task in front.deps.shadows["ro_1"] if task.cancel()), return_exceptions=True)
