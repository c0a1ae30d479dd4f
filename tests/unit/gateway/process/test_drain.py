import asyncio
import random

from backends.attempt import RetryBudget
from domain.faults import Fault
from gateway.http.edge.connections import Connections, EdgeLimits
from gateway.http.edge.head import RequestHead
from gateway.process.drain import RECORDS_S, end_requests
from tests.world.loop import VirtualLoop


def nobody(*_: object) -> None:
    raise AssertionError("no request comes")


def refusal(fault: Fault, head: RequestHead | None) -> bytes:
    raise AssertionError("no request comes")


def connections(loop: VirtualLoop) -> Connections:
    return Connections(EdgeLimits(), loop.time, loop.time, serve=nobody, refuse=refusal, log_defect=nobody)


def took_s(active_for_s: float) -> float:
    """How long the end of a worker takes whose last request is recorded after that."""
    loop = VirtualLoop(random.Random(1))
    budget = RetryBudget()

    def recorded() -> None:
        budget.active -= 1

    async def end() -> float:
        budget.active += 1
        budget.arrived += 1
        began = loop.time()
        loop.call_later(active_for_s, recorded)
        await end_requests(connections(loop), budget)
        return loop.time() - began

    try:
        return loop.run_until_complete(end())
    finally:
        loop.close()


def test_the_last_record_is_waited_for() -> None:
    assert 0.05 <= took_s(0.05) < 0.1


def test_but_not_for_ever() -> None:
    assert RECORDS_S <= took_s(3600.0) < RECORDS_S + 0.1


def test_nothing_under_way_takes_no_time() -> None:
    async def end() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        began = loop.time()
        await end_requests(connections(loop), RetryBudget())
        assert loop.time() - began < 0.01

    loop = VirtualLoop(random.Random(1))
    loop.run_until_complete(end())
    loop.close()
