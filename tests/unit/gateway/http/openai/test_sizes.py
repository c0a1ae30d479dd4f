"""A cap of ours stands in the body exactly where the caller set none, and is what the reservation counts with."""

import json
from typing import Any

import pytest

from domain.ask import Endpoint
from domain.faults import Fault, Kind
from gateway.http.openai import interpret
from gateway.http.openai.sizes import trimmed, with_output_cap


def asked(endpoint: Endpoint = Endpoint.CHAT, **fields: Any) -> Any:
    document = (
        {"model": "m", "messages": [{"role": "user", "content": "hi"}]} if endpoint is Endpoint.CHAT else {"model": "m", "prompt": "hi"}
    )
    return interpret(endpoint, json.dumps({**document, **fields}).encode())


@pytest.mark.parametrize(
    "nothing", [{}, {"max_tokens": None}, {"max_completion_tokens": None}, {"max_tokens": None, "max_completion_tokens": None}]
)
def test_a_missing_cap_is_written_once(nothing: tuple[str, ...]) -> None:
    ask = with_output_cap(asked(**dict.fromkeys(nothing)), 77)
    pairs = json.loads(ask.fields, object_pairs_hook=list)
    assert [value for name, value in pairs if name.startswith("max_")] == [77]
    assert ask.max_output_tokens == 77
    assert "max_tokens" in ask.names
    assert json.loads(ask.fields)["messages"] == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_callers_own_cap_stays(name: str) -> None:
    ask = asked(**{name: 5})
    assert with_output_cap(ask, 77) is ask


@pytest.mark.parametrize("fields", [{"max_tokens": 0}, {"max_completion_tokens": 0}, {"max_tokens": 0, "max_completion_tokens": 0}])
def test_a_chat_that_asks_for_no_token_gets_the_smallest_answer(fields: dict[str, int]) -> None:
    """SGLang reads 0 as no cap, vLLM refuses it, llama.cpp generates one token: the last is what the caller comes closest to."""
    ask = asked(**fields)
    assert {name: json.loads(ask.fields)[name] for name in fields} == dict.fromkeys(fields, 1)
    assert ask.max_output_tokens == 1


def test_a_prompt_is_scored_without_an_answer() -> None:
    """OpenAI's way to get the log-probabilities of a text. vLLM generates one token for it, and says nothing of that."""
    ask = asked(Endpoint.COMPLETIONS, max_tokens=0, echo=True, logprobs=1)
    assert json.loads(ask.fields) == {"prompt": "hi", "max_tokens": 0, "echo": True, "logprobs": 1}
    assert ask.max_output_tokens == 1
    for echo in ({}, {"echo": False}):
        with pytest.raises(Fault, match="'max_tokens': 0 is allowed only with 'echo'") as caught:
            asked(Endpoint.COMPLETIONS, max_tokens=0, **echo)
        assert (caught.value.kind, caught.value.param) == (Kind.INVALID_VALUE, "max_tokens")


def test_embeddings_have_no_output() -> None:
    ask = interpret(Endpoint.EMBEDDINGS, b'{"model":"m","input":"x"}')
    assert with_output_cap(ask, 77) is ask


@pytest.mark.parametrize("value", [1, -900_000_000_000, "1"])
def test_a_cap_that_engines_do_not_follow_is_no_cap(value: object) -> None:
    """Reserved with, a small one would be an overshoot and a negative one would give quota back."""
    with pytest.raises(Fault) as caught:
        asked(Endpoint.COMPLETIONS, max_completion_tokens=value)
    assert (caught.value.kind, caught.value.param) == (Kind.UNSUPPORTED_PARAMETER, "max_completion_tokens")


def test_embeddings_make_no_sequences_whatever_else_is_sent() -> None:
    assert interpret(Endpoint.EMBEDDINGS, b'{"model":"m","input":"x","n":0,"best_of":4}').sequences == 0


@pytest.mark.parametrize(
    ("fields", "sequences"),
    [
        ({}, 1),
        ({"n": 3}, 3),
        ({"best_of": 4}, 4),
        ({"n": 2, "best_of": 4}, 4),
        ({"n": 4, "best_of": 2}, 4),
        ({"n": 2, "best_of": 4, "prompt": ["a", "b"]}, 8),
    ],
)
def test_every_sequence_the_engine_generates_counts(fields: dict[str, Any], sequences: int) -> None:
    assert asked(Endpoint.COMPLETIONS, **fields).sequences == sequences


def test_what_limits_look_at_is_read() -> None:
    ask = asked(user="u-1", logprobs=True, top_logprobs=5)
    assert (ask.user, ask.logprobs) == ("u-1", 5)
    assert asked(logprobs=True).logprobs == 1
    assert (asked().user, asked(user=None).user, asked().logprobs) == ("", "", 0)


@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS])
@pytest.mark.parametrize("fields", [{}, {"stop": ["x"]}, {"max_tokens": 500}, {"max_tokens": 500, "n": 2, "seed": 7}])
def test_a_trimmed_request_has_one_cap_and_is_otherwise_the_same(endpoint: Endpoint, fields: dict[str, Any]) -> None:
    ask = asked(endpoint, **fields)
    shorter = trimmed(ask, 64)
    pairs = json.loads(shorter.fields, object_pairs_hook=list)
    assert [value for name, value in pairs if name.startswith("max_")] == [64]
    assert shorter.max_output_tokens == 64
    assert (shorter.prompt, shorter.choices) == (ask.prompt, ask.choices)
    assert json.loads(shorter.fields) == json.loads(ask.fields) | {"max_tokens": 64}
    assert shorter.names == set(json.loads(shorter.fields))


def test_both_names_of_a_cap_are_trimmed() -> None:
    shorter = trimmed(asked(max_tokens=500, max_completion_tokens=500), 64)
    document = json.loads(shorter.fields)
    assert (document["max_tokens"], document["max_completion_tokens"]) == (64, 64)


@pytest.mark.parametrize(
    "fields", [{"max_tokens": 64}, {"max_completion_tokens": 5}, {"min_tokens": 65}, {"max_tokens": 500, "min_tokens": 65}]
)
def test_what_asks_for_no_more_or_insists_on_more_is_not_trimmed(fields: dict[str, Any]) -> None:
    ask = asked(**fields)
    assert trimmed(ask, 64) is ask


def test_embeddings_are_not_trimmed() -> None:
    ask = interpret(Endpoint.EMBEDDINGS, b'{"model":"m","input":"x"}')
    assert trimmed(ask, 64) is ask
