"""The body of a Messages request as that of a chat."""

import json
from typing import Any

import pytest

from domain.ask import Endpoint
from domain.faults import Fault, Kind
from gateway.http.anthropic import MessagesTranslation
from gateway.http.anthropic.request import DROPPED, chat_of, identity
from gateway.http.anthropic.signatures import ThinkingSigner
from gateway.http.openai import interpret

SIGNER = ThinkingSigner(b"a secret of this test")
HI = [{"role": "user", "content": "hi"}]
TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}


def chat(**fields: Any) -> dict[str, Any]:
    body = json.dumps({"model": "m", "max_tokens": 9, "messages": HI} | fields).encode()
    answer = chat_of(body, SIGNER).chat
    interpret(Endpoint.CHAT, answer)  # a chat that the gateway takes
    made: dict[str, Any] = json.loads(answer)
    return made


def test_the_usual_request() -> None:
    body = {
        "stop_sequences": ["END"],
        "temperature": 0.5,
        "top_k": 4,
        "stream": True,
        "metadata": {"user_id": "u-1"},
        "service_tier": "auto",
    }
    assert chat(**body) == {
        "model": "m",
        "messages": HI,
        "max_tokens": 9,
        "temperature": 0.5,
        "top_k": 4,
        "stream": True,
        "stream_options": {"include_usage": True},
        "stop": ["END"],
        "user": "u-1",
    }


def test_fields_that_the_api_does_not_have_go_on() -> None:
    extra = {"min_p": 0.1, "chat_template_kwargs": {"a": True}, "guardrails": ["pii"], "cache": {"no-store": True}}
    assert extra.items() <= chat(**extra).items()
    assert DROPPED.isdisjoint(extra)


def test_tools() -> None:
    assert chat(tools=[TOOL, TOOL | {"type": "custom", "strict": True, "eager_input_streaming": True}])["tools"] == [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}},
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}},
    ]
    choices = [{"type": kind} for kind in ("auto", "any", "none")] + [{"type": "tool", "name": "f"}]
    assert [chat(tools=[TOOL], tool_choice=choice)["tool_choice"] for choice in choices] == [
        "auto",
        "required",
        "none",
        {"type": "function", "function": {"name": "f"}},
    ]
    assert chat(tools=[TOOL], tool_choice={"type": "auto", "disable_parallel_tool_use": True})["parallel_tool_calls"] is False


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, {"enable_thinking": True}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"thinking": {"type": "adaptive"}}, {}),
        ({"output_config": {"effort": "max"}}, {"reasoning_effort": "high"}),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}, {"enable_thinking": False}),
    ],
)
def test_thinking(fields: dict[str, Any], sent: dict[str, Any]) -> None:
    made = chat(**fields)
    assert {name: made[name] for name in ("enable_thinking", "reasoning_effort") if name in made} == sent


@pytest.mark.parametrize("name", ["output_format", "output_config"])
def test_a_schema_of_the_answer(name: str) -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    made = chat(**{name: form if name == "output_format" else {"format": form}})
    assert made["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True},
    }


def test_an_answer_goes_on_from_the_last_turn() -> None:
    begun = [*HI, {"role": "assistant", "content": "The best is ("}]
    made = chat(messages=begun)
    assert (made["continue_final_message"], made["add_generation_prompt"]) == (True, False)
    assert "continue_final_message" not in chat()


