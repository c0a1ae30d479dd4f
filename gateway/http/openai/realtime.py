"""`GET /v1/realtime`: the handshake of a realtime session, and the events of its two sides. Sans-io.

Callers speak OpenAI's form of the handshake (`?model=`, the key in a header or in a subprotocol) and the events of vLLM's transcription:
`session.update`, `input_audio_buffer.append` and `.commit` one way, `session.created`, `transcription.delta`, `transcription.done` and
`error` the other way (vLLM 0.33, `entrypoints/speech_to_text/realtime/`). `RealtimeEvents` reads each event: it writes the engine's name
for the model, turns errors into OpenAI's, and adds the usage up. An event of the caller is written anew from the members that are known,
so the gateway and the engine cannot read it in two ways.

Nothing here is logged: events are what callers say.
"""

import base64
import binascii
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec

from backends.dialects.explanations import explained
from domain.faults import Fault, Kind
from domain.usage import NO_USAGE, Usage
from gateway.http.edge.head import RequestHead
from gateway.http.faults import ROWS
from gateway.http.openai.checks import Check, refuse_type
from gateway.http.openai.sizes import PromptSize
from tenancy.estimate import MEDIA_TOKENS

PROTOCOL: Final = "realtime"
"""The subprotocol of OpenAI's clients."""
KEY_PROTOCOL: Final = "openai-insecure-api-key."
"""The beginning of the subprotocol in which browsers send the key, because they can set no header."""
VERSION: Final = b"13"
"""The only version of the WebSocket protocol (RFC 6455)."""
KEY_BYTES: Final = 16

BYTES_PER_SECOND: Final = 32_000
"""Audio is PCM of 16 bits at 16 kHz, mono: what vLLM's models take."""
TOKENS_PER_SECOND: Final = 12.5
"""Tokens that a model makes of a second of audio, where its engine has not reported them yet: one for 80 ms (Voxtral)."""
RESERVED_TOKENS: Final = MEDIA_TOKENS
"""Input tokens that a session reserves and may use: a recording of unknown length, which is 21 minutes of speech."""

_encode: Final = msgspec.json.Encoder().encode


# --- the handshake --------------------------------------------------------------------------------------------------------


def with_protocol_key(head: RequestHead) -> RequestHead:
    """The head with the key of a browser's subprotocol as its Authorization, unless a header has a key already."""
    headers = head.headers
    if any(name in headers for name in (b"authorization", b"x-api-key", b"api-key")):
        return head
    key = next((name.removeprefix(KEY_PROTOCOL) for name in _protocols(head) if name.startswith(KEY_PROTOCOL)), "")
    if not key:
        return head
    return msgspec.structs.replace(head, headers={**headers, b"authorization": f"Bearer {key}".encode("latin-1")})


def _protocols(head: RequestHead) -> list[str]:
    return [name.strip() for name in head.headers.get(b"sec-websocket-protocol", b"").decode("latin-1").split(",")]


def subprotocol(head: RequestHead) -> str:
    """The subprotocol to agree on; empty for none. Never the one with the key."""
    return PROTOCOL if PROTOCOL in _protocols(head) else ""


def session_body(head: RequestHead) -> bytes:
    """The request as the JSON object that the other routes get in a body: the model of the query, and a session.

    Raises:
        Fault: MALFORMED_HTTP for no handshake of a WebSocket; INVALID_VALUE or UNSUPPORTED_PARAMETER for the query.
    """
    headers = head.headers
    # both, or a proxy in front that reads no upgrade in the one header would take the session's bytes for further requests
    if headers.get(b"upgrade", b"").lower() != b"websocket" or headers.get(b"connection", b"").lower() != b"upgrade":
        raise Fault(Kind.MALFORMED_HTTP, "This route is a WebSocket: connect to it with ws:// or wss://, and not with a plain GET.")
    if head.has_body:
        raise Fault(Kind.MALFORMED_HTTP, "The handshake of a WebSocket has no body.")
    if headers.get(b"sec-websocket-version") != VERSION:
        raise Fault(Kind.MALFORMED_HTTP, "The header 'sec-websocket-version' must be 13.")
    try:
        key = base64.b64decode(headers.get(b"sec-websocket-key", b""), validate=True)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES:
        raise Fault(Kind.MALFORMED_HTTP, f"The header 'sec-websocket-key' must be {KEY_BYTES} bytes in base64.")
    query = parse_qs(head.query, keep_blank_values=True, max_num_fields=32) if head.query.count("&") < 32 else {}
    if "call_id" in query:
        message = "Calls (SIP and WebRTC) are not served: connect with 'model' in the query."
        raise Fault(Kind.UNSUPPORTED_PARAMETER, message, param="call_id")
    models = query.get("model", [])
    if len(models) > 1:
        raise Fault(Kind.INVALID_VALUE, "Invalid value for 'model': the query may name one model.", param="model")
    intent = query.get("intent", ["transcription"])
    if intent != ["transcription"]:
        message = "Invalid value for 'intent': sessions transcribe speech, so the only value is 'transcription'."
        raise Fault(Kind.INVALID_VALUE, message, param="intent")
    named = {"model": models[0]} if models else {}
    return _encode({"session": {"type": "transcription"}, **named})


