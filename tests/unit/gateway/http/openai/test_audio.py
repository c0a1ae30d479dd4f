"""Requests about sound: forms become documents whose fields have types, and each bad field is named."""

import json
from typing import Any

import pytest

from backends.dialects import form_for
from backends.forms import read_form, written_form
from domain.ask import Ask, Endpoint
from domain.faults import Fault, Kind
from gateway.http.openai import check_caps, interpret
from gateway.http.openai.audio import form_document
from gateway.http.openai.sizes import with_output_cap
from guardrails.messages import texts
from policies.caps import RequestCaps

HEADER = b"multipart/form-data; boundary=b"
FILE = {"name": "audio.wav", "bytes": 9}


def part(name: str, value: bytes | str, filename: str | None = None) -> bytes:
    value = value.encode() if isinstance(value, str) else value
    more = b"" if filename is None else b'; filename="%b"' % filename.encode()
    return b'--b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n' % (name.encode(), more, value)


RECORDING = part("file", b"123456789", "talk of Ann.WAV")


def heard(*parts: bytes) -> tuple[dict[str, Any], bytes]:
    document, upload = form_document(HEADER, b"".join(parts) + b"--b--\r\n")
    return json.loads(document), upload


def ask(endpoint: Endpoint = Endpoint.TRANSCRIPTIONS, **fields: Any) -> Ask:
    file = {"file": FILE} if endpoint.sound == "in" else {}
    return interpret(endpoint, json.dumps({"model": "m", **file, **fields}).encode())


def test_fields_of_a_form_have_types_and_of_the_files_name_only_the_ending_is_left() -> None:
    granularities = [part("timestamp_granularities[]", word) for word in ("word", "segment")]
    typed = [part("temperature", "0.5"), part("seed", "7"), part("stream", "True"), part("stream_include_usage", "0")]
    document, upload = heard(part("model", "m"), RECORDING, *typed, part("prompt", "12"), part("foo", "true"), *granularities)
    assert document == {
        "model": "m",
        "file": FILE,
        "temperature": 0.5,
        "seed": 7,
        "stream": True,
        "stream_options": {"include_usage": False},
        "prompt": "12",
        "foo": "true",
        "timestamp_granularities[]": ["word", "segment"],
    }
    assert upload == b"123456789"


def test_a_recording_without_a_name_is_one_all_the_same() -> None:
    assert heard(part("file", b"x"))[0]["file"] == {"name": "audio.wav", "bytes": 1}


@pytest.mark.parametrize(
    ("parts", "param", "kind"),
    [
        ([part("model", "m")], "file", Kind.MISSING_PARAMETER),
        ([RECORDING, RECORDING], "file", Kind.INVALID_VALUE),
        ([RECORDING, part("model", "m"), part("model", "n")], "model", Kind.INVALID_VALUE),
        ([part("file", b"x", "run.exe")], "file", Kind.INVALID_VALUE),
        ([RECORDING, part("mask", b"x", "a.wav")], "mask", Kind.INVALID_VALUE),
        ([RECORDING, part("temperature", "hot")], "temperature", Kind.INVALID_VALUE),
        ([RECORDING, part("temperature", "true")], "temperature", Kind.INVALID_VALUE),
        ([RECORDING, part("temperature", "[" * 5000)], "temperature", Kind.INVALID_VALUE),
        ([RECORDING, part("stream", "yes")], "stream", Kind.INVALID_VALUE),
        ([RECORDING, part("prompt", b"\xff")], "prompt", Kind.INVALID_VALUE),
        ([RECORDING, part("a b", "x")], None, Kind.INVALID_VALUE),
    ],
)
def test_what_is_refused_of_a_form(parts: list[bytes], param: str | None, kind: Kind) -> None:
    with pytest.raises(Fault) as caught:
        heard(*parts)
    assert (caught.value.param, caught.value.kind) == (param, kind)


def test_a_running_count_beside_the_whole_one_is_dropped() -> None:
    asked = [part("stream", "true"), part("stream_continuous_usage_stats", "true"), part("stream_include_usage", "true")]
    for parts in (asked, asked[::-1]):
        document, _ = heard(part("model", "m"), RECORDING, *parts)
        assert "stream_continuous_usage_stats" not in document
        assert document["stream_options"] == {"include_usage": True}


def test_a_form_that_is_cut_is_refused() -> None:
    body, content_type = written_form([("model", "m")], "audio.wav", b"x" * 100)
    with pytest.raises(Fault, match="last boundary"):
        form_document(content_type, body[:-20])


