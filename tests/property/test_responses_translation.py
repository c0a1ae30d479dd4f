"""Laws of the Responses API in front of a chat: what an answer says survives, whole or streamed and wherever the stream is cut, and what
a caller sends is translated or refused."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from domain.faults import Fault, Kind
from gateway.http.responses.kept import stored_items
from gateway.http.responses.request import MORE_BYTES, MOST_TIMES, translated
from tests.responses_wire import (
    CUSTOM,
    FUNCTION,
    MODEL,
    asked_of,
    chat_for,
    chunk,
    events,
    plain_chat,
    response,
    sse,
    translation,
    usage_chunk,
)
from tests.scale import scaled

TOOLS = [FUNCTION, CUSTOM, {"type": "namespace", "name": "ns", "description": "d", "tools": [FUNCTION, CUSTOM]}]
TEXTS = st.text(st.one_of(st.sampled_from('"\\{}:\n\té😀\u2028\x7f%'), st.characters(exclude_categories=["Cs"])), max_size=30)
NAMES = st.sampled_from(["look", "patch", "ns__look", "ns__patch", "unknown"])
FINISHES = st.sampled_from(["stop", "tool_calls", "length", "content_filter"])
EXAMPLES = scaled(100, 2000)


@st.composite
def calls(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Calls of tools as a chat tells them; those of custom tools have their input in the form that was asked for."""
    names = draw(st.lists(NAMES, max_size=3))
    found = []
    for number, name in enumerate(names):
        text = draw(TEXTS)
        ascii_only = draw(st.booleans())
        arguments = json.dumps({"input": text}, ensure_ascii=ascii_only) if name.endswith("patch") else text
        found.append({"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": arguments}})
    return found


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    """An answer: any of its members may be missing."""
    found: dict[str, Any] = {"content": draw(st.one_of(st.none(), TEXTS.filter(bool)))}
    for member in ("reasoning_content", "refusal"):
        if text := draw(TEXTS):
            found[member] = text
    if made := draw(calls()):
        found["tool_calls"] = made
    return found


@st.composite
def pieces_of(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@st.composite
def streams(draw: st.DrawFn, message: dict[str, Any], finish_reason: str) -> list[dict[str, Any]]:
    """The events of a stream that says the message: calls begin in their order and take turns otherwise."""
    found = [chunk({"role": "assistant", "content": ""})]
    for member in ("reasoning_content", "content", "refusal"):
        found += [chunk({member: piece}) for piece in draw(pieces_of(message.get(member) or ""))]
    waiting = []
    for index, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        head, *rest = draw(pieces_of(function["arguments"]))
        first = {"index": index, "id": call["id"], "type": "function", "function": {"name": function["name"], "arguments": head}}
        waiting.append([first, *({"index": index, "function": {"arguments": piece}} for piece in rest)])
    begun = 0
    while any(waiting):
        ready = [queue for queue in waiting[: begun + 1] if queue]
        queue = draw(st.sampled_from(ready or [next(queue for queue in waiting if queue)]))
        begun = max(begun, queue[0]["index"] + 1)
        found.append(chunk({"tool_calls": [queue.pop(0)]}))
    return [*found, chunk({}, finish_reason), usage_chunk()]


def without_ids(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "id": "", "output": [{**item, "id": ""} for item in document["output"]]}


def once_more(answer: dict[str, Any]) -> dict[str, Any]:
    """The message that the answer's items make in the next request."""
    turn: dict[str, Any] = chat_for(input=[*answer["output"], {"role": "user", "content": "go on"}], tools=TOOLS)["messages"][0]
    return turn


def same(turn: dict[str, Any], message: dict[str, Any]) -> None:
    """The two say the same; the JSON around the input of a custom tool may be written in another way."""
    found, sent = turn.get("tool_calls", []), message.get("tool_calls", [])
    assert [(call["id"], call["function"]["name"]) for call in found] == [(call["id"], call["function"]["name"]) for call in sent]
    for one, other in zip(found, sent, strict=True):
        if one["function"]["name"].endswith("patch"):
            assert json.loads(one["function"]["arguments"]) == json.loads(other["function"]["arguments"])
        else:
            assert one["function"]["arguments"] == other["function"]["arguments"]
    for member in ("content", "reasoning_content", "refusal"):
        assert (turn.get(member) or "") == (message.get(member) or "")


@settings(max_examples=EXAMPLES, deadline=None)
@given(messages(), FINISHES, st.booleans())
def test_an_answer_survives(message: dict[str, Any], finish_reason: str, sealed: bool) -> None:
    include = ["reasoning.encrypted_content"] if sealed else []
    answer = response(translation(tools=TOOLS, include=include).plain(plain_chat(message, finish_reason)))
    assert (answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]) == (20, 8)
    reasons = {"length": {"reason": "max_output_tokens"}, "content_filter": {"reason": "content_filter"}}
    assert answer["incomplete_details"] == reasons.get(finish_reason)
    if sealed:  # the caller that sends back no other part of its reasoning
        answer["output"] = [{**item, "content": []} if item["type"] == "reasoning" else item for item in answer["output"]]
    same(once_more(answer), message)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data(), messages(), FINISHES)
