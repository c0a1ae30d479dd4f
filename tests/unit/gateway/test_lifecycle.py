"""A request that ends at any of its await points leaves nothing behind."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from backends.ports import ReplySink
from domain.ask import Endpoint
from gateway.http.edge.exchange import Exchange
from gateway.http.edge.taps import DONE
from gateway.lifecycle import serve
from tenancy.hold import Hold
from tenancy.limits import Amounts, Level, Limit, Meter, Scope, Window
from tests.placed import POOL
from tests.request_path import EVENT, KEY, LAST, SSE, Connection, Engine, Path, caller, resets, turns

ONE_AT_ONCE = [Limit(Scope(Level.TENANT, "acme"), Meter.CONCURRENT_REQUESTS, Window.NOW, 1)]
BODY = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "stream": True, "max_tokens": 8}
ROOM_AT = 12
"""Turn of the loop after which full engines have room again."""


class Store:
    """The worker's counters as if they lay in another process: each call is answered a turn of the loop later."""

    in_process = False

    def __init__(self, counters: Any) -> None:
        self._counters = counters

    async def admit(self, hold: Hold) -> Any:
        await asyncio.sleep(0)
        admission = await self._counters.admit(hold)
        await asyncio.sleep(0)
        return admission

    async def settle(self, hold: Hold, actual: Amounts) -> None:
        await asyncio.sleep(0)
        await self._counters.settle(hold, actual)


def slowly(sink: ReplySink) -> None:
    """A streamed answer, a part of it in each turn of the loop."""
    loop = asyncio.get_running_loop()
    parts: list[Callable[[], None]] = [
        lambda: sink.on_head(200, SSE),
        lambda: sink.on_data(EVENT),
        lambda: sink.on_data(LAST + DONE),
        sink.on_end,
    ]

    def part() -> None:
        parts.pop(0)()
        if parts:
            loop.call_soon(part)

    part()


class Requests:
    """Requests of a tenant that may have one in flight, through the whole lifecycle; the first call to an engine fails."""

    def __init__(self, *, full: bool) -> None:
        self.calls = 0
        self.path = Path(limits=ONE_AT_ONCE, a=Engine(self.script), b=Engine(self.script))
        self.deps = replace(self.path.deps, counters=Store(self.path.deps.counters))  # type: ignore[arg-type]  # as far as a request goes
        load_table = self.path.worker.load_table
        for one in "ab" if full else "":
            load_table.set_limit(one, requests=1)
        self.others = [load_table.charge(one, 10, 10, self.path.worker.now) for one in ("ab" if full else "")]

    def script(self, sink: ReplySink) -> None:
        self.calls += 1
        (resets if self.calls == 1 else slowly)(sink)

    def room(self) -> None:
        """The engines' other requests end."""
        while self.others:
            self.path.worker.load_table.release(self.others.pop())

    def begin(self) -> tuple["asyncio.Task[None]", Exchange, Connection]:
        headers = {"content_type": b"application/json", "authorization": f"Bearer {KEY.text}".encode(), "x_tidegate_timeout_s": b"5"}
        exchange, connection = caller(BODY, **headers)
        return asyncio.create_task(serve(exchange, Endpoint.CHAT, self.deps)), exchange, connection

    def left(self) -> dict[str, object]:
        """What requests have in the worker after its timer's next sweep; `active` is one more, for the Path itself."""
        self.deps.watch.sweep(self.path.worker.now, self.deps.log_defect)
        return {
            "in flight": self.path.in_flight(),
            "holds": len(self.deps.holds),
            "waiting": self.deps.queues[POOL].waiting,
            "watched": self.deps.watch.relays(),
            "active": self.deps.budget.active - 1,
            "retrying": self.deps.budget.retrying,
            "defects": self.path.defects,
        }


NOTHING = {"in flight": {"a": 0, "b": 0}, "holds": 0, "waiting": 0, "watched": [], "active": 0, "retrying": 0, "defects": []}


@pytest.mark.req("GATEWAYS-8")
@pytest.mark.parametrize("full", [False, True], ids=["room", "waits"])
@pytest.mark.parametrize("how", ["cancelled", "left"])
async def test_a_request_that_ends_at_any_await_point_gives_its_slot_back(
    how: str, full: bool, record_property: Callable[[str, object], None]
) -> None:
    """Its task is cancelled, or its caller leaves, after each number of turns of the loop; the tenant's next request has the slot."""
    seen = set[tuple[object, ...]]()
    for turn in range(1, 200):
        requests = Requests(full=full)
        task, exchange, _ = requests.begin()
        for at in range(turn):
            if at == ROOM_AT:
                requests.room()
            await asyncio.sleep(0)
        if task.done():
            break
        seen.add((requests.deps.queues[POOL].waiting, requests.calls, len(requests.deps.holds)))
        task.cancel() if how == "cancelled" else exchange.connection_gone()
        done, _ = await asyncio.wait([task], timeout=2)
        assert done, (turn, "ends")
        requests.room()
        await turns(10)
        assert requests.left() == NOTHING, turn
        assert len(requests.path.records) == 1, turn
        task, _, connection = requests.begin()
        done, _ = await asyncio.wait([task], timeout=2)
        assert done, (turn, "next")
        assert connection.out.startswith(b"HTTP/1.1 200"), turn
        await turns(10)
        assert requests.left() == NOTHING, turn
    record_property("figure", f"{turn - 1} points")
    assert {(0, 0, 0), (0, 1, 1), (0, 2, 1)} <= seen, "before it was admitted, at the engine that fails, at the one that answers"
    assert ((1, 0, 1) in seen) is full
    assert requests.left() == NOTHING
