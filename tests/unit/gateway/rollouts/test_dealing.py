import msgspec
import pytest

from domain.faults import Fault, Kind
from gateway.rollouts.dealing import deal
from gateway.story import Story
from policies.compile import ModelRule, TenantPolicy
from policies.rollout.in_force import ActiveRollouts, Running
from tests.placed import POOL, Worker, chat

RULE = ModelRule("sim", POOL, "")
RUNNING = Running("ro_1", "v2", POOL, "chat-v2", 1.0, 0.0, counting=True, interval_s=10.0)


def worker_with(running: Running = RUNNING, canary_up: bool = True) -> Worker:
    worker = Worker("a")
    fleet = worker.deps.live.fleet
    pool = msgspec.structs.replace(fleet.pools[POOL], name="chat-v2", backends=fleet.pools[POOL].backends if canary_up else ())
    worker.deps.live.fleet = msgspec.structs.replace(fleet, pools={**fleet.pools, "chat-v2": pool})
    worker.deps.live.rollouts = ActiveRollouts({POOL: running})
    return worker


def dealt(worker: Worker, headers: dict[bytes, bytes] | None = None, choose_arm: bool = False) -> tuple[ModelRule, Story]:
    story = worker.story(own_id="req-1")
    policy: TenantPolicy = msgspec.structs.replace(worker.policy, choose_arm=choose_arm)
    return deal(RULE, chat("x"), "acme", policy, headers or {}, story, worker.deps), story


async def test_the_canarys_requests_go_to_its_pool_under_the_same_name() -> None:
    rule, story = dealt(worker_with())
    assert (rule.name, rule.pool) == ("sim", "chat-v2")
    assert story.asked.dealt is not None
    assert story.asked.dealt.counted


async def test_without_a_backend_up_or_the_pool_itself_the_baseline_answers() -> None:
    there, away = worker_with(canary_up=False), worker_with(msgspec.structs.replace(RUNNING, canary="unknown"))
    for worker in (there, away):
        rule, story = dealt(worker)
        assert rule.pool == POOL
        assert story.asked.dealt is not None
        assert story.asked.dealt.away


async def test_a_tester_chooses_and_whoever_may_not_is_told() -> None:
    worker = worker_with()
    assert dealt(worker, {b"x-tidegate-rollout": b"Baseline "}, choose_arm=True)[0].pool == POOL
    with pytest.raises(Fault) as refused:
        dealt(worker, {b"x-tidegate-rollout": b"canary"})
    assert refused.value.kind is Kind.NOT_PERMITTED
    with pytest.raises(Fault) as refused:
        dealt(worker, {b"x-tidegate-rollout": b"blue"}, choose_arm=True)
    assert refused.value.kind is Kind.INVALID_VALUE
    assert "canary, baseline" in refused.value.message


async def test_other_pools_are_left_alone() -> None:
    worker, story = worker_with(), Story("r", 0.0, 0.0, 0.0)
    rule = msgspec.structs.replace(RULE, pool="other")
    assert deal(rule, chat("x"), "acme", worker.policy, {}, story, worker.deps) is rule
    assert story.asked.dealt is None


async def test_a_header_that_chooses_is_looked_at_only_where_a_rollout_is_about_the_request() -> None:
    worker = worker_with(msgspec.structs.replace(RUNNING, tenants=frozenset({"other"})))
    rule, story = dealt(worker, {b"x-tidegate-rollout": b"canary"})
    assert (rule.pool, story.asked.dealt) == (POOL, None), "other tenants' rollouts refuse nobody"
