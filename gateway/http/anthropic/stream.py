"""A chat's stream as the events of a streamed Message: `message_start`, blocks one after the other, `message_delta`, `message_stop`.

Texts go from the chat's event to the Message's as the JSON that they are written in, and are not decoded. Blocks do not overlap: a call of
a tool that begins before the arguments of the one before it are whole is held until the answer is over, and so is whatever else comes
behind it.
"""

from typing import Final

import msgspec

from backends.sse import EventSplitter, EventTooLarge
from gateway.http.anthropic.reply import NOT_APPLIED, ChatChoice, message_id, stop_of, text_said, usage_of
from gateway.http.anthropic.signatures import ThinkingSigner
from gateway.http.edge.attempt_faults import unusable_reply
from gateway.http.edge.reply_document import NOT_A_REPLY, ReportedUsage

PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'
HEARTBEAT: Final = b": ping\n\n"

_ABSENT: Final = msgspec.Raw()
"""A member that an event does not have."""
_TEXT: Final = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"text_delta","text":%b}}\n\n'
_THINKING: Final = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"thinking_delta","thinking":%b}}\n\n'
)
_SIGNATURE: Final = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"signature_delta","signature":%b}}\n\n'
)
_ARGUMENTS: Final = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"input_json_delta","partial_json":%b}}\n\n'
)
_BEGIN: Final = b'event: content_block_start\ndata: {"type":"content_block_start","index":%d,"content_block":%b}\n\n'
_END: Final = b'event: content_block_stop\ndata: {"type":"content_block_stop","index":%d}\n\n'
_START: Final = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":%b,"type":"message","role":"assistant","model":%b,'
    b'"content":[],"stop_reason":null,"stop_sequence":null,"usage":%b}}\n\n'
)
_DELTA: Final = (
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":%b,"stop_sequence":%b},"usage":%b%b}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)
_TEXT_BLOCK: Final = b'{"type":"text","text":""}'
_THINKING_BLOCK: Final = b'{"type":"thinking","thinking":"","signature":""}'

_encode = msgspec.json.Encoder().encode
_text_of = msgspec.json.Decoder(str).decode
_decode_any = msgspec.json.Decoder().decode


class _CallDelta(msgspec.Struct, gc=False):
    class FunctionDelta(msgspec.Struct, frozen=True, gc=False):
        name: str | None = None
        arguments: msgspec.Raw = _ABSENT

    index: int | None = None
    id: str | None = None
    function: FunctionDelta | None = None


class _Delta(msgspec.Struct, frozen=True, gc=False):
    content: msgspec.Raw = _ABSENT
    reasoning_content: msgspec.Raw = _ABSENT
    reasoning: msgspec.Raw = _ABSENT
    refusal: msgspec.Raw = _ABSENT
    tool_calls: list[_CallDelta] | None = None


class _ChunkChoice(ChatChoice, gc=False):
    delta: _Delta | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_ChunkChoice]
    usage: ReportedUsage | None = None


class _Frame(msgspec.Struct, gc=False):
    """What all events of a chat say alike."""

    id: str | None = None
    model: str | None = None


_decode = msgspec.json.Decoder(_Chunk).decode
_decode_frame = msgspec.json.Decoder(_Frame).decode


def _written(value: msgspec.Raw) -> bytes:
    """A text as it is written in JSON; empty where it says nothing. Some engines write content as parts, and arguments as an object."""
    written = bytes(value)
    if written.startswith(b'"'):
        return written if len(written) > len(b'""') else b""
    if written.startswith(b"["):
        text = text_said(_decode_any(written))
        return _encode(text) if text else b""
    return _encode(written.decode()) if written.startswith(b"{") else b""


