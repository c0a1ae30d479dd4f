"""What limits that are found online come to, on simulated engines of several kinds: short forms of `bench.overload.limits`."""

from functools import cache

import pytest

from tests.one_engine import CASES, Case, Found, Gate, Score, Static, World, capacity

SECONDS = 70.0
CASE = {case.name: case for case in CASES}
FIXED = {
    "decode": (320, 4096),
    "prefill": (48, 16384),
    "70b": (96, 4096),
    "few seats": (24, 4096),
    "kv": (48, 4096),
    "long prompts": (320, 16384),
}
"""The best of a sweep, far above capacity."""


@cache
def rate(name: str) -> float:
    return capacity(CASE[name])


def run(name: str, load: float, *gates: Gate, tells: bool = True, shares: tuple[float, ...] = ()) -> Score:
    return World(CASE[name], rate(name) * load, SECONDS, gates, tells=tells, shares=shares).run()


@pytest.mark.parametrize("name", CASE)
def test_far_above_capacity_goodput_is_that_of_the_best_fixed_limits(name: str) -> None:
    found, best = run(name, 4.0, Found(CASE[name])), run(name, 4.0, Static(*FIXED[name]))
    assert found.goodput >= 0.9 * best.goodput
    assert found.waited_mean < 8, "what waits, waits in the gateway"


@pytest.mark.parametrize("name", CASE)
def test_an_engine_with_room_is_not_held_back(name: str) -> None:
    found, free = run(name, 0.6, Found(CASE[name])), run(name, 0.6, Static(float("inf")))
    assert found.done >= 0.99 * free.done
    assert found.ttft_p99_s <= 1.1 * free.ttft_p99_s + 0.2


@pytest.mark.parametrize("name", ["decode", "few seats", "prefill"])
def test_an_engine_that_tells_nothing_is_bounded_by_the_times_it_takes(name: str) -> None:
    found, best = run(name, 4.0, Found(CASE[name]), tells=False), run(name, 4.0, Static(*FIXED[name]))
    assert found.goodput >= 0.85 * best.goodput


@pytest.mark.parametrize("processes", [3, 0], ids=["counted", "store-away"])
@pytest.mark.parametrize("shares", [(), (1.0, 0.0, 0.0)], ids=["evenly", "by-one"])
def test_three_gateways_share_an_engine(processes: int, shares: tuple[float, ...]) -> None:
    case = CASE["few seats"]
    found = run("few seats", 4.0, *(Found(case, processes, rank) for rank in range(3)), shares=shares)
    assert found.goodput >= 0.9 * run("few seats", 4.0, Static(*FIXED["few seats"])).goodput
    assert found.waited_mean < 6


def test_an_engine_that_slows_down_is_given_less_until_it_is_itself_again() -> None:
    case = Case("slowed", "h100-8b", 300, 200, max_num_seqs=256)
    gate = Found(case)
    world = World(case, 60.0, SECONDS, [gate])
    limits: dict[float, float] = {}

    def times(factor: float) -> None:
        world.engine.cut(world.now)
        world.engine.retime(case.timing.times(factor))

    for at, factor in ((30.0, 6.0), (45.0, 1.0)):
        world.at(at, lambda factor=factor: times(factor))
    for at in (29.0, 44.0, 65.0):
        world.at(at, lambda at=at: limits.update({at: gate.limiter.tokens}))
    world.run()
    assert limits[44.0] < 0.5 * limits[29.0]
    assert limits[65.0] > 0.8 * limits[29.0]
