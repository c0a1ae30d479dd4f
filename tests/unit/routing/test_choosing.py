import pytest
from pydantic import ValidationError

from routing.choosing import choosing


def test_a_policy_by_name_with_checked_parameters_and_a_memory_of_its_own() -> None:
    one, other = choosing("round_robin"), choosing("round_robin")
    assert one.memory is not None and one.memory is not other.memory
    assert choosing("random").memory is None
    with pytest.raises(KeyError):
        choosing("best")
    with pytest.raises(ValidationError, match="weight"):
        choosing("random", {"weight": 1})
