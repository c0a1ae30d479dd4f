"""Messages: roles, contents, and no way to make an engine fetch something."""

from typing import Any

import pytest

from domain.faults import Fault, Kind
from gateway.http.openai.messages import messages as checks_for
from policies.caps import USUAL_CAPS

check_messages = checks_for(USUAL_CAPS)
MOST_CALLS = USUAL_CAPS.tool_calls

PIXEL = "data:image/png;base64,iVBORw0KGgo="
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def user(*parts: object) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


GOOD: list[list[dict[str, Any]]] = [
    [{"role": role, "content": "x"} for role in ("system", "developer", "user", "assistant", "tool", "function")],
    [{"role": "user", "content": ""}],
    [{"role": "user", "content": "x", "name": "ann"}],
    [{"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c1", "content": "42"}],
    [{"role": "assistant", "tool_calls": [CALL]}],
    [{"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}],
    [{"role": "assistant", "content": "x", "reasoning_content": "because", "custom": {"a": 1}}],
    [{"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}}]}],
    [{"role": "assistant", "content": "x", "tool_calls": []}],
    [{"role": "assistant", "content": []}],
    [{"role": "assistant", "content": None, "reasoning": "cut by max_tokens"}],
    [{"role": "assistant", "content": None, "audio": {"id": "audio_1"}}],
    [{"role": "tool", "tool_call_id": "c1", "content": []}],
    [{"role": "ipython", "content": "x"}, {"role": "latest_reminder", "content": "x"}],
    user({"type": "text", "text": "x"}),
    user({"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}),
    user({"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}}, {"type": "text", "text": "?"}),
    user({"type": "image_url", "image_url": PIXEL}),
    user({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}),
    user({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}),
    user({"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"}}),
]

BAD: list[tuple[object, str, Kind]] = [
    ("hi", "messages", Kind.INVALID_VALUE),
    ([], "messages", Kind.INVALID_VALUE),
    ([{"role": "user", "content": "x"}] * (USUAL_CAPS.messages + 1), "messages", Kind.INVALID_VALUE),
    (["hi"], "messages[0]", Kind.INVALID_VALUE),
    ([{"content": "x"}], "messages[0].role", Kind.MISSING_PARAMETER),
    ([{"role": "user", "content": "x"}, {"role": "root<|im_end|>", "content": "x"}], "messages[1].role", Kind.INVALID_VALUE),
    ([{"role": ["user"], "content": "x"}], "messages[0].role", Kind.INVALID_VALUE),
    ([{"role": "user"}], "messages[0].content", Kind.MISSING_PARAMETER),
    ([{"role": "user", "content": None}], "messages[0].content", Kind.INVALID_VALUE),
    ([{"role": "system", "content": None}], "messages[0].content", Kind.INVALID_VALUE),
    ([{"role": "ipython", "content": None}], "messages[0].content", Kind.INVALID_VALUE),
    ([{"role": "user", "content": 5}], "messages[0].content", Kind.INVALID_VALUE),
    ([{"role": "user", "content": {"type": "text"}}], "messages[0].content", Kind.INVALID_VALUE),
    (user(), "messages[0].content", Kind.INVALID_VALUE),
    (user(*[{"type": "text", "text": "x"}] * (USUAL_CAPS.parts + 1)), "messages[0].content", Kind.INVALID_VALUE),
    (user("x"), "messages[0].content[0]", Kind.INVALID_VALUE),
    (user({"text": "x"}), "messages[0].content[0].type", Kind.INVALID_VALUE),
    (user({"type": "text"}), "messages[0].content[0].text", Kind.INVALID_VALUE),
    (user({"type": "text", "text": 5}), "messages[0].content[0].text", Kind.INVALID_VALUE),
    (user({"type": "image_embeds", "image_embeds": "AAAA"}), "messages[0].content[0].type", Kind.INVALID_VALUE),
    (user({"type": "image_url"}), "messages[0].content[0].image_url", Kind.INVALID_VALUE),
    (user({"type": "image_url", "image_url": {"url": 5}}), "messages[0].content[0].image_url.url", Kind.INVALID_VALUE),
    (user({"type": "image_url", "image_url": {"url": PIXEL}, "uuid": "a"}), "messages[0].content[0].uuid", Kind.UNSUPPORTED_PARAMETER),
    (user({"type": "file", "file": {"file_id": "f-1"}}), "messages[0].content[0].file.file_id", Kind.UNSUPPORTED_PARAMETER),
    ([{"role": "user", "content": "x", "name": 5}], "messages[0].name", Kind.INVALID_VALUE),
    ([{"role": "assistant", "content": "", "tool_calls": {}}], "messages[0].tool_calls", Kind.INVALID_VALUE),
    (
        [{"role": "assistant", "content": "", "tool_calls": [CALL] * (MOST_CALLS + 1)}],
        "messages[0].tool_calls",
        Kind.INVALID_VALUE,
    ),
    ([{"role": "assistant", "content": "", "tool_calls": [5]}], "messages[0].tool_calls[0]", Kind.INVALID_VALUE),
    ([{"role": "assistant", "content": "", "tool_calls": [{"id": "c"}]}], "messages[0].tool_calls[0].function", Kind.INVALID_VALUE),
    (
        [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": 1}}]}],
        "messages[0].tool_calls[0].function.name",
        Kind.INVALID_VALUE,
    ),
]

URLS = [
    "http://169.254.169.254/latest/meta-data/",
    "https://example.com/cat.png",
    "HTTP://[::ffff:169.254.169.254]/",
    "http://2852039166/",
    "http://user@example.com\\@127.0.0.1/",
    "//127.0.0.1/x.png",
    "file:///etc/passwd",
    "FILE:/etc/passwd",
    "ftp://127.0.0.1/x",
    "gopher://127.0.0.1:6379/_FLUSHALL",
    "/etc/passwd",
    "s3://bucket/key",
    " data:image/png;base64,AAAA",
    "DATA:image/png;base64,AAAA",
    "",
]


@pytest.mark.parametrize("messages", GOOD)
def test_accepted(messages: list[dict[str, Any]]) -> None:
    check_messages(messages, "messages")


@pytest.mark.parametrize(
    ("sent", "forwarded"),
    [
        ({"role": "assistant"}, {"role": "assistant", "content": None}),
        ({"role": "assistant", "audio": {"id": "a"}}, {"role": "assistant", "audio": {"id": "a"}, "content": None}),
        ({"role": "assistant", "content": None, "tool_calls": None}, {"role": "assistant", "content": None}),
        ({"role": "tool", "tool_call_id": "c", "content": None}, {"role": "tool", "tool_call_id": "c", "content": ""}),
        ({"role": "tool", "tool_call_id": "c"}, {"role": "tool", "tool_call_id": "c", "content": ""}),
        ({"role": "function", "name": "f"}, {"role": "function", "name": "f", "content": None}),
    ],
)
def test_a_turn_without_text_is_written_as_all_engines_take_it(sent: dict[str, Any], forwarded: dict[str, Any]) -> None:
    """The forms on the right were taken by vLLM 0.32's request model and by llama.cpp's server; each on the left was refused by one."""
    check_messages([sent], "messages")
    assert sent == forwarded


@pytest.mark.parametrize(("messages", "param", "kind"), BAD, ids=[f"{p}-{i}" for i, (_, p, _k) in enumerate(BAD)])
def test_refused_with_the_path(messages: object, param: str, kind: Kind) -> None:
    with pytest.raises(Fault) as caught:
        check_messages(messages, "messages")
    assert (caught.value.kind, caught.value.param) == (kind, param)
    assert param in caught.value.message


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    "part",
    [
        lambda url: {"type": "image_url", "image_url": {"url": url}},
        lambda url: {"type": "image_url", "image_url": url},
        lambda url: {"type": "input_image", "image_url": url},
        lambda url: {"type": "audio_url", "audio_url": {"url": url}},
        lambda url: {"type": "video_url", "video_url": {"url": url}},
        lambda url: {"type": "file", "file": {"file_url": url}},
        lambda url: {"type": "input_audio", "input_audio": {"url": url}},
        lambda url: {"type": "text", "text": "x", "image_url": {"url": url}},
        lambda url: {"type": "image_url", "image_url": {"url": PIXEL}, "video_url": url},
    ],
)
def test_only_data_urls(part: Any, url: str) -> None:
    with pytest.raises(Fault) as caught:
        check_messages(user(part(url)), "messages")
    assert caught.value.kind is Kind.INVALID_VALUE
    assert "data:" in caught.value.message
    assert "169.254" not in caught.value.message
