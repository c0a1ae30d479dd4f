"""`POST /v1/audio/transcriptions`, `/v1/audio/translations` and `/v1/audio/speech`: a recording as text, and a text as sound.

The first two are forms with a file (`multipart/form-data`). `form_document` makes of one what every other request is, a JSON object, in
which the file is a name and a number of bytes: `{"name": "audio.wav", "bytes": 9}`. So a form passes the same checks, policies and guard
rules as any body; the file's bytes travel beside it (`Ask.upload`), and the engine gets a form that is written anew.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from backends.forms import AUDIO_TYPES, USAGE_ASKED, USAGE_COUNTED_ON, BadForm, FormPart, read_form
from domain.faults import Fault, Kind
from gateway.http.openai.checks import Check, each, form_fault, number, one_of, refuse, refuse_type, shown, text
from gateway.http.openai.embeddings import beside_prompts
from gateway.http.openai.generation import generation
from gateway.http.openai.rerank import MOST
from gateway.http.openai.sizes import PromptSize
from policies.caps import RequestCaps

FILE: Final = "file"
_ENDINGS: Final = ", ".join(AUDIO_TYPES)

WRITTEN_FORMATS: Final = ("json", "text", "srt", "verbose_json", "vtt")
"""Forms of a transcript."""
STREAMED_FORMATS: Final = ("json", "text")
SOUND_FORMATS: Final = ("mp3", "opus", "aac", "flac", "wav", "pcm")
MAX_VOICE_CHARS: Final = 256


def transcriptions(caps: RequestCaps) -> Mapping[str, Check]:
    """The checks of a request for the text of a recording under a policy's caps, by field name."""
    return {
        **generation(caps),
        **dict.fromkeys(("n", "best_of"), _one),
        FILE: _file,
        "language": text(64),
        "to_language": text(64),
        "prompt": text(MOST),
        "hotwords": text(MOST),
        "response_format": one_of(*WRITTEN_FORMATS),
        "timestamp_granularities[]": each(2, one_of("word", "segment")),
        "max_completion_tokens": generation(caps)["max_tokens"],
        USAGE_COUNTED_ON: _off,
    }


def speech(caps: RequestCaps) -> Mapping[str, Check]:
    """The checks of a request for a text as sound under a policy's caps, by field name."""
    return {
        **beside_prompts(caps),
        "input": text(MOST),
        "voice": text(MAX_VOICE_CHARS),
        "instructions": text(MOST),
        "response_format": one_of(*SOUND_FORMATS),
        "speed": number(0.25, 4.0),
        "stream_format": one_of("audio"),
    }


def _one(value: object, param: str) -> None:
    if type(value) is not int:
        refuse_type("an integer", value, param)
    if value != 1:
        refuse(f"Invalid value for '{param}': a recording has one transcript.", param)


def _off(value: object, param: str) -> None:
    if value is not False:
        message = f"The parameter '{param}' is not supported: 'stream_include_usage' puts one count at the end of the stream."
        raise Fault(Kind.UNSUPPORTED_PARAMETER, message, param=param)


def _file(value: object, param: str) -> None:
    """Check what stands for a file; that of a form is made by `form_document`."""
    if type(value) is not dict:
        refuse_type("a file", value, param)
    name, size = value.get("name"), value.get("bytes")
    if type(name) is not str or name not in _NAMES:
        refuse(f"Invalid value for '{param}': the file's name must end in one of {_ENDINGS}.", param)
    if type(size) is not int or size < 1:
        refuse(f"Invalid value for '{param}': it is empty.", param)


_NAMES: Final = frozenset(f"audio.{ending}" for ending in AUDIO_TYPES)


def audio_size(document: Mapping[str, object], _body_bytes: int) -> PromptSize:
    """The size of a recording and of the text beside it.

    Raises:
        Fault: INVALID_VALUE for a form of the transcript that cannot be streamed.
    """
    wanted = document.get("response_format") or "json"
    if document.get("stream") and wanted not in STREAMED_FORMATS:
        refuse(f"Invalid value for 'response_format': {shown(str(wanted))} cannot be streamed.", "response_format")
    size: int = document[FILE]["bytes"]  # type: ignore[index]  # the form has checked it
    beside = [str(value) for name in ("prompt", "hotwords") if (value := document.get(name)) is not None]
    return PromptSize(size + sum(len(value.encode()) for value in beside), None, 1, size)