def test_a_stream_says_what_the_whole_reply_says(data: st.DataObject, message: dict[str, Any], finish_reason: str) -> None:
    plain = response(translation(tools=TOOLS, stream=True).plain(plain_chat(message, finish_reason)))
    found = events(translation(tools=TOOLS, stream=True).feed(sse(*data.draw(streams(message, finish_reason)))))
    assert without_ids(found[-1]["response"]) == without_ids(plain)
    consistent(found)


def consistent(found: list[dict[str, Any]]) -> None:
    """The events are numbered, and tell each part and each item from its beginning to its end."""
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    texts: dict[tuple[Any, ...], str] = {}
    opened: dict[int, dict[str, Any]] = {}
    done: dict[int, dict[str, Any]] = {}
    for event in found:
        kind, place = event["type"], (event.get("item_id"), event.get("output_index"), event.get("content_index"))
        if kind.endswith(".delta"):
            assert event["output_index"] in opened.keys() - done.keys()
            assert event["delta"]
            texts[place] = texts.get(place, "") + event["delta"]
        elif kind == "response.output_item.added":
            assert event["output_index"] == len(opened)
            opened[event["output_index"]] = event["item"]
        elif kind == "response.output_item.done":
            done[event["output_index"]] = event["item"]
            assert event["item"]["id"] == opened[event["output_index"]]["id"]
        elif kind.endswith("content_part.done"):
            part = event["part"]
            assert part.get("text", part.get("refusal")) == texts.get(place, "")
        elif kind.endswith(".done"):
            said = next(event[member] for member in ("text", "refusal", "arguments", "input") if member in event)
            assert said == texts.get(place, "")
    assert found[-1]["response"]["output"] == [done[index] for index in range(len(opened))]


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data(), messages())
def test_the_events_do_not_depend_on_the_cuts(data: st.DataObject, message: dict[str, Any]) -> None:
    stream = sse(*data.draw(streams(message, "stop")))
    whole = translation(tools=TOOLS, stream=True).feed(stream)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    made = translation(tools=TOOLS, stream=True)
    assert b"".join(made.feed(stream[start:end]) for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)) == whole
    made = translation(tools=TOOLS, stream=True)
    assert b"".join(made.feed(event + b"\n\n") for event in stream.split(b"\n\n")[:-1]) == whole


DELTAS = st.one_of(
    st.builds(lambda member, text: {member: text}, st.sampled_from(["reasoning_content", "reasoning", "content", "refusal"]), TEXTS),
    st.builds(
        lambda index, call_id, name, text: {"tool_calls": [{"index": index, "id": call_id, "function": {"name": name, "arguments": text}}]},
        st.one_of(st.none(), st.integers(0, 2)),
        st.sampled_from([None, "c0", "c1"]),
        st.one_of(st.none(), NAMES),
        TEXTS,
    ),
    st.just({"tool_calls": []}),
    st.just({"content": None, "reasoning": None, "tool_calls": None}),
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(DELTAS, max_size=12), FINISHES)
def test_whatever_order_an_engine_chooses_the_events_are_consistent(deltas: list[dict[str, Any]], finish_reason: str) -> None:
    found = events(translation(tools=TOOLS, stream=True).feed(sse(*map(chunk, deltas), chunk({}, finish_reason))))
    consistent(found)
    said = "".join(event["delta"] for event in found if event["type"] == "response.output_text.delta")
    assert said == "".join(delta.get("content") or "" for delta in deltas)
    assert found[-1]["response"]["model"] == MODEL


KEYS = ["type", "role", "content", "name", "call_id", "arguments", "input", "output", "text", "tools", "format", "summary", "mode"]
FIELDS = [
    *("input", "instructions", "tools", "tool_choice", "text", "reasoning", "include", "stream", "stream_options", "truncation", "store"),
    *("background", "metadata", "model"),
]
JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-5, 5), st.sampled_from(["", "auto", "x", "function", "message", "input_text", "user"])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=12,
)


@settings(max_examples=scaled(300, 5000), deadline=None)
@given(st.dictionaries(st.sampled_from([*FIELDS, "top_logprobs", "prompt", "top_k"]), JSON, max_size=6))
def test_a_request_is_translated_or_refused(document: dict[str, Any]) -> None:
    try:
        ask = asked_of(json.dumps({"input": "x", **document}).encode())
    except Fault:
        return
    chat = json.loads(ask.chat)
    assert chat["messages"] or not document.get("input")
    assert json.loads(b"{%b}" % ask.echo)["background"] is False
    assert len(ask.places) == len(chat["messages"])
    kept = json.loads(stored_items(document.get("input") or "x", lambda: "0"))
    assert all(type(item["id"]) is str and item["type"] for item in kept)
    assert json.loads(stored_items(kept, lambda: "1")) == kept


