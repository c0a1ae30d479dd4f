"""A chat's reply as a Response object: the shapes that are read, the items and the object that are written, and the whole reply at once.

Texts are never decoded: what an engine wrote as a JSON string is copied as it is, and the strings of many events are joined between their
quotes. Only the input of a custom tool is, because it stands as JSON inside the arguments of a call (`custom_input.py`).
"""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from gateway.http.edge.attempt_faults import unusable_reply
from gateway.http.edge.reply_document import NOT_A_REPLY, ReportedUsage
from gateway.http.responses.custom_input import CustomInput
from gateway.http.responses.items import sealed
from gateway.http.responses.request import ResponseAsk
from gateway.http.responses.tools import CalledTool

NO_RAW: Final = msgspec.Raw()


class SaidFunction(msgspec.Struct, gc=False):
    """The function of a call, or a piece of it. A `Raw` of nothing stands for a member that is not there."""

    name: str | None = None
    arguments: msgspec.Raw = NO_RAW


class SaidCall(msgspec.Struct, gc=False):
    """A call, or a piece of it."""

    index: int | None = None
    id: str | None = None
    function: SaidFunction | None = None


class Said(msgspec.Struct, gc=False):
    """What a message says, or an event adds to it."""

    content: msgspec.Raw = NO_RAW
    reasoning_content: msgspec.Raw = NO_RAW
    reasoning: msgspec.Raw = NO_RAW
    """vLLM's newer name."""
    refusal: msgspec.Raw = NO_RAW
    tool_calls: list[SaidCall] | None = None


class SaidPart(msgspec.Struct, gc=False):
    """A part of a content."""

    type: str
    text: str = ""


class SaidLogprobs(msgspec.Struct, gc=False):
    """The log-probabilities of the tokens of the content."""

    content: msgspec.Raw = NO_RAW


class PlainChoice(msgspec.Struct, gc=False):
    """The answer in a plain reply."""

    message: Said
    finish_reason: str | None = None
    logprobs: SaidLogprobs | None = None


class PlainChat(msgspec.Struct, gc=False):
    """A plain reply."""

    choices: list[PlainChoice]
    model: str | None = None
    usage: ReportedUsage | None = None


_decode_plain = msgspec.json.Decoder(PlainChat).decode
_decode_parts = msgspec.json.Decoder(list[SaidPart]).decode
_decode_text = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode

_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Finish reasons of answers that are not complete, and what a Response calls them."""


def json_string(value: msgspec.Raw) -> bytes:
    """A text as its JSON string; empty where there is no text. Some engines write content as parts."""
    raw = bytes(value)
    if raw[:1] == b"[":
        parts = _decode_parts(raw)
        raw = _encode("".join([part.text for part in parts if part.type == "text"]))
    return raw if raw[:1] == b'"' and len(raw) > 2 else b""


def decoded(string: bytes) -> str:
    """The text of a JSON string. Bytes that are no UTF-8, which no reader of the engine's event has looked at, become U+FFFD."""
    return _decode_text(string.decode("utf-8", "replace"))


def arguments_of(function: SaidFunction) -> bytes:
    """The arguments of a call as a JSON string; empty where there are none. Some engines write the object in place of its text."""
    raw = bytes(function.arguments)
    return _encode(raw.decode("utf-8", "replace")) if raw[:1] == b"{" else json_string(function.arguments)


def elements(value: SaidLogprobs | None) -> bytes:
    """The elements of an array of log-probabilities, without its brackets."""
    raw = b"" if value is None else bytes(value.content)
    return raw[1:-1].strip() if raw[:1] == b"[" else b""


def text_part(text: bytes, logprobs: bytes) -> bytes:
    """A part with a text."""
    return b'{"type":"output_text","annotations":[],"logprobs":[%b],"text":%b}' % (logprobs, text)


def refusal_part(text: bytes) -> bytes:
    """A part with a refusal."""
    return b'{"type":"refusal","refusal":%b}' % text


def reasoning_part(text: bytes) -> bytes:
    """A part with a text of reasoning."""
    return b'{"type":"reasoning_text","text":%b}' % text


def message_item(item_id: bytes, status: bytes, parts: Iterable[bytes]) -> bytes:
    """An item with a message."""
    content = b",".join(parts)
    return b'{"id":"%b","type":"message","status":"%b","role":"assistant","content":[%b]}' % (item_id, status, content)


def reasoning_item(item_id: bytes, text: bytes, *, seal: bool) -> bytes:
    """An item of reasoning; empty `text` while it has none."""
    parts = reasoning_part(text) if text else b""
    hidden = _encode(sealed(decoded(text))) if seal and text else b"null"
    return b'{"id":"%b","type":"reasoning","summary":[],"content":[%b],"encrypted_content":%b}' % (item_id, parts, hidden)


def call_item(item_id: bytes, called: CalledTool, call_id: bytes, status: bytes, text: bytes) -> bytes:
    """An item with a call.

    Args:
        text: the arguments of a function or the input of a custom tool, as a JSON string.
    """
    space = b"" if called.namespace is None else b',"namespace":%b' % _encode(called.namespace)
    kind, key = (b"custom_tool_call", b"input") if called.custom else (b"function_call", b"arguments")
    head = b'{"id":"%b","type":"%b","status":"%b","call_id":%b' % (item_id, kind, status, call_id)
    return head + b',"name":%b%b,"%b":%b}' % (_encode(called.name), space, key, text)


