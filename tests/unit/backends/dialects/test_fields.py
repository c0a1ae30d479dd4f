"""Fields engines follow: what would not be followed is refused by its name, what means nothing is left out."""

import json

import pytest

from backends.dialects import DIALECTS, fit
from backends.dialects.fields import BOOKKEEPING, DEFAULTS
from domain.ask import Ask, Endpoint
from domain.faults import Fault, Kind
from gateway.http.openai import interpret

MESSAGES = [{"role": "user", "content": "hi"}]
STRICT = [name for name, dialect in DIALECTS.items() if dialect.fields.takes is not None]


def asked(endpoint: Endpoint = Endpoint.CHAT, **fields: object) -> Ask:
    required = {Endpoint.CHAT: {"messages": MESSAGES}, Endpoint.COMPLETIONS: {"prompt": "hi"}, Endpoint.EMBEDDINGS: {"input": "hi"}}
    return interpret(endpoint, json.dumps({"model": "m", **required[endpoint], **fields}).encode())


def sent(dialect: str, endpoint: Endpoint = Endpoint.CHAT, **fields: object) -> dict[str, object]:
    found: dict[str, object] = json.loads(fit(DIALECTS[dialect].fields, asked(endpoint, **fields)))
    return {name: value for name, value in found.items() if name not in ("messages", "prompt", "input", "stream_options")}


def refused(dialect: str, endpoint: Endpoint = Endpoint.CHAT, **fields: object) -> str | None:
    with pytest.raises(Fault) as caught:
        fit(DIALECTS[dialect].fields, asked(endpoint, **fields))
    assert caught.value.kind is Kind.UNSUPPORTED_PARAMETER
    return caught.value.param


def test_what_clients_usually_send_goes_to_every_engine_as_it_is() -> None:
    for stream in ({}, {"stream": True}):
        ask = asked(temperature=0.5, max_tokens=10, seed=1, frequency_penalty=0.5, **stream)
        assert all(fit(dialect.fields, ask) is ask.fields for dialect in DIALECTS.values())


@pytest.mark.parametrize("dialect", STRICT)
def test_a_field_off_an_engines_list_is_refused_by_its_name(dialect: str) -> None:
    assert refused(dialect, surprise=1) == "surprise"
    assert refused(dialect, prompt_token_ids=[1, 2]) == "prompt_token_ids"  # an internal field of TensorRT-LLM's


@pytest.mark.parametrize("dialect", STRICT)
def test_defaults_nulls_and_bookkeeping_off_the_list_are_left_out(dialect: str) -> None:
    takes = DIALECTS[dialect].fields.takes
    assert takes is not None
    off_list = {name: values[0] for name, values in DEFAULTS.items() if name not in takes[Endpoint.CHAT]} | {"surprise": None}
    off_list.pop("encoding_format", None)
    off_list |= {name: {} if name == "metadata" else "x" for name in BOOKKEEPING - takes[Endpoint.CHAT]}
    assert off_list
    assert sent(dialect, **off_list) == {}


def test_tgi_never_gets_the_penalty_it_misreads() -> None:
    assert sent("tgi", presence_penalty=0, n=1, top_p=1, logit_bias={}) == {}
    assert refused("tgi", presence_penalty=0.5) == "presence_penalty"
    assert refused("tgi", n=2) == "n"
    assert sent("tgi", stop="x", top_p=0.9) == {"stop": ["x"], "top_p": 0.9}
    assert sent("tgi", stop=["x", "y"]) == {"stop": ["x", "y"]}


def test_triton_never_gets_a_format_it_drops() -> None:
    assert sent("triton", response_format={"type": "text"}) == {}
    assert refused("triton", response_format={"type": "json_object"}) == "response_format"
    assert refused("triton", Endpoint.COMPLETIONS, suffix="x") == "suffix"


def test_dynamo_never_gets_an_empty_list_of_stops() -> None:
    assert sent("dynamo", stop=[]) == {}
    assert sent("dynamo", stop=["x"]) == {"stop": ["x"]}


def test_one_cap_under_two_names_goes_out_under_one() -> None:
    for dialect in STRICT:
        assert sent(dialect, max_tokens=5, max_completion_tokens=5) == {"max_tokens": 5}
    assert len(sent("vllm", max_tokens=5, max_completion_tokens=5)) == 2


def test_an_endpoint_the_engine_lacks() -> None:
    assert refused("tgi", Endpoint.EMBEDDINGS) == "model"
    assert sent("trtllm", Endpoint.EMBEDDINGS, encoding_format="float") == {"encoding_format": "float"}


@pytest.mark.parametrize("dialect", ["sglang", "llamacpp"])
def test_what_only_vllm_has_is_refused_elsewhere(dialect: str) -> None:
    kwargs: list[tuple[str, object, object]] = [(name, {"a": 1}, {}) for name in ("mm_processor_kwargs", "media_io_kwargs")]
    for field, value, unset in [("return_prompt_text", True, False), *kwargs]:
        assert sent("vllm", **{field: value}) == {field: value}
        assert refused(dialect, **{field: value}) == field
        assert sent(dialect, **{field: unset}) == {}


def test_llamacpp_never_scores_a_prompt_that_it_would_not_show() -> None:
    """llama.cpp generates a token for `max_tokens: 0`, and leaves the prompt out of the text."""
    assert refused("llamacpp", Endpoint.COMPLETIONS, max_tokens=0, echo=True) == "echo"
    assert sent("vllm", Endpoint.COMPLETIONS, max_tokens=0, echo=True) == {"max_tokens": 0, "echo": True}
    assert sent("llamacpp", Endpoint.COMPLETIONS, echo=False) == {}