@pytest.mark.parametrize(
    ("user_id", "user", "session"),
    [
        ("u-1", "u-1", ""),
        (f"user_{'0a' * 32}_account_11-22_session_33445566-77", f"user_{'0a' * 32}_account_11-22", "33445566-77"),
        ('{"device_id":"d","account_uuid":"","session_id":"33-44"}', "d", "33-44"),
        ("{broken", "{broken", ""),
        pytest.param('{"a":' + "[" * 5000, '{"a":' + "[" * 5000, "", id="deep"),
    ],
)
def test_user_and_session(user_id: str, user: str, session: str) -> None:
    """A label of the end user that changed with each session would make each session a user of its own in limits."""
    assert identity(user_id) == (user, session)
    if len(user) > 512:
        return  # the chat's check refuses so long a label
    body = json.dumps({"model": "m", "max_tokens": 9, "messages": HI, "metadata": {"user_id": user_id}}).encode()
    ask = interpret(Endpoint.CHAT, chat_of(body, SIGNER).chat)
    assert (ask.user, ask.session) == (user, session)


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"messages": None, "system": "s"}, Kind.MISSING_PARAMETER, "messages"),
        ({"max_tokens": None}, Kind.MISSING_PARAMETER, "max_tokens"),
        ({"stream": 1}, Kind.INVALID_VALUE, "stream"),
        ({"system": 1}, Kind.INVALID_VALUE, "system"),
        ({"stop_sequences": "END"}, Kind.INVALID_VALUE, "stop_sequences"),
        ({"metadata": {"user_id": 1}}, Kind.INVALID_VALUE, "metadata.user_id"),
        ({"thinking": {"type": "deep"}}, Kind.INVALID_VALUE, "thinking.type"),
        ({"output_config": {"effort": "huge"}}, Kind.INVALID_VALUE, "output_config.effort"),
        ({"output_format": {"type": "xml"}}, Kind.INVALID_VALUE, "output_format.type"),
        ({"tools": [{"name": "f"}]}, Kind.MISSING_PARAMETER, "tools.0.input_schema"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, Kind.UNSUPPORTED_PARAMETER, "tools.0.type"),
        ({"tool_choice": {"type": "some"}}, Kind.INVALID_VALUE, "tool_choice.type"),
        ({"container": "c"}, Kind.UNSUPPORTED_PARAMETER, "container"),
        ({"mcp_servers": [{"url": "https://a.example"}]}, Kind.UNSUPPORTED_PARAMETER, "mcp_servers"),
        ({"n": 2}, Kind.UNSUPPORTED_PARAMETER, "n"),
        ({"response_format": {"type": "json_object"}}, Kind.UNSUPPORTED_PARAMETER, "response_format"),
        ({"speed": "fast"}, Kind.UNSUPPORTED_PARAMETER, "speed"),
    ],
)
def test_a_refusal_names_the_field(fields: dict[str, Any], kind: Kind, param: str) -> None:
    with pytest.raises(Fault) as caught:
        chat(**fields)
    assert (caught.value.kind, caught.value.param) == (kind, param)
    assert param in caught.value.message


def test_counting_needs_no_max_tokens() -> None:
    body = json.dumps({"model": "m", "messages": HI}).encode()
    assert json.loads(chat_of(body, SIGNER, counts=True).chat) == {"model": "m", "messages": HI}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"messages": [*HI, {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://a"}}]}]}, "messages.0"),
        ({"stop_sequences": ["x" * 5000]}, "stop_sequences.0"),
        ({"tools": [TOOL, TOOL | {"name": "x" * 5000}]}, "tools.1"),
        ({"temperature": 7}, "temperature"),
    ],
)
def test_what_the_chats_check_refuses_is_told_by_the_callers_field(fields: dict[str, Any], named: str) -> None:
    made = MessagesTranslation(SIGNER, lambda: 0.0)
    body = json.dumps({"model": "m", "max_tokens": 9, "system": "s", "messages": HI} | fields).encode()
    with pytest.raises(Fault) as caught:
        interpret(Endpoint.CHAT, made.request(body))
    told = json.loads(made.refusal(caught.value, "r").body)["error"]["message"]
    assert f"'{named}'" in told


def test_a_prompt_of_the_registry_may_have_all_messages() -> None:
    body = json.dumps({"max_tokens": 9}).encode()
    assert interpret(Endpoint.CHAT, chat_of(body, SIGNER).chat, b"greet").template is not None
