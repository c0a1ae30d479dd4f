"""Text in four shapes, and in no other."""

import pytest

from domain.faults import Fault
from gateway.http.openai.generation import MAX_TOKEN_ID, inputs, list_inputs

check = inputs(4, "prompts")


@pytest.mark.parametrize(("value", "count"), [("", 1), ("x", 1), (["a", "b"], 2), ([0, MAX_TOKEN_ID], 1), ([[1], [2]], 2)])
def test_the_four_shapes(value: object, count: int) -> None:
    check(value, "prompt")
    assert len(list_inputs(value)) == count


@pytest.mark.parametrize(
    ("value", "param"),
    [
        (5, "prompt"),
        ({}, "prompt"),
        ([], "prompt"),
        (["a"] * 5, "prompt"),
        ([[1]] * 5, "prompt"),
        ([None], "prompt[0]"),
        ([{"text": "x", "image": "http://127.0.0.1/"}], "prompt[0]"),
        (["a", 1], "prompt[1]"),
        ([1, "a"], "prompt[1]"),
        ([1, True], "prompt[1]"),
        ([True], "prompt[0]"),
        ([1, -1], "prompt[1]"),
        ([1, MAX_TOKEN_ID + 1], "prompt[1]"),
        ([1, 2.0], "prompt[1]"),
        ([[1], "a"], "prompt[1]"),
        ([[1], []], "prompt[1]"),
        ([[1], [2, "a"]], "prompt[1][1]"),
        ([[[1]]], "prompt[0][0]"),
    ],
)
def test_refused_with_the_place(value: object, param: str) -> None:
    with pytest.raises(Fault) as caught:
        check(value, "prompt")
    assert caught.value.param == param