SIZE = 1_000_000
"""The bytes of a request that is not bounded by them."""
SENT = st.lists(
    st.one_of(
        st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "assistant", "system", "developer"]), TEXTS),
        st.builds(
            lambda texts: {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text} for text in texts]},
            st.lists(TEXTS, min_size=1, max_size=3),
        ),
        st.builds(lambda text: {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}, TEXTS),
        st.builds(lambda text: {"type": "function_call", "call_id": "c", "name": "look", "arguments": text}, TEXTS),
        st.builds(lambda text: {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": text}, TEXTS),
        st.builds(lambda text: {"type": "function_call_output", "call_id": "c", "output": text}, TEXTS),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=scaled(300, 5000), deadline=None)
@given(SENT, st.one_of(st.none(), TEXTS))
def test_a_conversation_that_is_continued_is_the_chat_that_was_sent_whole(sent: list[dict[str, Any]], instructions: str | None) -> None:
    more = {"model": "m", "instructions": instructions, "tools": TOOLS}
    fields = {name: value for name, value in more.items() if value is not None}
    whole = json.loads(translated({**fields, "input": [*sent, {"role": "user", "content": "next"}]}, SIZE).chat)
    earlier = json.loads(stored_items(sent, lambda: "0"))
    assert json.loads(translated({**fields, "input": "next"}, SIZE, earlier).chat) == whole


NAMESPACES = st.builds(
    lambda length, tools, kind, letter: {
        **{"type": "namespace", "name": letter * length},
        "tools": [{"type": kind, "name": f"{letter}{number}"} for number in range(tools)],
    },
    st.integers(1, 3000),
    st.integers(0, 300),
    st.sampled_from(["function", "custom"]),
    st.sampled_from('abc"é'),
)
CALLED = st.builds(
    lambda text, calls: [{"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": text * 100}] * calls,
    TEXTS,
    st.integers(0, 50),
)


@settings(max_examples=scaled(50, 500), deadline=None)
@given(st.lists(NAMESPACES, max_size=3), CALLED, st.booleans())
def test_a_chat_is_not_much_longer_than_its_request(
    namespaces: list[dict[str, Any]], calls: list[dict[str, Any]], on_the_way: bool
) -> None:
    user = {"role": "user", "content": "hi"}
    if on_the_way:
        document = {"input": [user, *calls, {"type": "additional_tools", "tools": namespaces}]}
    else:
        document = {"input": [user, *calls], "tools": namespaces}
    body = json.dumps(document, separators=(",", ":")).encode()
    try:
        ask = asked_of(body)
    except Fault as fault:
        assert (fault.kind, bool(fault.param)) == (Kind.INVALID_VALUE, True)  # noqa: PT017 -- the law says what holds of refusals too
        return
    assert len(ask.chat) <= MOST_TIMES * len(body) + MORE_BYTES
    assert len(ask.echo) <= MOST_TIMES * len(body) + MORE_BYTES


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """The data with a few bytes replaced, lost or added."""
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(data)))
        data = (
            data[:start]
            + draw(st.sampled_from([b"", b"\n", b"\n\n", b"\r", b'"', b"{", b"]", b"null", b"5", b"\xff", b"\\u", b"[5]"]))
            + data[start + draw(st.integers(0, 12)) :]
        )
    return data


@settings(max_examples=scaled(300, 5000), deadline=None)
@given(st.data(), messages(), FINISHES)
def test_damaged_replies_are_told_or_break_as_they_should(data: st.DataObject, message: dict[str, Any], finish_reason: str) -> None:
    """The edge judges a reply before it gets here; what passes it must not be able to raise anything else here."""
    stream = data.draw(damaged(sse(*data.draw(streams(message, finish_reason)))))
    made, told = translation(tools=TOOLS, include=["reasoning.encrypted_content"]), b""
    try:
        for event in stream.split(b"\n\n"):
            told += made.feed(event + b"\n\n")
    except Fault as fault:
        assert fault.kind is Kind.INVALID_REPLY  # noqa: PT017 -- the law says what holds of refusals too
        told += made.broken(fault, "req_1")
    numbers = [json.loads(line[6:])["sequence_number"] for line in told.decode("utf-8", "replace").split("\n") if line.startswith("data: ")]
    assert numbers == list(range(len(numbers)))
    body = data.draw(damaged(plain_chat(message, finish_reason)))
    try:
        json.loads(translation(tools=TOOLS).plain(body).decode("utf-8", "replace"))
    except Fault as fault:
        assert fault.kind is Kind.INVALID_REPLY  # noqa: PT017 -- the law says what holds of refusals too
