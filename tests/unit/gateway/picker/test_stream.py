"""Laws of one stream of ext_proc: the pick depends on the request and not on how it is cut, and nothing is left behind after any end."""

import asyncio
import json
from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.faults import Fault, Kind
from gateway.http.edge.head import RequestHead
from gateway.picker.messages import BUFFERED, FULL_DUPLEX_STREAMED, NONE, STREAMED, ProcessingRequest
from gateway.picker.stream import DESTINATION, PIECE_BYTES, HeldBytes, OutOfTurnError, PickingStream

HEAD = {":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json", "x-request-id": "theirs-1"}
SUBSET = "x-gateway-destination-endpoint-subset"


class Picked:
    """A pick that writes down what it is told."""

    def __init__(self, body: bytes, path: str = "/v1/chat/completions") -> None:
        self.endpoints = ("10.0.0.1:8000", "10.0.0.2:8000")
        self.path = path
        self.body = body
        self.heads: list[tuple[int, str]] = []
        self.fed = b""
        self.wholes = 0
        self.overs = 0

    def answered(self, status: int, _headers: Mapping[bytes, bytes], served: str) -> None:
        self.heads.append((status, served))

    def feed(self, data: bytes) -> None:
        self.fed += data

    def whole(self) -> None:
        self.wholes += 1

    def over(self) -> None:
        self.overs += 1


class Picker:
    """Picks the same for every request, or refuses all of them."""

    def __init__(self, refuses: Exception | None = None, writes: bytes | None = None) -> None:
        self.refuses = refuses
        self.writes = writes
        self.asked: list[tuple[RequestHead, bytes, Collection[str] | None, bool]] = []
        self.picks: list[Picked] = []
        self.outcomes: list[str] = []

    async def pick(self, head: RequestHead, body: bytes, subset: Collection[str] | None, *, sees_answer: bool) -> Picked:
        self.asked.append((head, body, subset, sees_answer))
        if self.refuses is not None:
            raise self.refuses
        self.picks.append(Picked(body if self.writes is None else self.writes))
        return self.picks[-1]

    def count(self, outcome: str) -> None:
        self.outcomes.append(outcome)


def pairs(headers: Mapping[str, str]) -> dict[str, Any]:
    return {"headers": [{"key": name, "raw_value": value.encode()} for name, value in headers.items()]}


def head(
    mode: int | None = FULL_DUPLEX_STREAMED, answer: int = NONE, headers: Mapping[str, str] = HEAD, *, ends: bool = False, **more: Any
) -> Any:
    config = {} if mode is None else {"protocol_config": {"request_body_mode": mode, "response_body_mode": answer}}
    return ProcessingRequest(request_headers={"headers": pairs(headers), "end_of_stream": ends}, **config, **more)


def body(data: bytes, *, ends: bool = True) -> Any:
    return ProcessingRequest(request_body={"body": data, "end_of_stream": ends})


def in_pieces(data: bytes, cuts: Collection[int], *, with_trailers: bool) -> list[Any]:
    """The body's messages, cut at these places."""
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    pieces = [body(data[start:end], ends=False) for start, end in pairwise(edges)]
    if with_trailers:
        return [*pieces, ProcessingRequest(request_trailers={})]
    pieces[-1].request_body.end_of_stream = True
    return pieces


def told(answers: list[Any]) -> dict[str, str]:
    """The headers that the answers set."""
    found = {}
    for answer in answers:
        turn = answer.WhichOneof("response")
        if turn in ("request_headers", "request_body"):
            for each in getattr(answer, turn).response.header_mutation.set_headers:
                found[each.header.key] = each.header.raw_value.decode()
    return found


def in_metadata(answers: list[Any]) -> list[str]:
    return [
        entry.value.string_value
        for answer in answers
        for space in answer.dynamic_metadata.fields
        if space.key == "envoy.lb"
        for entry in space.value.struct_value.fields
        if entry.key == DESTINATION
    ]


async def answers_to(picker: Picker, *sent: Any, held: HeldBytes | None = None) -> tuple[PickingStream, list[Any]]:
    talk = PickingStream(picker, held or HeldBytes(2**20, 2**24))
    answers: list[Any] = []
    for message in sent:
        answers += await talk.take(message)
    return talk, answers