@pytest.mark.parametrize(
    ("fields", "param", "kind"),
    [
        ({"file": None}, "file", Kind.MISSING_PARAMETER),
        ({"file": {"name": "audio.wav", "bytes": 0}}, "file", Kind.INVALID_VALUE),
        ({"file": {"name": "../x.wav", "bytes": 1}}, "file", Kind.INVALID_VALUE),
        ({"file": "audio.wav"}, "file", Kind.INVALID_VALUE),
        ({"language": "x" * 65}, "language", Kind.INVALID_VALUE),
        ({"response_format": "docx"}, "response_format", Kind.INVALID_VALUE),
        ({"response_format": "srt", "stream": True}, "response_format", Kind.INVALID_VALUE),
        ({"temperature": 9}, "temperature", Kind.INVALID_VALUE),
        ({"timestamp_granularities[]": ["hour"]}, "timestamp_granularities[][0]", Kind.INVALID_VALUE),
        ({"n": 2}, "n", Kind.INVALID_VALUE),
        ({"use_beam_search": True}, "use_beam_search", Kind.UNSUPPORTED_PARAMETER),
        ({"stream_continuous_usage_stats": True}, "stream_continuous_usage_stats", Kind.UNSUPPORTED_PARAMETER),
        ({"vllm_xargs": "{}x"}, "vllm_xargs", Kind.UNSUPPORTED_PARAMETER),
    ],
)
def test_what_a_request_for_a_transcript_may_not_have(fields: dict[str, Any], param: str, kind: Kind) -> None:
    for endpoint in (Endpoint.TRANSCRIPTIONS, Endpoint.TRANSLATIONS):
        with pytest.raises(Fault) as caught:
            ask(endpoint, **fields)
        assert (caught.value.param, caught.value.kind) == (param, kind)


@pytest.mark.parametrize(
    ("fields", "param", "kind"),
    [
        ({}, "input", Kind.MISSING_PARAMETER),
        ({"input": ""}, "input", Kind.INVALID_VALUE),
        ({"input": ["a"]}, "input", Kind.INVALID_VALUE),
        ({"input": "a", "voice": 5}, "voice", Kind.INVALID_VALUE),
        ({"input": "a", "response_format": "mid"}, "response_format", Kind.INVALID_VALUE),
        ({"input": "a", "speed": 5}, "speed", Kind.INVALID_VALUE),
        ({"input": "a", "stream_format": "sse"}, "stream_format", Kind.INVALID_VALUE),
        ({"input": "a", "stream": True}, "stream", Kind.UNSUPPORTED_PARAMETER),
    ],
)
def test_what_a_request_for_speech_may_not_have(fields: dict[str, Any], param: str, kind: Kind) -> None:
    with pytest.raises(Fault) as caught:
        ask(Endpoint.SPEECH, **fields)
    assert (caught.value.param, caught.value.kind) == (param, kind)


def test_the_size_is_that_of_the_recording_and_of_the_text_beside_it() -> None:
    got = ask(prompt="12345")
    assert (got.prompt_bytes, got.image_bytes, got.media, got.choices, got.sequences) == (14, 9, 1, 1, 1)


def test_the_usage_of_a_stream_is_always_asked_for() -> None:
    asked, hidden = ask(stream=True, stream_options={"include_usage": True}), ask(stream=True)
    assert (asked.include_usage, hidden.include_usage) == (True, False)
    for one in (asked, hidden):
        form, content_type = form_for(one.fields, "m", b"x")
        sent = {part.name: part.value for part in read_form(content_type, form)}
        assert sent["stream_include_usage"] == b"true"
        assert "stream_options" not in sent


def test_a_cap_on_output_has_the_name_that_forms_know() -> None:
    assert json.loads(with_output_cap(ask(), 7).fields)["max_completion_tokens"] == 7


def test_guard_rules_read_the_text_beside_a_recording_and_name_what_they_cannot_read() -> None:
    found = texts(ask(prompt="a", hotwords="b", foo="c").fields)
    assert [text.text for text in found.readable] == ["a", "b", "c"]
    assert [part.what for part in found.unreadable] == ["audio"]


def test_a_member_of_that_name_is_read_where_it_is_no_recording() -> None:
    assert [text.text for text in texts(b'{"messages":[],"file":{"name":"audio.wav","bytes":9,"x":"y"}}').readable] == ["y"]


def test_a_policys_caps_hold() -> None:
    with pytest.raises(Fault, match=r"caps\.temperature"):
        check_caps(ask(temperature=1.5), RequestCaps(temperature=1))
