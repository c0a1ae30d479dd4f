"""The taps of replies about sound: a transcript that is not streamed, and speech.

A transcript is a text in the form that the request asked for: `json` and `verbose_json` are objects with `text`, the others are the text
itself. Guard rules read replies in the form of OpenAI's choices, so a transcript passes them as a choice (`TranscriptChoice` in front of
their tap, `ChoiceTranscript` behind it). Speech is bytes that nobody reads.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from domain import retry_after
from domain.ask import Ask
from domain.clock import Clock
from domain.faults import Fault, Kind
from domain.usage import Usage
from gateway.guards.reply_detectors import ReplyDetectors
from gateway.guards.reply_tap import guard_tap
from gateway.http.edge.long_reply import MAX_KEPT_BYTES, PASSED_FROM_BYTES
from gateway.http.edge.reply_chain import ReplyChain
from gateway.story import AttemptFacts, Story
from tenancy.estimate import BYTES_PER_TOKEN, SPEECH_BYTES_A_S, likely_prompt, wav_bytes_a_second

JSON_FORMATS: Final = frozenset({"json", "verbose_json"})
MAX_SECONDS: Final = 10**9
"""More seconds than any recording has: a report beyond it counts as this one."""


class _ReportedAudio(msgspec.Struct, gc=False):
    """The usage of a transcript: seconds from vLLM, tokens from models that are billed by them."""

    seconds: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class _Transcript(msgspec.Struct, gc=False):
    text: str | None = None
    duration: float | str | None = None
    usage: _ReportedAudio | None = None
    error: Any = None


class _Format(msgspec.Struct, gc=False):
    response_format: str | None = None


TEXT: Final = b"text/plain; charset=utf-8"
TAKEN: Final[Mapping[str, frozenset[bytes]]] = {
    "": frozenset(),
    "in": frozenset({b"text/plain", b"text/vtt", b"text/srt", b"application/x-subrip"}),
    "out": frozenset(
        b"audio/%b" % kind
        for kind in (b"mpeg", b"mp3", b"ogg", b"opus", b"aac", b"flac", b"wav", b"x-wav", b"wave", b"pcm", b"webm", b"mp4")
    )
    | {b"application/octet-stream"},
}
"""Types of replies that are taken beside JSON, by `Endpoint.sound`."""

_decode_transcript: Final = msgspec.json.Decoder(_Transcript).decode
_decode_any: Final = msgspec.json.Decoder().decode
_decode_object: Final = msgspec.json.Decoder(dict[str, Any]).decode
_decode_format: Final = msgspec.json.Decoder(_Format).decode
_encode: Final = msgspec.json.Encoder().encode


def wanted_format(ask: Ask) -> str:
    """The form of the reply that a request about sound asks for; empty for the engine's own."""
    return _decode_format(ask.behind_prompt).response_format or ("json" if ask.endpoint.sound == "in" else "")


class _SoundTap:
    """What both judging taps share."""

    def __init__(self, ask: Ask, answer: AttemptFacts, clock: Clock) -> None:
        self._ask = ask
        self._answer = answer
        self._clock = clock
        self.usage: Usage | None = None
        self.cached: int | None = None
        self.over = False
        self.fault: Fault | None = None

    def _fail(self, kind: Kind, detail: str) -> None:
        message = "The engine serving this request failed before the answer was complete. Try again."
        self.fault = Fault(kind, message, retry=retry_after.SOON, detail=detail)
        self.over = True


