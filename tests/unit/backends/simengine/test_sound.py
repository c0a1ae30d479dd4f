"""The simulated engine's words follow from the bytes of a recording, and its speech is a file that players open."""

import io
import wave

import pytest

from backends.forms import written_form
from backends.simengine.reading import ErrorAnswer
from backends.simengine.sound import HeardForm, seconds_of, speech_of, transcript


def test_equal_recordings_have_equal_words_and_a_translation_has_others() -> None:
    assert transcript("transcribe", b"one", 0) == transcript("transcribe", b"one", 0) != transcript("transcribe", b"two", 0)
    assert transcript("translate", b"one", 0) != transcript("transcribe", b"one", 0)
    assert 3 <= len(transcript("transcribe", b"x" * 999, 0).split()) <= 10


@pytest.mark.parametrize(("size", "seconds"), [(1, 1), (32_000, 1), (32_001, 2)])
def test_a_begun_second_counts(size: int, seconds: int) -> None:
    assert seconds_of(b"x" * size) == seconds


def test_speech_is_a_wav_file() -> None:
    with wave.open(io.BytesIO(speech_of("hi"))) as file:
        assert (file.getframerate(), file.readframes(9)) == (16_000, b"hihi")


def test_a_form_needs_one_file() -> None:
    body, content_type = written_form([("model", "m")], "audio.wav", b"x")
    assert HeardForm.of(content_type, body) == HeardForm({"model": "m"}, b"x")
    for sent, kind in (
        (body[:-9], content_type),
        (body.replace(b'name="file"', b'name="fire"'), content_type),
        (b"{}", b"application/json"),
    ):
        with pytest.raises(ErrorAnswer):
            HeardForm.of(kind, sent)
