import pytest
from pydantic import ValidationError

from routing.policy_instance import policy_instance


def test_a_policy_by_name_with_checked_parameters_and_a_memory_of_its_own() -> None:
    one, other = policy_instance("round_robin"), policy_instance("round_robin")
    assert one.memory is not None and one.memory is not other.memory
    assert policy_instance("random").memory is None
    with pytest.raises(KeyError):
        policy_instance("best")
    with pytest.raises(ValidationError, match="weight"):
        policy_instance("random", {"weight": 1})
