"""Who inherits the prefixes of an engine that leaves in `bench.handover`, and that its fleet loses no request."""

from collections import Counter
from functools import partial

import pytest

from bench.fleet.workloads import dice
from bench.handover import ARMS, LOST_FOR_S, Heirs, LeavingFleet, Line, Run, heir_of
from routing.policy_instance import policy_instance
from routing.simulation.fleet_file import FleetFile
from routing.simulation.kv_cache import SimulatedKvCache
from routing.simulation.outcomes import RequestEnd
from routing.simulation.turns import TraceRequest, Workload


def cache(*blocks: int) -> SimulatedKvCache:
    made = SimulatedKvCache(1000, 1)
    made.release(blocks, made.publish(blocks, made.admit((), len(blocks))), len(blocks))
    return made


def test_engines_inherit_in_proportion_to_their_room_and_only_the_heir_s_prefixes_move_when_it_leaves() -> None:
    room = {"a": 0.5, "b": 0.25, "c": 0.25}
    heirs = [heir_of(first, room) for first in range(4000)]
    assert {name: round(count, -3) for name, count in Counter(heirs).items()} == {"a": 2000, "b": 1000, "c": 1000}
    without = {name: share for name, share in room.items() if name != "c"}
    moved = {heir for first, heir in enumerate(heirs) if heir_of(first, without) != heir}
    assert moved == {"c"}


def test_a_prefix_goes_as_a_whole_to_an_engine_that_holds_what_is_before_it() -> None:
    heirs = Heirs({2: 1, 3: 2, 4: 3, 12: 11, 22: 1})
    heirs.name((1, 2, 3, 4, 11, 12, 22), {"a": cache(1), "b": cache(1, 2), "c": cache(99)}, 10.0)
    assert set(heirs.lost) == {3, 4, 11, 12, 22}, "the others hold the rest"
    assert heirs.lost[3][1:] == heirs.lost[4][1:] == (3, "b")
    assert heirs.lost[22][2] in ("a", "b")
    assert heirs.lost[11][1:] == heirs.lost[12][1:]
    assert heirs.of((1, 2, 3, 4), 10.0) == "b"
    assert heirs.of((1, 2), 10.0) == ""
    assert heirs.of((1, 2, 3), 10.1 + LOST_FOR_S) == ""


@pytest.mark.parametrize("arm", ARMS)
def test_engines_leave_and_come_and_every_request_is_answered(arm: str) -> None:
    turns = [TraceRequest(at * 0.5, 2100, 50, tuple(range(1000 * (at % 9), 1000 * (at % 9) + 4)), session=1 + at % 9) for at in range(800)]
    workload = Workload("made up", turns)
    fleet = FleetFile.model_validate({"engines": [{"machine": "h100-8b", "count": 6}]})
    run = Run(Line("made up", "", 300.0, 800), 3, 0.5, arm, 1)
    simulated = LeavingFleet(run, fleet, workload, partial(policy_instance, "predicted_latency"), dice(1))
    outcomes = simulated.run()
    assert set(outcomes.state) == {RequestEnd.DONE}
    found = simulated.figures()
    assert found.notices >= 3
    assert found.requests > 200
    leave = arm != "nobody leaves"
    assert (found.again > 0) == (leave and arm != "KV moved")
    assert found.twice <= found.again
    assert all(engine.cache.total == engine.cache.room for engine in simulated.engines), "all memory was given back"
