"""Laws of the forwarding step: what is tried, what the caller sees of it, and that every reservation is given back."""

import asyncio
from typing import Any

import msgspec
import pytest

from backends.health import Health, HealthState
from backends.ports import Loss, ReplySink
from domain.ask import Endpoint
from domain.faults import NEVER, Kind
from domain.priority import Class
from gateway.http.edge.exchange import Exchange
from gateway.http.edge.relay import ReplyRelay
from gateway.http.openai import interpret
from gateway.placement.in_flight import InFlight
from gateway.queue.deadlines import DEFAULT_WAIT_S
from gateway.queue.preempt import Preempted
from gateway.request.forward import forward
from gateway.request.settle import refuse
from gateway.story import Story
from tests.placed import chat
from tests.request_path import EVENT, LAST, Engine, Path, breaks_off, caller, fault_of, is_silent, only, resets, turns


async def to(path: Path, *ids: str, exchange: Exchange | None = None, story: Story | None = None, **fields: Any) -> bool:
    """Forward a short chat to these candidates, in this order."""
    ask = chat("hello", **fields)
    placement = only(await path.worker.placed(ask), *ids)
    return await forward(ask, placement, exchange or caller()[0], story or path.story(), path.deps)


async def test_an_answer_is_relayed_and_the_load_is_given_back() -> None:
    path = Path(a=Engine(), b=Engine())
    story = path.story()
    exchange, connection = caller()
    assert await to(path, "a", "b", exchange=exchange, story=story)
    assert connection.out.count(b"HTTP/1.1 200") == 1
    assert EVENT in connection.out
    assert LAST in connection.out
    assert (story.settled.status, story.tried.backend, story.tried.attempts, story.attempt.events) == (200, "a", 1, 2)
    assert path.calls() == {"a": 1, "b": 0}
    assert path.in_flight() == {"a": 0, "b": 0}
    assert path.deps.watch.relays() == []


@pytest.mark.req("R11")
async def test_another_backend_is_tried_before_the_first_byte() -> None:
    path = Path(a=Engine(resets), b=Engine())
    story = path.story()
    assert await to(path, "a", "b", story=story)
    assert (story.tried.failed, story.tried.backend, story.tried.attempts) == (("a",), "b", 2)
    assert path.in_flight() == {"a": 0, "b": 0}
    assert path.deps.budget.retrying == 0


@pytest.mark.req("R11")
async def test_no_other_backend_is_tried_after_the_first_byte() -> None:
    path = Path(a=Engine(breaks_off), b=Engine())
    fault = await fault_of(to(path, "a", "b"))
    assert (fault.kind, path.calls()) == (Kind.BROKEN_STREAM, {"a": 1, "b": 0})


@pytest.mark.req("R11")
async def test_no_other_backend_is_tried_where_the_budget_is_spent_and_the_caller_is_told_not_to_retry() -> None:
    path = Path(a=Engine(resets), b=Engine())
    path.deps.budget.saved = 0.0
    fault = await fault_of(to(path, "a", "b"))
    assert (fault.retry, path.calls()) == (NEVER, {"a": 1, "b": 0})


async def test_no_third_backend_is_tried() -> None:
    path = Path(a=Engine(resets), b=Engine(resets), c=Engine())
    await fault_of(to(path, "a", "b", "c"))
    assert path.calls() == {"a": 1, "b": 1, "c": 0}
    assert path.deps.budget.retrying == 0


async def test_a_candidate_that_has_left_meanwhile_is_skipped() -> None:
    path = Path(a=Engine(), b=Engine(), c=Engine())

    def b_leaves(sink: Any) -> None:
        del path.deps.upstreams["b"]
        resets(sink)

    path.engines["a"].scripts = (b_leaves,)
    story = path.story()
    assert await to(path, "a", "b", "c", story=story)
    assert (story.tried.backend, path.calls()) == ("c", {"a": 1, "b": 0, "c": 1})


async def test_a_first_candidate_that_has_left_is_not_called() -> None:
    path = Path(a=Engine(), b=Engine())
    del path.deps.upstreams["a"]
    story = path.story()
    assert await to(path, "a", "b", story=story)
    assert path.calls() == {"a": 0, "b": 1}


