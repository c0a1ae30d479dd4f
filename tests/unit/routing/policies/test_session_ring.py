import random
from collections import Counter

from routing.fleet import Availability, Backend
from routing.policy_instance import policy_instance
from routing.ports import Circumstances, RoutingRequest
from routing.schedule import place
from tests.placement import board_of, decide, pool_of, spread

HOW, RNG = policy_instance("session_ring"), random.Random(1)
IDS = [f"gpu-{at}" for at in range(8)]


def homes(ids: list[str]) -> dict[int, str]:
    load_table = board_of(*ids)
    return {session: decide(HOW, load_table, RoutingRequest(10, session=session), rng=RNG).backends[0].id for session in range(1, 2001)}


def test_sessions_spread_and_only_those_of_a_backend_that_leaves_move() -> None:
    before, after = homes(IDS), homes(IDS[:-1])
    assert all(190 < count < 310 for count in Counter(before.values()).values())
    assert all(after[session] == home for session, home in before.items() if home != IDS[-1])
    assert max(Counter(after.values()).values()) < 350


def test_a_full_backend_passes_its_sessions_on_in_the_same_order() -> None:
    load_table = board_of(*IDS)
    order = [one.id for one in decide(HOW, load_table, RoutingRequest(10, session=77), rng=RNG).backends]
    went = spread(HOW, load_table, [RoutingRequest(10, session=77)] * 80, rng=RNG)
    assert max(went.values()) <= 1.25 * 10 + 1  # nobody has more than the bound
    assert went[order[0]] >= went[order[-1]]


def test_without_a_session_the_fewest_requests_win() -> None:
    went = spread(HOW, board_of(*IDS), [RoutingRequest(10)] * 80, rng=RNG)
    assert set(went.values()) == {10}


def test_a_warming_backend_has_its_share_of_the_sessions_and_keeps_them() -> None:
    pool = pool_of(*IDS[:-1], Backend(IDS[-1], "p", Availability.UP, "", warming_since=1.0))
    load_table = board_of(*IDS)
    for _ in range(2):
        firsts = [
            place(RoutingRequest(10, session=one), pool, load_table, HOW, Circumstances(10.0), RNG).backends[0].id for one in range(1, 2001)
        ]
        assert 50 < firsts.count(IDS[-1]) < 130  # 37 % of an eighth
