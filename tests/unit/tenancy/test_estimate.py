"""What is reserved is never less than what can be used; what is charged is what was used."""

import json
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.ask import Ask, Endpoint
from domain.usage import Usage
from gateway.http.openai import interpret
from tenancy.estimate import (
    LIKELY_IMAGE_TOKENS,
    MEDIA_TOKENS,
    TEMPLATE_TOKENS,
    UsageBounds,
    billable,
    likely_prompt,
    prompt_for_cap,
    recording_seconds,
    usage_bounds,
    used,
    worst_case,
)
from tenancy.prices import FREE, Price, TokenRates

counts = st.integers(0, 5000)
rates = st.builds(TokenRates, *[st.integers(0, 10**9)] * 4)


def ask(prompt_bytes: int, sequences: int, cap: int | None) -> Ask:
    return Ask(Endpoint.CHAT, "m", b"{}", False, False, sequences, prompt_bytes, cap, sequences)


@given(counts, st.integers(1, 16), st.integers(1, 5000), rates, rates, st.data())
def test_no_use_within_the_caps_comes_to_more_than_was_reserved(
    prompt_bytes: int, sequences: int, cap: int, money: TokenRates, units: TokenRates, data: st.DataObject
) -> None:
    price = Price("p", "m", "*", 0.0, money, units)
    held = worst_case(ask(prompt_bytes, sequences, cap), None, 1, price)
    prompt, output = data.draw(st.integers(0, prompt_bytes)), data.draw(st.integers(0, sequences * cap))
    usage = Usage(prompt, output, data.draw(st.integers(0, prompt)), data.draw(st.integers(0, output)))
    assert all(was <= held for was, held in zip(used(usage, price).vector(), held.vector(), strict=True))


def test_a_count_takes_the_place_of_bytes() -> None:
    assert worst_case(ask(1000, 1, 10), 250, 1, FREE).input_tokens == 250
    assert worst_case(ask(1000, 1, 10), None, 1, FREE).input_tokens == 1000 + TEMPLATE_TOKENS
    assert (likely_prompt(ask(1001, 1, 10), None), likely_prompt(ask(1001, 1, 10), 7)) == (251, 7)


def test_without_a_cap_the_policys_counts_for_every_sequence() -> None:
    assert worst_case(ask(10, 3, None), None, 100, FREE).output_tokens == 300
    assert worst_case(ask(10, 0, None), None, 100, FREE).output_tokens == 0


def chat(*parts: dict[str, Any]) -> Ask:
    return interpret(Endpoint.CHAT, json.dumps({"model": "m", "messages": [{"role": "user", "content": list(parts)}]}).encode())


@pytest.mark.parametrize("endpoint", [Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS])
@pytest.mark.parametrize(("value", "ids"), [([1] * 3000, 3000), ([[7] * 1000, [123456] * 500], 1500)])
def test_token_ids_are_counted_as_what_they_are(endpoint: Endpoint, value: list[Any], ids: int) -> None:
    """Each is a token, be it written with one digit or with six."""
    name = "prompt" if endpoint is Endpoint.COMPLETIONS else "input"
    asked = interpret(endpoint, json.dumps({"model": "m", name: value}, separators=(",", ":")).encode())
    assert (prompt_for_cap(asked, None), likely_prompt(asked, None), worst_case(asked, None, 1, FREE).input_tokens) == (ids, ids, ids)
    text = interpret(endpoint, json.dumps({"model": "m", name: ["1"] * 40}).encode())
    assert text.token_ids is None
    assert prompt_for_cap(text, None) == likely_prompt(text, None)


@given(st.integers(0, 40_000), st.integers(0, 3))
def test_no_part_that_is_no_text_passes_for_less_than_the_bound(size: int, count: int) -> None:
    text = {"type": "text", "text": "x" * 400}
    asked = chat(text, *[{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * size}}] * count)
    assert asked.media == count
    assert prompt_for_cap(asked, None) >= count * MEDIA_TOKENS
    assert prompt_for_cap(asked, None) <= count * (MEDIA_TOKENS + 40) + 160, "an image's bytes are not taken for text beside it"
    reserved = worst_case(asked, None, 1, FREE).input_tokens
    assert count * MEDIA_TOKENS + 400 <= reserved <= count * (MEDIA_TOKENS + 120) + 400 + 160 + TEMPLATE_TOKENS
    assert prompt_for_cap(asked, 77) == 77, "who has counted knows"