class _ToolUseSoFar(msgspec.Struct, eq=False):
    """A call of a tool as far as it has come."""

    index: int
    """Its number, as the engine counts."""
    at: int = 0
    """Its place among the calls of the answer, from 0."""
    name: str = ""
    id: str = ""
    arguments: list[bytes] = msgspec.field(default_factory=list)
    """The pieces of the arguments, each a JSON string."""

    def take(self, delta: _CallDelta) -> bytes:
        """Take a piece, and return that of the arguments in it."""
        self.id = self.id or delta.id or ""
        if delta.function is None:
            return b""
        self.name = self.name or delta.function.name or ""
        if written := _written(delta.function.arguments):
            self.arguments.append(written)
        return written

    def goes_on(self, delta: _CallDelta) -> bool:
        """Whether a piece is of this call. Some engines number all calls 0, so another id begins another call."""
        return self.index == (delta.index or 0) and not (delta.id and self.id and delta.id != self.id)

    def is_whole(self) -> bool:
        """Whether the arguments so far are a whole JSON value."""
        try:
            _decode_any("".join([_text_of(piece) for piece in self.arguments]))
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return False
        return True


class MessageStream:
    """The events of one streamed Message.

    Args:
        manages_context: whether the request asked for context management.
    """

    __slots__ = (
        "_call",
        "_calls",
        "_held",
        "_index",
        "_manages_context",
        "_model_id",
        "_open",
        "_signer",
        "_splitter",
        "_stop",
        "_thoughts",
        "_usage",
    )

    def __init__(self, signer: ThinkingSigner, *, manages_context: bool = False) -> None:
        self._signer = signer
        self._manages_context = manages_context
        self._splitter = EventSplitter()
        self._model_id = ""
        """The id of the Message; empty before its start."""
        self._index = -1
        """The block that is open, or was last."""
        self._open = ""
        """The kind of the open block: `text`, `thinking` or `call`; empty for none."""
        self._call = _ToolUseSoFar(-1)
        """The call that is open, or was last."""
        self._calls = 0
        self._held: list[tuple[str, bytes | _ToolUseSoFar]] = []
        """What came before the open call was whole, in order."""
        self._thoughts: list[bytes] = []
        self._stop = ChatChoice()
        self._usage: ReportedUsage | None = None

    def feed(self, data: bytes) -> bytes:
        """Take a piece of the chat's stream, cut anywhere, and return the events that it makes.

        Raises:
            Fault: INVALID_REPLY, an event of it is no part of an answer.
        """
        payload = self._splitter.lone(data)
        if payload is not None:
            return self._event(payload)
        if data == HEARTBEAT and not self._splitter.pending:
            return PING if self._model_id else data
        try:
            payloads = self._splitter.feed(data)
        except EventTooLarge as error:
            raise unusable_reply(str(error)) from None
        return b"".join([self._event(payload) for payload in payloads])

    def _event(self, payload: bytes) -> bytes:
        if payload == b"[DONE]":
            return self._finish()
        try:
            chunk = _decode(payload)
        except NOT_A_REPLY as error:
            raise unusable_reply(str(error)) from None
        if self._open == "text" and chunk.usage is None and len(chunk.choices) == 1:
            # nearly every event adds a piece to the text before it, and does nothing else
            delta = (choice := chunk.choices[0]).delta
            if (
                choice.finish_reason is None
                and delta is not None
                and delta.tool_calls is None
                and delta.reasoning is _ABSENT
                and delta.reasoning_content is _ABSENT
                and delta.refusal is _ABSENT
                and (written := _written(delta.content))
            ):
                return _TEXT % (self._index, written)
        return self._other_event(payload, chunk)

    def _other_event(self, payload: bytes, chunk: _Chunk) -> bytes:
        """An event that does more than to go on with the text."""
        try:
            out = b"" if self._model_id else self._begin(_decode_frame(payload))
        except NOT_A_REPLY as error:
            raise unusable_reply(str(error)) from None
        if chunk.usage is not None:
            self._usage = chunk.usage
        for choice in chunk.choices:
            if choice.finish_reason:
                self._stop = choice
            delta = choice.delta
            if delta is None:
                continue
            if delta.reasoning_content is not _ABSENT or delta.reasoning is not _ABSENT:
                # some engines say it under both names
                written = _written(delta.reasoning_content) or _written(delta.reasoning)
                if written:
                    out += self._piece("thinking", _THINKING, written)
            if delta.content is not _ABSENT and (written := _written(delta.content)):
                out += self._piece("text", _TEXT, written)
            if delta.refusal is not _ABSENT and (written := _written(delta.refusal)):
                out += self._piece("text", _TEXT, written)
            if delta.tool_calls:
                out += b"".join([self._called(call) for call in delta.tool_calls])
        return out

    def _begin(self, frame: _Frame) -> bytes:
        self._model_id = message_id(frame.id or "")
        return _START % (_encode(self._model_id), _encode(frame.model or ""), usage_of(None)) + PING

    def _piece(self, kind: str, form: bytes, written: bytes) -> bytes:
        """The events of a piece of text or thinking."""
        if self._open == kind:
            out = b""
        elif self._open == "call" and (self._held or not self._call.is_whole()):
            self._held.append((kind, written))
            return b""
        else:
            out = self._close() + self._open_block(kind, _TEXT_BLOCK if kind == "text" else _THINKING_BLOCK)
        if kind == "thinking":
            self._thoughts.append(written)
        return out + form % (self._index, written)

    def _called(self, delta: _CallDelta) -> bytes:
        """The events of a piece of a call."""
        call = self._call
        for _, held in reversed(self._held):
            if isinstance(held, _ToolUseSoFar) and held.goes_on(delta):
                held.take(delta)
                return b""
        if call.goes_on(delta):
            written = call.take(delta)
            return _ARGUMENTS % (self._index, written) if written and self._open == "call" else b""
        self._calls += 1
        new = _ToolUseSoFar(delta.index or 0, self._calls - 1)
        new.take(delta)
        if self._open == "call" and (self._held or not call.is_whole()):
            self._held.append(("call", new))
            return b""
        return self._close() + self._open_call(new)

    def _open_call(self, call: _ToolUseSoFar) -> bytes:
        self._call = call
        call.id = call.id or f"toolu_{self._model_id.removeprefix('msg_')}_{call.at}"
        block = b'{"type":"tool_use","id":%b,"name":%b,"input":{}}' % (_encode(call.id), _encode(call.name))
        out = self._open_block("call", block)
        return out + b"".join([_ARGUMENTS % (self._index, piece) for piece in call.arguments])

    def _open_block(self, kind: str, block: bytes) -> bytes:
        self._index += 1
        self._open = kind
        return _BEGIN % (self._index, block)

    def _close(self) -> bytes:
        """End the open block; thinking is signed at its end."""
        kind, self._open = self._open, ""
        if not kind:
            return b""
        out = b""
        if kind == "thinking":
            thinking = "".join([_text_of(piece) for piece in self._thoughts])
            self._thoughts.clear()
            out = _SIGNATURE % (self._index, _encode(self._signer.sign(thinking)))
        return out + _END % self._index

    def _finish(self) -> bytes:
        """The last events: what was held, the end of the block, why the answer ended, and its tokens."""
        out = b"" if self._model_id else self._begin(_Frame())
        held, self._held = self._held, []
        if held:
            out += self._close()
        for kind, what in held:
            if isinstance(what, _ToolUseSoFar):
                out += self._close() + self._open_call(what)
            elif kind == "text":
                out += self._late(kind, _TEXT, what)
            else:
                out += self._late(kind, _THINKING, what)
        out += self._close()
        reason, sequence = stop_of(self._stop, calls=self._calls > 0)
        more = NOT_APPLIED if self._manages_context else b""
        return out + _DELTA % (_encode(reason), _encode(sequence), usage_of(self._usage), more)

    def _late(self, kind: str, form: bytes, written: bytes) -> bytes:
        """A held piece, once nothing is open in front of it that is not whole."""
        closed = self._close() if self._open != kind else b""
        return closed + self._piece(kind, form, written)
