import pytest
from pydantic import ValidationError

from policies.prompts.schema import PromptDocument

GOOD = {"id": "a-b_2", "version": 1, "messages": [{"role": "user", "content": "x"}]}


def test_the_least_there_can_be():
    assert PromptDocument.model_validate(GOOD).model is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "A"},
        {"id": "../x"},
        {"id": "a" * 65},
        {"version": 0},
        {"version": "1"},
        {"messages": []},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": [{"role": "user", "content": ""}]},
        {"messages": [{"role": "user", "content": "x" * 65_537}]},
        {"messages": GOOD["messages"] * 33},
        {"variables": {"Name": {"type": "string"}}},
        {"variables": {"loop": {"type": "string"}}},
        {"variables": {f"v{n}": {"type": "string"} for n in range(65)}},
        {"parameters": {"max_tokens": 5}},
        {"more": 1},
    ],
)
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValidationError):
        PromptDocument.model_validate(GOOD | wrong)