@given(st.integers(0, 5_000_000), st.integers(1, 3))
@settings(max_examples=20)
def test_the_bytes_of_an_image_are_no_likely_tokens(size: int, count: int) -> None:
    text = {"type": "text", "text": "x" * 400}
    asked = chat(text, *[{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * size}}] * count)
    assert 100 <= likely_prompt(asked, None) <= count * (LIKELY_IMAGE_TOKENS + 40) + 160
    assert likely_prompt(asked, None) <= -(-asked.prompt_bytes // 4) + 1


def test_bytes_of_media_that_are_no_image_are_reserved_too() -> None:
    for kind in ("data:video/mp4", "data:image/png"):
        video = chat({"type": "video_url", "video_url": {"url": f"{kind};base64," + "A" * 100_000}})
        assert worst_case(video, None, 1, FREE).input_tokens > 100_000 + MEDIA_TOKENS, "a video has as many frames as it likes"


def test_media_are_found_wherever_engines_look_for_them_and_what_is_empty_is_none() -> None:
    for part, media in (
        ({"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}}, 1),
        ({"type": "text", "text": "x", "video_url": "data:video/mp4;base64,AAAA"}, 1),
        ({"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA"}}, 1),
        ({"type": "text", "text": "x", "image_url": None}, 0),
        ({"type": "text", "text": "image_url"}, 0),
    ):
        assert chat(part).media == media, part


def wav(bytes_a_second: int, size: int) -> bytes:
    """A WAV file of so many bytes, with what its head says of a second."""
    head = struct.pack(
        "<4sI4s4sIHHIIHH4sI", b"RIFF", size - 8, b"WAVE", b"fmt ", 16, 1, 1, 16_000, bytes_a_second, 2, 16, b"data", size - 44
    )
    return head + bytes(size - 44)


@pytest.mark.parametrize(
    ("recording", "seconds"),
    [
        (wav(32_000, 64_000), 2),
        (wav(32_000, 64_001), 3),
        (wav(0, 44_000), 110),  # nothing is so little that a recording would be endless
        (wav(2**32 - 1, 25_000_000), 1),
        (wav(32_000, 64_000)[:43], 1),
        (b"ID3" + bytes(5_999), 4),
        (b"RIFF\0\0\0\0AVI LIST" + bytes(3_984), 2),
        (b"", 0),
    ],
)
def test_the_length_of_a_recording_is_that_of_its_head_or_its_bytes(recording: bytes, seconds: int) -> None:
    assert recording_seconds(recording) == seconds


def heard(upload: bytes) -> Ask:
    body = msgspec.json.encode({"model": "m", "file": {"name": "audio.wav", "bytes": len(upload)}})
    return msgspec.structs.replace(interpret(Endpoint.TRANSCRIPTIONS, body), upload=upload)


def test_a_recording_is_held_and_a_report_of_more_than_it_can_be_is_billed_at_the_bound() -> None:
    asked = heard(wav(32_000, 640_000))
    held = worst_case(asked, None, 1, FREE)
    assert (held.audio_seconds, held.audio_bytes) == (20, 640_000)
    bounds = usage_bounds(asked, None, None)
    for reported, billed in ((20, 20), (1601, 1601), (10**9, 1601)):
        usage = billable(Usage(1, 1, audio_seconds=reported, audio_bytes=640_000), bounds, 1)
        assert used(usage, FREE).vector()[7:] == (billed, 640_000)
    assert billable(Usage(1, 1, audio_seconds=5), usage_bounds(ask(10, 1, 1), None, None), 1).audio_seconds == 0, "a chat has no sound"


def test_speech_is_held_by_what_its_text_makes_at_most() -> None:
    spoken = interpret(Endpoint.SPEECH, msgspec.json.encode({"model": "m", "input": "x" * 800, "voice": "v"}))
    held = worst_case(spoken, None, 1, FREE)
    assert 101 <= held.audio_seconds <= 120
    assert held.audio_bytes == held.audio_seconds * 48_000


COUNTS = st.integers(-5, 40)


@given(COUNTS, COUNTS, COUNTS, COUNTS, st.integers(0, 20))
def test_an_honest_report_is_billed_as_it_is_and_every_other_one_within_the_bounds(
    prompt: int, output: int, cached: int, reasoning: int, most: int
) -> None:
    reported, bounds = Usage(prompt, output, cached, reasoning), UsageBounds(3, 20, most, 20)
    billed = billable(reported, bounds, most)
    assert bounds.hold(billed)
    assert 0 <= billed.cached_tokens <= billed.prompt_tokens
    assert 0 <= billed.reasoning_tokens <= billed.completion_tokens
    honest = 3 <= prompt <= 20 and 0 <= output <= most and 0 <= cached <= prompt and 0 <= reasoning <= output
    assert (billed == reported) is honest