def usage_member(usage: ReportedUsage | None) -> bytes:
    """The member `usage` of a Response with a comma before it; empty where the engine reported none, because it cannot be null."""
    if usage is None:
        return b""
    counts = usage.value()
    return (
        b',"usage":{"input_tokens":%d,"input_tokens_details":{"cached_tokens":%d,"cache_write_tokens":0},"output_tokens":%d,'
        b'"output_tokens_details":{"reasoning_tokens":%d},"total_tokens":%d}'
        % (counts.prompt_tokens, counts.cached_tokens, counts.completion_tokens, counts.reasoning_tokens, counts.total_tokens)
    )


class ResponseAnswer(msgspec.Struct, frozen=True, gc=False):
    """What a Response holds of the answer, beyond the request."""

    model: bytes
    output: bytes = b""
    """The items, without brackets."""
    usage: bytes = b""
    finish_reason: str | None = None
    error: bytes = b"null"


class ResponseFrame(msgspec.Struct, eq=False):
    """The Response objects of one request: the same but for the answer."""

    ask: ResponseAsk
    created_at: int
    now: Callable[[], int]
    new_id: Callable[[], str]
    id: bytes
    keeps: bool = False
    """Whether the Response is to be stored, or added to its conversation."""
    unstored: bool = False
    """Whether only its conversation keeps the answer."""
    answered: bytes = b""
    """The Response with its whole answer, once it has one that is to be stored."""

    def opened(self, model: bytes, output: bytes = b"") -> bytes:
        """The Response whose answer is still being made; `output` are the items that are done."""
        return self._written(b"in_progress", b"null", b"null", ResponseAnswer(model, output))

    def queued(self) -> bytes:
        """The Response for which no engine has worked yet."""
        return self._written(b"queued", b"null", b"null", ResponseAnswer(self.ask.model))

    def ended(self, answer: ResponseAnswer) -> bytes:
        """The Response with its whole answer."""
        reason = _INCOMPLETE.get(answer.finish_reason or "")
        if reason is None:
            written = self._written(b"completed", b"%d" % self.now(), b"null", answer)
        else:
            written = self._written(b"incomplete", b"null", b'{"reason":"%b"}' % reason.encode(), answer)
        if self.keeps:
            self.answered = written
        return written

    def failed(self, answer: ResponseAnswer) -> bytes:
        """The Response whose answer broke."""
        return self._written(b"failed", b"null", b"null", answer)

    def _written(self, status: bytes, completed_at: bytes, details: bytes, answer: ResponseAnswer) -> bytes:
        head = b'{"id":"%b","object":"response","created_at":%d,"status":"%b"' % (self.id, self.created_at, status)
        about = b',"completed_at":%b,"error":%b,"incomplete_details":%b' % (completed_at, answer.error, details)
        stored = b"true" if self.keeps and not self.unstored else b"false"
        said = b',"model":%b,"output":[%b]%b,"store":%b' % (answer.model, answer.output, answer.usage, stored)
        return b"%b%b%b,%b}" % (head, about, said, self.ask.echo)

    def item_id(self, prefix: bytes) -> bytes:
        """An id for an item."""
        return prefix + self.new_id().encode()

    def tool(self, function: str) -> CalledTool:
        """What the caller calls a function; a name that it never sent is the model's invention, and the caller answers it."""
        return self.ask.called.get(function) or CalledTool(function)


def is_whole(finish_reason: str | None) -> bool:
    """Whether the answer that ended so is complete."""
    return finish_reason not in _INCOMPLETE


def plain_reply(body: bytes, frame: ResponseFrame) -> bytes:
    """The Response for a chat's whole reply.

    Raises:
        Fault: INVALID_REPLY, the body is none.
    """
    try:
        return _plain_reply(_decode_plain(body), frame)
    except (*NOT_A_REPLY, IndexError) as error:
        raise unusable_reply(str(error)) from None


def _plain_reply(chat: PlainChat, frame: ResponseFrame) -> bytes:
    choice = chat.choices[0]
    said = choice.message
    last = b"completed" if is_whole(choice.finish_reason) else b"incomplete"  # only the last item was cut
    items: list[bytes] = []
    if reasoning := json_string(said.reasoning_content) or json_string(said.reasoning):
        items.append(reasoning_item(frame.item_id(b"rs_"), reasoning, seal=frame.ask.sealed))
    parts: list[bytes] = []
    if text := json_string(said.content):
        parts.append(text_part(text, elements(choice.logprobs)))
    if refusal := json_string(said.refusal):
        parts.append(refusal_part(refusal))
    calls = said.tool_calls or []
    if parts or not (items or calls):
        status = b"completed" if calls else last
        items.append(message_item(frame.item_id(b"msg_"), status, parts or [text_part(b'""', b"")]))
    for number, call in enumerate(calls, 1):
        items.append(_plain_call(call, last if number == len(calls) else b"completed", frame))
    model = _encode(chat.model) if chat.model else frame.ask.model
    return frame.ended(ResponseAnswer(model, b",".join(items), usage_member(chat.usage), choice.finish_reason))


def _plain_call(call: SaidCall, status: bytes, frame: ResponseFrame) -> bytes:
    function = call.function or SaidFunction()
    called = frame.tool(function.name or "")
    text = arguments_of(function) or b'""'
    if called.custom:
        text = _encode(CustomInput().whole(decoded(text)))
    call_id = _encode(call.id) if call.id else b'"%b"' % frame.item_id(b"call_")
    return call_item(frame.item_id(b"ctc_" if called.custom else b"fc_"), called, call_id, status, text)
