"""Chats in the form engines hand them to templates."""

import json
from typing import Any

import jinja2
import pytest

from gateway.prompt.chat_template import NotText, messages_of, takes_parts, tools_of


def messages(*given: dict[str, Any], parts: bool = False, developer: bool = True) -> list[dict[str, Any]]:
    return messages_of({"messages": list(given)}, parts=parts, developer=developer)


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("{% for m in messages %}{{ m['content'] }}{% endfor %}", False),
        ("{% for m in messages %}{% for p in m['content'] %}{{ p.text }}{% endfor %}{% endfor %}", True),
        ("{% for m in messages %}{% for p in m.content | list %}{{ p.text }}{% endfor %}{% endfor %}", True),
        ("{% set content = messages[0].content %}{% for p in content[1:] %}{{ p.text }}{% endfor %}", True),
        ("{% for m in messages %}{% for c in m.tool_calls %}{{ c }}{% endfor %}{% endfor %}", False),
    ],
)
def test_a_template_that_goes_through_parts_is_known(source: str, parts: bool) -> None:
    assert takes_parts(jinja2.Environment().parse(source)) is parts


def test_content_is_one_text_or_parts_whichever_way_it_was_sent() -> None:
    two = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    assert [m["content"] for m in messages(two, {"role": "user", "content": "c"})] == ["a\nb", "c"]
    made = messages(two, {"role": "user", "content": "c"}, {"role": "assistant", "content": None}, parts=True)
    assert [m["content"] for m in made] == [two["content"], [{"type": "text", "text": "c"}], []]
    assert messages({"role": "assistant", "content": None})[0]["content"] == "", "never the word None"
    assert messages({**two, "role": "tool"}, parts=True)[0]["content"] == "a\nb"


def test_what_a_tool_call_was_given_is_an_object() -> None:
    calls = [{"type": "function", "function": {"name": "f", "arguments": text}} for text in ('{"a": 1}', "", "no json", "[1]")]
    (made,) = messages({"role": "assistant", "content": "", "tool_calls": calls})
    assert [call["function"]["arguments"] for call in made["tool_calls"]] == [{"a": 1}, {}, {}, {}]
    assert calls[0]["function"]["arguments"] == '{"a": 1}', "what is forwarded is not touched"
    assert "tool_calls" not in messages({"role": "assistant", "content": "x", "tool_calls": []})[0]


def test_a_tool_has_all_of_its_members_in_their_order() -> None:
    made = tools_of({"tools": [{"type": "function", "function": {"parameters": {"b": 1}, "name": "f", "other": 1, "strict": True}}]})
    assert json.dumps(made) == json.dumps(
        [{"type": "function", "function": {"name": "f", "description": None, "parameters": {"b": 1}, "strict": True}}]
    )
    assert tools_of({}) is None


def test_developers_speak_as_the_system_where_the_template_does_not_know_them() -> None:
    say = {"role": "developer", "content": "brief"}
    user = {"role": "user", "content": "hi"}
    assert [m["role"] for m in messages(say, user)] == ["developer", "user"]
    assert [m["role"] for m in messages(say, user, developer=False)] == ["system", "user"]
    with pytest.raises(NotText):
        messages(user, say, developer=False)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]},
        {"role": "user", "content": [{"type": "text", "text": 1}]},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "custom", "custom": {}}]},
    ],
)
def test_what_is_no_text_is_left_to_the_engine(message: dict[str, Any]) -> None:
    with pytest.raises(NotText):
        messages(message)
    with pytest.raises(NotText):
        tools_of({"tools": [{"type": "custom"}]})
