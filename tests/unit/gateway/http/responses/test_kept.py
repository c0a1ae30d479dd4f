"""What is stored of a Response, and what a request that continues it is made of."""

import itertools
import json
from typing import Any

import msgspec
import pytest
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from domain.faults import Fault, Kind
from domain.identity import TenantId
from gateway.http.responses import ResponsesTranslation
from gateway.http.responses.kept import conversation, input_page, stored_items
from policies.schema import ResponsesPolicy
from tenancy.responses import ResponseChain, StoredResponse
from tests.responses_wire import FUNCTION, NOW, call, chunk, events, plain_chat, sse, usage_chunk

ACME = TenantId("acme")
KEEPS = ResponsesPolicy(keep_days=2)
AWAY = Fault(Kind.STATE_UNAVAILABLE, "away")
_item = TypeAdapter[Any](ResponseItem)


def made() -> ResponsesTranslation:
    return ResponsesTranslation(lambda: NOW, map("{:032x}".format, itertools.count(1)).__next__)


def asked(**fields: object) -> ResponsesTranslation:
    """One whose Response is to be stored."""
    one = made()
    one.request(json.dumps({"model": "m", "input": "hi", **fields}).encode())
    one.store(KEEPS)
    return one


def items_of(sent: object) -> list[dict[str, Any]]:
    numbers = itertools.count(1)
    stored: list[dict[str, Any]] = json.loads(stored_items(sent, lambda: str(next(numbers))))
    return stored


def test_a_text_is_stored_as_a_message_that_the_official_client_knows() -> None:
    (item,) = items_of("hi")
    assert item == {
        "role": "user",
        "content": [{"type": "input_text", "text": "hi"}],
        "type": "message",
        "id": "msg_1",
        "status": "completed",
    }
    _item.validate_python(item)


def test_items_keep_their_ids_and_get_those_that_they_lack() -> None:
    sent = [
        {"role": "assistant", "content": "said"},
        {"type": "message", "id": "mine", "role": "user", "content": [{"type": "input_text", "text": "x"}], "status": "incomplete"},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}", "id": None},
        {"type": "function_call_output", "call_id": "c", "output": "rain"},
        {"type": "additional_tools", "tools": []},
    ]
    stored = items_of(sent)
    assert [item["id"] for item in stored] == ["msg_1", "mine", "fc_2", "fco_3", "item_4"]
    assert stored[0]["content"] == [{"type": "output_text", "text": "said", "annotations": []}]
    assert stored[1]["status"] == "incomplete"
    assert "status" not in stored[3]
    assert sent[2]["id"] is None  # the caller's request is not changed


def turn(one: ResponsesTranslation, reply: bytes) -> StoredResponse:
    one.plain(reply)
    return one.stored(ACME, 100.0, "ann")


def test_a_request_that_continues_is_the_whole_conversation_and_sends_its_own_place() -> None:
    first = turn(asked(tools=[FUNCTION], instructions="not carried over"), plain_chat({"content": "one", "tool_calls": _calls()}))
    assert (first.previous, first.turn, first.bytes_before, first.end_user) == ("", 0, 0, "ann")
    assert (first.created_unix, first.expires_unix) == (100.0, 100.0 + 2 * 86_400)
    second = made()
    items = [{"type": "function_call_output", "call_id": "c1", "output": "rain"}, {"role": "user", "content": "so?"}]
    fields = {"model": "m", "previous_response_id": first.id, "input": items, "instructions": "new"}
    assert second.request(json.dumps(fields).encode()) == b""
    assert second.earlier == first.id
    chat = json.loads(second.continuing(ResponseChain((first,), 1000)))
    assert [message["role"] for message in chat["messages"]] == ["system", "user", "assistant", "tool", "user"]
    assert chat["messages"][0]["content"] == "new"
    assert chat["messages"][2]["tool_calls"][0]["id"] == "c1"
    second.store(KEEPS)
    stored = turn(second, plain_chat({"content": "two"}))
    assert (stored.previous, stored.turn, stored.bytes_before) == (first.id, 1, 1000)
    assert [item["type"] for item in conversation((first, stored))] == [
        *("message", "message", "function_call", "function_call_output", "message", "message"),
    ]
    assert json.loads(stored.response)["previous_response_id"] == first.id


def _calls() -> list[dict[str, Any]]:
    return [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]


