"""Requests that wait in the gateway because every engine has as many as it may have: a whole gateway, and engines that refuse one more."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest

from backends.simengine import FaultRule, SimEngine, SimSettings
from routing.load import BackendFacts
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tests.gateway_harness import Gateway, chat, gateway, stream
from tests.timing import stolen_time, until

CAP = 2
STRICT = SimSettings(models=("sim",), max_queued=CAP)
"""An engine that answers 503 to whatever is more than its cap: that one was sent too many would be seen."""


@contextlib.asynccontextmanager
async def capped(count: int = 1, **options: Any) -> AsyncIterator[tuple[list[SimEngine], Gateway]]:
    """A gateway before engines of two slots, none of which is kept free: with a headroom, a tenant that holds every slot gives one back
    to the first waiter of another, and these tests need slots that stay held."""
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(SimEngine(STRICT)) for _ in range(count)]
        backends = [{"id": f"e{at}", "url": engine.url, "max_in_flight": CAP} for at, engine in enumerate(engines)]
        yield engines, await stack.enter_async_context(gateway(pool={"backends": backends, "limit": {"kept_free": 0}}, **options))


async def ask(client: httpx.AsyncClient, tokens: int = 15, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    return await client.post("/v1/chat/completions", json=chat(max_tokens=tokens, **more), headers=headers)


def waiting(running: Gateway) -> int:
    return running.deps.queues["chat"].waiting


@contextlib.asynccontextmanager
async def busy(running: Gateway, engines: list[SimEngine], seconds: float = 30.0) -> AsyncIterator[None]:
    """Every engine is full with long requests of another tenant until the end of the block."""
    async with running.client("crane") as client:
        long = [asyncio.create_task(ask(client, int(seconds / 0.005))) for _ in range(CAP * len(engines))]
        await until(lambda: sum(engine.in_flight for engine in engines) == CAP * len(engines))
        try:
            yield
        finally:
            await _all_gone(long)


async def _all_gone(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for one in tasks:
        one.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def nothing_left(running: Gateway) -> bool:
    return not (waiting(running) or running.deps.pool_states.total() or running.open_holds or running.deps.budget.active)


async def test_no_engine_ever_has_more_than_it_may_and_everybody_is_answered_each_tenant_in_turn() -> None:
    async with capped(2) as (_, running), contextlib.AsyncExitStack() as stack:
        clients = {name: await stack.enter_async_context(running.client(name)) for name in ("acme", "bolt", "crane")}
        asked: list[str] = []
        answered: list[str] = []

        async def one(tenant: str) -> httpx.Response:
            text = f"{len(asked)} of {tenant} " * 500  # each its own, so that each is as much work as the others
            asked.append(tenant)
            reply = await ask(clients[tenant], messages=[{"role": "user", "content": text}])
            answered.append(tenant)
            return reply

        async with stolen_time() as stolen:
            first = [asyncio.create_task(one("acme")) for _ in range(20)]
            await until(lambda: waiting(running) == 16)
            others = [asyncio.create_task(one(name)) for name in ("bolt", "crane") for _ in range(5)]
            replies = await asyncio.gather(*first, *others)
        assert [reply.status_code for reply in replies] == [200] * 30
        assert all(record.attempts == 1 and not record.failed for record in running.records)
        assert sorted(record.queued for record in running.records) == [""] * 4 + ["served"] * 26
        assert answered[-4:] == ["acme"] * 4, "who came with fewer does not wait behind all of the other's"
        waits = [float(reply.headers["x-tidegate-queue-ms"]) for reply in replies]
        assert sorted(waits)[3] == 0 < sorted(waits)[4]
        assert all(record.overhead_s < 0.1 + stolen() for record in running.records), "waiting is nobody's overhead"
        await until(lambda: nothing_left(running))


@pytest.mark.req("R22")
async def test_a_caller_that_leaves_frees_its_place_at_once() -> None:
    async with capped() as (engines, running), busy(running, engines), running.client() as client:
        gone = asyncio.create_task(ask(client))
        stays = asyncio.create_task(stream(client))
        await until(lambda: waiting(running) == 2)
        async with stolen_time() as stolen:
            begun = time.monotonic()
            await _all_gone([gone])
            await until(lambda: waiting(running) == 1)
            assert time.monotonic() - begun < 0.2 + stolen()
        await running.recorded(1)
        assert (running.records[0].outcome, running.records[0].queued, running.records[0].closing) == ("client_gone", "gone", "release")
        await _all_gone([stays])
        await until(lambda: waiting(running) == 0)


async def test_who_waits_longer_than_it_may_is_refused_and_told_when_to_come_back() -> None:
    async with capped() as (engines, running), busy(running, engines), running.client() as client:
        async with stolen_time() as stolen:
            reply = await ask(client, headers={"x-tidegate-timeout-s": "0.2"})
        assert (reply.status_code, reply.json()["error"]["code"], reply.headers["x-should-retry"]) == (503, "overloaded", "true")
        assert 1 <= int(reply.headers["retry-after"]) <= 5
        assert "within the 0.2 s" in reply.json()["error"]["message"]
        assert running.records[-1].queued == "timed_out"
        assert 0.2 <= running.records[-1].queue_s < 0.6 + stolen()
        bad = await ask(client, headers={"x-tidegate-timeout-s": "soon"})
        assert (bad.status_code, bad.json()["error"]["code"]) == (400, "invalid_value")


async def test_what_would_wait_too_long_is_refused_before_anything_is_done_for_it() -> None:
    async with capped() as (_, running), running.client() as client, running.client("bolt") as other:
        tasks = [asyncio.create_task(ask(client)) for _ in range(30)]
        await until(lambda: running.deps.queues["chat"].state().tokens_per_s > 0)
        reply = await ask(other, headers={"x-tidegate-timeout-s": "0.05"})
        assert (reply.status_code, running.records[-1].queued) == (503, "too_long")
        assert "your turn would come in about" in reply.json()["error"]["message"]
        assert (running.records[-1].closing, running.records[-1].queue_s) == ("", 0.0), "no limit was asked about it"
        assert {reply.status_code for reply in await asyncio.gather(*tasks)} == {200}


async def test_the_line_is_bounded_for_each_tenant_and_in_all() -> None:
    queue = {"max_requests": 5, "max_requests_per_tenant": 3}
    async with capped(queue=queue) as (engines, running), busy(running, engines), running.client() as acme, running.client("bolt") as bolt:
        tasks = [asyncio.create_task(ask(acme)) for _ in range(3)]
        await until(lambda: waiting(running) == 3)
        refused = await ask(acme)
        assert (refused.status_code, running.records[-1].queued) == (503, "tenant_count")
        tasks += [asyncio.create_task(ask(bolt)) for _ in range(2)]
        await until(lambda: waiting(running) == 5)
        assert (await ask(bolt)).status_code == 503
        assert running.records[-1].queued == "count"
        await _all_gone(tasks)
        await until(lambda: waiting(running) == 0)


async def test_a_stream_that_waits_shows_signs_of_life_and_may_still_be_refused() -> None:
    impatient = {"x-tidegate-timeout-s": "0.3"}
    async with contextlib.AsyncExitStack() as stack:
        engines, running = await stack.enter_async_context(capped(engines={"heartbeat_s": 0.1}))
        client, other = [await stack.enter_async_context(running.client()) for _ in range(2)]
        client.headers.update(impatient)
        async with busy(running, engines):
            refused = asyncio.create_task(stream(client, max_tokens=3))
            served = asyncio.create_task(stream(other, max_tokens=3))
            seen = await refused
            assert (seen.status, seen.clean, seen.errors[0]["code"], seen.done) == (200, False, "overloaded", False)
            assert seen.raw.startswith(b":")
        seen = await served
        assert (seen.clean, seen.done, seen.raw.startswith(b":")) == (True, True, True)
        assert "overloaded" in {record.outcome for record in running.records}


async def test_who_still_waits_when_the_grace_is_over_is_told_that_the_gateway_goes() -> None:
    async with capped() as (engines, running), busy(running, engines), running.client() as client:
        tasks = [asyncio.create_task(ask(client)) for _ in range(3)]
        await until(lambda: waiting(running) == 3)
        running.deps.queues.stop()
        replies = await asyncio.gather(*tasks)
        assert {(reply.status_code, reply.json()["error"]["code"]) for reply in replies} == {(503, "server_shutting_down")}


async def test_a_backend_that_comes_lets_go_on_and_one_that_goes_for_good_ends_the_wait() -> None:
    async with capped() as (engines, running), busy(running, engines), running.client() as client:
        task = asyncio.create_task(ask(client))
        await until(lambda: waiting(running) == 1)
        running.deps.pool_states["chat"].load_table.set_facts("e0", BackendFacts(in_flight_cap=3))
        await until(lambda: waiting(running) == 0)  # it is sent now, and refused by the engine
        assert (await task).status_code == 503
        # the cap and not the limit: the backend's limiter sets the limit anew whenever a report or a reply comes
        running.deps.pool_states["chat"].load_table.set_facts("e0", BackendFacts(in_flight_cap=CAP))
        task = asyncio.create_task(ask(client))
        await until(lambda: waiting(running) == 1)
        running.deps.live.fleet = running.deps.live.fleet.with_backends("chat", ())
        reply = await task
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_backend")


async def test_classes_go_in_order_and_a_retry_goes_last_of_its_own() -> None:
    policy = {"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], "class": "critical", "expose_headers": True}
    async with capped(policies=(policy,)) as (engines, running), running.client() as client:
        answered: list[str] = []

        async def one(name: str, **headers: str) -> None:
            reply = await ask(client, headers={key.replace("_", "-"): value for key, value in headers.items()})
            assert reply.status_code == 200
            answered.append(name)

        async with busy(running, engines):
            tasks = []
            for name in ("batch", "default", "interactive", "critical"):
                for retry in ("1", "0"):
                    more = {"x_tidegate_class": name, "x_stainless_retry_count": retry}
                    tasks.append(asyncio.create_task(one(name + "'s retry" * int(retry), **more)))
                    await until(lambda: waiting(running) == len(tasks))
            assert running.deps.queues["chat"].state().waiting == (2, 2, 2, 2)
        await asyncio.gather(*tasks)
        order = [f"{name}{more}" for name in ("critical", "interactive", "default", "batch") for more in ("", "'s retry")]
        assert [set(answered[at : at + 2]) for at in range(0, 8, 2)] == [set(order[at : at + 2]) for at in range(0, 8, 2)]


async def test_a_tenant_over_its_soft_limit_goes_after_those_that_are_not() -> None:
    limits = [Limit(Scope(Level.TENANT, name), Meter.REQUESTS, Window.DAY, 100, soft=soft) for name, soft in (("acme", 1), ("bolt", 50))]
    async with capped(limits=limits) as (engines, running), running.client() as acme, running.client("bolt") as bolt:
        answered: list[str] = []

        async def one(client: httpx.AsyncClient, name: str, word: str) -> None:
            assert (await ask(client, headers={"x-tidegate-class": word})).status_code == 200
            answered.append(name)

        async with busy(running, engines):
            tasks = []
            for client, name, word in ((acme, "over", "default"), (bolt, "under", "default"), (acme, "over", "default"),
                                       (bolt, "under", "default"), (bolt, "batch", "batch"), (bolt, "batch", "batch")):  # fmt: skip
                tasks.append(asyncio.create_task(one(client, name, word)))
                await until(lambda: waiting(running) == len(tasks))
        await asyncio.gather(*tasks)
        assert answered == ["under"] * 2 + ["over"] * 2 + ["batch"] * 2, "a class outweighs a quota"


async def test_whether_it_waits_and_how_it_ended_can_be_asked() -> None:
    async with capped() as (engines, running), running.client() as client:
        async with busy(running, engines):
            tasks = [asyncio.create_task(ask(client, headers={"x-request-id": f"wait-{at}"})) for at in range(2)]
            await until(lambda: waiting(running) == 2)
            found = running.deps.decisions.find("wait-0", "acme")
            assert found is not None
            assert (found.queued, found.chosen) == ("waiting", "")
            assert found.contenders[0].lost.startswith("full: ")
        assert {reply.status_code for reply in await asyncio.gather(*tasks)} == {200}
        found = running.deps.decisions.find("wait-1", "acme")
        assert found is not None
        assert (found.queued, found.chosen, found.queued_s > 0.0) == ("served", "e0", True)


async def test_a_request_whose_first_engine_fails_goes_on_to_one_with_room_and_over_the_limit_only_where_there_is_none() -> None:
    async with capped(2, poll=False) as (engines, running), running.client() as client:
        for engine in engines:
            engine.inject([FaultRule("reset_before_headers")])
        replies = await asyncio.gather(*[ask(client) for _ in range(CAP * 2)])
        assert {reply.status_code for reply in replies} <= {200, 503}, "an engine that was sent one too many says so"
        assert sum(reply.status_code == 200 for reply in replies) >= CAP * 2 - 2
        engines[0].inject([FaultRule("reset_before_headers")])
        running.deps.pool_states["chat"].load_table.set_limit("e1", requests=1)
        assert (await ask(client)).status_code == 200, "with room elsewhere it costs nobody anything"
        await until(lambda: nothing_left(running))
