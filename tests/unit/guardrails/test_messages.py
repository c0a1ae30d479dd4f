"""The texts of a request: all of them are found where they stand, and a rewriting changes them and no other byte."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.ask import Endpoint
from gateway.http.openai import interpret
from guardrails.json_text import unescaped
from guardrails.messages import EarlierCall, RequestTexts, rewritten, texts, with_texts

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
CUSTOM = {"custom": {"name": "n", "input": "i"}}
VALUES = {"enum": ["e"], "default": {"name": "d"}, "const": "c", "examples": ["x"], "pattern": "p", "format": "f"}
SCHEMA = "response_format.json_schema.schema.enum[0]"
PROPERTIES = {"q": {"type": "string", "description": "What"}}

CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "name": "ann",
            "content": [{"type": "text", "text": "See:"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}],
        },
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": "Zoë \\"x\\""}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "Found: text"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "function_call": {"name": "old", "arguments": "{}"}},
    ],
    "temperature": 0.1,
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "find",
                "description": "Finds.",
                "parameters": {"properties": PROPERTIES},
            },
        }
    ],
    "documents": [{"title": "T", "a.b": "dotted", "a": {"b": "nested"}}],
}

FOUND = [
    ("messages[0].content", "input", "Be brief."),
    ("messages[1].name", "input", "ann"),
    ("messages[1].content[0].text", "input", "See:"),
    ("messages[2].reasoning_content", "input", "hm"),
    ("messages[2].tool_calls[0].function.name", "tool_arguments", "find"),
    ("messages[2].tool_calls[0].function.arguments", "tool_arguments", '{"q": "Zoë \\"x\\""}'),
    ("messages[3].content", "tool_results", "Found: text"),
    ("messages[4].content[0].refusal", "input", "No."),
    ("messages[4].function_call.name", "tool_arguments", "old"),
    ("messages[4].function_call.arguments", "tool_arguments", "{}"),
    ("tools[0].function.description", "input", "Finds."),
    ("tools[0].function.parameters.properties.q.description", "input", "What"),
    ("documents[0].title", "documents", "T"),
    ('documents[0]["a.b"]', "documents", "dotted"),
    ("documents[0].a.b", "documents", "nested"),
]

FORMS: list[dict[str, Any]] = [{}, {"separators": (",", ":")}, {"indent": 2}, {"ensure_ascii": False}, {"separators": (" , ", "\t:\r\n ")}]


def shown(found: RequestTexts) -> list[tuple[str, str, str]]:
    return [(text.path, text.direction, text.text) for text in found.readable]


@pytest.mark.parametrize("form", FORMS)
def test_every_text_of_a_chat_is_found_with_its_direction_however_the_json_is_written(form: dict[str, Any]) -> None:
    found = texts(json.dumps(CHAT, **form).encode())
    assert shown(found) == FOUND
    assert [(one.path, one.what) for one in found.unreadable] == [("messages[1].content[1]", "image_url")]


@pytest.mark.req("R30")
def test_what_stands_beside_the_arguments_of_a_call_is_named_so() -> None:
    found = texts(json.dumps(CHAT).encode())
    assert [text.path for text in found.readable if text.beside] == [
        "messages[2].tool_calls[0].function.name",
        "messages[4].function_call.name",
    ]


@pytest.mark.parametrize("form", FORMS)
def test_a_rewriting_changes_the_named_texts_and_no_other_byte(form: dict[str, Any]) -> None:
    body = json.dumps(CHAT, **form).encode()
    found = texts(body)
    assert rewritten(body, found, {}) == body
    for text in found.readable:
        changed = rewritten(body, found, {text.path: 'new "text" ⟦1⟧'})
        assert changed[: text.begin] == body[: text.begin]
        assert changed[len(changed) - (len(body) - text.end) :] == body[text.end :]
        assert [one.text for one in texts(changed).readable] == [
            'new "text" ⟦1⟧' if one.path == text.path else one.text for one in found.readable
        ]
    everything = {text.path: text.text + "!" for text in found.readable}
    assert shown(texts(rewritten(body, found, everything))) == [(path, direction, text + "!") for path, direction, text in FOUND]


scalars = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=6)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3), max_leaves=6
)
parts = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=8)}, optional={"cache_control": values}),
    st.fixed_dictionaries({"type": st.just("input_audio"), "input_audio": values}),
)
turns = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system"])},
    optional={"content": st.none() | st.text(max_size=8) | st.lists(parts, max_size=3), "name": st.text(max_size=4), "extra": values},
)


@pytest.mark.req("R30")
@given(
    st.fixed_dictionaries(
        {"messages": st.lists(turns, max_size=4)}, optional={"tools": values, "documents": values, "stop": values, "metadata": values}
    ),
    st.sampled_from(FORMS),
    st.data(),
)
def test_any_request_is_rewritten_where_its_texts_stand(document: dict[str, Any], form: dict[str, Any], data: st.DataObject) -> None:
    body = json.dumps(document, **form).encode()
    found = texts(body)
    paths = [text.path for text in found.readable]
    assert len(set(paths)) == len(paths)
    for text in found.readable:
        written = json.loads(body[text.begin : text.end])
        assert text.text == (unescaped(written) if text.path.endswith("arguments") else written)
    chosen = data.draw(st.sets(st.sampled_from(paths))) if paths else set()
    changed = rewritten(body, found, dict.fromkeys(chosen, "~"))
    pieces, done = [], 0
    for text in found.readable:
        pieces += [body[done : text.begin], b'"~"' if text.path in chosen else body[text.begin : text.end]]
        done = text.end
    assert changed == b"".join([*pieces, body[done:]])
    assert {text.path: text.text for text in texts(changed).readable} == {
        text.path: "~" if text.path in chosen else text.text for text in found.readable
    }
    contents = [m["content"] for m in document["messages"] if isinstance(m.get("content"), str)]
    assert [text.text for text in found.readable if text.path.endswith("].content") and text.path.startswith("messages")] == contents


@pytest.mark.parametrize(
    ("body", "readable", "unreadable"),
    [
        ({"prompt": "a"}, ["prompt"], []),
        ({"prompt": ["a", "b"], "suffix": "c"}, ["prompt[0]", "prompt[1]", "suffix"], []),
        ({"prompt": [1, 2]}, [], [("prompt", "token ids")]),
        ({"input": [[1], [2, 3]]}, [], [("input[0]", "token ids"), ("input[1]", "token ids")]),
        ({"input": ["a"]}, ["input[0]"], []),
        ({"input": []}, [], []),
        ({"prompt": {"a": "b"}}, [], [("prompt", "unknown")]),
        (
            {"messages": [{"role": "user", "content": [{"type": "x", "y": "z", "text": "t"}]}]},
            ["messages[0].content[0].y", "messages[0].content[0].text"],
            [("messages[0].content[0]", "x")],
        ),
        ({"messages": [{"role": "user", "content": {"text": "t"}}]}, [], [("messages[0].content", "unknown")]),
        ({"messages": [{"role": "user", "content": ["t", 3]}]}, ["messages[0].content[0]"], [("messages[0].content[1]", "unknown")]),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"custom": {"name": "n", "input": "i"}}, {"function": {"arguments": {"a": ["s"]}}}, 3],
                    }
                ]
            },
            [
                "messages[0].tool_calls[0].custom.name",
                "messages[0].tool_calls[0].custom.input",
                "messages[0].tool_calls[1].function.arguments.a[0]",
            ],
            [("messages[0].tool_calls[2]", "unknown")],
        ),
        (
            {"messages": [{"role": "assistant", "content": None, "thoughts": {"a": ["t"]}, "id": "i", "audio": {"transcript": "said"}}]},
            ["messages[0].thoughts.a[0]", "messages[0].audio.transcript"],
            [],
        ),
        ({"messages": [{"role": "system", "tools": [{"description": "d"}]}]}, ["messages[0].tools[0].description"], []),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "type": "web", "web": {"q": "w"}, "function": {"why": "y"}}]}]},
            ["messages[0].tool_calls[0].web.q", "messages[0].tool_calls[0].function.why"],
            [],
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {"filename": "f", "file_data": "data:,x"}}]}]},
            ["messages[0].content[0].file.filename"],
            [("messages[0].content[0]", "file")],
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "n", "parameters": {"properties": {"q": {"type": "string", **VALUES}}}}}]},
            [f"tools[0].function.parameters.properties.q.{rest}" for rest in ("enum[0]", "default.name", "const", "examples[0]")],
            [],
        ),
        (
            {"tools": [{"type": "custom", "custom": {"format": {"grammar": {"definition": "g"}}}}]},
            ["tools[0].custom.format.grammar.definition"],
            [],
        ),
        (
            {"messages": [{"role": "assistant", "function_call": {"name": "n", "arguments": '{"a": "M\\u00fcller"}'}}]},
            ["messages[0].function_call.name", "messages[0].function_call.arguments"],
            [],
        ),
        ({"chat_template_kwargs": {"type": "t", "on": True}}, ["chat_template_kwargs.type"], []),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["e"]}}}}, [SCHEMA], []),
        (
            {"structured_outputs": {"choice": ["a"], "regex": "r"}, "guided_choice": ["b"]},
            ["structured_outputs.choice[0]", "guided_choice[0]"],
            [],
        ),
        ({"instructions": "do", "user": "u", "stop": ["s"], "metadata": {"a": "b"}}, ["instructions"], []),
        ({"prediction": {"type": "content", "content": [{"type": "text", "text": "p"}]}}, ["prediction.content[0].text"], []),
    ],
)
def test_other_shapes(body: dict[str, Any], readable: list[str], unreadable: list[tuple[str, str]]) -> None:
    found = texts(json.dumps(body).encode())
    assert [text.path for text in found.readable] == readable
    assert [(one.path, one.what) for one in found.unreadable] == unreadable


@pytest.mark.parametrize(
    "body", [b'{"messages":[{"role":"user","content":"a","content":"b"}]}', b'{"a":1,"prompt":"x","a":2}', b"[]", b"{", b""]
)
def test_a_body_that_can_be_read_in_two_ways_or_in_none_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError):
        texts(body)


def test_a_path_that_does_not_exist_is_an_error() -> None:
    body = b'{"prompt":"a"}'
    with pytest.raises(KeyError, match=r"no text stands at prompt\[0\]"):
        rewritten(body, texts(body), {"prompt[0]": "b"})


@given(st.lists(st.text(min_size=1, max_size=10), min_size=1, max_size=3), st.text(max_size=30))
def test_an_ask_with_other_texts_is_the_ask_of_a_request_with_these_texts(contents: list[str], other: str) -> None:
    def ask(first: str) -> Any:
        turns = [{"role": "user", "content": text} for text in [first, *contents]]
        tool = {"type": "function", "function": {"name": "f", "description": first}}
        return interpret(Endpoint.CHAT, json.dumps({"model": "m", "messages": turns, "tools": [tool]}).encode())

    before, after = ask("first"), ask(other)
    found = texts(before.fields)
    changed = with_texts(before, found, {"messages[0].content": other, "tools[0].function.description": other})
    assert changed.fields == after.fields
    assert changed.prompt_at == after.prompt_at
    assert changed.prompt == after.prompt
    assert with_texts(before, found, {}) is before


def test_calls_of_earlier_turns_are_named_with_their_tool_and_arguments() -> None:
    found = texts(json.dumps(CHAT).encode())
    assert found.calls == (
        EarlierCall("messages[2].tool_calls[0].function", "find", '{"q": "Zoë \\"x\\""}'),
        EarlierCall("messages[4].function_call", "old", "{}"),
    )
    turn = {
        "role": "assistant",
        "tool_calls": [{"custom": {"name": "n", "input": "i"}}, {"function": {"name": "f", "arguments": {"a": [1]}}}],
    }
    turn["tool_calls"] += [{"function": {"name": "g"}}, {"function": {"arguments": "{}"}}]  # type: ignore[operator]
    calls = texts(json.dumps({"messages": [turn]}).encode()).calls
    assert [(call.name, call.arguments) for call in calls] == [("n", "i"), ("f", '{"a": [1]}'), ("g", "")]


def test_the_system_prompt_is_what_system_and_developer_messages_say() -> None:
    parts = [{"type": "text", "text": "two"}, {"type": "text", "text": "three"}]
    turns = [
        {"role": "system", "content": "one", "name": "s"},
        {"role": "user", "content": "no"},
        {"role": "developer", "content": parts},
        {"role": "assistant", "content": "no"},
    ]
    assert texts(json.dumps({"messages": turns}).encode()).system == ("one", "two", "three")
    assert texts(b'{"prompt": "one"}').system == ()
