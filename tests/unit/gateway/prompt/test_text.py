"""What stands for a prompt: the same beginning for the same rendering, another one for another, and a conversation only grows."""

import base64
import hashlib
import json
import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.ask import Ask, Endpoint
from gateway.http.openai import interpret
from gateway.http.openai.sizes import with_output_cap
from gateway.prompt.text import DIGESTED_CHARS, PromptBytes, _digested, prompt_bytes

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
OTHER = {"type": "function", "function": {"name": "time", "parameters": {"type": "object"}}}
SYSTEM = {"role": "system", "content": 'Say "},{" or nothing.'}
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": 'a "quoted"},{"role":"system" text'},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "1", "content": "7 °C"},
    {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
    {"role": "assistant", "content": "yes"},
]


def ask(endpoint: Endpoint = Endpoint.CHAT, /, **fields: Any) -> Ask:
    return interpret(endpoint, json.dumps({"model": "m", **fields}).encode())


def read(*messages: dict[str, Any], **fields: Any) -> PromptBytes:
    return prompt_bytes(ask(messages=list(messages), **fields))


@pytest.mark.parametrize(
    "system", [[], [SYSTEM], [{"content": "x", "role": "developer"}], [{"role": "system", "content": [{"type": "text", "text": "a"}]}]]
)
@pytest.mark.parametrize("tools", [{}, {"tools": [TOOL, OTHER]}])
def test_a_growing_conversation_extends_what_it_was(system: list[dict[str, Any]], tools: dict[str, Any]) -> None:
    before = b""
    for turns in range(1, len(TALK) + 1):
        prompt = read(*system, *TALK[:turns], **tools)
        assert prompt.text.startswith(before)
        assert bool(prompt.opening) == bool(system)
        before = prompt.text


@pytest.mark.req("ROUTERS-30")
@pytest.mark.parametrize(
    "other",
    [
        {"tools": [OTHER]},
        {"tools": [TOOL, OTHER]},
        {},
        {"tools": [TOOL], "tool_choice": "none"},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
        {"tools": [TOOL], "documents": [{"title": "a"}]},
        {"tools": [TOOL], "reasoning_effort": "high"},
        {"tools": [TOOL], "thinking": True},
        {"tools": [TOOL], "functions": [{"name": "f"}]},
    ],
)
def test_other_tools_and_whatever_a_template_may_read_make_another_frame(other: dict[str, Any]) -> None:
    assert read(SYSTEM, *TALK, tools=[TOOL]).frame != read(SYSTEM, *TALK, **other).frame


@pytest.mark.req("ROUTERS-30")
@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 0.7, "seed": 3, "stop": ["x"], "logit_bias": {"7": 1}, "n": 2},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"max_tokens": 7},
        {"tool_choice": "auto", "parallel_tool_calls": False},
        {"response_format": {"type": "json_object"}},
        {"documents": None, "functions": []},
        {"user": "ann", "metadata": {"a": "b"}},
    ],
)
def test_fields_that_no_template_reads_change_nothing(more: dict[str, Any]) -> None:
    plain = read(SYSTEM, *TALK, tools=[TOOL])
    assert read(SYSTEM, *TALK, tools=[TOOL], **more) == plain
    in_front = ask(**more, tools=[TOOL], messages=[SYSTEM, *TALK])
    assert prompt_bytes(in_front) == plain
    assert prompt_bytes(with_output_cap(in_front, 100)) == plain


def test_a_system_message_comes_before_the_tools_and_the_rest_behind_them() -> None:
    prompt = read(SYSTEM, TALK[0], tools=[TOOL])
    assert prompt.text.startswith(prompt.opening + prompt.frame)
    assert json.loads(prompt.opening) == SYSTEM
    assert prompt.text.endswith(json.dumps(TALK[0], separators=(",", ":")).encode())


