"""`interpret`: what an Ask says of a request, and what an engine will be told."""

import json
from typing import Any

import pytest

from domain.ask import Ask, Endpoint
from domain.faults import Fault, Kind
from gateway.http.openai import interpret
from gateway.http.openai.controls import CONTROLS
from gateway.http.openai.rerank import PAIR_BYTES

HI = [{"role": "user", "content": "hi"}]
MINIMAL: dict[Endpoint, dict[str, Any]] = {
    Endpoint.CHAT: {"messages": HI},
    Endpoint.COMPLETIONS: {"prompt": "hi"},
    Endpoint.EMBEDDINGS: {"input": "hi"},
    **{endpoint: json.loads(endpoint.probe) for endpoint in Endpoint if not endpoint.kept},
}


def ask(endpoint: Endpoint = Endpoint.CHAT, **fields: Any) -> Ask:
    return interpret(endpoint, json.dumps({"model": "m", **MINIMAL[endpoint], **fields}).encode())


def refused(endpoint: Endpoint = Endpoint.CHAT, **fields: Any) -> Fault:
    with pytest.raises(Fault) as caught:
        ask(endpoint, **fields)
    return caught.value


@pytest.mark.parametrize("endpoint", Endpoint)
def test_the_least_request(endpoint: Endpoint) -> None:
    body = json.dumps({"model": "m", **MINIMAL[endpoint]}).encode()
    got = interpret(endpoint, body)
    assert got.endpoint is endpoint
    assert got.model == "m"
    assert json.loads(got.fields) == MINIMAL[endpoint]
    assert (got.stream, got.include_usage, got.max_output_tokens) == (False, False, None)
    unread = endpoint.sound == "in" or endpoint.duplex
    assert got.choices == (1 if endpoint.generates or unread else 0)
    pairs = len(endpoint.prompt_fields) > 1
    assert got.prompt_bytes == (1 if unread else len(body) + (PAIR_BYTES if pairs else 0))


@pytest.mark.req("R30")
def test_unknown_fields_go_on_unchanged() -> None:
    extra = {"top_k": 5, "foo_bar": [1, {"x": None}], "metadata": {"ü": "✓"}, "prompt_cache_key": "k", "service_tier": None}
    assert json.loads(ask(**extra).fields) == {**MINIMAL[Endpoint.CHAT], **extra}


@pytest.mark.parametrize("endpoint", Endpoint)
def test_engine_controls_are_stripped_on_every_endpoint(endpoint: Endpoint) -> None:
    hints = {"agent_hints": {"priority": 9}}
    got = ask(endpoint, **dict.fromkeys(CONTROLS - {"nvext"}, "evil"), nvext=hints, kept=1)
    assert json.loads(got.fields) == {**MINIMAL[endpoint], "kept": 1}


def test_controls_have_no_meaning_below_the_top_level_and_stay_there() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"priority": {}}}}}
    assert json.loads(ask(tools=[tool]).fields)["tools"] == [tool]


class TestStream:
    @pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
    def test_the_engine_is_always_asked_for_usage(self, options: object) -> None:
        got = ask(stream=True, stream_options=options)
        assert got.stream
        assert not got.include_usage
        assert json.loads(got.fields)["stream_options"] == {"include_usage": True}

    def test_the_caller_may_ask_too_and_for_nothing_else(self) -> None:
        got = ask(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": False, "include_obfuscation": True})
        assert got.include_usage
        assert json.loads(got.fields)["stream_options"] == {"include_usage": True}

    def test_a_running_count_beside_the_whole_one_is_dropped(self) -> None:
        """Load tools ask for both in every request; the last of the running counts is the whole one."""
        got = ask(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
        assert got.include_usage
        assert json.loads(got.fields)["stream_options"] == {"include_usage": True}

    def test_without_stream_there_are_no_options(self) -> None:
        assert "stream_options" not in json.loads(ask(stream=False).fields)
        for unused in ({"include_usage": True}, {}, None):
            plain = ask(stream=False, stream_options=unused)
            assert "stream_options" not in json.loads(plain.fields), "vLLM refuses it in a plain request"
            assert "stream_options" not in plain.names
            assert not plain.include_usage
        assert refused(stream_options=[]).param == "stream_options"

    def test_types(self) -> None:
        assert refused(stream="yes").param == "stream"
        assert refused(stream=1).param == "stream"
        assert refused(stream=True, stream_options=[]).param == "stream_options"
        counting = refused(stream=True, stream_options={"continuous_usage_stats": True})
        assert (counting.kind, counting.param) == (Kind.UNSUPPORTED_PARAMETER, "stream_options.continuous_usage_stats")
        assert "send 'include_usage'" in counting.message
        assert refused(stream=True, stream_options={"include_usage": 1}).param == "stream_options.include_usage"

    def test_one_request_does_not_colour_the_next(self) -> None:
        assert ask(stream=True, stream_options={"include_usage": True}).include_usage
        assert not ask(stream=True).include_usage


class TestModel:
    @pytest.mark.parametrize("model", ["m", "org/name-8b:v1", "x" * 256, "模型"])
    def test_names(self, model: str) -> None:
        got = ask(model=model)
        assert got.model == model
        assert "model" not in json.loads(got.fields)

    @pytest.mark.parametrize("model", ["", "x" * 257, "a\nb", "a\x00", "a\u202eb", "\x1b[31m"])
    def test_not_names(self, model: str) -> None:
        fault = refused(model=model)
        assert (fault.kind, fault.param) == (Kind.INVALID_VALUE, "model")
        assert fault.message.isprintable()

    def test_missing_or_of_another_type(self) -> None:
        assert refused(model=None).kind is Kind.MISSING_PARAMETER
        assert refused(model=5).kind is Kind.INVALID_VALUE


class TestOutputCap:
    @pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
    def test_either_name(self, name: str) -> None:
        assert ask(**{name: 7}).max_output_tokens == 7

    def test_both_must_agree(self) -> None:
        assert ask(max_tokens=7, max_completion_tokens=7).max_output_tokens == 7
        assert ask(max_tokens=None, max_completion_tokens=7).max_output_tokens == 7
        assert refused(max_tokens=7, max_completion_tokens=8).param == "max_completion_tokens"


@pytest.mark.parametrize(("endpoint", "field"), [(endpoint, field) for endpoint in Endpoint for field in endpoint.prompt_fields])
def test_what_is_required(endpoint: Endpoint, field: str) -> None:
    others = {name: value for name, value in MINIMAL[endpoint].items() if name != field}
    for value in ({field: None}, {}):
        with pytest.raises(Fault) as caught:
            interpret(endpoint, json.dumps({"model": "m", **others, **value}).encode())
        assert (caught.value.kind, caught.value.param) == (Kind.MISSING_PARAMETER, field)


def test_null_is_as_good_as_absent() -> None:
    nulls = dict.fromkeys(("n", "temperature", "top_p", "stop", "tools", "tool_choice", "stream", "logit_bias", "response_format"))
    got = ask(**nulls)
    assert got.choices == 1
    assert not got.stream
