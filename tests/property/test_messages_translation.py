"""What a chat and a Message hold survives the way from one to the other and back, whole or streamed, cut at any byte."""

import itertools
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.http.anthropic import MessagesTranslation
from gateway.http.anthropic.signatures import ThinkingSigner

SIGNER = ThinkingSigner(b"a secret of this test")
REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=24)
names = st.from_regex(r"[a-z_]{1,12}", fullmatch=True)
inputs = st.dictionaries(names, st.one_of(texts, st.integers(-9, 9), st.lists(texts, max_size=2), st.none()), max_size=3)
calls = st.lists(st.tuples(names, inputs), max_size=3)


def translation(*, stream: bool) -> MessagesTranslation:
    made = MessagesTranslation(SIGNER, lambda: 0.0)
    made.request(json.dumps({"model": "m", "max_tokens": 9, "stream": stream, "messages": [{"role": "user", "content": "x"}]}).encode())
    return made


def pieces(data: st.DataObject, text: str) -> list[str]:
    """`text` in pieces, as deltas have it."""
    ends = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=4)) | {0, len(text)})
    return [text[begin:end] for begin, end in itertools.pairwise(ends)]


@st.composite
def answers(draw: st.DrawFn) -> dict[str, Any]:
    """The message and the counts of a chat's answer."""
    called = draw(calls)
    reason = "tool_calls" if called else draw(st.sampled_from(["stop", "length", "content_filter"]))
    prompt = draw(st.integers(1, 500))
    return {
        "reasoning": draw(texts),
        "content": draw(texts),
        "calls": [{"id": f"call_{i}", "name": name, "input": given} for i, (name, given) in enumerate(called)],
        "finish_reason": reason,
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": draw(st.integers(0, 500)),
            "prompt_tokens_details": {"cached_tokens": draw(st.integers(0, prompt))},
        },
    }


def plain(answer: dict[str, Any]) -> bytes:
    """The answer as a chat's whole reply."""
    tools = [
        {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": json.dumps(call["input"])}}
        for call in answer["calls"]
    ]
    message = {"role": "assistant", "content": answer["content"] or None, "reasoning": answer["reasoning"] or None, "tool_calls": tools}
    choice = {"index": 0, "message": message, "finish_reason": answer["finish_reason"]}
    return json.dumps({"id": "chatcmpl-7", "model": "m", "choices": [choice], "usage": answer["usage"]}).encode()


def events(answer: dict[str, Any], data: st.DataObject, *, mixed: bool) -> bytes:
    """The answer as a chat's stream. `mixed`: pieces of several calls take turns, as some engines send them."""

    def chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        document = {"id": "chatcmpl-7", "model": "m", "choices": [choice]}
        return b"data: %b\n\n" % json.dumps(document, ensure_ascii=data.draw(st.booleans())).encode()

    out = [chunk({"role": "assistant", "content": ""})]
    out += [chunk({"reasoning_content": piece}) for piece in pieces(data, answer["reasoning"])]
    out += [chunk({"content": piece}) for piece in pieces(data, answer["content"])]
    rows = []
    for index, call in enumerate(answer["calls"]):
        head = {"index": index, "id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": ""}}
        parts = [{"index": index, "function": {"arguments": piece}} for piece in pieces(data, json.dumps(call["input"]))]
        rows.append([head, *parts])
    begun = 0
    while any(rows):
        ready = [row for row in rows[: begun + 1] if row]  # a call begins behind the one before it
        row = data.draw(st.sampled_from(ready)) if mixed else ready[0]
        begun += begun < len(rows) and row is rows[begun]
        out.append(chunk({"tool_calls": [row.pop(0)]}))
    out.append(chunk({}, answer["finish_reason"]))
    usage = {"id": "chatcmpl-7", "model": "m", "choices": [], "usage": answer["usage"]}
    return b"".join([*out, b"data: %b\n\n" % json.dumps(usage).encode(), b"data: [DONE]\n\n"])


