"""The translation as the edge takes it."""

import itertools
import json
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel

from domain.faults import Fault, Kind
from gateway.http.edge.head import RequestHead
from gateway.http.edge.translation import Translation
from gateway.http.openai.prompts import PROMPT_HEADER
from gateway.http.responses import PATH as RESPONSES
from gateway.http.responses import ResponsesTranslation
from gateway.http.translations import Translations
from tests.responses_wire import NOW, call, chunk, plain_chat, sse, usage_chunk


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


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_completion_tokens": 5}, "The parameter 'max_completion_tokens' is not supported: send 'max_output_tokens'."),
        ({"messages": []}, "The parameter 'messages' is not supported: send 'input'."),
        ({"logprobs": True}, "The parameter 'logprobs' is not supported: send 'include' with 'message.output_text.logprobs'."),
        ({"tools": [{"name": "a"}]}, "Missing required parameter: 'tools[0].type'."),
    ],
)
def test_what_the_translation_itself_refuses_is_told_as_it_is(fields: dict[str, Any], message: str) -> None:
    one = made()
    with pytest.raises(Fault) as caught:
        one.request(json.dumps({"model": "m", "input": "hi", **fields}).encode())
    error = json.loads(one.refusal(caught.value, "req_1").body)["error"]
    assert (error["param"], error["message"]) == (caught.value.param, message)
    assert f"'{error['param']}'" in message


@pytest.mark.parametrize("index", [0, 1, 3])
def test_no_item_is_named_where_messages_of_the_registry_are_counted_too(index: int) -> None:
    head = RequestHead("POST", RESPONSES, {PROMPT_HEADER: b"greeting"}, None, False, True)
    one = Translations(b"secret", lambda: 0.0, lambda: "req-0").of(head)
    assert one is not None
    one.request(b'{"model":"m","input":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}')
    param = f"messages[{index}].content"
    error = json.loads(one.refusal(Fault(Kind.INVALID_VALUE, f"Invalid value for '{param}': no.", param=param), "req_1").body)["error"]
    assert (error["param"], error["message"]) == ("input", "Invalid value for 'input': no.")


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


def client(reply: bytes, fault: Fault | None = None) -> openai.OpenAI:
    """The official client, whose requests are answered by a translation of the chat's `reply`, which breaks with `fault`."""

    def answer(request: httpx.Request) -> httpx.Response:
        one = ResponsesTranslation(lambda: NOW, map("{:032x}".format, itertools.count(1)).__next__)
        if json.loads(one.request(request.content)).get("stream"):
            body = b": ping\n\n" + one.feed(reply) + (one.broken(fault, "req_1") if fault else b"")
            return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body)
        return httpx.Response(200, headers={"content-type": "application/json"}, content=one.plain(reply))

    transport = httpx.Client(transport=httpx.MockTransport(answer))
    return openai.OpenAI(api_key="unused", base_url="http://tidegate.test/v1", http_client=transport, max_retries=0)


class City(BaseModel):
    name: str


def test_the_official_client_reads_a_whole_reply() -> None:
    with client(plain_chat({"content": '{"name":"Ulm"}'})) as official:
        assert official.responses.parse(model="m", input="x", text_format=City).output_parsed == City(name="Ulm")


def test_the_official_client_reads_a_stream() -> None:
    texts = [chunk({"reasoning": "hm"}), chunk({"content": '{"name"'}), chunk({"content": ':"Ulm"}'})]
    reply = sse(*texts, call(0, "", "look", "c0"), call(0, '{"x":1}'), chunk({}, "tool_calls"), usage_chunk())
    with client(reply) as official, official.responses.stream(model="m", input="x", text_format=City) as stream:
        found = stream.get_final_response()
    assert found.output_parsed == City(name="Ulm")
    assert [item.type for item in found.output] == ["reasoning", "message", "function_call"]
    assert found.usage is not None
    assert found.usage.total_tokens == 28


def test_the_official_client_raises_on_a_stream_that_broke_before_it_began() -> None:
    with client(b"", Fault(Kind.BROKEN_STREAM, "Try again.")) as official, pytest.raises(openai.APIError, match=r"Try again\."):
        list(official.responses.create(model="m", input="x", stream=True))