async def test_each_attempt_has_facts_of_its_own() -> None:
    def reports_and_fails(sink: Any) -> None:
        sink.on_head(200, {b"content-type": b"text/event-stream"})
        sink.on_data(b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":9}}\n\n')
        resets(sink)

    path = Path(a=Engine(reports_and_fails), b=Engine())
    story = path.story()
    assert await to(path, "a", "b", story=story)
    assert (story.attempt.usage, story.attempt.events) == (None, 2), "the engine that answered reported nothing"


async def test_nothing_is_sent_for_a_caller_that_has_left_and_its_place_is_given_back() -> None:
    path = Path(a=Engine())
    exchange, _ = caller()
    exchange.gone = True
    ask = chat("hello")
    placement = await path.worker.placed(ask)
    reserved = InFlight(placement, "a", path.deps, stream=True)
    placement = msgspec.structs.replace(placement, reserved=reserved)
    assert path.in_flight() == {"a": 1}
    fault = await fault_of(forward(ask, placement, exchange, path.story(), path.deps))
    assert (fault.kind, path.calls(), path.in_flight()) == (Kind.CLIENT_GONE, {"a": 0}, {"a": 0})


async def test_the_load_that_a_waiter_was_let_through_with_is_the_attempts_own() -> None:
    path = Path(a=Engine(is_silent))
    ask = chat("hello")
    placement = await path.worker.placed(ask)
    placement = msgspec.structs.replace(placement, reserved=InFlight(placement, "a", path.deps, stream=True))
    task = asyncio.create_task(forward(ask, placement, caller()[0], path.story(), path.deps))
    await turns()
    assert path.in_flight() == {"a": 1}
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert path.in_flight() == {"a": 0}


async def test_a_cancelled_attempt_ends_its_call_and_gives_its_load_back() -> None:
    path = Path(a=Engine(is_silent), b=Engine())
    task = asyncio.create_task(to(path, "a", "b"))
    await turns(5)
    assert path.in_flight() == {"a": 1, "b": 0}
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert path.engines["a"].flights[0].aborted
    assert path.in_flight() == {"a": 0, "b": 0}
    assert path.deps.watch.relays() == []


async def test_a_request_that_gave_its_place_to_a_more_urgent_one_is_to_wait_again() -> None:
    def is_pulled_back(sink: Any) -> None:
        assert isinstance(sink, ReplyRelay)
        sink.end_with(Preempted(Class.CRITICAL))

    path = Path(a=Engine(is_pulled_back), b=Engine())
    story = path.story()
    assert not await to(path, "a", "b", story=story)
    assert (story.tried.failed, path.calls(), path.in_flight()) == ((), {"a": 1, "b": 0}, {"a": 0, "b": 0})


def refuses(sink: Any) -> None:
    """No connection comes about."""
    sink.on_loss(Loss.CONNECT, "refused")


def watched(**engines: Engine) -> Path:
    """A path whose backends have a Health, so that those that cannot be reached are known."""
    path = Path(**engines)
    for name in engines:
        path.deps.live.health[name] = Health(10.0)
        path.deps.live.health[name].standing = HealthState.UP
    return path


@pytest.mark.req("GATEWAYS-19")
async def test_a_request_that_no_engine_took_is_to_wait_again_with_the_deadline_it_had() -> None:
    path = watched(a=Engine(refuses), b=Engine(refuses))
    path.deps.budget.saved = 1.0
    story = path.story()
    path.worker.now += 3.0
    assert not await to(path, "a", "b", story=story)
    assert set(path.deps.live.contacts.lost) == {"a", "b"}
    assert (story.placed.returned, path.in_flight(), path.deps.budget.retrying) == (2, {"a": 0, "b": 0}, 0)
    place = story.placed.queue_place
    assert place is not None
    assert place.deadline == story.body_at + DEFAULT_WAIT_S[Class.DEFAULT]
    path.deps.budget.saved = path.deps.budget.arrived = 0
    path.deps.live.contacts.found("a")
    path.deps.live.contacts.found("b")
    path.worker.now = place.deadline
    assert (await fault_of(to(path, "a", story=story))).kind is Kind.CONNECT_FAILED


@pytest.mark.req("GATEWAYS-19", "R11")
async def test_a_request_whose_connection_broke_returns_once_and_within_the_budget() -> None:
    path = watched(a=Engine(resets))
    path.deps.budget.saved, path.deps.budget.arrived = 2.0, 0
    story = path.story()
    assert not await to(path, "a", story=story)
    assert (path.deps.budget.saved, story.tried.failed) == (1.0, ("a",))
    path.deps.live.contacts.found("a")
    assert (await fault_of(to(path, "a", story=story))).kind is Kind.RESET_BEFORE_REPLY
    path.deps.live.contacts.found("a")
    path.deps.budget.saved = 0.0
    fault = await fault_of(to(path, "a"))
    assert (fault.kind, fault.retry) == (Kind.RESET_BEFORE_REPLY, NEVER)


@pytest.mark.req("GATEWAYS-19", "R11")
async def test_where_another_engine_may_be_reached_a_return_needs_the_budget() -> None:
    path = watched(a=Engine(refuses), b=Engine())
    assert not await to(path, "a")
    path.deps.live.contacts.found("a")
    path.deps.budget.saved, path.deps.budget.arrived = 0.5, 0
    assert (await fault_of(to(path, "a"))).kind is Kind.CONNECT_FAILED


@pytest.mark.req("GATEWAYS-19")
async def test_a_refused_connection_costs_no_budget_where_no_engine_can_be_reached() -> None:
    path = watched(a=Engine(refuses))
    path.deps.budget.saved = path.deps.budget.arrived = 0
    story = path.story()
    for attempts in (1, 2, 3):
        assert not await to(path, "a", story=story)
        assert story.placed.returned == attempts
        path.deps.live.contacts.found("a")


@pytest.mark.req("GATEWAYS-19")
async def test_nothing_returns_after_its_first_byte_or_without_its_caller() -> None:
    path = watched(a=Engine(breaks_off))
    assert (await fault_of(to(path, "a"))).kind is Kind.BROKEN_STREAM
    exchange = caller()[0]

    def refuses_when_the_caller_has_left(sink: Any) -> None:
        exchange.gone = True
        refuses(sink)

    path = watched(a=Engine(refuses_when_the_caller_has_left))
    story = path.story()
    await fault_of(to(path, "a", exchange=exchange, story=story))
    assert story.placed.returned == 0


@pytest.mark.parametrize("broken", [False, True])
async def test_a_long_plain_reply_streams_and_ends_short_when_it_breaks(broken: bool) -> None:
    body = b'{"object":"list","data":[{"index":0,"embedding":[%b]}],"model":"sim"}' % b",".join([b"0.25"] * 400_000)

    def sends(sink: ReplySink) -> None:
        sink.on_head(200, {b"content-type": b"application/json"})
        for at in range(0, len(body) - 100_000 * broken, 65_536):
            sink.on_data(body[at : at + 65_536])
        if broken:
            sink.on_loss(Loss.CUT, "cut")
        else:
            sink.on_end()

    path = Path(a=Engine(sends), b=Engine())
    story = path.story(stream=False)
    exchange, connection = caller(path="/v1/embeddings")
    ask = interpret(Endpoint.EMBEDDINGS, b'{"model":"sim","input":"a"}')
    placement = only(await path.worker.placed(ask), "a", "b")
    if not broken:
        assert await forward(ask, placement, exchange, story, path.deps)
        assert connection.out.endswith(b"0\r\n\r\n")
        return
    fault = await fault_of(forward(ask, placement, exchange, story, path.deps))
    refuse(fault, exchange, story, path.deps)
    assert path.calls() == {"a": 1, "b": 0}, "its first bytes were sent"
    assert not connection.out.endswith(b"0\r\n\r\n")
    assert b"data: " not in connection.out
    assert connection.closed


async def test_a_backend_whose_account_has_no_credit_is_named_in_the_log_and_another_one_answers() -> None:
    def refuses(sink: Any) -> None:
        sink.on_head(429, {b"content-type": b"application/json", b"retry-after": b"60"})
        sink.on_data(b'{"error":{"message":"You exceeded your current quota","code":"insufficient_quota"}}')
        sink.on_end()

    path = Path(a=Engine(refuses), b=Engine())
    story = path.story()
    assert await to(path, "a", "b", story=story)
    assert (story.tried.failed, story.tried.backend) == (("a",), "b")
    fault = await fault_of(to(path, "a"))
    assert (fault.kind, fault.retry.should) == (Kind.ENGINE_ERROR, False)
    assert "no credit" in (fault.detail or "")


async def test_a_refusal_tells_no_other_names_of_the_deployment() -> None:
    def refuses(sink: Any) -> None:
        sink.on_head(400, {b"content-type": b"application/json"})
        sink.on_data(b'{"error":{"message":"There is no template for globex among globex and a."}}')
        sink.on_end()

    path = Path(a=Engine(refuses), b=Engine())
    path.deps.live.names["b"] = frozenset({"globex"})
    fault = await fault_of(to(path, "a"))
    assert fault.message == "There is no template for [name] among [name] and a."
