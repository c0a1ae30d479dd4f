"""The handshake of a realtime session, and its events both ways."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.faults import Fault, Kind
from gateway.http.edge.head import RequestHead
from gateway.http.openai.realtime import (
    BYTES_PER_SECOND,
    RESERVED_TOKENS,
    RealtimeEvents,
    WrongEvent,
    error_event,
    session_body,
    subprotocol,
    with_protocol_key,
)

SHAKES = {
    b"upgrade": b"WebSocket",
    b"connection": b"Upgrade",
    b"sec-websocket-version": b"13",
    b"sec-websocket-key": base64.b64encode(b"k" * 16),
}


def head(query: str = "model=ears", **headers: bytes) -> RequestHead:
    named = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    return RequestHead("GET", "/v1/realtime", {**SHAKES, **named}, None, False, True, query=query)


def events() -> RealtimeEvents:
    return RealtimeEvents("ears", "org/whisper-x", lambda: {"engine-7"})


def from_engine(session: RealtimeEvents, **event: Any) -> dict[str, Any]:
    out = session.from_engine(json.dumps(event).encode(), lambda: "event_1")
    return json.loads(out) if out else {}


def append(seconds: int = 1) -> bytes:
    return json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(bytes(BYTES_PER_SECOND * seconds)).decode()}).encode()


def test_the_model_of_the_query_is_that_of_the_body() -> None:
    assert json.loads(session_body(head("intent=transcription&model=org%2Fears&x=1"))) == {
        "session": {"type": "transcription"},
        "model": "org/ears",
    }
    assert "model" not in json.loads(session_body(head("")))


@pytest.mark.parametrize(
    ("wrong", "kind", "named"),
    [
        (head(upgrade=b"h2c"), Kind.MALFORMED_HTTP, "WebSocket"),
        (head(connection=b"keep-alive"), Kind.MALFORMED_HTTP, "WebSocket"),
        (head(sec_websocket_version=b"8"), Kind.MALFORMED_HTTP, "sec-websocket-version"),
        (head(sec_websocket_key=b"short"), Kind.MALFORMED_HTTP, "sec-websocket-key"),
        (head(sec_websocket_key=base64.b64encode(b"k" * 17)), Kind.MALFORMED_HTTP, "sec-websocket-key"),
        (head("model=a&model=b"), Kind.INVALID_VALUE, "model"),
        (head("model=a&intent=conversation"), Kind.INVALID_VALUE, "intent"),
        (head("model=a&call_id=c"), Kind.UNSUPPORTED_PARAMETER, "model"),
    ],
    ids=["protocol", "connection", "version", "key", "long-key", "models", "intent", "call"],
)
def test_a_wrong_handshake_is_refused_by_name(wrong: RequestHead, kind: Kind, named: str) -> None:
    with pytest.raises(Fault) as caught:
        session_body(wrong)
    assert caught.value.kind is kind
    assert named in caught.value.message


def test_the_key_of_a_subprotocol_counts_where_no_header_has_one() -> None:
    browsers = head(sec_websocket_protocol=b"realtime, openai-insecure-api-key.gw_1, openai-beta.realtime-v1")
    assert with_protocol_key(browsers).headers[b"authorization"] == b"Bearer gw_1"
    assert subprotocol(browsers) == "realtime"
    both = head(sec_websocket_protocol=b"openai-insecure-api-key.gw_1", authorization=b"Bearer gw_2")
    assert with_protocol_key(both).headers[b"authorization"] == b"Bearer gw_2"
    assert subprotocol(both) == ""
    assert b"authorization" not in with_protocol_key(head()).headers


def test_an_event_of_the_caller_is_written_anew() -> None:
    session = events()
    assert json.loads(session.opening()) == {"type": "session.update", "model": "org/whisper-x"}
    for body in (b'{"type":"session.update"}', b'{"type":"session.update","model":"ears","priority":-9}'):
        assert session.from_caller(body) == session.opening()
    twice = b'{"type":"session.update","type":"input_audio_buffer.commit","final":true,"cache_salt":"x"}'
    assert json.loads(session.from_caller(twice)) == {"type": "input_audio_buffer.commit", "final": True}


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"type":null}', b"\xff", b'{"type":"x","a":' + b"[" * 5000, b'"session.update"'])
def test_no_event_at_all(body: bytes) -> None:
    with pytest.raises(WrongEvent) as caught:
        events().from_caller(body)
    assert caught.value.fault.kind is Kind.INVALID_JSON
    with pytest.raises(Fault) as broken:
        events().from_engine(body, lambda: "event_1")
    assert broken.value.kind is Kind.INVALID_REPLY


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reading(data: bytes) -> None:
    told: list[bytes] = []
    try:
        told.append(events().from_caller(data))
    except WrongEvent as wrong:
        told.append(error_event(wrong.fault, "event_1", wrong.event_id))
    assert json.loads(told[0])["type"]


def test_another_model_than_the_urls_is_refused() -> None:
    for body in (b'{"type":"session.update","model":"org/whisper-x","event_id":"e"}', b'{"type":"session.update","session":{"model":"x"}}'):
        with pytest.raises(WrongEvent) as caught:
            events().from_caller(body)
        assert caught.value.fault.param == "model"
        assert "whisper" not in caught.value.fault.message


def test_finished_turns_are_billed_as_reported_and_the_rest_is_estimated() -> None:
    session = events()
    session.from_caller(append(4))
    session.from_caller(b'{"type":"input_audio_buffer.commit"}')
    assert session.turn
    from_engine(session, type="transcription.delta", delta="a")
    assert (session.usage.prompt_tokens, session.usage.completion_tokens, session.usage.audio_seconds) == (50, 1, 4)
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    assert from_engine(session, type="transcription.done", text="a", usage=usage)["usage"] == usage
    assert not session.turn
    assert (session.usage.prompt_tokens, session.usage.completion_tokens, session.usage.audio_seconds) == (7, 3, 4)
    session.from_caller(append(2))
    from_engine(session, type="transcription.delta", delta="b")
    assert (session.usage.prompt_tokens, session.usage.completion_tokens, session.usage.audio_seconds) == (32, 4, 6)
    from_engine(session, type="transcription.done", text="b")
    assert (session.reported.prompt_tokens, session.reported.completion_tokens) == (32, 4), "without a report the estimate is billed"


@pytest.mark.parametrize("report", [{"prompt_tokens": -5, "completion_tokens": -5}, {"prompt_tokens": 10**9, "completion_tokens": 10**9}])
def test_a_report_is_billed_within_what_the_turn_can_be(report: dict[str, int]) -> None:
    session = events()
    from_engine(session, type="transcription.done", text="a", usage=report)
    assert 0 <= session.reported.prompt_tokens <= RESERVED_TOKENS
    assert 0 <= session.reported.completion_tokens <= 200


def test_a_session_may_use_what_it_reserved() -> None:
    session = events()
    assert session.spent(1) is None
    from_engine(session, type="transcription.delta", delta="a")
    assert session.spent(1) is None
    from_engine(session, type="transcription.delta", delta="a")
    assert session.spent(None) is None
    assert session.spent(1) is not None
    heard = events()
    minutes = 0
    while heard.spent(None) is None:
        heard.from_caller(append(60))
        minutes += 1
        from_engine(heard, type="transcription.done", text="", usage={"prompt_tokens": 1, "completion_tokens": 0})
    assert minutes == 22


def test_an_engines_error_is_openais_and_names_nothing_inside() -> None:
    told = from_engine(events(), type="error", error="The model `org/whisper-x` does not exist on engine-7.", code="model_not_found")
    assert told["error"]["code"] == "model_not_found"
    assert told["error"]["type"] == "invalid_request_error"
    assert "whisper" not in json.dumps(told)
    assert "engine-7" not in json.dumps(told)
    session = events()
    session.from_caller(b'{"type":"input_audio_buffer.commit"}')
    failed = from_engine(session, type="error", error="CUDA out of memory at /opt/x", code="processing_error")
    assert (failed["error"]["type"], failed["error"]["code"]) == ("server_error", "processing_error")
    assert "CUDA" not in json.dumps(failed)
    assert not session.turn


def test_an_event_of_an_unknown_type_stays_inside() -> None:
    assert from_engine(events(), type="session.debug", model="org/whisper-x") == {}