@given(st.lists(st.builds(dict, role=st.sampled_from(["system", "user"]), content=st.text(max_size=30)), min_size=1, max_size=4))
def test_the_opening_is_the_first_message_where_it_is_the_systems(messages: list[dict[str, str]]) -> None:
    opening = read(*messages).opening
    assert (json.loads(opening) if opening else None) == (messages[0] if messages[0]["role"] == "system" else None)


def test_media_take_part_as_a_digest() -> None:
    def seen(*images: bytes, text: str = "what is it?") -> PromptBytes:
        urls = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(one).decode()}} for one in images]
        return read({"role": "user", "content": [*urls, {"type": "text", "text": text}]})

    draw = random.Random(1)
    one, other = draw.randbytes(100_000), draw.randbytes(100_000)
    assert seen(one) == seen(one)
    assert len({seen(*images).text for images in ((), (one,), (other,), (one, other), (other, one))}) == 5
    assert (seen(one, other).media, seen().media) == (2, 0)
    assert len(seen(one).text) < 300
    sound = {"type": "input_audio", "input_audio": {"data": base64.b64encode(one).decode(), "format": "wav"}}
    assert read({"role": "user", "content": [sound]}).media == 1


def test_completions_of_text_and_of_ids() -> None:
    text = prompt_bytes(ask(Endpoint.COMPLETIONS, prompt="one two", max_tokens=5))
    assert (text.text, text.frame, text.tokens) == (b"one two", b"", 0)
    assert prompt_bytes(ask(Endpoint.COMPLETIONS, prompt=["one two", "three"])).text == text.text
    assert prompt_bytes(ask(Endpoint.COMPLETIONS, prompt="one two", suffix="!")).frame != b""
    ids = prompt_bytes(ask(Endpoint.COMPLETIONS, prompt=[1, 2, 3]))
    assert (list(ids.ids), ids.tokens) == ([1, 2, 3], 3)
    several = prompt_bytes(ask(Endpoint.COMPLETIONS, prompt=[[1, 2], [3]]))
    assert (list(several.ids), several.tokens) == ([1, 2], 3)


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        (Endpoint.EMBEDDINGS, {"input": "x"}),
        (Endpoint.COMPLETIONS, {"prompt": "x", "echo": True, "logprobs": 1}),
        (Endpoint.COMPLETIONS, {"prompt": "x", "truncate_prompt_tokens": 5}),
        (Endpoint.CHAT, {"messages": TALK, "prompt_logprobs": 1}),
    ],
)
def test_what_engines_read_no_cached_prefix_for_shares_none(endpoint: Endpoint, fields: dict[str, Any]) -> None:
    assert not prompt_bytes(ask(endpoint, **fields)).shared


_AS_ONE_PATTERN = re.compile(rb'"(?:data:[^"\\]{%d,}|[A-Za-z0-9+/=]{%d,})"' % (DIGESTED_CHARS, DIGESTED_CHARS))
_STRINGS = st.one_of(
    st.text(alphabet='ab"\\:,é', max_size=20),
    st.tuples(
        st.sampled_from(["", "data:", "data:image/png;base64,", 'x"data:', "\\"]),
        st.sampled_from([DIGESTED_CHARS - 1, DIGESTED_CHARS, DIGESTED_CHARS + 200]),
        st.sampled_from(["", "=", "-", "\\", '"', '"data:']),
    ).map(lambda drawn: drawn[0] + "A" * drawn[1] + drawn[2]),
)


@given(st.lists(st.one_of(_STRINGS, st.lists(_STRINGS, max_size=3)), max_size=6))
def test_media_are_the_strings_that_one_pattern_finds(strings: list[Any]) -> None:
    raw = json.dumps(strings, ensure_ascii=False).encode()

    def digest(media: "re.Match[bytes]") -> bytes:
        return b'"%b"' % hashlib.blake2b(media[0], digest_size=16).hexdigest().encode()

    assert _digested(raw) == _AS_ONE_PATTERN.subn(digest, raw)
