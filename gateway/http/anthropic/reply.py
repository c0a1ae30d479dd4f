"""A chat's whole reply as a Message, and what its stream needs as well: the reasons to stop, and the counts of tokens."""

from typing import Any, Final

import msgspec

from domain.usage import Usage
from gateway.http.anthropic.signatures import ThinkingSigner
from gateway.http.edge.attempt_faults import unusable_reply
from gateway.http.edge.reply_document import NOT_A_REPLY, ReportedUsage

STOPS: Final = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
"""A chat's `finish_reason` to `stop_reason`."""

NOT_APPLIED: Final = b',"context_management":{"applied_edits":[]}'
"""What a reply says where the request asked for context management."""

_encode = msgspec.json.Encoder().encode


class ChatCall(msgspec.Struct, gc=False):
    """A call of a tool in a chat's reply."""

    class Function(msgspec.Struct, frozen=True, gc=False):
        """The called function."""

        name: str | None = None
        arguments: str | dict[str, Any] | None = None

    function: Function | None = None
    id: str | None = None


class ChatMessage(msgspec.Struct, frozen=True, gc=False):
    """The message of a chat's reply."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: Any = None
    tool_calls: list[ChatCall] | None = None


class ChatChoice(msgspec.Struct, gc=False):
    """The choice of a chat's reply."""

    message: ChatMessage = ChatMessage()
    finish_reason: str | None = None
    stop_reason: Any = None
    """The sequence or the token that stopped the answer, as vLLM names it."""
    matched_stop: Any = None
    """The sequence or the token that stopped the answer, as SGLang names it."""


class ChatReply(msgspec.Struct, gc=False):
    """The parts of a chat's reply that a Message has."""

    choices: list[ChatChoice]
    id: str | None = None
    model: str | None = None
    usage: ReportedUsage | None = None


_decode = msgspec.json.Decoder(ChatReply).decode


def message_of(body: bytes, signer: ThinkingSigner, *, manages_context: bool) -> bytes:
    """The Message that a chat's reply is. Thinking comes first, then text, then calls of tools.

    Raises:
        Fault: INVALID_REPLY, it is no answer though it ended as one.
    """
    try:
        reply = _decode(body)
    except NOT_A_REPLY as error:
        raise unusable_reply(str(error)) from None
    choice = reply.choices[0]
    message = choice.message
    content: list[dict[str, Any]] = []
    thinking = text_said(message.reasoning_content) or text_said(message.reasoning)
    if thinking:
        content.append({"type": "thinking", "thinking": thinking, "signature": signer.sign(thinking)})
    text = text_said(message.content) or text_said(message.refusal)
    if text:
        content.append({"type": "text", "text": text})
    calls = message.tool_calls or []
    own_id = message_id(reply.id or "")
    content += [_tool_use(call, f"toolu_{own_id.removeprefix('msg_')}_{index}") for index, call in enumerate(calls)]
    reason, sequence = stop_of(choice, calls=bool(calls))
    fields = {
        "id": own_id,
        "type": "message",
        "role": "assistant",
        "model": reply.model or "",
        "content": content,
        "stop_reason": reason,
        "stop_sequence": sequence,
    }
    end = b',"usage":%b%b}' % (usage_of(reply.usage), NOT_APPLIED if manages_context else b"")
    return _encode(fields)[:-1] + end


def text_said(value: object) -> str:
    """A text, or the texts of parts, as some engines write content; empty for anything else."""
    if type(value) is str:
        return value
    parts = value if type(value) is list else []
    return "".join([part["text"] for part in parts if type(part) is dict and type(part.get("text")) is str])


def message_id(chat_id: str) -> str:
    """The id of a Message, from that of the chat's reply, which the gateway has made."""
    return "msg_" + chat_id.removeprefix("chatcmpl-")


def stop_of(choice: ChatChoice, *, calls: bool) -> tuple[str, str | None]:
    """The reason to stop, and the sequence that stopped the answer. Some engines end an answer that calls tools with `stop`."""
    reason = STOPS.get(choice.finish_reason or "stop", "end_turn")
    if reason != "end_turn":
        return reason, None
    if calls:
        return "tool_use", None
    matched = choice.stop_reason if isinstance(choice.stop_reason, str) else choice.matched_stop
    return ("stop_sequence", matched) if isinstance(matched, str) else (reason, None)


def usage_of(reported: ReportedUsage | None) -> bytes:
    """The member `usage`. `input_tokens` are the tokens that were not cached, as the API counts; its sum is the whole prompt. Cached tokens
    cost nothing to write here, so none are counted as such."""
    usage = reported.value() if reported is not None else Usage(0, 0)
    counts: dict[str, Any] = {
        "input_tokens": max(0, usage.prompt_tokens - usage.cached_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
    if usage.reasoning_tokens:
        counts["output_tokens_details"] = {"thinking_tokens": usage.reasoning_tokens}
    return _encode(counts)


def _tool_use(call: ChatCall, own_id: str) -> dict[str, Any]:
    name, arguments = (call.function.name, call.function.arguments) if call.function is not None else ("", None)
    return {"type": "tool_use", "id": call.id or own_id, "name": name or "", "input": _input(arguments)}


def _input(arguments: str | dict[str, Any] | None) -> dict[str, Any]:
    """The input of a tool. Arguments that are no JSON object stay as they are under a name of their own, so that nothing is lost."""
    if isinstance(arguments, dict):
        return arguments
    if not arguments or not arguments.strip():
        return {}
    try:
        decoded = msgspec.json.decode(arguments.encode("utf-8", "surrogatepass"))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        decoded = arguments
    return decoded if type(decoded) is dict else {"arguments": decoded}