def speech_size(document: Mapping[str, object], body_bytes: int) -> PromptSize:
    """The size of a text to speak.

    Raises:
        Fault: INVALID_VALUE for no text at all.
    """
    if not document["input"]:
        refuse("Invalid value for 'input': it is empty.", "input")
    return PromptSize(body_bytes)


def spoken_prompts(document: Mapping[str, object]) -> list[object] | None:
    """The text to speak; None for a recording."""
    return None if FILE in document else [document["input"]]


# --- forms ----------------------------------------------------------------------------------------------------------------


def form_document(content_type: bytes, body: bytes) -> tuple[bytes, bytes]:
    """A form as a JSON object, and the bytes of its file.

    Args:
        content_type: the header of the request.

    Raises:
        Fault: INVALID_VALUE with the name of the field, MISSING_PARAMETER for a form without a file.
    """
    try:
        parts = read_form(content_type, body)
    except BadForm as error:
        raise form_fault(error) from None
    document: dict[str, object] = {}
    upload = b""
    for part in parts:
        name = part.name
        if name.endswith("[]"):
            values = document.setdefault(name, [])
            assert type(values) is list  # every name that ends so is a list
            values.append(_decoded(part))
        elif name in document:
            refuse(f"Invalid value for '{name}': it stands twice in the form.", name)
        elif name == FILE:
            document[name], upload = _described(part), part.value
        elif part.filename is not None:
            refuse(f"Invalid value for '{name}': it is a file, and '{FILE}' alone may be one.", name)
        else:
            document[name] = _VALUES.get(name, _as_text)(_decoded(part), name)
    if document.get(USAGE_ASKED) is True and document.get(USAGE_COUNTED_ON) is True:
        del document[USAGE_COUNTED_ON]  # a load tool asks for both, and one count at the end is what both end with
    if USAGE_ASKED in document:
        document["stream_options"] = {"include_usage": document.pop(USAGE_ASKED)}
    if FILE not in document:
        raise Fault(Kind.MISSING_PARAMETER, f"Missing required parameter: '{FILE}'.", param=FILE)
    return msgspec.json.encode(document), upload


def _described(part: FormPart) -> dict[str, object]:
    """A file as its name and size. Of the caller's name for it only the ending is kept: it may be a person's name, or a path."""
    ending = (part.filename or "").rpartition(".")[2].lower()
    if part.filename is not None and ending not in AUDIO_TYPES:
        refuse(f"Invalid value for '{FILE}': the file's name must end in one of {_ENDINGS}.", FILE)
    return {"name": f"audio.{ending or 'wav'}", "bytes": len(part.value)}


def _decoded(part: FormPart) -> str:
    try:
        return part.value.decode()
    except UnicodeDecodeError:
        refuse(f"Invalid value for '{part.name}': it is not UTF-8.", part.name)


def _as_text(value: str, _name: str) -> object:
    return value


def _as_number(value: str, name: str) -> object:
    try:
        return msgspec.json.decode(value, type=int | float)
    except (msgspec.DecodeError, RecursionError):
        refuse(f"Invalid value for '{name}': expected a number, got {shown(value)}.", name)


def _as_flag(value: str, name: str) -> object:
    flag = {"true": True, "1": True, "false": False, "0": False}.get(value.lower())
    if flag is None:
        refuse(f"Invalid value for '{name}': expected true or false, got {shown(value)}.", name)
    return flag


_NUMBERS: Final = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty", "repetition_penalty", "n", "best_of"),
    *("max_tokens", "max_completion_tokens", "min_tokens", "length_penalty"),
)
_FLAGS: Final = ("stream", USAGE_ASKED, USAGE_COUNTED_ON, "use_beam_search", "include_stop_str_in_output")
_VALUES: Final[Mapping[str, Callable[[str, str], object]]] = {
    **dict.fromkeys(_NUMBERS, _as_number),
    **dict.fromkeys(_FLAGS, _as_flag),
}
"""The fields of forms that are no texts. A field without a row is a text, as an unknown field is."""
