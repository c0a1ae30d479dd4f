import asyncio
import random

import pytest
from structlog.testing import capture_logs

from backends.health import FAILURES_TO_GO_DOWN, Health
from backends.ports import PollResult
from domain.faults import Kind
from gateway.deps import Live
from gateway.fleet.health import FleetWatch
from routing.fleet import Availability, Backend, Fleet, Pool


class Engine:
    def __init__(self) -> None:
        self.reason, self.names, self.wrong = "", frozenset({"m"}), False

    async def __call__(self) -> PollResult:
        return PollResult(self.reason, self.names, wrong=self.wrong)


def watched() -> tuple[Live, FleetWatch, Engine]:
    engine = Engine()
    live = Live(None, None, Fleet({"p": Pool("p", "m", "1", "vllm", (Backend("a", "p"),))}))  # type: ignore[arg-type]  # only the fleet is looked at
    live.health["a"] = Health(10.0)
    watch = FleetWatch(live, 1.0, lambda: 5.0, random.Random(1))
    watch.add("p", "a", engine)
    return live, watch, engine


def state(live: Live) -> Availability:
    return live.fleet.pools["p"].backends[0].state


@pytest.mark.parametrize(("reason", "expected"), [("", Availability.UP), ("no answer", Availability.DOWN)])
async def test_one_round_makes_the_fleet_known_up_or_down(reason: str, expected: Availability) -> None:
    live, watch, engine = watched()
    engine.reason = reason
    await watch.first_round()
    assert live.fleet.known
    assert state(live) is expected
    assert live.fleet.pools["p"].backends[0].reason == reason
    assert live.names == ({} if reason else {"a": frozenset({"m"})})


async def test_a_backend_that_goes_down_is_said_once_with_its_reason() -> None:
    live, watch, engine = watched()
    await watch.first_round()
    engine.reason = "/health answers 503"
    with capture_logs() as said:
        for _ in range(2 * FAILURES_TO_GO_DOWN):
            await watch.first_round()
    assert [(line["event"], line["reason"]) for line in said] == [("backend down", "/health answers 503")]
    assert state(live) is Availability.DOWN


@pytest.mark.req("R43")
async def test_an_engine_that_lists_another_model_is_out_at_once_and_its_names_are_not_taken_over() -> None:
    live, watch, engine = watched()
    await watch.first_round()
    engine.reason, engine.names, engine.wrong = "serves other, not m", frozenset({"other"}), True
    await watch.first_round()
    assert state(live) is Availability.DOWN
    assert live.names == {"a": frozenset({"m"})}


@pytest.mark.req("GATEWAYS-19")
async def test_a_backend_that_could_not_be_reached_is_asked_until_it_answers_and_its_health_hears_nothing_of_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    live, watch, engine = watched()
    await watch.first_round()
    found: list[str] = []
    live.contacts.on_found = found.append

    async def passes(pause_s: float) -> None:
        if pause_s >= 0.75:  # the polls of a healthy backend come once a second
            await asyncio.Event().wait()
        pauses.append(pause_s)
        if len(pauses) == 2 * FAILURES_TO_GO_DOWN:
            engine.reason = ""

    monkeypatch.setattr("gateway.fleet.health.asyncio.sleep", passes)
    running = asyncio.create_task(watch.run())
    for _ in range(3):
        await asyncio.get_running_loop().run_in_executor(None, int)
    engine.reason = "no answer"
    live.contacts.failed("a", Kind.CONNECT_FAILED)
    async with asyncio.timeout(20):
        while not found:
            await asyncio.get_running_loop().run_in_executor(None, int)
    assert found == ["a"]
    assert state(live) is Availability.UP
    assert pauses == [0.1, 0.2, 0.4, 0.4, 0.4, 0.4]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
