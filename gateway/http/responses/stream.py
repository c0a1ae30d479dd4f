"""A chat's stream as the events of a Response.

Reasoning, text and refusal are spoken one after the other, so an item of them ends where the next one begins. Calls may take turns by their
index, so each stays open to the end. An event of text costs one decode and one `%`: its delta is copied as the bytes that the engine wrote.
"""

from typing import Final

import msgspec

from backends.sse import EventSplitter, EventTooLarge
from domain.faults import Fault, Kind, Source
from gateway.http.edge.attempt_faults import unusable_reply
from gateway.http.edge.reply_document import NOT_A_REPLY, ReportedUsage
from gateway.http.faults import ROWS
from gateway.http.responses.custom_input import CustomInput
from gateway.http.responses.reply import (
    NO_RAW,
    ResponseAnswer,
    ResponseFrame,
    Said,
    SaidCall,
    SaidFunction,
    SaidLogprobs,
    arguments_of,
    call_item,
    decoded,
    elements,
    is_whole,
    json_string,
    message_item,
    reasoning_item,
    reasoning_part,
    refusal_part,
    text_part,
    usage_member,
)
from gateway.http.responses.tools import CalledTool


class SaidChoice(msgspec.Struct, gc=False):
    """What an event adds to the answer."""

    delta: Said | None = None
    finish_reason: str | None = None
    logprobs: SaidLogprobs | None = None


class SaidChunk(msgspec.Struct, gc=False):
    """An event of a chat's stream."""

    choices: list[SaidChoice] | None = None
    usage: ReportedUsage | None = None


class _FirstChunk(msgspec.Struct, gc=False):
    model: str | None = None


_decode_chunk = msgspec.json.Decoder(SaidChunk).decode
_decode_first = msgspec.json.Decoder(_FirstChunk).decode
_encode = msgspec.json.Encoder().encode

_NOTHING: Final = b'""'


class _PartKind(msgspec.Struct, frozen=True, gc=False):
    """A kind of part: how its events are named, and their member with the text."""

    events: bytes
    text: bytes
    item: bytes
    """The prefix of the ids of the items that have such parts."""

    @property
    def beside(self) -> bytes:
        """What stands in each event beside the text."""
        return b'"logprobs":[%b],' if self is _TEXT else b""


_TEXT: Final = _PartKind(b"response.output_text", b"text", b"msg_")
_REFUSAL: Final = _PartKind(b"response.refusal", b"refusal", b"msg_")
_REASONING: Final = _PartKind(b"response.reasoning_text", b"text", b"rs_")


def _written(part: _PartKind, text: bytes, logprobs: bytes) -> bytes:
    if part is _TEXT:
        return text_part(text, logprobs)
    return refusal_part(text) if part is _REFUSAL else reasoning_part(text)


def _quoted(said: bytearray) -> bytes:
    return b'"%b"' % bytes(said)


class _SpokenItem(msgspec.Struct, eq=False):
    """A message or an item of reasoning while it is spoken."""

    id: bytes
    index: int
    part: _PartKind
    """The part that is open."""
    parts: list[bytes] = msgspec.field(default_factory=list)
    """The parts that are done."""
    said: bytearray = msgspec.field(default_factory=bytearray)
    """The text of the open part so far: a JSON string without its quotes. A list of its pieces would take ten times the memory."""
    logprobs: list[bytes] = msgspec.field(default_factory=list)

    @property
    def place(self) -> bytes:
        """The members that say where the open part stands."""
        return b'"item_id":"%b","output_index":%d,"content_index":%d' % (self.id, self.index, len(self.parts))


class _OpenCall(msgspec.Struct, eq=False):
    """A call while its arguments come."""

    call_id: bytes
    """As a JSON string; empty until there is one."""
    index: int = -1
    """The place among the items; -1 until the function is named."""
    id: bytes = b""
    called: CalledTool = CalledTool("")
    said: bytearray = msgspec.field(default_factory=bytearray)
    """The arguments or the input so far: a JSON string without its quotes."""
    input: CustomInput | None = None

    @property
    def events(self) -> bytes:
        """The name of the events, without their ends."""
        return b"response.function_call_arguments" if self.input is None else b"response.custom_tool_call_input"

    @property
    def place(self) -> bytes:
        """The members that say which item it is."""
        return b'"item_id":"%b","output_index":%d' % (self.id, self.index)

    def added(self, arguments: bytes) -> bytes:
        """What a piece of the arguments adds to what the caller gets, as a JSON string."""
        if self.input is None or not arguments:
            return arguments
        return _encode(self.input.feed(decoded(arguments)))

    def item(self, status: bytes, text: bytes) -> bytes:
        """The item."""
        return call_item(self.id, self.called, self.call_id, status, text)


