"""Laws of the placing step: who goes where at once, who waits, and that a place is given back on each way out."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from domain.faults import Kind
from domain.identity import Caller, KeyId, ProjectId, TenantId
from domain.priority import Class
from domain.usage import NO_USAGE
from gateway.http.edge.exchange import Exchange
from gateway.placement.place import Placement
from gateway.queue import refusals
from gateway.queue.waiter import WaitForecast
from gateway.request.choose import choose, choose_again, look_ahead
from gateway.request.guards_asked import applying_guards
from gateway.story import Story
from policies.compile import ModelRule
from routing.fair_tier import QueuedRequest
from tenancy.rights import EVERYTHING
from tests.placed import POOL, chat
from tests.request_path import CALLER, Engine, Path, caller, fault_of, turns

RULE = ModelRule("sim", POOL)
GRANT: Any = SimpleNamespace(rights=EVERYTHING)


class Busy:
    """A pool of one backend, and a request on it that leaves no room for another."""

    def __init__(self) -> None:
        self.path = Path(a=Engine())
        self.load_table = self.path.deps.pool_states[POOL].load_table
        self.load_table.set_limit("a", requests=1)
        self.charge = self.load_table.charge("a", 10.0, 20.0, self.path.worker.now)
        self.queue = self.path.deps.queues[POOL]

    def choose(self, story: Story, exchange: Exchange | None = None) -> "asyncio.Task[Placement]":
        return asyncio.create_task(choose(chat("hello"), RULE, exchange or caller()[0], story, self.path.deps))

    def free(self) -> None:
        self.load_table.release(self.charge)

    @property
    def in_flight(self) -> int:
        return self.path.in_flight()["a"]


async def test_a_request_goes_on_at_once_where_there_is_room_and_its_decision_is_kept() -> None:
    path = Path(a=Engine(), b=Engine())
    story = path.story()
    placement = await choose(chat("hello"), RULE, caller()[0], story, path.deps)
    assert {backend.id for backend in placement.route.backends} == {"a", "b"}
    assert (story.placed.pool, story.placed.route, story.placed.queued, story.queue_s) == (POOL, placement.route, "", 0.0)
    kept = path.deps.decisions.find("req-own")
    assert kept is not None
    assert (kept.request_id, kept.caller_request_id, kept.pool) == ("req-own", "theirs", POOL)
    assert path.deps.decisions.find("theirs", "acme") == kept
    assert path.in_flight() == {"a": 0, "b": 0}, "a decision reserves nothing"


async def test_where_nobody_is_up_nobody_waits() -> None:
    path = Path(a=Engine())
    path.deps.live.fleet = path.deps.live.fleet.with_backends(POOL, ())
    fault = await fault_of(choose(chat("hello"), RULE, caller()[0], path.story(), path.deps))
    assert (fault.kind, path.deps.queues[POOL].waiting) == (Kind.NO_BACKEND, 0)


async def test_whoever_waited_has_its_place_when_it_is_woken_and_its_wait_is_known() -> None:
    busy = Busy()
    story = busy.path.story()
    task = busy.choose(story)
    await turns()
    assert (busy.queue.waiting, story.placed.queued) == (1, "waiting")
    busy.path.worker.now += 2.5
    busy.free()
    placement = await task
    assert placement.reserved is not None
    assert (busy.queue.waiting, busy.in_flight) == (0, 1)
    assert (story.queue_s, story.placed.queued) == (2.5, refusals.SERVED)
    assert story.placed.decision is not None
    assert (story.placed.decision.queued, story.placed.decision.queued_s) == (refusals.SERVED, 2.5)
    placement.give_back()
    assert busy.in_flight == 0


async def test_the_queue_learns_the_real_usage_of_a_request_that_waited() -> None:
    """A request that used nothing costs its tenant no turn: its next request goes before that of a tenant that came later."""
    busy = Busy()
    umbra = Caller(TenantId("umbra"), ProjectId("default"), KeyId("key"))
    first, second, other = busy.path.story(), busy.path.story(), busy.path.story(caller=umbra)
    task, *waiting = [busy.choose(story) for story in (first, second, other)]
    await turns()
    busy.free()
    placement = await task
    assert first.placed.on_used is not None
    first.placed.on_used(NO_USAGE)
    placement.give_back()
    await turns()
    assert [task.done() for task in waiting] == [True, False]
    waiting[1].cancel()
    (await waiting[0]).give_back()


async def test_a_caller_that_leaves_while_it_waits_leaves_the_queue() -> None:
    busy = Busy()
    exchange, _ = caller()
    story = busy.path.story()
    task = busy.choose(story, exchange)
    await turns()
    exchange.connection_gone()
    assert (await fault_of(task)).kind is Kind.CLIENT_GONE
    assert (busy.queue.waiting, busy.in_flight, story.placed.queued) == (0, 1, refusals.GONE)
    assert story.placed.on_used is None, "it was charged nothing"


async def test_a_request_cancelled_while_it_waits_leaves_the_queue() -> None:
    busy = Busy()
    task = busy.choose(busy.path.story())
    await turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    busy.free()
    await turns()
    assert (busy.queue.waiting, busy.in_flight) == (0, 0)


async def test_a_request_cancelled_between_its_turn_and_hearing_of_it_gives_its_place_back() -> None:
    busy = Busy()
    task = busy.choose(busy.path.story())
    await turns()
    busy.free()
    await turns(1)
    assert (busy.queue.waiting, busy.in_flight) == (0, 1), "its turn has come"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert busy.in_flight == 0


async def test_a_pool_that_empties_refuses_whoever_waits() -> None:
    busy = Busy()
    story = busy.path.story()
    task = busy.choose(story)
    await turns()
    busy.path.deps.live.fleet = busy.path.deps.live.fleet.with_backends(POOL, ())
    busy.queue.sweep(busy.path.worker.now)
    assert (await fault_of(task)).kind is Kind.NO_BACKEND
    assert (busy.queue.waiting, story.placed.queued) == (0, refusals.NOBODY)


async def test_the_time_on_a_backend_that_a_request_was_pulled_back_from_is_waiting_as_well() -> None:
    path = Path(a=Engine())
    now = path.worker.now
    place = QueuedRequest("acme", int(Class.DEFAULT), False, 10, now + 60.0, now, 10, 0, back=True)
    story = path.story(pulled_back=True, queue_place=place, queue_s=1.0)
    story.dispatched_at = now
    path.worker.now += 3.0
    ask = chat("hello")
    placement = await choose_again(ask, await path.worker.placed(ask), caller()[0], story, path.deps)
    assert (story.queue_s, story.dispatched_at) == (4.0, None)
    assert story.placed.queue_place is place, "it keeps its age"
    assert path.in_flight() == {"a": 1}
    placement.give_back()
    assert path.in_flight() == {"a": 0}


async def test_whoever_left_meanwhile_gets_no_other_turn() -> None:
    path = Path(a=Engine())
    exchange, _ = caller()
    exchange.gone = True
    ask = chat("hello")
    fault = await fault_of(choose_again(ask, await path.worker.placed(ask), exchange, path.story(), path.deps))
    assert (fault.kind, path.deps.queues[POOL].waiting) == (Kind.CLIENT_GONE, 0)


async def test_what_would_wait_in_vain_is_refused_before_its_prompt_is_read() -> None:
    busy = Busy()
    task = busy.choose(busy.path.story())
    await turns()
    late = busy.path.story(asked_wait_s=0.0)
    exchange, _ = caller()

    async def ahead(story: Story) -> None:
        look_ahead(chat("hello"), RULE, GRANT, exchange, story, busy.path.deps)

    fault = await fault_of(ahead(late))
    assert (fault.kind, late.placed.queued, late.placed.pool) == (Kind.OVERLOADED, refusals.TOO_LONG, POOL)
    await ahead(busy.path.story())  # it may wait
    task.cancel()
    await turns()
    await ahead(busy.path.story(asked_wait_s=0.0))  # nobody waits, so neither would it


async def test_the_callers_own_limit_on_its_wait_is_kept() -> None:
    path = Path(a=Engine())
    story = path.story()
    exchange, _ = caller(x_tidegate_timeout_s=b"1.5")
    ask, rule = look_ahead(chat("hello"), RULE, GRANT, exchange, story, path.deps)
    assert (rule, story.asked.asked_wait_s) == (RULE, 1.5)
    assert ask.model == "sim"


class Forecasts:
    """A queue that says of every request whether it would wait."""

    waiting = 0
    token_s = 2.5e-5

    def __init__(self, *, waits: bool) -> None:
        self.answer = WaitForecast(waits, 9.0 if waits else 0.0)

    def forecast(self, _entry: QueuedRequest, _may_s: float) -> WaitForecast:
        return self.answer


@pytest.mark.parametrize(
    ("asked_for", "model", "applying"),
    [
        ((), "small", ["always", "of-small"]),
        (("extra",), "small", ["always", "extra", "of-small"]),
        (("of-sim",), "sim", ["always", "of-sim"]),
    ],
)
async def test_a_degraded_request_has_the_guard_rules_of_the_model_that_answers(
    asked_for: tuple[str, ...], model: str, applying: list[str]
) -> None:
    def guards(*rules: tuple[str, bool]) -> dict[str, Any]:
        return {"rules": [{"id": name, "kind": "words", "mode": "block", "words": ["x"], "default_on": on} for name, on in rules]}

    policy = {
        "models": [{"name": "sim", "pool": POOL}, {"name": "small", "pool": "other"}],
        "degrade": [{"model": "small"}],
        "guards": guards(("always", True), ("extra", False)),
        "for_model": {"sim": {"guards": guards(("of-sim", False))}, "small": {"guards": guards(("of-small", True))}},
    }
    path = Path(policy=policy, a=Engine())
    queues: Any = {POOL: Forecasts(waits=True), "other": Forecasts(waits=False)}
    ask = structs.replace(chat("hello"), guards=asked_for)
    story, (exchange, _) = path.story(), caller()
    story.asked.guards = applying_guards(path.worker.policy, "sim", "", ask, CALLER, {})
    _, rule = look_ahead(ask, path.worker.policy.models["sim"], GRANT, exchange, story, replace(path.deps, queues=queues))
    assert (rule.name, story.asked.model) == (model, model)
    assert story.asked.guards is not None
    assert [one.id for one in story.asked.guards.rules] == applying