class TranscriptTap(_SoundTap):
    """Holds a plain transcript until it is whole, judges it and reads its usage: seconds, and tokens where the engine reports them."""

    def __init__(self, ask: Ask, answer: AttemptFacts, clock: Clock) -> None:
        super().__init__(ask, answer, clock)
        self._parts: list[bytes] = []
        self._size = 0
        self._format = wanted_format(ask)

    def feed(self, data: bytes) -> bytes:
        """Collect; nothing goes on before the end."""
        if not self.over:
            self._parts.append(data)
            self._size += len(data)
            if self._size > MAX_KEPT_BYTES:
                self._fail(Kind.INVALID_REPLY, f"a transcript with more than {MAX_KEPT_BYTES} bytes")
        return b""

    def end(self) -> bytes:
        """The transcript; or b"" with `fault` set."""
        if self.over:
            return b""
        body = b"".join(self._parts)
        try:
            said = body.decode()
            if self._format in JSON_FORMATS:
                said = self._read(_decode_transcript(body))
            elif body[:1] in (b"{", b'"'):
                # engines that answer every form with JSON: the text is its member, or the whole of it
                said = body_text(body)
                body = said.encode()
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self._fail(Kind.INVALID_REPLY, f"no transcript: {error}")
        if self.fault is not None:
            return b""
        self._answer.content_type = b"" if self._format in JSON_FORMATS else TEXT
        self._answer.said_bytes = len(said.encode())
        self._answer.note_event(self._clock())
        self.over = True
        return body

    def _read(self, reply: _Transcript) -> str:
        """The text of a transcript in JSON, whose usage is noted."""
        if reply.error is not None:
            self._fail(Kind.ENGINE_ABORTED, "status 200 with an error body")
            return ""
        if reply.text is None:
            self._fail(Kind.INVALID_REPLY, "a transcript without text")
            return ""
        usage = reply.usage or _ReportedAudio()
        seconds = _seconds(usage.seconds if usage.seconds is not None else reply.duration)
        prompt = usage.prompt_tokens if usage.prompt_tokens is not None else usage.input_tokens
        output = usage.completion_tokens if usage.completion_tokens is not None else usage.output_tokens
        if prompt is not None and output is not None:
            self.usage = Usage(prompt, output, audio_seconds=seconds)
        elif seconds:
            # the engine counts time, so the tokens are those of the estimate
            output = -(-len(reply.text.encode()) // BYTES_PER_TOKEN)
            self.usage = Usage(likely_prompt(self._ask, None), output, audio_seconds=seconds)
        return reply.text


def body_text(body: bytes) -> str:
    """The text of a reply in JSON: its member `text`, or itself; where it is neither, the bytes are the text. Raises MsgspecError."""
    try:
        value = _decode_any(body)
    except msgspec.DecodeError:
        return body.decode()
    found = value.get("text") if isinstance(value, dict) else value
    if not isinstance(found, str):
        raise msgspec.ValidationError("JSON without a text")
    return found


def _seconds(value: object) -> int:
    """Whole seconds, a begun one counted, of a number or a text with one; 0 for anything else."""
    try:
        seconds = float(value)  # type: ignore[arg-type]  # anything that is no number raises one of these
    except (TypeError, ValueError):
        return 0
    return min(MAX_SECONDS, math.ceil(seconds)) if 0 < seconds < math.inf else 0


class TranscriptChoice:
    """Writes a transcript as the choice of a reply, for the guard rules' tap behind it."""

    over = False
    fault: Fault | None = None

    def __init__(self, ask: Ask) -> None:
        self._json = wanted_format(ask) in JSON_FORMATS
        self.members: dict[str, Any] = {}
        """The members of a transcript in JSON."""
        self.said = ""

    def feed(self, data: bytes) -> bytes:
        """A whole transcript in, a reply with one choice out."""
        if self._json:
            self.members = _decode_object(data)
        self.said = self.members["text"] if self._json else data.decode()
        return _encode({"choices": [{"index": 0, "text": self.said, "finish_reason": "stop"}]})

    def end(self) -> bytes:
        """Nothing is ever held."""
        return b""

    def written(self, text: str) -> bytes:
        """The transcript with this text. Parts of it that repeat the text stay only where the text is what it was."""
        if not self._json:
            return text.encode()
        members = self.members
        if text != self.said:
            members = {name: value for name, value in members.items() if name not in ("segments", "words", "logprobs")}
        return _encode({**members, "text": text})


class ChoiceTranscript:
    """Writes the choice that guard rules have let pass as the transcript again."""

    over = False
    fault: Fault | None = None

    def __init__(self, choice: TranscriptChoice) -> None:
        self._choice = choice

    def feed(self, data: bytes) -> bytes:
        """A reply with one choice in, the transcript out."""
        return self._choice.written(_decode_any(data)["choices"][0].get("text") or "")

    def end(self) -> bytes:
        """Nothing is ever held."""
        return b""


class SpeechTap(_SoundTap):
    """Holds the beginning of speech, so that a reply that fails at once may be another engine's, and then lets it go on as it comes."""

    def __init__(self, ask: Ask, answer: AttemptFacts, clock: Clock) -> None:
        super().__init__(ask, answer, clock)
        self._parts: list[bytes] = []
        self._size = 0
        self._bytes_a_s = SPEECH_BYTES_A_S if wanted_format(ask) == "pcm" else 0
        """Bytes of a second of this speech; 0 where its form does not tell them."""

    def feed(self, data: bytes) -> bytes:
        """Collect up to `PASSED_FROM_BYTES`, then pass everything on."""
        if self.over:
            return b""
        self._parts.append(data)
        self._size += len(data)
        if not self._answer.content_type and self._size > PASSED_FROM_BYTES:
            self._fail(Kind.INVALID_REPLY, "JSON, and no sound")
            return b""
        return b"" if self._size <= PASSED_FROM_BYTES else self._released()

    def end(self) -> bytes:
        """What was held; a reply without a byte is the engine's fault."""
        if self.over:
            return b""
        if not self._size or not self._answer.content_type:
            self._fail(Kind.INVALID_REPLY, "no sound")
            return b""
        out = self._released()
        self.over = True
        return out

    def _released(self) -> bytes:
        self._answer.note_event(self._clock())
        out = b"".join(self._parts)
        self._parts.clear()
        if self._size == len(out):  # the beginning
            self._bytes_a_s = wav_bytes_a_second(out) or self._bytes_a_s
        self._answer.speech = (-(-self._size // self._bytes_a_s) if self._bytes_a_s else 0, self._size)
        return out


def sound_taps(ask: Ask, story: Story, clock: Clock, detectors: ReplyDetectors | None) -> TranscriptTap | SpeechTap | ReplyChain:
    """The chain of a reply about sound that is not a stream of events."""
    if ask.endpoint.sound == "out":
        return SpeechTap(ask, story.attempt, clock)
    judge = TranscriptTap(ask, story.attempt, clock)
    guard = guard_tap(ask, story, judge, detectors)
    if guard is None:
        return judge
    choice = TranscriptChoice(ask)
    return ReplyChain([judge, choice, guard, ChoiceTranscript(choice)], judge, guard)
