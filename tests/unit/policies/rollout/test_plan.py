import msgspec
import pytest

from policies.rollout.plan import DEFAULT_STEPS, MAX_STEPS, RolloutPlan, RolloutStep

ALL = RolloutStep(1.0)


def test_the_default_is_the_schedule_of_five_steps() -> None:
    plan = RolloutPlan("r1")
    assert [name for name, _ in plan.named()] == ["1 %", "5 %", "25 %", "50 %", "100 %"]
    assert [name for name, _ in RolloutPlan("r1", shadow=RolloutStep(0.1)).named()][:2] == ["shadow", "1 %"]


def test_a_plan_can_be_stored() -> None:
    plan = RolloutPlan("r1", shadow=RolloutStep(0.1))
    assert msgspec.json.decode(msgspec.json.encode(plan), type=RolloutPlan) == plan


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ({"salt": ""}, "salt is empty"),
        ({"steps": (ALL,)}, "there are 1 steps"),
        ({"steps": (*(RolloutStep((i + 1) / 100) for i in range(MAX_STEPS)), ALL)}, "steps; there have to be"),
        ({"steps": (RolloutStep(0.5), RolloutStep(0.5), ALL)}, "shares have to grow"),
        ({"steps": (RolloutStep(0.5), RolloutStep(0.1), ALL)}, "shares have to grow"),
        ({"steps": (RolloutStep(0.1), RolloutStep(0.5))}, "end with 1"),
        ({"steps": (RolloutStep(0.0), ALL)}, "0 %: share is 0"),
        ({"steps": (RolloutStep(1.5), ALL)}, "150 %: share is 1.5"),
        ({"steps": (RolloutStep(0.1, min_s=20, max_s=10), ALL)}, "10 %: min_s 20 and max_s 10"),
        ({"steps": (RolloutStep(0.1, min_requests=0), ALL)}, "10 %: min_requests is 0"),
        ({"shadow": RolloutStep(-1.0)}, "shadow: share"),
        ({"warm_up_s": -1.0}, "cannot be below 0"),
        ({"warm_up_requests": -1}, "cannot be below 0"),
        ({"settle_s": -1.0}, "cannot be below 0"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(plan: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        RolloutPlan(**{"salt": "r1", "steps": DEFAULT_STEPS} | plan)  # type: ignore[arg-type]  # wrong on purpose