@given(data=st.binary(max_size=3 * PIECE_BYTES), cuts=st.lists(st.integers(0, 2**20), max_size=6), with_trailers=st.booleans())
def test_the_pick_is_the_same_however_the_body_comes(data: bytes, cuts: list[int], with_trailers: bool) -> None:
    async def run() -> None:
        one, other = Picker(), Picker()
        held = HeldBytes(2**20, 2**20)
        _, whole = await answers_to(one, head(BUFFERED), body(data), held=held)
        talk, streamed = await answers_to(other, head(), *in_pieces(data, cuts, with_trailers=with_trailers), held=held)
        assert one.asked[0][:3] == other.asked[0][:3]
        assert one.asked[0][1] == data
        assert told(whole) == told(streamed) == {DESTINATION: "10.0.0.1:8000,10.0.0.2:8000"}
        assert in_metadata(whole) == in_metadata(streamed) == ["10.0.0.1:8000,10.0.0.2:8000"]
        first, *pieces = [answer for answer in streamed if answer.WhichOneof("response") != "request_trailers"]
        assert first.WhichOneof("response") == "request_headers"
        back = [piece.request_body.response.body_mutation.streamed_response for piece in pieces]
        assert b"".join(each.body for each in back) == data
        assert [each.end_of_stream for each in back] == [False] * (len(back) - 1) + [not with_trailers]
        assert max(len(each.body) for each in back) <= PIECE_BYTES
        assert held.held == 0
        assert [pick.body for pick in (*one.picks, *other.picks)] == [b"", b""]
        talk.over()
        assert [pick.overs for pick in other.picks] == [1]

    asyncio.run(run())


@given(
    stop=st.integers(0, 9),
    mode=st.sampled_from([BUFFERED, FULL_DUPLEX_STREAMED]),
    answer=st.sampled_from([NONE, STREAMED, FULL_DUPLEX_STREAMED]),
    refuses=st.booleans(),
)
def test_nothing_is_left_wherever_the_stream_ends(stop: int, mode: int, answer: int, refuses: bool) -> None:
    async def run() -> None:
        picker = Picker(Fault(Kind.NO_BACKEND, "None.") if refuses else None)
        request = [body(b"x" * 100)] if mode == BUFFERED else in_pieces(b"x" * 100, [10, 50], with_trailers=False)
        reply = [ProcessingRequest(response_body={"body": b"y", "end_of_stream": last}) for last in (False, True)] if answer != NONE else []
        sent = [head(mode, answer), *request, ProcessingRequest(response_headers={"headers": pairs({":status": "200"})}), *reply]
        held = HeldBytes(2**20, 2**20)
        talk, _ = await answers_to(picker, *sent[:stop], held=held)
        talk.over()
        talk.over()
        assert held.held == 0
        assert all(pick.overs >= 1 for pick in picker.picks)
        assert len(picker.outcomes) == len(picker.asked) <= 1

    asyncio.run(run())


async def test_a_whole_body_is_answered_before_its_trailers() -> None:
    """Envoy sends the trailers of a request only once its body was answered."""
    picker = Picker()
    _, answers = await answers_to(picker, head(BUFFERED), body(b"{}", ends=False), ProcessingRequest(request_trailers={}))
    assert [answer.WhichOneof("response") for answer in answers] == ["request_headers", "request_body", "request_trailers"]
    assert len(picker.asked) == 1


async def test_a_changed_body_brings_its_length_and_another_path_is_told() -> None:
    picker = Picker(writes=b'{"model":"engine"}')
    _, (first, answer) = await answers_to(picker, head(BUFFERED, headers={**HEAD, ":path": "/v1/chat/completions/?x=1"}), body(b"{}"))
    assert first.WhichOneof("response") == "request_headers"
    assert answer.request_body.response.body_mutation.body == b'{"model":"engine"}'
    assert answer.request_body.response.clear_route_cache
    changes = {"content-length": "18", ":path": "/v1/chat/completions"}
    assert told([answer]) == {DESTINATION: "10.0.0.1:8000,10.0.0.2:8000", **changes}
    ((asked, *_),) = picker.asked
    assert (asked.path, asked.query, asked.headers[b"content-type"]) == ("/v1/chat/completions", "x=1", b"application/json")


