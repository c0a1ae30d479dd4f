"""Messages of a WebSocket, cut and fragmented in every way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Close, Frame, Opcode
from websockets.protocol import Protocol, Side, State

from backends.websocket import (
    FAILED,
    GOING_AWAY,
    MAX_REASON_BYTES,
    NO_STATUS,
    NORMAL,
    POLICY,
    TOO_BIG,
    UNSUPPORTED,
    WebSocketStream,
    passed_on,
)


def sent(*frames: Frame) -> bytes:
    """Bytes of a client."""
    return b"".join(frame.serialize(mask=True, extensions=[]) for frame in frames)


def text(data: bytes, *, fin: bool = True) -> Frame:
    return Frame(Opcode.TEXT, data, fin)


def more(data: bytes, *, fin: bool = True) -> Frame:
    return Frame(Opcode.CONT, data, fin)


def read_by_a_client(data: bytes) -> tuple[list[bytes], Protocol]:
    client = Protocol(Side.CLIENT, state=State.OPEN)
    client.receive_data(data)
    return [bytes(frame.data) for frame in client.events_received() if isinstance(frame, Frame)], client


def test_cut_at_any_byte_the_messages_are_the_same() -> None:
    two = [text(b"t", fin=False), Frame(Opcode.PING, b"?"), more(b"w", fin=False), more(b"o")]
    data = sent(text(b"one"), *two, text(b""), text(b"x" * 300))
    wanted = [b"one", b"two", b"", b"x" * 300]
    for cut in range(len(data) + 1):
        stream = WebSocketStream.server(1000)
        assert stream.feed(data[:cut]) + stream.feed(data[cut:]) == wanted
        assert stream.closed is None
        answers, _ = read_by_a_client(stream.out())
        assert answers == [b"?"], "a ping is answered between the fragments of a message"


def test_byte_by_byte() -> None:
    data = sent(text(b"a", fin=False), more(b"b"), text(b"c"))
    stream = WebSocketStream.server(1000)
    assert [message for byte in data for message in stream.feed(bytes([byte]))] == [b"ab", b"c"]


@given(st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=5), max_size=5), st.integers(1, 50))
def test_fragments_are_joined(messages: list[list[bytes]], step: int) -> None:
    frames = [
        Frame(Opcode.TEXT if at == 0 else Opcode.CONT, part, at == len(parts) - 1) for parts in messages for at, part in enumerate(parts)
    ]
    data = sent(*frames)
    stream = WebSocketStream.server(1000)
    got = [message for at in range(0, len(data), step) for message in stream.feed(data[at : at + step])]
    assert got == [b"".join(parts) for parts in messages]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (sent(text(b"x" * 101)), TOO_BIG),
        (sent(text(b"x" * 60, fin=False), more(b"x" * 60)), TOO_BIG),
        (sent(Frame(Opcode.BINARY, b"x")), UNSUPPORTED),
        (sent(more(b"x")), 1002),
        (sent(text(b"a", fin=False), text(b"b")), 1002),
        (text(b"x").serialize(mask=False, extensions=[]), 1002),
        (b"\xff\xff\xff\xff\xff\xff", 1002),
        (b"\x89\xfe\x00\x7e" + bytes(130), TOO_BIG),
        (b"\x88\x81\0\0\0\0x", 1002),
    ],
    ids=["large", "large-in-fragments", "binary", "no-beginning", "no-end", "unmasked", "garbage", "large-ping", "short-close"],
)
def test_a_broken_rule_ends_it_with_its_code(data: bytes, code: int) -> None:
    for cut in range(len(data)):
        stream = WebSocketStream.server(100)
        assert stream.feed(data[:cut]) + stream.feed(data[cut:]) == []
        assert stream.closed is not None
        assert stream.closed[0] == code
        assert not stream.is_open
        _, client = read_by_a_client(stream.out())
        assert client.close_rcvd is not None
        assert client.close_rcvd.code == code
        stream.send(b"never")
        assert stream.out() == b""
        assert stream.feed(sent(text(b"late"))) == []


@pytest.mark.parametrize("code", [NORMAL, GOING_AWAY, POLICY, 4000])
def test_the_other_sides_close_is_answered_and_told(code: int) -> None:
    stream = WebSocketStream.server(100)
    assert stream.feed(sent(text(b"last"), Frame(Opcode.CLOSE, Close(code, "done").serialize()), text(b"late"))) == [b"last"]
    assert stream.closed == (code, "done")
    _, client = read_by_a_client(stream.out())
    assert client.close_rcvd is not None
    assert client.close_rcvd.code == code


def test_a_close_without_a_code() -> None:
    stream = WebSocketStream.server(100)
    stream.feed(sent(Frame(Opcode.CLOSE, b"")))
    assert stream.closed == (NO_STATUS, "")


def test_a_close_of_ours_is_sent_once_and_its_reason_fits() -> None:
    stream = WebSocketStream.server(100)
    stream.send(b"one")
    stream.close(POLICY, "é" * 100)
    stream.close(NORMAL, "again")
    stream.send(b"two")
    stream.ping()
    messages, client = read_by_a_client(stream.out())
    assert messages[0] == b"one"
    assert client.close_rcvd is not None
    assert client.close_rcvd.code == POLICY
    assert client.close_rcvd.reason == "é" * (MAX_REASON_BYTES // 2)


def test_codes_that_stand_for_no_frame_are_never_sent_on() -> None:
    assert [passed_on(code) for code in (NORMAL, GOING_AWAY, 4000, 3999)] == [NORMAL, GOING_AWAY, 4000, 3999]
    assert [passed_on(code) for code in (NO_STATUS, 1006, 1015, 1002, 999, 5000)] == [NORMAL, *[FAILED] * 5]
    for code in range(900, 5100):
        Close(passed_on(code), "").check()
