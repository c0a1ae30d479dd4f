"""Laws of the steps around a request: who gets in, what is reserved, and that each hold and each request is closed once."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from domain.ask import Ask, Endpoint
from domain.faults import Fault, Kind
from gateway.prompt.count import BUDGET_S
from gateway.prompt.reader import Prompt
from gateway.request.admit import admit
from gateway.request.holds import OpenHold
from gateway.request.interpret import interpret
from gateway.request.settle import settle
from gateway.story import Story
from tenancy.hold import Hold
from tenancy.limits import UNUSED, Amounts, Level, Limit, Meter, Scope, Window
from tests.placed import POOL
from tests.request_path import CALLER, Engine, Path, caller, fault_of, turns

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


async def test_a_refused_hold_reserves_nothing() -> None:
    path = Path(limits=ONE, a=Engine())
    first = await admitted(path, path.story(own_id="r1"))
    refused = path.story(own_id="r2")
    assert (await fault_of(admitted(path, refused))).kind is Kind.REQUEST_LIMIT
    assert len(path.deps.holds) == 1
    assert refused.settled.limit_statuses, "its reply says how the limit stands"
    story = first.story
    story.settled.fault = Fault(Kind.NO_BACKEND, "x")
    await settle(first, story, path.deps)
    assert len(path.deps.holds) == 0
    assert await admitted(path, path.story(own_id="r3")), "the first gave its request back, and the refused one had taken none"


async def test_a_request_cancelled_while_it_is_admitted_is_settled_with_nothing() -> None:
    path, store = Path(limits=ONE, a=Engine()), SlowStore()
    path.deps = replace(path.deps, counters=store)  # type: ignore[arg-type]  # the two calls that are made
    task = asyncio.create_task(admitted(path, path.story()))
    await turns()
    task.cancel()
    await turns()
    assert not task.done(), "it may have been opened: it is closed first"
    store.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [actual for _, actual in store.settled] == [UNUSED]
    assert len(path.deps.holds) == 0


class TimedReads:
    """Reads and counts that take as long as they are told to, and keep how long they might have waited."""

    def __init__(self, path: Path, *, takes_s: float) -> None:
        self.pools, self.waits_s = frozenset({POOL}), list[float]()
        self._path, self._takes_s = path, takes_s

    def _wait(self, wait_s: float) -> None:
        self.waits_s.append(wait_s)
        self._path.worker.now += min(self._takes_s, wait_s)

    async def read(self, ask: Ask, pool: str, root: int, scope: str, *, wait_s: float) -> Prompt:
        self._wait(wait_s)
        return Prompt(10, (), 64, 0)

    def exact(self, ask: Ask, pool: str) -> bool:
        return True

    async def count(self, ask: Ask, pool: str, scope: str = "", *, wait_s: float) -> int:
        self._wait(wait_s)
        return 10


@pytest.mark.parametrize(("takes_s", "waits_s"), [(0.015, [BUDGET_S, 0.005]), (0.03, [BUDGET_S, 0.0]), (0.001, [BUDGET_S, 0.019])])
async def test_reading_a_prompt_and_counting_it_share_one_wait(takes_s: float, waits_s: list[float]) -> None:
    path = Path(limits=[Limit(TENANT, Meter.INPUT_TOKENS, Window.MINUTE, 1000)], a=Engine(), b=Engine())
    reads = TimedReads(path, takes_s=takes_s)
    path.deps = replace(path.deps, prompts=reads, prompt_counts=reads)  # type: ignore[arg-type]  # the calls that are made
    story, begun = path.story(), path.worker.now
    await admitted(path, story)
    assert reads.waits_s == pytest.approx(waits_s)
    assert story.asked.counted == 10
    assert path.worker.now - begun <= BUDGET_S + 1e-9
    assert story.asked.read_s == pytest.approx(min(BUDGET_S, 2 * takes_s))
