"""All engines of a pool away at once, on virtual time with whole gateways (`tests.world`): for a second, for longer, and for ever."""

from pathlib import Path

import msgspec
import pytest

from domain.faults import Kind
from tests.world.callers import Manners
from tests.world.plan import ENGINES, TENANTS, Coming, Plan, Trouble
from tests.world.world import BEGAN_S, World

AWAY_AT = 20.0
PATIENT = (("x-tidegate-timeout-s", "5"),)


def engines_away(for_s: float) -> list[Trouble]:
    """Every engine is killed at the same moment, and back after `for_s`."""
    return [Trouble(AWAY_AT, "engine_killed", name, for_s) for name in ENGINES]


def asked(times: list[float], stream: bool | None = None, headers: tuple[tuple[str, str], ...] = PATIENT) -> list[Coming]:
    return [
        Coming(at, n, TENANTS[n // 3 % 4], f"g{n % 3}", Manners(n % 2 == 0 if stream is None else stream, max_tokens=4, headers=headers))
        for n, at in enumerate(times)
    ]


def outage(tmp_path: Path, comings: list[Coming], troubles: list[Trouble]) -> World:
    """A world without limits, which have nothing to do with it."""
    world = World(1, tmp_path)
    world.directory.contents = msgspec.structs.replace(world.directory.contents, limits=())
    world.plan = Plan(tuple(comings), tuple(troubles), strict=True, peaceful=True)
    world.run()
    return world


def nothing_left(world: World) -> bool:
    return all(not queue.waiting for gone in world.gateways.values() if gone.deps is not None for queue in gone.deps.queues.values())


@pytest.mark.req("GATEWAYS-19")
def test_requests_with_five_seconds_outlive_a_second_without_any_engine(tmp_path: Path) -> None:
    """Requests that were sent just before it and have no token yet, and requests that come during it."""
    times = [AWAY_AT - 0.02 + 0.04 * n for n in range(25)]
    world = outage(tmp_path, asked(times), engines_away(1.0))
    assert world.breaches == []
    assert {ask.id: (ask.status, ask.body[-200:]) for ask in world.asks if ask.status != 200 or not ask.whole} == {}
    waited = [record for _, record in world.parts.records if record.queued == "served"]
    assert len(waited) >= 20, "the outage was not seen by the requests"
    assert nothing_left(world)


@pytest.mark.req("GATEWAYS-19")
def test_where_no_engine_comes_back_each_request_ends_at_its_deadline(tmp_path: Path) -> None:
    times = [AWAY_AT + 0.1 + 0.2 * n for n in range(12)]
    world = outage(tmp_path, asked(times, stream=False), engines_away(400.0))
    assert world.breaches == []
    for ask in world.asks:
        assert ask.status == 503, ask.body
        assert 5.0 <= ask.ended_at - ask.began_at <= 5.0 + 1.6, "a sweep of a world comes every 1.5 s"
        assert f'"{Kind.NO_BACKEND.value}"'.encode() in ask.body
        assert 1 <= int(ask.headers[b"retry-after"]) <= 5
        assert ask.headers[b"x-should-retry"] == b"true"
    assert nothing_left(world)


@pytest.mark.req("GATEWAYS-19")
def test_the_queue_stays_bounded_while_no_engine_is_there(tmp_path: Path) -> None:
    """Twelve may wait in each gateway, eight of a tenant; what is above is refused at once."""
    comings = [Coming(AWAY_AT + 0.5 + 0.01 * n, n, "cora", "g0", Manners(stream=False, max_tokens=4, headers=PATIENT)) for n in range(20)]
    world = outage(tmp_path, comings, engines_away(1.5))
    assert world.breaches == []
    served = [ask for ask in world.asks if ask.status == 200]
    refused = [ask for ask in world.asks if ask.status == 503]
    assert len(served) + len(refused) == 20
    assert len(served) >= 7
    assert refused
    assert all(ask.ended_at - ask.began_at < 1.0 and b'"overloaded"' in ask.body for ask in refused)


@pytest.mark.req("GATEWAYS-19")
def test_a_caller_that_leaves_leaves_the_queue(tmp_path: Path) -> None:
    manners = Manners(stream=True, max_tokens=4, leaves_after_s=0.5, headers=PATIENT)
    world = outage(tmp_path, [Coming(AWAY_AT + 0.3, 0, "cora", "g0", manners)], engines_away(3.0))
    assert world.breaches == []
    (record,) = [record for _, record in world.parts.records]
    assert record.queued == "gone"
    assert world.loop.now - BEGAN_S > AWAY_AT
    assert [job for job in world.jobs if job.request_id] == []
    assert nothing_left(world)


@pytest.mark.req("GATEWAYS-19")
def test_an_outage_that_lasts_is_waited_for_at_its_beginning_only(tmp_path: Path) -> None:
    """Health takes the engines out after three polls, 36 s here. From 10 s later on nobody waits."""
    comings = [Coming(AWAY_AT + n, n, TENANTS[n % 4], "g0", Manners(stream=False, max_tokens=4, headers=PATIENT)) for n in range(90)]
    world = outage(tmp_path, comings, engines_away(400.0))
    assert world.breaches == []
    assert {ask.status for ask in world.asks} == {503}
    waits = [ask.ended_at - ask.began_at for ask in world.asks]
    at_once = [n for n, wait_s in enumerate(waits) if wait_s < 0.5]
    assert at_once == list(range(at_once[0], 90)), "some waited after others were refused"
    assert 30 <= at_once[0] <= 60
    assert all(5.0 <= wait_s <= 6.6 for wait_s in waits[: at_once[0]])
    assert all(1 <= int(ask.headers[b"retry-after"]) <= 5 for ask in world.asks)
    assert nothing_left(world)
