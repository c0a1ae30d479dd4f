from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.ask import Ask, Endpoint
from domain.faults import Fault, Kind
from gateway.http.openai import interpret
from gateway.http.openai.parameters import with_parameters
from policies.parameters import Parameters, ParametersField, parameters_of

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "temperature"}]}


def rules(**written: Any) -> Parameters:
    made = parameters_of(ParametersField.model_validate(written))
    assert made is not None
    return made


def chat(**fields: Any) -> Ask:
    return interpret(Endpoint.CHAT, msgspec.json.encode({**CHAT, **fields}))


def sent(ask: Ask) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(ask.fields)
    return found


def test_a_default_holds_where_nothing_is_set() -> None:
    defaults = rules(defaults={"temperature": 0.5, "stop": ["x"]})
    assert sent(with_parameters(chat(), defaults)) == {"messages": CHAT["messages"], "temperature": 0.5, "stop": ["x"]}
    mine = with_parameters(chat(temperature=0.0, top_p=0.5), defaults)
    assert sent(mine) == {"messages": CHAT["messages"], "temperature": 0.0, "top_p": 0.5, "stop": ["x"]}
    assert mine.names == {"messages", "temperature", "top_p", "stop"}


def test_null_is_not_set_and_no_engine_is_sent_two() -> None:
    made = with_parameters(chat(temperature=None, top_p=None, seed=3), rules(defaults={"temperature": 0.5, "top_p": 0.25}))
    assert made.fields.count(b'"temperature":') == 1
    assert sent(made) == {"messages": CHAT["messages"], "temperature": 0.5, "top_p": 0.25, "seed": 3}
    assert made.prompt == chat().prompt


def test_a_refused_parameter_with_a_default_always_has_it() -> None:
    fixed = rules(defaults={"seed": 7}, refused=["seed"])
    assert sent(with_parameters(chat(seed=None), fixed))["seed"] == 7
    with pytest.raises(Fault) as caught:
        with_parameters(chat(seed=3), fixed)
    assert (caught.value.kind, caught.value.param) == (Kind.NOT_PERMITTED, "seed")


def test_only_what_is_allowed_may_be_set() -> None:
    few = rules(allowed=["temperature"])
    asked = chat(temperature=1, stream=True, user="u", n=1, seed=None)
    assert with_parameters(asked, few) is asked
    with pytest.raises(Fault, match="Requests may not set 'top_p' here"):
        with_parameters(chat(top_p=0.5), few)


def test_too_much_is_refused_with_the_bound() -> None:
    bounded = rules(at_most={"temperature": 1, "n": 2})
    assert with_parameters(chat(temperature=1, n=2), bounded) == chat(temperature=1, n=2)
    with pytest.raises(Fault, match="Invalid value for 'temperature': at most 1 is allowed here, not") as caught:
        with_parameters(chat(temperature=1.5), bounded)
    assert (caught.value.kind, caught.value.param) == (Kind.INVALID_VALUE, "temperature")


def test_embeddings_have_no_defaults_and_completions_none_of_chats() -> None:
    embed = interpret(Endpoint.EMBEDDINGS, b'{"model":"m","input":"x"}')
    every = rules(defaults={"temperature": 0.5, "reasoning_effort": "low"})
    assert with_parameters(embed, every) is embed
    complete = interpret(Endpoint.COMPLETIONS, b'{"model":"m","prompt":"x"}')
    assert sent(with_parameters(complete, every)) == {"prompt": "x", "temperature": 0.5}
    assert sent(with_parameters(chat(), every))["reasoning_effort"] == "low"


VALUES = st.dictionaries(st.sampled_from(["temperature", "top_p", "seed", "stop", "user"]), st.none() | st.just(1), max_size=5)


@given(VALUES)
def test_what_a_request_sets_is_never_changed(fields: dict[str, Any]) -> None:
    if fields.get("stop") is not None or fields.get("user") is not None:
        fields = {**fields, **{name: "s" for name in ("stop", "user") if fields.get(name) is not None}}
    ask = chat(**fields)
    made = with_parameters(ask, rules(defaults={"temperature": 0.5, "seed": 9}))
    before = {name: value for name, value in sent(ask).items() if value is not None}
    after = {name: value for name, value in sent(made).items() if value is not None}
    assert after == {"temperature": 0.5, "seed": 9} | before