@pytest.mark.parametrize(
    ("path", "sets"),
    [
        ("/v1/chat/completions", False),
        ("/v1/chat/completions?api-version=1", False),
        ("/v1/chat/completions/", True),
        ("/openai/v1/chat/completions", True),
        ("/openai/deployments/sim/chat/completions?api-version=1", True),
    ],
)
async def test_the_engine_gets_its_own_spelling_of_the_path(path: str, sets: bool) -> None:
    _, answers = await answers_to(Picker(), head(BUFFERED, headers={**HEAD, ":path": path}), body(b"{}"))
    assert told(answers).get(":path") == ("/v1/chat/completions" if sets else None)


@pytest.mark.parametrize(
    "more", [{f"x-{number}": "" for number in range(1000)}, {"x-long": "w" * 2**16}], ids=["many headers", "a long header"]
)
async def test_a_large_head_is_refused_before_it_is_read(more: dict[str, str]) -> None:
    picker = Picker()
    talk, (answer,) = await answers_to(picker, head(headers={**HEAD, **more}), body(b"{}"))
    assert answer.immediate_response.status.code == 431
    assert talk.refused
    assert picker.asked == []


async def test_headers_of_the_same_name_are_joined() -> None:
    picker = Picker()
    message = head(headers=HEAD)
    message.request_headers.headers.headers.extend(head(headers={"X-Twice": "1"}).request_headers.headers.headers)
    message.request_headers.headers.headers.extend(head(headers={"x-twice": "2"}).request_headers.headers.headers)
    await answers_to(picker, message, body(b"{}"))
    assert picker.asked[0][0].headers[b"x-twice"] == b"1, 2"


async def test_the_subset_is_read_and_an_empty_one_is_not_none() -> None:
    def hint(value: Any) -> dict[str, Any]:
        entry = {"key": SUBSET, "value": value}
        return {"metadata_context": {"filter_metadata": [{"key": "envoy.lb.subset_hint", "value": {"fields": [entry]}}]}}

    named = {"list_value": {"values": [{"string_value": "10.0.0.2:8000"}, {"string_value": "[fd00::1]:8000"}]}}
    for value, subset in (
        (named, {"10.0.0.2:8000", "fd00::1:8000"}),
        ({"string_value": "10.0.0.2:8000, 10.0.0.3:1"}, {"10.0.0.2:8000", "10.0.0.3:1"}),
        ({"list_value": {}}, set()),
    ):
        picker = Picker()
        await answers_to(picker, head(**hint(value)), body(b"{}"))
        assert picker.asked[0][2] == subset
    picker = Picker()
    await answers_to(picker, head(), body(b"{}"))
    assert picker.asked[0][2] is None


@pytest.mark.parametrize(
    ("fault", "status", "outcome"),
    [
        (Fault(Kind.NO_BACKEND, "None."), 503, "nobody"),
        (Fault(Kind.OVERLOADED, "Full.", detail="shed"), 429, "shed"),
        (Fault(Kind.OVERLOADED, "Full."), 503, "nobody"),
        (Fault(Kind.INVALID_JSON, "Broken."), 400, "refused"),
        (Fault(Kind.MODEL_NOT_FOUND, "Unknown."), 404, "refused"),
    ],
)
async def test_a_refusal_is_the_proxys_answer_in_openais_form(fault: Fault, status: int, outcome: str) -> None:
    picker = Picker(fault)
    talk, (answer,) = await answers_to(picker, head(), body(b"{"))
    reply = answer.immediate_response
    assert reply.status.code == status
    assert json.loads(reply.body)["error"]["message"] == fault.message
    sent = {each.header.key: each.header.raw_value for each in reply.headers.set_headers}
    assert (sent["content-type"], sent["x-request-id"]) == (b"application/json", b"theirs-1")
    assert (talk.refused, picker.outcomes) == (True, [outcome])
    assert await talk.take(body(b"more")) == []


