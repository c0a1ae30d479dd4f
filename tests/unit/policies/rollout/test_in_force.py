from typing import Any

import msgspec
import pytest

from domain.rollouts import StoredRollout
from policies.rollout.assignment import Arm
from policies.rollout.document import RolloutDocument, text_of
from policies.rollout.in_force import in_force
from policies.rollout.progress import Status, begin


def stored(status: Status = Status.RUNNING, phase: int = 0, name: str = "v2", **fields: Any) -> StoredRollout:
    document = RolloutDocument.model_validate({"name": name, "baseline": "chat", "canary": "chat-v2", **fields})
    state = msgspec.structs.replace(begin(document.plan("ro_1"), 0.0), status=status, phase=phase)
    return StoredRollout("ro_1", name, text_of(document), msgspec.json.encode(state).decode(), 1, True, 0.0, 0.0)


def up(_pool: str) -> bool:
    return True


def away(_pool: str) -> bool:
    return False


def canaries(one: StoredRollout, tenant: str = "acme", model: str = "m", count: int = 2000) -> int:
    rollouts, _ = in_force([one])
    dealt = [rollouts.deal("chat", tenant, model, str(key), str(key), up) for key in range(count)]
    return sum(found is not None and found.arm is Arm.CANARY for found in dealt)


@pytest.mark.parametrize(("phase", "low", "high"), [(0, 5, 40), (2, 420, 580), (4, 2000, 2000)])
def test_the_canary_gets_its_steps_share(phase: int, low: int, high: int) -> None:
    assert low <= canaries(stored(phase=phase)) <= high


def test_a_rollout_is_about_its_pool_tenants_and_models_alone() -> None:
    assert canaries(stored(phase=4, tenants=["acme"], models=["m"])) == 2000
    assert canaries(stored(phase=4, tenants=["other"])) == 0
    assert canaries(stored(phase=4, models=["other"])) == 0
    rollouts, _ = in_force([stored()])
    assert rollouts.deal("embed", "acme", "m", "k", "r", up) is None


def test_two_tenants_conversations_of_one_name_are_dealt_out_apart() -> None:
    rollouts, _ = in_force([stored(phase=3)])

    def arms(tenant: str) -> list[Arm]:
        return [found.arm for key in range(200) if (found := rollouts.deal("chat", tenant, "m", str(key), "r", up)) is not None]

    assert arms("acme") == arms("acme") != arms("other")


def test_a_canary_without_backends_has_failed_and_the_baseline_answers() -> None:
    rollouts, _ = in_force([stored(steps=[{"share": 0.5}, {"share": 1.0}])])
    whole = [rollouts.deal("chat", "acme", "m", str(key), "r", up) for key in range(100)]
    without = [rollouts.deal("chat", "acme", "m", str(key), "r", away) for key in range(100)]
    for had, found in zip(whole, without, strict=True):
        assert had is not None
        assert found is not None
        assert found.target == "chat"
        assert found.away == (had.arm is Arm.CANARY)
        assert found.counted == (had.arm is Arm.BASELINE)


def test_what_a_tester_asks_for_is_given_and_not_counted() -> None:
    rollouts, _ = in_force([stored()])
    for arm, pool in ((Arm.CANARY, "chat-v2"), (Arm.BASELINE, "chat")):
        found = rollouts.deal("chat", "acme", "m", "k", "r", up, arm)
        assert found is not None
        assert (found.target, found.counted) == (pool, False)


def test_in_a_shadow_phase_the_baseline_answers_and_some_are_copied() -> None:
    rollouts, _ = in_force([stored(shadow={"share": 0.25, "max_in_flight": 3})])
    dealt = [found for key in range(2000) if (found := rollouts.deal("chat", "acme", "m", "same", str(key), up)) is not None]
    assert {found.target for found in dealt} == {"chat"}
    assert 400 < sum(found.mirror for found in dealt) < 600
    assert dealt[0].running.max_shadows == 3
    nobody = rollouts.deal("chat", "acme", "m", "same", "1", away)
    assert nobody is not None
    assert not nobody.mirror


def test_after_a_rollback_nobody_is_dealt_to_the_canary() -> None:
    assert canaries(stored(Status.ROLLED_BACK, phase=3)) == 0


def test_what_this_version_cannot_read_is_left_alone_and_told() -> None:
    good, bad = stored(), msgspec.structs.replace(stored(), name="bad", document='{"name": "bad", "wings": 2}')
    rollouts, problems = in_force([bad, good])
    assert list(rollouts.by_pool) == ["chat"]
    assert len(problems) == 1
    assert "'bad'" in problems[0]
    assert "wings" in problems[0]


def test_of_two_about_one_pool_the_second_is_told() -> None:
    rollouts, problems = in_force([stored(), stored(name="v3")])
    assert rollouts.by_pool["chat"].name == "v2"
    assert "'v3'" in problems[0]


def test_a_version_of_a_prompt_is_dealt_out_where_its_tenant_has_the_new_one() -> None:
    one = stored(of="prompt", baseline="help@1", canary="help@2", steps=[{"share": 0.5}, {"share": 1.0}], models=["m"])
    rollouts, problems = in_force([one])
    assert (problems, rollouts.by_pool, [running.name for running in rollouts.all()]) == ((), {}, ["v2"])
    dealt = [rollouts.deal_prompt("help@1", "acme", "m", str(key), up) for key in range(400)]
    assert {found.target for found in dealt if found is not None} == {"help@1", "help@2"}
    assert 140 < sum(found is not None and found.arm is Arm.CANARY for found in dealt) < 260
    assert rollouts.deal_prompt("help@1", "acme", "m", "k", away) is None, "it has not got the new one"
    assert rollouts.deal_prompt("help@1", "acme", "other", "k", up) is None
    assert rollouts.deal_prompt("help@2", "acme", "m", "k", up) is None
    chosen = rollouts.deal_prompt("help@1", "acme", "m", "k", up, Arm.CANARY)
    assert chosen is not None
    assert (chosen.target, chosen.counted) == ("help@2", False)


@pytest.mark.parametrize("state", ["{}", "[" * 5000, None])
def test_one_that_cannot_be_read_keeps_no_other_from_being_followed(state: str | None) -> None:
    other = msgspec.structs.replace(stored(name="other", baseline="embed", canary="embed-v2"), id="ro_2")
    one = stored(phase=99) if state is None else msgspec.structs.replace(stored(), state=state)
    found, problems = in_force([one, other])
    assert list(found.by_pool) == ["embed"]
    assert [problem.partition(":")[0] for problem in problems] == ["rollout 'v2' is left alone"]