def realtime() -> Mapping[str, Check]:
    """The checks of a session's request."""
    return {"session": _session}


def _session(value: object, param: str) -> None:
    if type(value) is not dict:
        refuse_type("an object", value, param)


def session_size(_document: Mapping[str, object], _body_bytes: int) -> PromptSize:
    """The size of a session before it begins: one recording of unknown length."""
    return PromptSize(1, None, 1, 1)


def unread_prompts(_document: Mapping[str, object]) -> None:
    """The prompts of a session: nobody knows them before they are spoken."""


def without_guards() -> Fault:
    """The refusal of a session for which guard rules apply: none reads its events."""
    return Fault(
        Kind.NOT_PERMITTED,
        "Guard rules apply to this model, and they cannot read realtime sessions: send recordings to /v1/audio/transcriptions.",
        param="model",
    )


# --- the events -----------------------------------------------------------------------------------------------------------


class _CallersSession(msgspec.Struct):
    model: str | None = None


class _CallersEvent(msgspec.Struct):
    type: str
    event_id: str | None = None
    model: str | None = None
    session: _CallersSession | None = None
    audio: str | None = None
    final: bool = False


class _TurnCounts(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _InnerError(msgspec.Struct):
    message: str = ""
    code: str | None = None


class _EnginesEvent(msgspec.Struct):
    type: str
    usage: _TurnCounts | None = None
    error: str | _InnerError | None = None
    code: str | None = None


_decode_callers: Final = msgspec.json.Decoder(_CallersEvent).decode
_decode_engines: Final = msgspec.json.Decoder(_EnginesEvent).decode
_TYPES: Final = "session.update, input_audio_buffer.append and input_audio_buffer.commit"
_PASSED: Final = frozenset({"session.created", "session.updated", "transcription.delta", "transcription.done"})
_REFUSED: Final = "The engine refused this event."


def error_event(fault: Fault, event_id: str, of: str | None = None) -> bytes:
    """The event that tells a caller of a fault.

    Args:
        of: the id that the caller gave to the event that is wrong.
    """
    row = ROWS[fault.kind]
    error = {"type": row.type, "code": fault.code or row.code, "message": fault.message, "param": fault.param, "event_id": of}
    return _encode({"type": "error", "event_id": event_id, "error": error})


class WrongEvent(Exception):
    """An event of a caller that the engine does not get; the session goes on."""

    def __init__(self, fault: Fault, event_id: str | None) -> None:
        super().__init__(fault.message)
        self.fault = fault
        self.event_id = event_id


class RealtimeEvents:
    """The events of one session.

    Args:
        model: the caller's name of the model.
        engine_model: the name that the engine knows the model by.
        inside: collects further names that no message of an engine may tell.
    """

    __slots__ = (
        "_appended",
        "_engine_model",
        "_inside",
        "_model",
        "_seen_bytes",
        "_turn_appended",
        "_turn_deltas",
        "reported",
        "turn",
        "turns",
    )

    def __init__(self, model: str, engine_model: str, inside: Callable[[], Collection[str]]) -> None:
        self._model = model
        self._engine_model = engine_model
        self._inside = inside
        self.reported = NO_USAGE
        """What the engine has reported of finished turns."""
        self.turns = 0
        self.turn = False
        """Whether a turn is under way: the audio was committed, and its transcript is not whole yet."""
        self._appended = 0
        """Bytes of audio in the session."""
        self._turn_appended = 0
        """Bytes of audio that no report covers."""
        self._turn_deltas = 0
        self._seen_bytes = 0
        """Bytes of the events of the turn."""

    def opening(self) -> bytes:
        """The event with which the gateway begins a session: an engine takes no audio before it has heard the model's name."""
        return _encode({"type": "session.update", "model": self._engine_model})

    @property
    def usage(self) -> Usage:
        """The usage so far: as reported for finished turns, and as estimated for audio and text of a turn that is not over: a token for
        each event, and `TOKENS_PER_SECOND`. Audio that no commit followed counts, because an engine may have heard it."""
        reported = self.reported
        return Usage(
            reported.prompt_tokens + int(self._turn_appended / BYTES_PER_SECOND * TOKENS_PER_SECOND),
            reported.completion_tokens + self._turn_deltas,
            audio_seconds=-(-self._appended // BYTES_PER_SECOND),
        )

    def spent(self, most_output: int | None) -> Fault | None:
        """Why the session may not go on: it has used what it reserved. None where it may.

        Args:
            most_output: output tokens that are reserved; None for no bound.
        """
        usage = self.usage
        heard = int(self._appended / BYTES_PER_SECOND * TOKENS_PER_SECOND)
        if max(usage.prompt_tokens, heard) <= RESERVED_TOKENS and (most_output is None or usage.completion_tokens <= most_output):
            return None
        return Fault(Kind.EXCEEDS_LIMIT, "The session has used the tokens that it reserved. Open another one.", code="session_spent")

    def from_caller(self, message: bytes) -> bytes:
        """The event for the engine.

        Raises:
            WrongEvent: the event is not one that sessions have.
        """
        try:
            event = _decode_callers(message)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            fault = Fault(Kind.INVALID_JSON, "The event is no JSON object with a 'type' and the members of its type.")
            raise WrongEvent(fault, None) from None
        if event.type == "input_audio_buffer.append":
            return self._append(event)
        if event.type == "input_audio_buffer.commit":
            self.turn = self.turn or not event.final  # it begins a turn; with `final` it ends the audio of one
            return _encode({"type": event.type, "final": event.final})
        if event.type == "session.update":
            named = event.model or (event.session.model if event.session is not None else None)
            if named not in (None, self._model):
                message_to = "Invalid value for 'model': a session has the model of its URL. Open another session for another model."
                raise WrongEvent(Fault(Kind.INVALID_VALUE, message_to, param="model"), event.event_id)
            return self.opening()
        fault = Fault(Kind.INVALID_VALUE, f"Invalid value for 'type': the events of a session are {_TYPES}.", param="type")
        raise WrongEvent(fault, event.event_id)

    def _append(self, event: _CallersEvent) -> bytes:
        if not event.audio:
            raise WrongEvent(Fault(Kind.MISSING_PARAMETER, "Missing required parameter: 'audio'.", param="audio"), event.event_id)
        size = len(event.audio) * 3 // 4 - event.audio[-2:].count("=")
        self._appended += size
        self._turn_appended += size
        return _encode({"type": event.type, "audio": event.audio})

    def from_engine(self, message: bytes, event_id: Callable[[], str]) -> bytes:
        """The event for the caller; empty for one of a type that is not known, which could name what callers may not learn.

        Args:
            event_id: makes the id of an event of the gateway's own.

        Raises:
            Fault: INVALID_REPLY for a message that is no event.
        """
        try:
            event = _decode_engines(message)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise Fault(Kind.INVALID_REPLY, "The engine sent no usable event.", detail="a message that is no event") from None
        if event.type == "error":
            return self._explained(event, event_id)
        if event.type not in _PASSED:
            return b""
        if event.type == "transcription.delta":
            self._turn_deltas += 1
            self._seen_bytes += len(message)
        elif event.type == "transcription.done":
            self._finish_turn(event.usage, len(message))
        return message

    def _finish_turn(self, counts: _TurnCounts | None, size: int) -> None:
        """Add the report of a turn, within what it can be: no more output than its events have bytes, and one recording's input."""
        if counts is None:
            usage = self.usage
            prompt, completion = usage.prompt_tokens, usage.completion_tokens
        else:
            prompt = self.reported.prompt_tokens + min(max(0, counts.prompt_tokens), MEDIA_TOKENS)
            completion = self.reported.completion_tokens + min(max(0, counts.completion_tokens), self._seen_bytes + size)
        self.reported = Usage(prompt, completion)
        self.turn = False
        self.turns += 1
        self._turn_appended = self._turn_deltas = self._seen_bytes = 0

    def _explained(self, event: _EnginesEvent, event_id: Callable[[], str]) -> bytes:
        """An error of the engine in OpenAI's form, without the names that only operators know."""
        error: Any = event.error
        text, code = (error.message, error.code) if isinstance(error, _InnerError) else (error or "", event.code)
        failed = code == "processing_error"
        if failed:
            self.turn = False
        sentence = explained(text, (self._engine_model,), self._inside()) or _REFUSED
        kind = Kind.ENGINE_ERROR if failed else Kind.REFUSED_BY_ENGINE
        word = code if code is not None and len(code) <= 64 and code.isidentifier() else None
        return error_event(Fault(kind, "The engine could not process the audio." if failed else sentence, code=word), event_id())
