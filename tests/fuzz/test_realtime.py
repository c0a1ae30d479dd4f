"""Frames of callers: whatever comes, reading ends in messages within the bound or in a close, and never raises."""

import random
from pathlib import Path

import pytest
from websockets.frames import Close, Frame, Opcode

from backends.websocket import WebSocketStream
from gateway.http.openai.realtime import RealtimeEvents, WrongEvent
from tests.fuzz.mutation import Target

MOST_BYTES = 300
EVENT = b'{"type":"input_audio_buffer.append","audio":"AAAA"}'
PIECES = [
    *(b"\x81\x80\0\0\0\0", b"\x01\x81\0\0\0\0{", b"\x80\x81\0\0\0\0}", b"\x89\x80\0\0\0\0"),
    *(b"\x82\x81\0\0\0\0x", b"\x88\x80\0\0\0\0", b"\xff" * 4),
]
TARGET = Target("realtime", PIECES)
SHORT = 4_000


def masked(*frames: Frame) -> bytes:
    """Frames as a client writes them, under a mask of zeros, so that their payload can be read and damaged."""
    out = b""
    for frame in frames:
        data = bytes(frame.serialize(mask=False, extensions=[]))
        at = 2 if data[1] < 126 else 4
        out += data[:1] + bytes([data[1] | 0x80]) + data[2:at] + bytes(4) + data[at:]
    return out


def read(data: bytes) -> str:
    """How the frames are read; the same however they are cut."""
    ways = [_read(data, step) for step in (len(data) or 1, 7, 1)]
    assert ways[0] == ways[1] == ways[2]
    messages, said, closed = ways[0]
    return f"{'ok ' if messages and closed is None else ''}{min(messages, 3)} {said} {closed}"


def _read(data: bytes, step: int) -> tuple[int, tuple[str, ...], int | None]:
    stream, events = WebSocketStream.server(MOST_BYTES), RealtimeEvents("m", "e", frozenset)
    said: list[str] = []
    count = 0
    for at in range(0, len(data), step):
        for message in stream.feed(data[at : at + step]):
            assert len(message) <= MOST_BYTES
            count += 1
            try:
                events.from_caller(message)
            except WrongEvent as wrong:
                said.append(wrong.fault.kind.value)
        stream.out()
        if stream.closed is not None:
            break
    return count, tuple(sorted(set(said))), None if stream.closed is None else stream.closed[0]


def made(rng: random.Random) -> bytes:
    """Frames of one to four messages, some of them in fragments, and at times a close."""
    frames: list[Frame] = []
    for _ in range(rng.randint(1, 4)):
        cut = rng.randrange(len(EVENT))
        if cut % 2:
            frames += [Frame(Opcode.TEXT, EVENT[:cut], False), Frame(Opcode.PING, b"?"), Frame(Opcode.CONT, EVENT[cut:])]
        else:
            frames.append(Frame(Opcode.TEXT, EVENT))
    if rng.random() < 0.2:
        frames.append(Frame(Opcode.CLOSE, Close(1000, "bye").serialize()))
    return masked(*frames)


@pytest.mark.parametrize("path", TARGET.corpus, ids=lambda path: path.stem)
def test_corpus(path: Path) -> None:
    read(path.read_bytes())


def test_damaged_frames(record_property: pytest.FixtureRequest) -> None:
    record_property("figure", TARGET.run(read, SHORT, made))  # type: ignore[operator]  # pytest's fixture is a function
