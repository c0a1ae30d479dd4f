"""Laws of the steps around a request: who gets in, what is reserved, and that each hold and each request is closed once."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from domain.ask import Ask, Endpoint
from domain.faults import Fault, Kind
from domain.usage import NO_USAGE, Usage
from gateway.request.admit import admit
from gateway.request.holds import OpenHold
from gateway.request.interpret import interpret
from gateway.request.settle import defect, open_story, record, refuse, settle
from gateway.story import Story
from tenancy.hold import Hold
from tenancy.limits import Amounts, Level, Limit, Meter, Scope, Window
from tests.request_path import CALLER, Engine, Path, caller, turns

TENANT = Scope(Level.TENANT, "acme")
ONE = [Limit(TENANT, Meter.REQUESTS, Window.MINUTE, 1)]
BODY = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "stream": True}
JSON = b"application/json"


async def interpreted(path: Path, story: Story, body: object = BODY, **headers: bytes) -> tuple[Ask, Any, Any]:
    exchange, _ = caller(body, **{"content_type": JSON, **headers})
    return await interpret(Endpoint.CHAT, exchange, CALLER, story, path.deps)


async def admitted(path: Path, story: Story) -> OpenHold:
    ask, rule, grant = await interpreted(path, story)
    _, hold = await admit(CALLER, ask, rule, grant, story, path.deps)
    return hold


class SlowStore:
    """Counters of another process: nothing of a call is over before it is told so."""

    in_process = False

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.settled: list[tuple[Hold, Amounts]] = []

    async def admit(self, hold: Hold) -> None:
        await self.go_on.wait()

    async def settle(self, hold: Hold, actual: Amounts) -> None:
        await self.go_on.wait()
        self.settled.append((hold, actual))


# --- who asks for what ----------------------------------------------------------------------------------------------


async def test_a_hold_is_settled_once_however_often_the_request_is_cancelled_meanwhile() -> None:
    path = Path(limits=ONE, a=Engine())
    story = path.story()
    hold, store = await admitted(path, story), SlowStore()
    story.attempt.usage = Usage(7, 3)
    deps = replace(path.deps, counters=store)  # type: ignore[arg-type]  # as above
    task = asyncio.create_task(settle(hold, story, deps))
    for _ in range(3):
        await turns()
        task.cancel()
    store.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [(settled.id, actual.input_tokens, actual.output_tokens) for settled, actual in store.settled] == [("req-own", 7, 3)]
    assert (story.settled.closing, story.settled.usage) == ("settle", Usage(7, 3))


async def test_what_waited_is_told_of_its_usage_once_and_a_request_without_a_hold_is_not_settled() -> None:
    path, used = Path(a=Engine()), list[Usage]()
    story = path.story(on_used=used.append)
    await settle(None, story, path.deps)
    assert (story.settled.closing, used) == ("", [])
    await settle(await admitted(path, story), story, path.deps)
    assert (story.settled.closing, used) == ("release", [NO_USAGE])


async def test_a_defect_of_the_counters_is_logged_and_the_request_goes_on() -> None:
    class Broken(SlowStore):
        async def settle(self, hold: Hold, actual: Amounts) -> None:
            raise RuntimeError("a defect")

    path = Path(limits=ONE, a=Engine())
    story = path.story()
    hold = await admitted(path, story)
    await settle(hold, story, replace(path.deps, counters=Broken()))  # type: ignore[arg-type]  # as above
    assert [str(error) for error in path.defects] == ["a defect"]


# --- the end --------------------------------------------------------------------------------------------------------


async def test_a_refusal_has_the_shape_that_is_still_possible() -> None:
    path, fault = Path(a=Engine()), Fault(Kind.ENGINE_ERROR, "It failed.")
    exchange, connection = caller()
    story = path.story()
    refuse(fault, exchange, story, path.deps)
    assert (story.settled.status, story.settled.fault) == (502, fault)
    assert connection.out.startswith(b"HTTP/1.1 502 ")

    exchange, connection = caller()
    exchange.start(b"")
    story = path.story()
    refuse(fault, exchange, story, path.deps)
    assert (story.settled.status, connection.closed) == (200, True)
    assert b"data: " in connection.out

    exchange, connection = caller()
    exchange.gone = True
    story = path.story()
    refuse(fault, exchange, story, path.deps)
    assert (story.settled.status, connection.out, connection.aborted) == (499, b"", True)


async def test_a_defect_tells_the_log_and_not_the_caller() -> None:
    path = Path(a=Engine())
    fault = defect(RuntimeError("secret"), path.story(), path.deps)
    assert (fault.kind, [str(error) for error in path.defects]) == (Kind.INTERNAL, ["secret"])
    assert "secret" not in fault.message


async def test_a_request_leaves_one_record_and_is_counted_out_once() -> None:
    path = Path(a=Engine())
    before = path.deps.budget.active
    exchange, _ = caller()
    story = open_story(exchange, path.deps)
    assert path.deps.budget.active == before + 1
    exchange.reply(200, b"", b"12345")
    record(exchange, story, path.deps)
    assert path.deps.budget.active == before
    assert [(one.own_id, one.reply_bytes) for one in path.records] == [(story.own_id, 5)]