async def test_bodies_are_bounded_one_by_one_and_together() -> None:
    held = HeldBytes(100, 150)
    talk, (answer,) = await answers_to(Picker(), head(), body(b"x" * 101), held=held)
    assert (answer.immediate_response.status.code, held.held) == (413, 0)
    first, none = await answers_to(Picker(), head(), body(b"x" * 100, ends=False), held=held)
    assert none == []
    _, (answer,) = await answers_to(Picker(), head(), body(b"x" * 51, ends=False), held=held)
    assert (answer.immediate_response.status.code, held.held) == (503, 100)
    first.over()
    talk.over()
    assert held.held == 0


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ([body(b"")], "request_header_mode: SEND"),
        ([head(), head()], "came twice"),
        ([head(), body(b"{}"), body(b"{}")], "after the end"),
        ([head(NONE)], "request_body_mode: NONE; set FULL_DUPLEX_STREAMED"),
        ([head(STREAMED)], "request_body_mode: STREAMED"),
        ([head(3)], "BUFFERED_PARTIAL"),
        ([head(9)], "request_body_mode: 9"),
    ],
)
async def test_a_proxy_that_is_set_up_otherwise_is_told_what_to_set(sent: list[Any], words: str) -> None:
    with pytest.raises(OutOfTurnError, match=words):
        await answers_to(Picker(), *sent)


async def test_an_old_proxy_that_tells_no_mode_streams_and_writes_texts() -> None:
    """Header values are texts before Envoy 1.27, and `protocol_config` is younger still."""
    message = head(None)
    for header in message.request_headers.headers.headers:
        header.value, header.raw_value = header.raw_value.decode(), b""
    picker = Picker()
    _, answers = await answers_to(picker, message, body(b"{}"))
    assert told(answers)
    assert picker.asked[0][0].headers[b":path"] == b"/v1/chat/completions"


@pytest.mark.parametrize("answer", [STREAMED, FULL_DUPLEX_STREAMED])
async def test_the_answer_passes_and_its_end_is_told(answer: int) -> None:
    picker = Picker()
    served = {"key": "x-gateway-destination-endpoint-served", "value": {"string_value": "10.0.0.2:8000"}}
    context = {"filter_metadata": [{"key": "envoy.lb", "value": {"fields": [served]}}]}
    head_back = ProcessingRequest(response_headers={"headers": pairs({":status": "200"})}, metadata_context=context)
    pieces = [ProcessingRequest(response_body={"body": data, "end_of_stream": data == b"b"}) for data in (b"a", b"b")]
    _, answers = await answers_to(picker, head(answer=answer), body(b"{}"), head_back, *pieces)
    (pick,) = picker.picks
    assert (pick.heads, pick.fed, pick.wholes) == ([(200, "10.0.0.2:8000")], b"ab", 1)
    back = [each.response_body.response.body_mutation.streamed_response for each in answers[-2:]]
    passed = [(each.body, each.end_of_stream) for each in back]
    assert passed == ([(b"a", False), (b"b", True)] if answer == FULL_DUPLEX_STREAMED else [(b"", False)] * 2)
    assert picker.asked[0][3]


async def test_trailers_and_a_head_without_a_body_end_an_answer() -> None:
    for last in (
        ProcessingRequest(response_trailers={}),
        ProcessingRequest(response_headers={"headers": pairs({":status": "204"}), "end_of_stream": True}),
    ):
        picker = Picker()
        await answers_to(picker, head(), body(b"{}"), last)
        assert picker.picks[0].wholes == 1


async def test_a_defect_is_a_500_before_the_choice_and_the_answer_passes_after_it() -> None:
    picker = Picker(RuntimeError("boom"))
    talk = PickingStream(picker, HeldBytes(100, 100))
    await talk.take(head())
    with pytest.raises(RuntimeError):
        await talk.take(body(b"{}"))
    (answer,) = talk.failed(body(b"{}"))
    assert (answer.immediate_response.status.code, picker.outcomes) == (500, ["defect"])
    picker = Picker()
    talk, _ = await answers_to(picker, head(answer=FULL_DUPLEX_STREAMED), body(b"{}"))
    (passed,) = talk.failed(ProcessingRequest(response_body={"body": b"a"}))
    assert passed.response_body.response.body_mutation.streamed_response.body == b"a"


@pytest.mark.parametrize("mode", [BUFFERED, FULL_DUPLEX_STREAMED])
async def test_a_request_without_a_body_has_one_answer(mode: int) -> None:
    _, (answer,) = await answers_to(Picker(), head(mode, ends=True))
    assert answer.WhichOneof("response") == "request_headers"
    assert told([answer])
