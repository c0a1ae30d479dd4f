import asyncio
import json
from typing import Any

import msgspec
import pytest

from backends.dialects import DIALECTS
from backends.lora.loader import PoolAdapters
from backends.lora.residency import Adapter
from domain.ask import Ask, Endpoint
from gateway.http.openai import interpret
from gateway.placement.in_flight import InFlight, InFlightPair, in_flight_on
from routing.disaggregation import Shared, Split
from routing.fleet import Backend
from routing.prefix.trust import CHECKED_PROMPTS, EVENT_LAG_S
from tests.placed import POOL, Worker, chat


def ask_of(messages: list[dict[str, Any]]) -> Ask:
    return interpret(Endpoint.CHAT, json.dumps({"model": "sim", "messages": messages, "stream": True}).encode())


def state(worker: Worker) -> tuple[list[float], list[float], list[float]]:
    load_table = worker.load_table
    load_table.settle()
    return list(load_table.requests), list(load_table.queue_tokens), list(load_table.kv_tokens)


@pytest.mark.req("ROUTERS-29")
async def test_each_part_is_taken_back_once_however_it_ends() -> None:
    worker = Worker("a", "b")
    before = state(worker)
    placement = await worker.placed(chat())
    for begun in (True, False):
        in_flight = InFlight(placement, "a", worker.deps, stream=True)
        assert state(worker) != before
        if begun:
            in_flight.begun()
            in_flight.begun()
        in_flight.over()
        in_flight.over()
        assert state(worker) == before
    assert worker.deps.pool_states.total() == 0


@pytest.mark.req("ROUTERS-14")
async def test_the_prompt_counts_as_there_from_its_dispatch_and_not_after_a_failed_one() -> None:
    worker = Worker("a", "b")
    placement = await worker.placed(chat())
    blocks = len(placement.request.chain)
    assert worker.held(placement, "a") == 0
    in_flight = InFlight(placement, "a", worker.deps, stream=True)
    assert (worker.held(placement, "a"), worker.held(placement, "b")) == (blocks, 0)
    in_flight.over()
    assert worker.held(placement, "a") == 0
    good = InFlight(placement, "a", worker.deps, stream=True)
    good.begun()
    good.over()
    worker.now += 60
    assert worker.held(placement, "a") == blocks


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 5000}}


async def test_a_conversation_about_an_image_finds_the_engine_that_has_it_though_its_events_tell_nothing_of_it() -> None:
    worker = Worker("a", "b")
    pool_states = worker.deps.pool_states
    for backend in "ab":
        pool_states.use_events(backend)
    turns = [{"role": "user", "content": [{"type": "text", "text": "the sea " * 500}, IMAGE]}]
    first = await worker.placed(ask_of(turns))
    assert not first.request.by_tokens
    in_flight = InFlight(first, "b", worker.deps, stream=True)
    in_flight.begun()
    in_flight.over()
    worker.now += 60
    turns += [{"role": "assistant", "content": "a ship " * 60}, {"role": "user", "content": "and now?"}]
    then = await worker.placed(ask_of(turns))
    assert (then.held_tokens("a"), then.route.backends[0].id) == (0.0, "b")
    assert then.circumstances.match.blocks["b"] == len(first.request.chain) > 10
    for number in range(2 * CHECKED_PROMPTS):  # no event tells of them, which says nothing against the events
        InFlight(then, "b", worker.deps, stream=True).begun()
        pool_states.events("b", connected=True, stored=number, now=worker.now + 2 * EVENT_LAG_S)
    assert pool_states.is_exact("b")


async def test_a_first_token_takes_the_prompt_out_of_the_queue() -> None:
    worker = Worker("a", "b")
    placement = await worker.placed(chat())
    first = InFlight(placement, "a", worker.deps, stream=True)
    second = InFlight(placement, "a", worker.deps, stream=True)
    assert first.queued == 0
    assert second.queued == placement.request.prompt_tokens
    first.begun()
    assert first.batch_at_begin[0] == 1
    third = InFlight(placement, "a", worker.deps, stream=True)
    assert third.queued < 2 * placement.request.prompt_tokens
    for one in (first, second, third):
        one.over()


async def test_a_plain_reply_s_prompt_leaves_the_queue_after_what_it_should_take() -> None:
    worker = Worker("a", "b")
    placement = await worker.placed(chat(stream=False))
    asked: list[float] = []
    loop = asyncio.get_running_loop()

    class Loop:
        def call_later(self, delay: float, callback: object) -> asyncio.TimerHandle:
            asked.append(delay)
            return loop.call_later(1e-9, callback)  # type: ignore[arg-type]  # a callable

    object.__setattr__(worker.deps, "loop", Loop())
    in_flight = InFlight(placement, "a", worker.deps, stream=False)
    assert worker.load_table.queue_tokens[0] > 0
    await asyncio.sleep(0)
    while worker.load_table.queue_tokens[0]:
        await asyncio.sleep(0)
    assert 0.05 < asked[0] < 1.0
    in_flight.over()
    assert worker.load_table.requests[0] == 0