def message_from(stream: bytes) -> dict[str, Any]:
    """The Message that a client makes of the events; checks that they keep the order of the API."""
    message: dict[str, Any] = {}
    open_block: dict[str, Any] | None = None
    stopped = False
    arguments = ""
    for block in stream.decode().split("\n\n")[:-1]:
        name, _, written = block.partition("\n")
        event = json.loads(written.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert not stopped, "nothing comes behind message_stop"
        match event["type"]:
            case "message_start":
                assert not message
                message = event["message"]
            case "content_block_start":
                assert open_block is None, "blocks do not overlap"
                assert event["index"] == len(message["content"])
                open_block, arguments = event["content_block"], ""
                message["content"].append(open_block)
            case "content_block_delta":
                assert open_block is not None
                assert open_block is message["content"][event["index"]]
                delta = event["delta"]
                match delta["type"]:
                    case "text_delta":
                        open_block["text"] += delta["text"]
                    case "thinking_delta":
                        open_block["thinking"] += delta["thinking"]
                    case "signature_delta":
                        open_block["signature"] = delta["signature"]
                    case "input_json_delta":
                        arguments += delta["partial_json"]
            case "content_block_stop":
                assert open_block is not None
                if open_block["type"] == "tool_use" and arguments:
                    open_block["input"] = json.loads(arguments)
                open_block = None
            case "message_delta":
                assert open_block is None
                message |= event["delta"] | {"usage": event["usage"]}
            case "message_stop":
                stopped = True
            case kind:
                assert kind == "ping"
    assert stopped
    return message


@given(answers())
def test_a_whole_answer_survives_both_ways(answer: dict[str, Any]) -> None:
    message = json.loads(translation(stream=False).plain(plain(answer)))
    counts = message["usage"]
    assert counts["input_tokens"] + counts["cache_read_input_tokens"] == answer["usage"]["prompt_tokens"]
    assert counts["cache_read_input_tokens"] == answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert counts["output_tokens"] == answer["usage"]["completion_tokens"]
    assert message["stop_reason"] == REASONS[answer["finish_reason"]]
    assert [block["type"] for block in message["content"]] == (
        ["thinking"] * bool(answer["reasoning"]) + ["text"] * bool(answer["content"]) + ["tool_use"] * len(answer["calls"])
    )
    again = {"model": "m", "max_tokens": 9, "messages": [{"role": "assistant", "content": message["content"]}]}
    turn = json.loads(MessagesTranslation(SIGNER, lambda: 0.0).request(json.dumps(again).encode()))["messages"][0]
    assert (turn["content"] or "", turn.get("reasoning_content", "")) == (answer["content"], answer["reasoning"])
    assert [
        {"id": call["id"], "name": call["function"]["name"], "input": json.loads(call["function"]["arguments"])}
        for call in turn.get("tool_calls", [])
    ] == answer["calls"]


@given(answers(), st.data(), st.booleans())
def test_a_stream_is_the_whole_answer_however_it_is_cut(answer: dict[str, Any], data: st.DataObject, mixed: bool) -> None:
    sent = events(answer, data, mixed=mixed)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(sent)), max_size=8)) | {0, len(sent)})
    cut, whole = translation(stream=True), translation(stream=True)
    out = b"".join([cut.feed(sent[begin:end]) for begin, end in itertools.pairwise(cuts)])
    lone = b"".join([whole.feed(event + b"\n\n") for event in sent.split(b"\n\n") if event])
    assert out == lone
    assert message_from(out) == json.loads(translation(stream=False).plain(plain(answer)))


blocks = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, texts),
    st.builds(lambda data: {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}, names),
)
turns = st.one_of(
    st.builds(lambda content: {"role": "user", "content": content}, st.one_of(texts, st.lists(blocks, min_size=1, max_size=3))),
    st.builds(lambda text, given: [text, given], texts, calls),
)


@given(st.one_of(st.none(), texts.filter(bool)), st.lists(turns, min_size=1, max_size=5))
def test_every_text_image_call_and_result_of_a_request_is_in_the_chat(system: str | None, drawn: list[Any]) -> None:
    conversation: list[dict[str, Any]] = []
    said: list[Any] = []
    for turn in drawn:
        if isinstance(turn, dict):
            conversation.append(turn)
            said += (
                [turn["content"]]
                if isinstance(turn["content"], str)
                else [block.get("text", f"data:image/png;base64,{block.get('source', {}).get('data')}") for block in turn["content"]]
            )
            continue
        text, called = turn
        use = [{"type": "tool_use", "id": f"t{i}", "name": name, "input": given} for i, (name, given) in enumerate(called)]
        conversation.append({"role": "assistant", "content": [{"type": "text", "text": text}, *use]})
        result = [{"type": "tool_result", "tool_use_id": block["id"], "content": f"result {block['name']}"} for block in use]
        conversation.append({"role": "user", "content": [*result, {"type": "text", "text": "go on"}]})
        said += [text, *[(block["name"], block["input"]) for block in use]]
        said += [(block["tool_use_id"], block["content"]) for block in result] + ["go on"]
    body = {"model": "m", "max_tokens": 9, "messages": conversation} | ({} if system is None else {"system": system})
    chat = json.loads(MessagesTranslation(SIGNER, lambda: 0.0).request(json.dumps(body).encode()))
    heard: list[Any] = []
    for message in chat["messages"]:
        match message["role"]:
            case "system":
                assert message == chat["messages"][0]
                assert message["content"] == system
            case "tool":
                heard.append((message["tool_call_id"], message["content"]))
            case "assistant":
                heard.append(message["content"])
                heard += [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls", [])]
            case _:
                content = message["content"]
                parts: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
                heard += [part["text"] if part["type"] == "text" else part["image_url"]["url"] for part in parts]
    assert heard == said
    roles = [message["role"] for message in chat["messages"]]
    assert all(pair != ("user", "user") for pair in itertools.pairwise(roles)), "turns of one role are one turn"
