"""What the model reads of a request: rendered as engines render it, in a sandbox, or said to be unreadable."""

import json
from typing import Any

import pytest

from domain.ask import Ask, Endpoint
from gateway.http.openai import interpret
from gateway.prompt.chat_template import ChatTemplate, NotText, texts_of

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def template(source: str = CHATML) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<s>"}, lambda form: form.replace("%Y", "2026"))


def ask(endpoint: Endpoint = Endpoint.CHAT, **fields: Any) -> Ask:
    return interpret(endpoint, json.dumps({"model": "m", **fields}).encode())


def chat(content: object, **fields: Any) -> Ask:
    return ask(messages=[{"role": "user", "content": content}], **fields)


def test_a_chat_is_rendered() -> None:
    assert texts_of(chat("hi"), template()) == (["<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"], [])
    assert texts_of(chat("hi", add_generation_prompt=False), template())[0] == ["<|im_start|>user\nhi<|im_end|>\n"]


def test_text_parts_are_joined_by_lines() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "user\na\nb<|im_end|>" in texts_of(chat(parts), template())[0][0]


def test_templates_find_what_they_are_written_for() -> None:
    source = (
        "{{ bos_token }}{{ strftime_now('%Y') }}{% for t in tools %}{{ t | tojson }}{% endfor %}"
        "{% for m in messages %}{% continue %}{% endfor %}"
    )
    tool = {"type": "function", "function": {"name": "übersetzen", "description": None, "parameters": {}}}
    text = texts_of(chat("hi", tools=[tool]), template(source))[0][0]
    assert text == "<s>2026" + json.dumps(tool, ensure_ascii=False)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "? ? s"),
        ({"chat_template_kwargs": {"enable_thinking": False, "style": "brief"}}, "False ? brief"),
        ({"enable_thinking": False}, "False False s"),
        ({"thinking": {"type": "enabled"}}, "True True s"),
        ({"reasoning_effort": "none"}, "False ? s"),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, "True ? s"),
    ],
)
def test_the_router_renders_the_variables_that_the_engine_renders(fields: dict[str, Any], text: str) -> None:
    source = "{{ enable_thinking | default('?') }} {{ thinking | default('?') }} {{ style | default('s') }}"
    assert texts_of(chat("hi", **fields), template(source))[0] == [text]


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ nothing.at.all }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
    ],
)
def test_a_template_that_refuses_or_reaches_out_counts_nothing(source: str) -> None:
    with pytest.raises(NotText):
        texts_of(chat("hi"), template(source))


def test_pictures_are_not_counted_here() -> None:
    with pytest.raises(NotText, match="no text"):
        texts_of(chat([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]), template())


def test_without_a_template_a_chat_is_unreadable() -> None:
    with pytest.raises(NotText, match="no chat template"):
        texts_of(chat("hi"), None)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("a b", (["a b"], [])), (["a", "b"], (["a", "b"], [])), ([1, 2, 3], ([], [[1, 2, 3]])), ([[1, 2], [3]], ([], [[1, 2], [3]]))],
)
def test_prompts_in_their_four_shapes(prompt: object, expected: object) -> None:
    for one in (ask(Endpoint.COMPLETIONS, prompt=prompt), ask(Endpoint.EMBEDDINGS, input=prompt)):
        texts, ids = texts_of(one, None)
        assert (texts, [list(each) for each in ids]) == expected


def test_what_is_no_template_is_refused_at_once() -> None:
    for source in ("{% for %}", "x" * 300_000):
        with pytest.raises(ValueError, match="template"):
            template(source)