def test_a_fault_of_the_conversation_names_what_names_it() -> None:
    first = turn(asked(), plain_chat({"content": "one"}))
    second = made()
    second.request(json.dumps({"model": "m", "previous_response_id": first.id, "input": "x"}).encode())
    second.continuing(ResponseChain((first,), 10))
    fault = Fault(Kind.INVALID_VALUE, "Invalid value for 'messages[1].content'.", param="messages[1].content")
    assert json.loads(second.refusal(fault, "r").body)["error"]["param"] == "previous_response_id"
    fault = Fault(Kind.INVALID_VALUE, "Invalid value for 'messages[2].content'.", param="messages[2].content")
    assert json.loads(second.refusal(fault, "r").body)["error"]["param"] == "input[0]"
    damaged = msgspec.structs.replace(first, items=b'[{"type":"of another version"}]')
    with pytest.raises(Fault) as caught:
        second.continuing(ResponseChain((damaged,), 10))
    assert caught.value.param == "previous_response_id.type"


@pytest.mark.parametrize(
    ("policy", "fields", "wanted"),
    [
        (None, {"store": True}, False),
        (ResponsesPolicy(), {}, True),
        (ResponsesPolicy(), {"store": None}, True),
        (ResponsesPolicy(), {"store": False}, False),
        (ResponsesPolicy(store=False), {}, False),
        (ResponsesPolicy(store=False), {"store": True}, True),
    ],
    ids=["no-policy", "default", "null", "declined", "not-default", "asked-for"],
)
def test_policy_and_request_decide(policy: ResponsesPolicy | None, fields: dict[str, Any], wanted: bool) -> None:
    one = made()
    one.request(json.dumps({"model": "m", "input": "x", **fields}).encode())
    assert one.wants_storing(policy) is wanted


def test_the_last_event_of_a_response_that_is_to_be_stored_waits() -> None:
    stream = sse(chunk({"content": "hi"}), call(0, "{}", "look", "c"), chunk(finish_reason="tool_calls"), usage_chunk())
    one, plain = asked(tools=[FUNCTION]), made()
    plain.request(json.dumps({"model": "m", "input": "hi", "tools": [FUNCTION]}).encode())
    plain.store(None)
    told = one.feed(stream)
    assert (one.keeps, plain.keeps, plain.released()) == (True, False, b"")
    whole = events(told + one.released())
    assert [event["type"] for event in whole] == [event["type"] for event in events(plain.feed(stream))]
    assert whole[-1]["type"] == "response.completed"
    assert whole[-1]["response"] == json.loads(one.stored(ACME, 1.0, "").response)
    assert {event["response"]["store"] for event in whole if "response" in event} == {True}
    assert one.released() == b""
    assert one.broken(AWAY, "r") == b""


def test_a_response_that_is_not_stored_after_all_ends_as_failed() -> None:
    one = asked()
    told = events(one.feed(sse(chunk({"content": "hi"}), chunk(finish_reason="stop"))) + one.broken(AWAY, "r"))
    assert (told[-1]["type"], told[-1]["response"]["error"]["code"]) == ("response.failed", "server_error")
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert one.released() == b""


def test_pages_of_the_input() -> None:
    stored = StoredResponse(
        id="r", tenant=ACME, created_unix=0.0, expires_unix=1.0, response=b"{}", items=stored_items(_sent(3), lambda: "0")
    )

    def page(after: str = "", limit: int = 20, *, newest_first: bool = False) -> tuple[list[str], bool]:
        body = input_page(stored.items, after, limit, newest_first=newest_first)
        assert body is not None
        shown = json.loads(body)
        names = [item["id"] for item in shown["data"]]
        assert (shown["object"], shown["first_id"], shown["last_id"]) == ("list", *((names[0], names[-1]) if names else (None, None)))
        return names, shown["has_more"]

    assert page() == (["i0", "i1", "i2"], False)
    assert page(newest_first=True, limit=2) == (["i2", "i1"], True)
    assert page("i1", newest_first=True) == (["i0"], False)
    assert page("i2") == ([], False)
    assert page("i0", 1) == (["i1"], True)
    assert input_page(stored.items, "unknown", 20, newest_first=False) is None


def _sent(count: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": str(number), "id": f"i{number}"} for number in range(count)]
