"""Replies of the simulated engine about sound: transcripts and translations of recordings, streamed or not, and speech.

Nothing is heard: the words follow from the bytes of the recording, which lasts as long as 16 kHz in 16 bits would. Speech is a WAV file
whose samples are the bytes of the text. The shapes are vLLM's; SGLang has transcriptions alone.
"""

import itertools
import math
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from backends.forms import BadForm, read_form
from backends.simengine import shapes
from backends.simengine.connection import SimConnection
from backends.simengine.reading import ErrorAnswer
from backends.simengine.settings import SimSettings

_TRANSCRIPTIONS: Final = {"/v1/audio/transcriptions": "transcribe"}
SOUND_PATHS: Final[Mapping[str, Mapping[str, str]]] = {
    "vllm": {**_TRANSCRIPTIONS, "/v1/audio/translations": "translate", "/v1/audio/speech": "speech"},
    "sglang": _TRANSCRIPTIONS,
}
"""The paths of requests about sound, and their kind, by dialect."""
SOUND_KINDS: Final = frozenset({"transcribe", "translate", "speech"})
BYTES_PER_SECOND: Final = 32_000
SPEECH_TYPES: Final = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "pcm": "audio/pcm",
    "wav": "audio/wav",
}
_KINDS_OF_TEXT: Final = {"text": "text/plain; charset=utf-8", "srt": "text/plain; charset=utf-8", "vtt": "text/vtt"}


class HeardForm(msgspec.Struct, frozen=True):
    """A form as the engine reads it."""

    fields: dict[str, str]
    recording: bytes

    @classmethod
    def of(cls, content_type: bytes, body: bytes) -> "HeardForm":
        """Read a form. Raises ErrorAnswer."""
        try:
            parts = read_form(content_type, body)
        except BadForm as error:
            raise ErrorAnswer(422, f"1 validation error:\n  {{'type': 'missing', 'loc': 'body.file'}} {error}", "Bad Request") from None
        files = [part.value for part in parts if part.name == "file"]
        if len(files) != 1:
            raise ErrorAnswer(422, "1 validation error:\n  {'type': 'missing', 'loc': 'body.file'}", "Bad Request", "body.file")
        return cls({part.name: part.value.decode() for part in parts if part.name != "file"}, files[0])


def transcript(kind: str, recording: bytes, seed: int) -> str:
    """The words of a recording: three to ten."""
    words = shapes.words([zlib.crc32(recording)], kind, seed)
    return "".join(itertools.islice(words, 3 + len(recording) % 8))


def seconds_of(recording: bytes) -> int:
    """The length of a recording, a begun second counted."""
    return max(1, math.ceil(len(recording) / BYTES_PER_SECOND))


def speech_of(text: str) -> bytes:
    """A WAV file for a text."""
    samples = text.encode() * 2
    head = struct.pack(
        "<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(samples), b"WAVE", b"fmt ", 16, 1, 1, 16_000, 32_000, 2, 16, b"data", len(samples)
    )
    return head + samples


def answer_sound(connection: SimConnection, kind: str, settings: SimSettings, request_id: str, created: int) -> None:
    """Answer one request at once. Raises ErrorAnswer for what engines refuse."""
    fault = connection.fault.name if connection.fault else ""
    if fault == "plain_not_json":
        connection.reply(200, b"<html>it works</html>", "text/html")
        return
    if fault == "plain_error_200":
        connection.reply(200, shapes.error(settings.dialect, 500, "EngineCore encountered an issue.", "InternalServerError"))
        return
    if kind == "speech":
        request = _speech_request(connection.body)
        _check_model(str(request.get("model", settings.models[0])), settings)
        wanted = str(request.get("response_format") or "wav")
        connection.reply(200, speech_of(request["input"]), SPEECH_TYPES[wanted])
        return
    form = HeardForm.of(connection.headers.get(b"content-type", b""), connection.body)
    model = form.fields.get("model", settings.models[0])
    _check_model(model, settings)
    text = transcript(kind, form.recording, settings.seed)
    seconds = seconds_of(form.recording)
    if form.fields.get("stream") == "true":
        name = "another-model" if fault == "wrong_model" else model
        head = shapes.ids(settings.dialect, request_id, "trsc", created, name)
        _stream(connection, list(_events(head, text, seconds, form.fields)))
        return
    wanted = form.fields.get("response_format", "json")
    if wanted in _KINDS_OF_TEXT:
        connection.reply(200, _written(text, wanted, seconds).encode(), _KINDS_OF_TEXT[wanted])
        return
    reply: dict[str, Any] = {"text": text, "usage": {"type": "duration", "seconds": seconds}}
    if wanted == "verbose_json":
        segment = {"id": 0, "seek": 0, "start": 0.0, "end": float(seconds), "text": text, "tokens": [], "temperature": 0.0}
        reply = {"task": kind, "language": "en", "duration": str(seconds), "segments": [segment], "words": None, **reply}
    if fault == "no_usage":
        reply.pop("usage")
        reply.pop("duration", None)
    connection.reply(200, shapes.encode(reply))


def _speech_request(body: bytes) -> dict[str, Any]:
    try:
        request: dict[str, Any] = msgspec.json.decode(body, type=dict)
    except msgspec.DecodeError:
        raise ErrorAnswer(400, "1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.1'}", "Bad Request") from None
    if not isinstance(request.get("input"), str):
        raise ErrorAnswer(400, "1 validation error:\n  {'type': 'missing', 'loc': 'body.input'}", "Bad Request", "body.input")
    return request


def _check_model(model: str, settings: SimSettings) -> None:
    if model not in settings.models and settings.dialect == "vllm":
        raise ErrorAnswer(404, f"The model `{model}` does not exist.", "NotFoundError", "model")


def _written(text: str, wanted: str, seconds: int) -> str:
    """A transcript as text or as subtitles of one line."""
    if wanted == "text":
        return text
    comma = "," if wanted == "srt" else "."
    line = f"00:00:00{comma}000 --> 00:00:{seconds % 60:02}{comma}000\n{text}\n"
    return f"1\n{line}" if wanted == "srt" else f"WEBVTT\n\n{line}"


def _events(head: shapes.Ids, text: str, seconds: int, fields: Mapping[str, str]) -> Iterator[bytes]:
    """The events of a streamed transcript."""
    frame = {"id": head.id, "object": "transcription.chunk", "created": head.created, "model": head.model}
    words = text.split(" ")
    for at, word in enumerate(words):
        finish = "stop" if at == len(words) - 1 else None
        content = word if at == 0 else f" {word}"
        yield shapes.encode({**frame, "choices": [{"delta": {"content": content}, "finish_reason": finish, "stop_reason": None}]})
    if fields.get("stream_include_usage") == "true":
        prompt, output = 4 + seconds, len(words)
        usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
        yield shapes.encode({**frame, "choices": [], "usage": usage})
    yield b"[DONE]"


def _stream(connection: SimConnection, events: list[bytes]) -> None:
    """Send the events, with the connection's fault if it concerns streams."""
    fault = connection.fault
    connection.start_stream()
    for at, event in enumerate(events):
        if fault is not None and fault.name == "reset_mid_stream" and at >= fault.after:
            connection.reset()
            return
        connection.chunk(b"data: %b\n\n" % event)
    connection.end_stream()