async def test_the_conversation_is_where_its_last_attempt_went() -> None:
    worker = Worker("a", "b")
    placement = await worker.placed(chat(), session="talk")
    for backend in ("b", "a"):
        InFlight(placement, backend, worker.deps, stream=True).over()
        assert worker.deps.pool_states["chat"].sessions.holder(placement.request.session) == backend


async def test_a_request_that_waited_has_one_place_which_its_attempt_takes_over() -> None:
    worker = Worker("a", "b")
    before = state(worker)
    placement = await worker.placed(chat())
    first = placement.route.backends[0].id
    given = InFlight(placement, first, worker.deps, stream=True)
    let_through = msgspec.structs.replace(placement, reserved=given)
    assert in_flight_on(let_through, first, worker.deps, stream=True) is given
    assert worker.deps.pool_states.total() == 1
    given.over()
    another = in_flight_on(let_through, first, worker.deps, stream=True)
    assert another is not given, "one that is over stakes nothing any more"
    elsewhere = in_flight_on(let_through, "b" if first == "a" else "a", worker.deps, stream=True)
    another.over()
    elsewhere.over()
    assert state(worker) == before


async def test_a_pair_is_staked_on_both_backends_and_given_back_together() -> None:
    worker = Worker("a", "b")
    placement = await worker.placed(chat())
    shared = Shared(Split((), (), "", 100), placement.request, worker.load_table)
    pair = InFlightPair(shared, Backend("a", "chat"), Backend("b", "chat"), 1.0)
    assert [worker.deps.pool_states.in_flight(one) for one in "ab"] == [1, 1]
    pair.over()
    pair.over()
    assert worker.deps.pool_states.total() == 0


async def test_a_first_token_teaches_the_backends_limit_once_and_an_adapters_not_at_all() -> None:
    worker = Worker("a", "b")
    seen: list[tuple[float, float, float]] = []
    placement = await worker.placed(chat())
    worker.deps.loras.pool_adapters[POOL] = PoolAdapters({}, 2, DIALECTS["vllm"])
    for adapter in (None, Adapter("bot", "", "")):
        in_flight = InFlight(msgspec.structs.replace(placement, adapter=adapter), "a", worker.deps, stream=True)
        in_flight.limiter = Noted(seen)  # type: ignore[assignment]  # one method of it is called
        worker.now += 0.5
        in_flight.begun()
        in_flight.begun()
        in_flight.over()
    assert seen == [(placement.request.prompt_tokens, 0, 0.5)]


async def test_its_adapter_is_needed_there_from_the_decision_to_the_end() -> None:
    worker = Worker("a", "b")
    worker.deps.loras.pool_adapters[POOL] = PoolAdapters({}, 1, DIALECTS["vllm"])
    bot = Adapter("bot", "ab" * 32, "/adapters/bot")
    placement = msgspec.structs.replace(await worker.placed(chat()), adapter=bot)
    first, second = (InFlight(placement, "a", worker.deps, stream=True) for _ in range(2))
    adapters = worker.deps.loras.adapters_on(POOL, "a")
    for in_flight in (first, first, second):
        assert adapters.needed(bot.served)
        in_flight.over()
    assert adapters.idle


async def test_a_plain_reply_that_should_have_begun_no_longer_counts_as_being_computed() -> None:
    worker = Worker("a")
    in_flight = InFlight(await worker.placed(chat("x" * 400)), "a", worker.deps, stream=False)
    assert worker.load_table.unbegun("a") > 0
    worker.now += 5.0
    worker.deps.pool_states.limits.tick(worker.now)
    assert worker.load_table.unbegun("a") == 0
    in_flight.over()


class Noted:
    def __init__(self, seen: list[tuple[float, float, float]]) -> None:
        self.began = lambda *sample: seen.append(sample)


async def test_its_tenant_has_one_request_more_for_as_long_as_it_runs() -> None:
    worker = Worker("a", "b")
    placement = await worker.placed(chat())
    tenant, tenant_shares = placement.request.tenant, placement.pool_state.tenant_shares
    tenant_shares.reserved_share = 0.5
    tenant_shares.request_sent("other")
    stakes = [InFlight(placement, "a", worker.deps, stream=True) for _ in range(5)]
    assert tenant_shares.usable_share(tenant, worker.now) == 0.5
    for in_flight in stakes[1:]:
        in_flight.over()
        in_flight.over()
    assert tenant_shares.usable_share(tenant, worker.now) == 1.0
    stakes[0].over()
