import msgspec
import pytest
from pydantic import ValidationError

from routing.policies.predicted_latency import Params
from routing.policy_instance import Choice, policy_instance


def test_a_policy_by_name_with_checked_parameters_and_a_memory_of_its_own() -> None:
    one, other = policy_instance("round_robin"), policy_instance("round_robin")
    assert one.memory is not None and one.memory is not other.memory
    assert policy_instance("random").memory is None
    with pytest.raises(KeyError):
        policy_instance("best")
    with pytest.raises(ValidationError, match="weight"):
        policy_instance("random", {"weight": 1})


def test_decisions_read_the_settings_as_they_are_and_as_they_are_replaced() -> None:
    """Decisions read copies of the parameters and the common settings."""
    first = policy_instance("predicted_latency", {"ttft": 2.0}, Choice(tie_s=0.5))
    other = msgspec.structs.replace(first, params=Params(ttft=3.0), choice=Choice(kv_fill=2.0))
    for instance in (first, other):
        assert msgspec.structs.asdict(instance.weights) == instance.params.model_dump()
        assert msgspec.structs.asdict(instance.margins) == instance.choice.model_dump()
    assert (first.weights.ttft, other.weights.ttft, first.margins.tie_s, other.margins.kv_fill) == (2.0, 3.0, 0.5, 2.0)