class ResponseStream(msgspec.Struct, eq=False):
    """The events of one Response."""

    frame: ResponseFrame
    splitter: EventSplitter = msgspec.field(default_factory=EventSplitter)
    sequence: int = 0
    """The number of the next event."""
    model: bytes = b""
    """As a JSON string; empty until the first event is there."""
    delta: bytes = b""
    """The next event of text but for its number and its text, while a part with text is open."""
    spoken: _SpokenItem | None = None
    calls: dict[int, _OpenCall] = msgspec.field(default_factory=dict)
    """By the index that the engine gave: the call that gets its pieces."""
    open_calls: list[_OpenCall] = msgspec.field(default_factory=list)
    output: list[bytes] = msgspec.field(default_factory=list)
    """The items that are done; empty bytes for one that is not."""
    usage: ReportedUsage | None = None
    finish_reason: str | None = None
    over: bool = False
    told: bool = False
    """Whether the Response was told of before its answer began."""
    held: bytes = b""
    """The last event of a Response that is to be stored, which waits until it is."""

    def feed(self, data: bytes) -> bytes:
        """Take a piece of the chat's stream, cut anywhere, and return the events that it makes."""
        payload = self.splitter.lone(data)
        if payload is not None:
            return self._event(payload)
        if data.startswith(b":") and not self.splitter.tail and data.find(b"\n\n") == len(data) - 2:
            return data  # a comment, which keeps the connection alive
        try:
            payloads = self.splitter.feed(data)
        except EventTooLarge as error:
            raise unusable_reply(str(error)) from None
        return b"".join([self._event(payload) for payload in payloads])

    def _event(self, payload: bytes) -> bytes:
        if self.over:
            return b""
        try:
            chunk = _decode_chunk(payload)
            choices = chunk.choices
            if self.delta and choices and chunk.usage is None:
                choice = choices[0]
                said = choice.delta
                if (
                    said is not None
                    and choice.finish_reason is None
                    and choice.logprobs is None
                    and not said.tool_calls
                    and said.reasoning_content is NO_RAW
                    and said.reasoning is NO_RAW
                    and said.refusal is NO_RAW
                ):
                    piece = bytes(said.content)
                    if len(piece) > 2 and piece[0] == 0x22:
                        text = self.spoken.said  # type: ignore[union-attr]  # `delta` says that it is open
                        text += piece[1:-1]
                        number = self.sequence
                        self.sequence = number + 1
                        return self.delta % (number, piece)
            return self._other_event(payload, chunk)
        except NOT_A_REPLY as error:
            if payload.strip() == b"[DONE]":
                return self._end()
            raise unusable_reply(str(error)) from None

    def _other_event(self, payload: bytes, chunk: SaidChunk) -> bytes:
        """An event that does more than to add a text to the last one."""
        out = []
        if not self.model:
            out.append(self._open(_encode(name) if (name := _decode_first(payload).model) else b""))
        if chunk.usage is not None:
            self.usage = chunk.usage
        for choice in chunk.choices or ():
            if choice.finish_reason is not None:
                self.finish_reason = choice.finish_reason
            said = choice.delta
            if said is None:
                continue
            if reasoning := json_string(said.reasoning_content) or json_string(said.reasoning):
                out.append(self._speak(_REASONING, reasoning, b""))
            if text := json_string(said.content):
                out.append(self._speak(_TEXT, text, elements(choice.logprobs)))
            if refusal := json_string(said.refusal):
                out.append(self._speak(_REFUSAL, refusal, b""))
            out += [self._call(call) for call in said.tool_calls or ()]
        return b"".join(out)

    def _emit(self, name: bytes, members: bytes) -> bytes:
        number = self.sequence
        self.sequence = number + 1
        return b'event: %b\ndata: {"type":"%b","sequence_number":%d,%b}\n\n' % (name, name, number, members)

    def queued(self) -> bytes:
        """The first events of a Response in the background, which is told of before an engine works for it."""
        self.told = True
        response = b'"response":%b' % self.frame.queued()
        return self._emit(b"response.created", response) + self._emit(b"response.queued", response)

    def so_far(self) -> bytes:
        """The Response with the items that are done."""
        if not self.model:
            return self.frame.queued()
        return self.frame.opened(self.model, b",".join([item for item in self.output if item]))

    def _open(self, model: bytes) -> bytes:
        self.model = model or self.frame.ask.model
        response = b'"response":%b' % self.frame.opened(self.model)
        created = b"" if self.told else self._emit(b"response.created", response)
        return created + self._emit(b"response.in_progress", response)

    def _speak(self, part: _PartKind, text: bytes, logprobs: bytes) -> bytes:
        """Add a text to the part of its kind, which is opened where it is not."""
        out = b""
        spoken = self.spoken
        if spoken is None or spoken.part is not part:
            out = self._begin(part)
            spoken = self.spoken
            assert spoken is not None
        spoken.said += text[1:-1]
        if logprobs:
            spoken.logprobs.append(logprobs)
        beside = part.beside % logprobs if part is _TEXT else b""
        return out + self._emit(part.events + b".delta", b'%b,%b"delta":%b' % (spoken.place, beside, text))

    def _begin(self, part: _PartKind) -> bytes:
        """Open a part, in the item that is open where it may stand there."""
        spoken = self.spoken
        if spoken is not None and spoken.part.item == part.item:
            out = self._end_part(spoken)
            spoken.part = part
        else:
            out = self._end_spoken(b"completed")
            spoken = self.spoken = _SpokenItem(self.frame.item_id(part.item), len(self.output), part)
            self.output.append(b"")
            item = reasoning_item(spoken.id, b"", seal=False) if part is _REASONING else message_item(spoken.id, b"in_progress", ())
            out += self._emit(b"response.output_item.added", b'"output_index":%d,"item":%b' % (spoken.index, item))
        out += self._emit(b"response.content_part.added", b'%b,"part":%b' % (spoken.place, _written(part, _NOTHING, b"")))
        if part is _TEXT:
            event = b'event: %b.delta\ndata: {"type":"%b.delta","sequence_number":%%d,' % (part.events, part.events)
            self.delta = event + b'%b,"logprobs":[],"delta":%%b}\n\n' % spoken.place
        return out

    def _end_part(self, spoken: _SpokenItem) -> bytes:
        self.delta = b""
        part, text, logprobs = spoken.part, _quoted(spoken.said), b",".join(spoken.logprobs)
        beside = part.beside % logprobs if part is _TEXT else b""
        written = _written(part, text, logprobs)
        out = self._emit(part.events + b".done", b'%b,%b"%b":%b' % (spoken.place, beside, part.text, text))
        out += self._emit(b"response.content_part.done", b'%b,"part":%b' % (spoken.place, written))
        spoken.parts.append(written)
        spoken.said.clear()
        spoken.logprobs.clear()
        return out

    def _end_spoken(self, status: bytes) -> bytes:
        """End the item that is spoken, where there is one."""
        spoken = self.spoken
        if spoken is None:
            return b""
        text = _quoted(spoken.said)
        out = self._end_part(spoken)
        self.spoken = None
        if spoken.part is _REASONING:
            item = reasoning_item(spoken.id, text, seal=self.frame.ask.sealed)
        else:
            item = message_item(spoken.id, status, spoken.parts)
        return out + self._end_item(spoken.index, item)

    def _end_item(self, index: int, item: bytes) -> bytes:
        self.output[index] = item
        return self._emit(b"response.output_item.done", b'"output_index":%d,"item":%b' % (index, item))

    def _call(self, said: SaidCall) -> bytes:
        """Add a piece of a call. An engine that gives each call the same index, or none, begins the next one with another id and a name."""
        function = said.function or SaidFunction()
        index = max(0, len(self.calls) - 1) if said.index is None else said.index
        call_id = _encode(said.id) if said.id else b""
        call = self.calls.get(index)
        if call is None or (call.call_id and call_id and function.name and call_id != call.call_id):
            call = self.calls[index] = _OpenCall(call_id)
            self.open_calls.append(call)
        call.call_id = call.call_id or call_id
        out = b""
        arguments = arguments_of(function)
        if call.index < 0:
            if not function.name:
                call.said += arguments[1:-1]
                return b""
            out = self._begin_call(call, function.name)
        return out + self._add_arguments(call, arguments)

    def _add_arguments(self, call: _OpenCall, arguments: bytes) -> bytes:
        added = call.added(arguments)
        if len(added) <= len(_NOTHING):
            return b""
        call.said += added[1:-1]
        return self._emit(call.events + b".delta", b'%b,"delta":%b' % (call.place, added))

    def _begin_call(self, call: _OpenCall, function: str) -> bytes:
        out = self._end_spoken(b"completed")
        frame = self.frame
        called = call.called = frame.tool(function)
        call.input = CustomInput() if called.custom else None
        call.id = frame.item_id(b"ctc_" if called.custom else b"fc_")
        call.call_id = call.call_id or b'"%b"' % frame.item_id(b"call_")
        call.index = len(self.output)
        self.output.append(b"")
        item = call.item(b"in_progress", _NOTHING)
        out += self._emit(b"response.output_item.added", b'"output_index":%d,"item":%b' % (call.index, item))
        held = _quoted(call.said)
        call.said.clear()
        return out + self._add_arguments(call, held)

    def _end_call(self, call: _OpenCall, status: bytes) -> bytes:
        out = b""
        if call.input is not None and (rest := call.input.end()):
            added = _encode(rest)
            call.said += added[1:-1]
            out = self._emit(call.events + b".delta", b'%b,"delta":%b' % (call.place, added))
        text = _quoted(call.said)
        if call.input is None:
            done = b'%b,"name":%b,"arguments":%b' % (call.place, _encode(call.called.name), text)
        else:
            done = b'%b,"input":%b' % (call.place, text)
        out += self._emit(call.events + b".done", done)
        return out + self._end_item(call.index, call.item(status, text))

    def _end(self) -> bytes:
        """The last events: what is open ends, and the Response is told whole, at once or when it is stored."""
        out = [] if self.model else [self._open(b"")]
        if not (self.output or self.open_calls):
            out.append(self._begin(_TEXT))
        out += [self._begin_call(call, "") for call in self.open_calls if call.index < 0]
        whole = is_whole(self.finish_reason)
        at_end = len(self.output) - 1
        for call in self.open_calls:
            out.append(self._end_call(call, b"completed" if whole or call.index < at_end else b"incomplete"))
        out.append(self._end_spoken(b"completed" if whole else b"incomplete"))
        answer = ResponseAnswer(self.model, b",".join(self.output), usage_member(self.usage), self.finish_reason)
        name = b"response.completed" if whole else b"response.incomplete"
        last = self._emit(name, b'"response":%b' % self.frame.ended(answer))
        if self.frame.keeps:
            self.held = last
        else:
            out.append(last)
        self.over = True
        return b"".join(out)

    def released(self) -> bytes:
        """The last event, where it was held back."""
        last, self.held = self.held, b""
        return last

    def broken(self, fault: Fault, request_id: str) -> bytes:
        """The event that ends a stream which failed; nothing where the stream is over.

        Before the Response was told of there is none that could fail, and the event is an `error`. Its members stand twice: as the
        description of the API has them, and as `error`, where clients look that raise on it.
        """
        if self.over and not self.held:
            return b""
        if self.released():
            self.sequence -= 1  # another event takes its place
        self.over = True
        row = ROWS[fault.kind]
        if self.model or self.told:
            error = _encode({"code": code_of(fault), "message": fault.message})
            answer = ResponseAnswer(self.model or self.frame.ask.model, b",".join([item for item in self.output if item]), error=error)
            return self._emit(b"response.failed", b'"response":%b' % self.frame.failed(answer))
        shown = {"code": fault.code or row.code, "message": fault.message, "param": fault.param}
        inner = {"type": row.type, **shown, **({"request_id": request_id} if request_id else {})}
        return self._emit(b"error", _encode({**shown, "error": inner})[1:-1])


def code_of(fault: Fault) -> str:
    """The code of a Response that failed: one of those that the description of the API lists. A caller may send the request again after
    each but `invalid_prompt`."""
    if ROWS[fault.kind].status == 429:
        return "rate_limit_exceeded"
    return "invalid_prompt" if fault.source is Source.CALLER and fault.kind is not Kind.SLOW_READER else "server_error"
