"""The translation as the edge takes it."""

import json

import pytest

from domain.faults import Fault, Kind
from gateway.http.edge.translation import Translation
from gateway.http.responses import ResponsesTranslation


def made() -> ResponsesTranslation:
    return ResponsesTranslation(lambda: 1, lambda: "0")


def test_it_is_a_translation() -> None:
    seam: Translation = made()
    assert seam.path == "/v1/responses"
    assert seam.headers(b"content-type: text/event-stream\r\n") == b"content-type: text/event-stream\r\n"


def test_a_refusal_may_come_before_the_request() -> None:
    reply = made().refusal(Fault(Kind.KEY_MISSING, "Send a key."), "req_1")
    assert reply.status == 401
    assert json.loads(reply.body)["error"]["message"] == "Send a key."


def test_a_refusal_names_the_item_of_the_input() -> None:
    one = made()
    one.request(b'{"model":"m","input":[{"role":"user","content":"a"},{"role":"user","content":[]}],"instructions":"i"}')
    fault = Fault(Kind.INVALID_VALUE, "Invalid value for 'messages[2].content': 0 parts.", param="messages[2].content")
    error = json.loads(one.refusal(fault, "req_1").body)["error"]
    assert (error["param"], error["message"]) == ("input[1]", "Invalid value for 'input[1]': 0 parts.")


def test_a_refusal_of_the_instructions_names_them() -> None:
    one = made()
    one.request(b'{"model":"m","input":"x","instructions":"i"}')
    fault = Fault(Kind.INVALID_VALUE, "Invalid value for 'messages[0].content'.", param="messages[0].content")
    assert json.loads(one.refusal(fault, "req_1").body)["error"]["param"] == "instructions"


def test_a_reply_before_its_request_is_a_defect() -> None:
    with pytest.raises(RuntimeError):
        made().plain(b"{}")
