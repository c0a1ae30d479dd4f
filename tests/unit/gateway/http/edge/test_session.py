"""A realtime session between fakes, on a clock that is moved by hand."""

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from websockets.frames import Close, Frame, Opcode
from websockets.protocol import Protocol, Side, State

from backends.ports import Loss
from domain.faults import Fault, Kind
from gateway.http.edge.head import RequestHead
from gateway.http.edge.session import RealtimeSession, SessionSource
from gateway.http.edge.timeouts import AttemptTimeouts, RealtimeBounds
from gateway.http.openai.realtime import RealtimeEvents
from gateway.story import Story
from tests.stories import with_facts

COMMIT = b'{"type":"input_audio_buffer.commit"}'
APPEND = json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(bytes(32_000)).decode()}).encode()
DELTA = b'{"type":"transcription.delta","delta":"x"}'
DONE = b'{"type":"transcription.done","text":"x","usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}'
HEAD = RequestHead("GET", "/v1/realtime", {b"sec-websocket-key": b"dGhlIHNhbXBsZSBub25jZQ=="}, None, False, True)


class CallersExchange:
    """What a session needs of an exchange, written down; the other end of it is a WebSocket client."""

    def __init__(self) -> None:
        self.head = HEAD
        self.started = self.finished = self.gone = self.draining = False
        self.fits = True
        self.headers = b""
        self.held = False
        self.how = ""
        self.client = Protocol(Side.CLIENT, state=State.OPEN)
        self.frames: list[Frame] = []

    def upgrade(self, headers: bytes, tunnel: Callable[[bytes], None]) -> bool:
        self.headers, self.started = headers, self.fits
        return self.fits

    def send(self, frames: bytes) -> None:
        self.client.receive_data(frames)
        self.frames += [event for event in self.client.events_received() if isinstance(event, Frame)]

    def hold(self) -> None:
        self.held = True

    def go_on(self) -> None:
        self.held = False

    def hang_up(self) -> None:
        self.finished, self.how = True, "closed"

    def abandon(self) -> None:
        self.finished, self.how = True, "abandoned"

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(frame.data) for frame in self.frames if frame.opcode is Opcode.TEXT]

    @property
    def code(self) -> int | None:
        return self.client.close_rcvd.code if self.client.close_rcvd is not None else None


