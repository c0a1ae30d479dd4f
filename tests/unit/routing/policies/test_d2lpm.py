import random
from collections import Counter

from routing.load import LoadTable
from routing.policies.d2lpm import TENANTS
from routing.policy_instance import PolicyInstance, policy_instance
from routing.ports import RoutingRequest
from tests.placement import Held, board_of, decide

RNG = random.Random(1)


def follow(how: PolicyInstance, load_table: LoadTable, tenant: str, count: int, uncached: float) -> Counter[str]:
    request = RoutingRequest(4000, block_tokens=1000, output_tokens=0, tenant=tenant)
    went: Counter[str] = Counter()
    for _ in range(count):
        first = decide(how, load_table, request, Held(a=3), rng=RNG).backends[0].id
        assert how.memory is not None
        how.memory.placed(request, first, uncached, 1.0)
        went[first] += 1
    return went


def test_locality_is_followed_while_the_tenant_can_afford_it() -> None:
    how, load_table = policy_instance("d2lpm", {"quantum": 10_000}), board_of("a", "b", "c")
    assert follow(how, load_table, "t", 10, 1000.0) == {"a": 10}
    assert set(follow(how, load_table, "t", 10, 1000.0)) <= {"b", "c"}
    assert follow(how, load_table, "other", 10, 1000.0) == {"a": 10}  # one tenant's spending is not another's


def test_who_has_spent_everywhere_begins_anew() -> None:
    how, load_table = policy_instance("d2lpm", {"quantum": 10_000}), board_of("a", "b", "c")
    went = follow(how, load_table, "t", 300, 1000.0)
    assert all(80 < count < 120 for count in went.values())


def test_tenants_are_forgotten_and_not_piled_up() -> None:
    how, load_table = policy_instance("d2lpm"), board_of("a", "b")
    for at in range(TENANTS + 50):
        follow(how, load_table, f"tenant-{at}", 1, 1e6)
    assert follow(how, load_table, "tenant-0", 1, 1000.0) == {"a": 1}
    assert follow(how, load_table, f"tenant-{TENANTS + 49}", 1, 1000.0) == {"b": 1}
