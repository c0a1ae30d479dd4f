"""What a conversation is shown as, what goes into it, and what a Response makes of it."""

import itertools
import json
from typing import Any

import pytest
from openai.types.conversations import ConversationItem as ShownItem
from pydantic import TypeAdapter

from domain.faults import Fault, Kind
from domain.identity import TenantId
from gateway.http.responses import InputTokensTranslation, ResponsesTranslation
from gateway.http.responses.conversations import answered_items, check_added, check_ids, conversation_object, item_list, new_items
from policies.schema import ResponsesPolicy
from tenancy.conversations import Conversation, ConversationItem, WholeConversation
from tests.responses_wire import NOW, call, chunk, events, plain_chat, sse, usage_chunk

ACME = TenantId("acme")
KEEPS = ResponsesPolicy(keep_days=2)
_item = TypeAdapter[Any](ShownItem)


def made(kind: type[ResponsesTranslation] = ResponsesTranslation) -> ResponsesTranslation:
    return kind(lambda: NOW, map("{:032x}".format, itertools.count(1)).__next__)


def whole(*sent: dict[str, Any]) -> WholeConversation:
    numbers = itertools.count(1)
    return WholeConversation(new_items(list(sent), lambda: f"own{next(numbers)}"), 100)


def within(
    before: WholeConversation, terms: ResponsesPolicy | None = None, **fields: object
) -> tuple[ResponsesTranslation, dict[str, Any]]:
    """A request in a conversation, and its chat."""
    one = made()
    asked = {"model": "m", "input": "go on", "conversation": "conv_1", **fields}
    assert one.request(json.dumps(asked).encode()) == b""
    assert (one.conversation, one.earlier, one.wants_appending()) == ("conv_1", "conv_1", True)
    chat = json.loads(one.within(before))
    one.store(terms, KEEPS)
    return one, chat


USER = {"role": "user", "content": "hi"}
CALL = {"type": "function_call", "call_id": "c1", "name": "tide", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "2 m"}


def test_the_items_stand_in_front_of_the_input_and_the_field_does_not_go_on() -> None:
    _, chat = within(whole(USER, CALL, OUTPUT), conversation={"id": "conv_1"})
    assert [message["role"] for message in chat["messages"]] == ["user", "assistant", "tool", "user"]
    assert "conversation" not in chat


@pytest.mark.parametrize("terms", [None, KEEPS], ids=["unstored", "stored"])
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_the_end_waits_and_the_conversation_gets_input_and_output(stream: bool, terms: ResponsesPolicy | None) -> None:
    one, _ = within(whole(USER), terms, input=[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], stream=stream)
    assert one.keeps
    if stream:
        told = events(one.feed(sse(chunk({"content": "yes"}), chunk(finish_reason="stop"), usage_chunk())))
        assert "response.completed" not in {event["type"] for event in told}
        (last,) = events(one.released())
        answered = last["response"]
    else:
        answered = json.loads(one.plain(plain_chat({"content": "yes", "tool_calls": [call(0, "{}", "tide", "c2")]}, "tool_calls")))
    assert answered["store"] is (terms is not None)
    assert answered["conversation"] == {"id": "conv_1"}
    added = one.added(ACME, 5.0, "digest")
    assert (added.conversation, added.tenant, added.created_unix, added.end_user) == ("conv_1", ACME, 5.0, "digest")
    kept = [json.loads(item.item) for item in added.items]
    assert [item["content"][0]["text"] for item in kept[:2]] == ["a", "b"]
    assert kept[2:] == answered["output"]
    assert [item.id for item in added.items] == [item["id"] for item in kept]
    for item in kept:
        _item.validate_python(item)


def test_a_count_of_tokens_adds_nothing() -> None:
    one = made(InputTokensTranslation)
    one.request(json.dumps({"model": "m", "input": "x", "conversation": "conv_1"}).encode())
    assert not one.wants_appending()


def test_what_is_wrong_with_the_conversation_is_told_of_it() -> None:
    one = made()
    one.request(json.dumps({"model": "m", "input": "x", "conversation": "conv_1"}).encode())
    with pytest.raises(Fault) as refused:
        one.within(WholeConversation([ConversationItem("a", b'{"id":"a","type":"web_search_call"}')], 10))
    assert (refused.value.kind, refused.value.param) == (Kind.UNSUPPORTED_PARAMETER, "conversation.type")
    one = made()
    one.request(json.dumps({"model": "m", "input": "x", "conversation": "conv_1"}).encode())
    one.within(whole(USER))
    rendered = one.refusal(Fault(Kind.INVALID_VALUE, "Invalid value for 'messages[0].content'.", param="messages[0].content"), "req")
    assert json.loads(rendered.body)["error"]["param"] == "conversation"


def test_items_of_twenty_at_most_that_a_request_may_have_may_be_added() -> None:
    assert check_added([USER] * 20, "items") == [USER] * 20
    assert check_added([], "items") == []
    for sent, param in (
        ({}, "items"),
        ([USER] * 21, "items"),
        ([USER, 5], "items[1]"),
        ([{"type": "item_reference", "id": "a"}], "items[0].type"),
        ([{**USER, "id": 5}], "items[0].id"),
        ([{**USER, "id": ""}], "items[0].id"),
        ([{**USER, "id": "x" * 65}], "items[0].id"),
        ([{**USER, "id": "a"}, {**CALL, "id": "a"}], "items[1].id"),
    ):
        with pytest.raises(Fault) as refused:
            check_added(sent, "items")
        assert refused.value.param == param


def test_an_id_that_is_known_is_refused_where_it_stands() -> None:
    check_ids("a text", {"a"}, "input")
    check_ids([USER, {**USER, "id": "b"}, {**USER, "id": None}], {"a"}, "input")
    with pytest.raises(Fault, match="'a'") as refused:
        check_ids([USER, {**USER, "id": "a"}], {"a"}, "input")
    assert (refused.value.kind, refused.value.param) == (Kind.INVALID_VALUE, "input[1].id")


def test_what_is_shown_is_json_as_the_api_has_it() -> None:
    one = Conversation(id="conv_1", tenant=ACME, created_unix=7.9, expires_unix=9.0, metadata=b'{"a":"b"}')
    assert json.loads(conversation_object(one)) == {"id": "conv_1", "object": "conversation", "created_at": 7, "metadata": {"a": "b"}}
    items = answered_items(b'[{"id":"a"}]', b'{"output":[{"id":"b"},{"id":"c"}]}')
    listed = {"object": "list", "data": [{"id": "a"}, {"id": "b"}, {"id": "c"}], "first_id": "a", "last_id": "c", "has_more": True}
    assert json.loads(item_list(items, more=True)) == listed
    assert json.loads(item_list([], more=False))["first_id"] == ""
