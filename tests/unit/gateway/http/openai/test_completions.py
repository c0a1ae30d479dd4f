"""Completions: four shapes of prompt, and `n` answers for each."""

import json
from typing import Any

import pytest

from domain.ask import Ask, Endpoint
from domain.faults import Fault
from gateway.http.openai import interpret


def ask(prompt: object, **fields: Any) -> Ask:
    return interpret(Endpoint.COMPLETIONS, json.dumps({"model": "m", "prompt": prompt, **fields}).encode())


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [("x", 1), ("", 1), (["a"], 1), (["a", "b", "c"], 3), ([1, 2, 3], 1), ([[1, 2], [3]], 2), (["x"] * 256, 256)],
)
def test_answers_are_n_for_every_prompt(prompt: object, texts: int) -> None:
    assert ask(prompt).choices == texts
    assert ask(prompt, n=3).choices == 3 * texts


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"suffix": 5}, "suffix"), ({"logprobs": 21}, "logprobs"), ({"logprobs": -1}, "logprobs"), ({"logprobs": True}, "logprobs")],
)
def test_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Fault) as caught:
        ask("x", **fields)
    assert caught.value.param == param


def test_too_many_prompts() -> None:
    with pytest.raises(Fault, match="257 items"):
        ask(["x"] * 257)


def test_token_prompts_are_bounded_by_their_bytes() -> None:
    assert ask([1, 2, 3, 4]).prompt_bytes >= 4
