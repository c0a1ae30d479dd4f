"""The event splitter under anything: the payloads never depend on the chunking, and memory is bounded (R54)."""

import os
import random
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.sse import MAX_EVENT_BYTES, EventSplitter, EventTooLarge

CASES = int(os.environ.get("TIDEGATE_FUZZ_CASES", "400"))
CORPUS = sorted((Path(__file__).parent / "corpus" / "sse").glob("*.bin"))

PIECES = [
    b"\r",
    b"\n",
    b"\r\n",
    b"\n\n",
    b"data: x",
    b"data:y",
    b"data",
    b"data: {}\n\n",
    b": c",
    b"id: 3",
    b"event: e",
    b"\xef\xbb\xbf",
    b" ",
    b"\xc3",
    b"\xa9",
    b"\0",
    b"data: [DONE]\n\n",
    b"retry: 1",
    b"dat",
    b"a: z",
]
streams = st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join) | st.binary(max_size=200)


def payloads(chunks: list[bytes]) -> list[bytes]:
    splitter = EventSplitter()
    return [payload for chunk in chunks if chunk for payload in splitter.feed(chunk)]


def reference(stream: bytes) -> list[bytes]:
    """The standard's algorithm, line by line, as plainly as possible. A last line without its end is not a line yet."""
    stream = stream.removeprefix(b"\xef\xbb\xbf")
    lines, line, i = [], b"", 0
    while i < len(stream):
        if stream[i : i + 2] == b"\r\n":
            lines.append(line)
            line, i = b"", i + 2
        elif stream[i : i + 1] in (b"\r", b"\n"):
            lines.append(line)
            line, i = b"", i + 1
        else:
            line += stream[i : i + 1]
            i += 1
    found, data = [], None
    for line in lines:
        if line == b"":
            if data is not None:
                found.append(b"\n".join(data))
            data = None
            continue
        name, _, value = line.partition(b":")
        if name == b"data":
            data = [*(data or []), value.removeprefix(b" ")]
    return found


@pytest.mark.req("R54")
@settings(max_examples=CASES, deadline=None)
@given(streams, st.lists(st.integers(0, 400), max_size=8))
def test_any_chunking_gives_the_standards_payloads(stream: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    expected = reference(stream)
    assert payloads([stream]) == expected
    assert payloads([stream[a:b] for a, b in pairwise(places)]) == expected
    assert payloads([stream[i : i + 1] for i in range(len(stream))]) == expected


@pytest.mark.req("R54")
@pytest.mark.parametrize("path", CORPUS, ids=lambda p: p.stem)
def test_corpus(path: Path) -> None:
    stream = path.read_bytes()
    expected = reference(stream)
    assert payloads([stream]) == expected
    for step in (1, 3, 16):
        assert payloads([stream[i : i + step] for i in range(0, len(stream), step)]) == expected


def test_there_is_a_corpus() -> None:
    assert len(CORPUS) >= 5


@pytest.mark.parametrize("block", [b"x" * 65536, b"data: " + b"y" * 65536 + b"\n"])
def test_an_event_without_end_is_refused_while_memory_is_bounded(block: bytes) -> None:
    splitter, fed = EventSplitter(), 0
    with pytest.raises(EventTooLarge):
        while fed < 64 * MAX_EVENT_BYTES:
            splitter.feed(block)
            fed += len(block)
    assert fed <= MAX_EVENT_BYTES + 2 * len(block)


@pytest.mark.req("R54")
def test_throughput_is_noted(record_property: pytest.FixtureRequest) -> None:
    event = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 150 + b'"},"finish_reason":null}]}\n\n'
    rng = random.Random(7)
    splitter, count, begun = EventSplitter(), 0, time.perf_counter()
    for _ in range(20_000):
        count += len(splitter.feed(event * rng.randrange(1, 3)))
    record_property("figure", f"{count / (time.perf_counter() - begun):,.0f} events/s on one core")  # type: ignore[operator]
    assert count >= 20_000
