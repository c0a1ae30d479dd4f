import pytest
from pydantic import ValidationError

from policies.parameters import ALWAYS, ParametersField, parameters_of, with_prompt_defaults


def test_what_says_nothing_costs_nothing() -> None:
    assert parameters_of(ParametersField()) is None


def test_defaults_are_json_and_bounds_have_an_order() -> None:
    written = ParametersField.model_validate({"defaults": {"temperature": 0.5, "stop": ["a", "b"]}, "at_most": {"top_p": 0.9, "n": 2}})
    made = parameters_of(written)
    assert made is not None
    assert made.defaults == (("temperature", b"0.5"), ("stop", b'["a","b"]'))
    assert made.at_most == (("n", 2), ("top_p", 0.9))
    assert made.looked_at == {"temperature", "stop", "n", "top_p"}


def test_what_a_request_is_may_always_be_said() -> None:
    made = parameters_of(ParametersField(allowed=["temperature"]))
    assert made is not None
    assert made.allowed == ALWAYS | {"temperature"}


@pytest.mark.parametrize(
    "written",
    [
        {"defaults": {"temperature": 1.0}, "at_most": {"temperature": 0.5}},
        {"allowed": ["seed"], "refused": ["seed"]},
        {"refused": ["Not A Name"]},
        {"defaults": {"temperature": "0.5"}},
        {"opened": ["seed"]},
        {"opened": ["chat_template_kwargs.x"]},
        {"refused": ["a..b"]},
        {"at_most": {"a.b.c.d.e": 1}},
    ],
)
def test_what_contradicts_itself_is_refused(written: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ParametersField.model_validate(written)


def test_a_prompts_defaults_come_before_a_policys_but_for_what_requests_may_not_set() -> None:
    own = (("temperature", b"0.9"), ("seed", b"9"), ("top_k", b"50"))
    written = {"defaults": {"temperature": 0.1, "seed": 7, "min_p": 0.1}, "refused": ["seed", "top_p"], "at_most": {"top_k": 20}}
    policy = parameters_of(ParametersField.model_validate(written))
    made = with_prompt_defaults(own, policy)
    assert made is not None
    assert dict(made.defaults) == {"temperature": b"0.9", "seed": b"7", "top_k": b"20", "min_p": b"0.1"}
    assert made.looked_at >= {"temperature", "seed", "top_k", "min_p", "top_p"}
    assert with_prompt_defaults((), policy) is policy
    alone = with_prompt_defaults(own, None)
    assert alone is not None
    assert (alone.defaults, alone.refused, alone.allowed) == (own, frozenset(), None)