class EnginesFlight:
    """A session with an engine, written down."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.calls: list[str] = []
        self.closed: int | None = None

    def send(self, message: bytes) -> None:
        self.sent.append(message)

    def ping(self) -> None:
        self.calls.append("ping")

    def close(self, code: int) -> None:
        self.closed = code

    def abort(self) -> None:
        self.calls.append("abort")

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")


class Talk:
    """A session of 1000 s at most, that ends after 100 s of silence, with pings every 10 s."""

    def __init__(self, *, opened: bool = True, most_output: int | None = None) -> None:
        self.now = 50.0
        self.story = with_facts(Story("r", self.now, 0.0, self.now, "req-1"))
        self.exchange, self.flight = CallersExchange(), EnginesFlight()
        self.session = RealtimeSession(
            self.exchange,  # type: ignore[arg-type]  # the fake has what the session uses
            self.story,
            RealtimeEvents("ears", "served", frozenset),
            SessionSource("b", ("served",), AttemptTimeouts(10.0, 600.0), most_output),
            bounds=RealtimeBounds(max_message_bytes=100_000, max_session_s=1000, idle_s=100, ping_s=10, slow_reader_s=30),
            head=lambda: b"x-request-id: r\r\n",
            clock=lambda: self.now,
        )
        self.session.flight = self.flight
        if opened:
            self.session.on_open()

    def says(self, *frames: Frame) -> None:
        for frame in frames:
            self.session.from_caller(bytes(frame.serialize(mask=True, extensions=[])))

    def tells(self, *messages: bytes) -> None:
        self.says(*[Frame(Opcode.TEXT, message) for message in messages])

    def after(self, seconds: float, *, caller: bool = True, engine: bool = True) -> None:
        """Time passes, second by second; each side answers its pings, or does not."""
        for _ in range(int(seconds)):
            self.now += 1
            self.session.check(self.now)
            if self.session.over:
                return
            if caller:
                self.says(Frame(Opcode.PONG, b""))
            if engine:
                self.session.on_bytes()

    @property
    def fault(self) -> Fault | None:
        return self.session.outcome.result()


async def test_the_handshake_is_answered_as_the_rfc_says_and_the_engine_hears_its_model() -> None:
    talk = Talk()
    assert b"sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in talk.exchange.headers
    assert talk.exchange.headers.endswith(b"x-request-id: r\r\n")
    assert [json.loads(message) for message in talk.flight.sent] == [{"type": "session.update", "model": "served"}]
    assert talk.story.settled.status == 101


async def test_events_go_both_ways_and_the_usage_is_known_after_each_turn() -> None:
    talk = Talk()
    talk.tells(COMMIT, APPEND)
    talk.session.on_message(DELTA)
    talk.session.on_message(DONE)
    assert [json.loads(message)["type"] for message in talk.flight.sent[1:]] == ["input_audio_buffer.commit", "input_audio_buffer.append"]
    assert [event["type"] for event in talk.exchange.events()] == ["transcription.delta", "transcription.done"]
    usage = talk.story.attempt.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.audio_seconds) == (5, 2, 1)
    talk.says(Frame(Opcode.CLOSE, Close(1000, "").serialize()))
    assert (talk.fault, talk.exchange.how, talk.exchange.code, talk.flight.closed) == (None, "closed", 1000, 1000)


@pytest.mark.parametrize("code", [1000, 1001, 1005, 4000])
async def test_an_engine_that_closes_between_turns_has_not_failed(code: int) -> None:
    talk = Talk()
    talk.session.on_closed(code)
    assert (talk.fault, talk.exchange.code) == (None, 1000 if code == 1005 else code)


@pytest.mark.parametrize(("code", "turn"), [(1000, True), (1011, False), (1008, False), (1012, True)])
async def test_an_engine_that_closes_in_a_turn_or_with_a_failure_has(code: int, turn: bool) -> None:
    talk = Talk()
    if turn:
        talk.tells(COMMIT)
    talk.session.on_closed(code)
    assert talk.fault is not None
    assert talk.fault.kind is Kind.BROKEN_STREAM
    assert talk.exchange.code == 1011
    assert talk.exchange.events()[-1]["error"]["type"] == "server_error"


async def test_before_the_handshake_is_answered_the_caller_hears_nothing() -> None:
    for lose in (
        lambda talk: talk.session.on_loss(Loss.CONNECT, "refused"),
        lambda talk: talk.session.on_refused(503, b"", "3"),
        lambda talk: talk.after(11),
    ):
        talk = Talk(opened=False)
        lose(talk)
        assert talk.fault is not None
        assert (talk.exchange.started, talk.exchange.frames) == (False, [])
    talk = Talk(opened=False)
    talk.exchange.fits = False
    talk.session.on_open()
    assert talk.fault is not None
    assert (talk.fault.kind, talk.exchange.frames) == (Kind.MALFORMED_HTTP, [])


async def test_who_answers_no_ping_has_left() -> None:
    talk = Talk()
    talk.after(95)
    assert not talk.session.over
    talk = Talk()
    talk.after(30, caller=False)
    assert talk.fault is not None
    assert (talk.fault.kind, talk.exchange.how) == (Kind.CLIENT_GONE, "abandoned")
    talk = Talk()
    talk.after(30, engine=False)
    assert talk.fault is not None
    assert (talk.fault.kind, talk.exchange.code) == (Kind.BACKEND_LOST, 1011)
    assert talk.now <= 50 + 10 + 2 * 10 + 2


async def test_silence_and_age_end_a_session() -> None:
    talk = Talk()
    talk.after(200)
    assert talk.fault is not None
    assert (talk.fault.code, talk.exchange.code, talk.now) == ("session_expired", 1001, 151.0)
    talk = Talk()
    while not talk.session.over:
        talk.tells(b'{"type":"session.update"}')
        talk.after(99)
    assert talk.fault is not None
    assert (talk.fault.code, talk.now) == ("session_expired", 1051.0)


async def test_a_draining_gateway_waits_for_the_end_of_a_turn() -> None:
    talk = Talk()
    talk.tells(COMMIT)
    talk.exchange.draining = True
    talk.after(5)
    assert not talk.session.over
    talk.session.on_message(DONE)
    talk.after(1)
    assert talk.fault is not None
    assert (talk.fault.kind, talk.exchange.code) == (Kind.SHUTTING_DOWN, 1001)


async def test_a_slow_side_stops_both_and_is_cut_off_in_time() -> None:
    talk = Talk()
    talk.session.full()
    assert (talk.exchange.held, talk.flight.calls) == (True, ["pause"])
    talk.session.on_full()
    talk.session.drained()
    assert (talk.exchange.held, talk.flight.calls) == (True, ["pause", "resume"]), "the engine is still slow"
    talk.session.on_drained()
    assert not talk.exchange.held
    talk.session.full()
    talk.after(40, caller=False)
    assert talk.fault is not None
    assert (talk.fault.kind, talk.exchange.how, talk.now) == (Kind.SLOW_READER, "abandoned", 81.0)
    talk = Talk()
    talk.session.on_full()
    talk.after(40)
    assert talk.fault is not None
    assert (talk.fault.kind, talk.exchange.code) == (Kind.TOKEN_GAP_TIMEOUT, 1011)


async def test_what_was_reserved_ends_a_session_from_either_side() -> None:
    talk = Talk(most_output=1)
    talk.session.on_message(DELTA)
    assert not talk.session.over
    talk.session.on_message(DELTA)
    assert talk.fault is not None
    assert (talk.fault.code, talk.exchange.code) == ("session_spent", 1008)
    talk = Talk()
    for _ in range(1400):
        talk.tells(APPEND)
    assert talk.fault is not None
    assert talk.fault.code == "session_spent"
    assert len(talk.flight.sent) == 1 + 1311, "16,384 tokens at 12.5 a second, and the event that goes beyond"


async def test_nothing_happens_to_a_session_that_is_over() -> None:
    talk = Talk()
    talk.session.end_with(Fault(Kind.KEY_REVOKED, "revoked"))
    frames = list(talk.exchange.frames)
    assert talk.exchange.code == 1008
    talk.session.gone()
    talk.session.on_closed(1000)
    talk.tells(COMMIT)
    talk.after(10)
    talk.session.end_with(Fault(Kind.SHUTTING_DOWN, "stop"))
    assert talk.exchange.frames == frames
    assert talk.fault is not None
    assert talk.fault.kind is Kind.KEY_REVOKED
