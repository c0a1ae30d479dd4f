"""The event splitter under anything: the payloads never depend on the chunking, and memory is bounded (R54)."""

import random
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.sse import MAX_EVENT_BYTES, EventSplitter, EventTooLarge
from domain.faults import Kind
from gateway.http.edge.taps import DONE, StreamTap
from gateway.story import AttemptFacts
from tests.scale import scaled

CASES = scaled(400, 20_000)
MUTATIONS = scaled(3_000, 1_000_000)
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
    found = []
    for chunk in filter(None, chunks):
        lone = splitter.lone(chunk)  # as the tap does
        found += splitter.feed(chunk) if lone is None else [lone]
    return found


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


@pytest.mark.fault("malformed stream")
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


CHUNK = b'data: {"object":"chat.completion.chunk","choices":'
ANSWER = b"".join(
    [
        CHUNK + b'[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}' + b"\n\n",
        CHUNK + b'[{"index":0,"delta":{"content":"caf\xc3\xa9"},"finish_reason":null}],"usage":null}' + b"\n\n",
        b": ping\n\n",
        CHUNK + b'[{"index":0,"delta":{"content":"\\n"},"finish_reason":null}]}' + b"\r\n\r\n",
        CHUNK + b'[{"index":0,"delta":{},"finish_reason":"stop"}]}' + b"\n\n",
        CHUNK + b'[],"usage":{"prompt_tokens":9,"completion_tokens":3}}' + b"\n\n",
        DONE,
    ]
)


def through_tap(chunks: list[bytes]) -> tuple[bytes, Kind | None, bool]:
    tap = StreamTap(AttemptFacts(), lambda: 0.0, choices=1, include_usage=False)
    out = b"".join([tap.feed(chunk) for chunk in chunks if chunk]) + tap.end()
    return out, tap.fault.kind if tap.fault else None, tap.usage is not None


@pytest.mark.fault("malformed stream")
@pytest.mark.req("R54", "R1")
def test_a_damaged_answer_is_judged_the_same_however_it_is_cut(record_property: pytest.FixtureRequest) -> None:
    rng = random.Random(54)
    whole = 0
    for _ in range(MUTATIONS):
        stream = bytearray(ANSWER)
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(stream))
            match rng.randrange(4):
                case 0:
                    stream[at] = rng.randrange(256)
                case 1:
                    del stream[at : at + rng.randrange(1, 40)]
                case 2:
                    stream[at:at] = PIECES[rng.randrange(len(PIECES))]
                case _:
                    del stream[at:]
            if not stream:
                break
        places = sorted(rng.randrange(len(stream) + 1) for _ in range(rng.randrange(12)))
        out, fault, used = through_tap([bytes(stream)])
        assert through_tap([bytes(stream[a:b]) for a, b in pairwise([0, *places, len(stream)])]) == (out, fault, used), bytes(stream)
        assert out.endswith(DONE) == (fault is None), "whole and said so, or neither"
        whole += fault is None
    assert 0 < whole < MUTATIONS
    record_property("figure", f"{MUTATIONS:,} damaged streams, {whole:,} of them still whole")  # type: ignore[operator]


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
