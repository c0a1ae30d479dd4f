import pytest
from pydantic import ValidationError

from policies.routing_choice import DEFAULT_ROUTING, NAMES, WITH_PARAMETERS, routing_of
from policies.schema import PolicyDocument
from routing.registry import POLICIES


def written(routing: object) -> PolicyDocument:
    return PolicyDocument.model_validate({"tenant": "*", "routing": routing})


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_may_be_written_by_its_name_or_with_parameters(name: str) -> None:
    by_name, mapped = routing_of(written(name).routing), routing_of(written({"policy": name, "tie_share": 0.5}).routing)
    assert by_name.policy == mapped.policy == name
    assert (by_name.choice.tie_share, mapped.choice.tie_share) == (0.03, 0.5)
    assert isinstance(mapped.params, POLICIES[name].params)
    assert by_name.key != mapped.key
    assert mapped.policy_instance().name == name
    assert set(POLICIES[name].params.model_fields) <= set(WITH_PARAMETERS[name].model_fields)


def test_parameters_are_the_policys_own() -> None:
    routing = routing_of(written({"policy": "weighted", "prefix": 0.9}).routing)
    assert routing.policy_instance().params.model_dump()["prefix"] == 0.9
    with pytest.raises(ValidationError, match="extra"):
        written({"policy": "lmetric", "prefix": 0.9})


def test_the_default_is_one_of_them_and_the_same_words_are_the_same_choice() -> None:
    assert PolicyDocument.model_validate({"tenant": "*"}).routing == DEFAULT_ROUTING
    one, same = ({"policy": "weighted", "queue": 0.5, "prefix": 0.1}, {"prefix": 0.1, "policy": "weighted", "queue": 0.5})
    assert routing_of(written(one).routing).key == routing_of(written(same).routing).key


@pytest.mark.parametrize("wrong", [5, None, True, ["p2c"], {}, {"policy": None}, {"policy": 5}, {"policy": "no"}, "no", ""])
def test_anything_else_is_refused(wrong: object) -> None:
    with pytest.raises(ValidationError):
        written(wrong)
