"""What callers see of a Response in the background: told before its answer begins, replayed from any event, and ended from outside."""

import json

import pytest

from domain.faults import Fault, Kind
from domain.identity import TenantId
from gateway.http.responses.background import (
    BackgroundTranslation,
    count_events,
    end_told_by,
    ended_from_outside,
    events_after,
)
from policies.schema import ResponsesPolicy
from tenancy.background import BackgroundResponse, EventBatch
from tests.responses_wire import chunk, events, response, sse, translation

WHOLE = sse(chunk({"reasoning": "because\n\n"}), chunk({"content": "a"}), chunk({"content": "\n\nevent: x"}), chunk({}, "stop"))


def background(**fields: object) -> BackgroundTranslation:
    asked = translation(background=True, **fields)
    asked.store(ResponsesPolicy())
    return BackgroundTranslation(asked)


def told(data: bytes = WHOLE) -> bytes:
    """All events of a Response."""
    made = background()
    return made.queued()[2] + made.feed(data) + made.released()


def test_a_response_is_told_of_before_its_answer_begins_and_its_numbers_go_on() -> None:
    found = events(told())
    assert [event["type"] for event in found][:3] == ["response.created", "response.queued", "response.in_progress"]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    states = [event["response"]["status"] for event in found if "response" in event]
    assert states == ["queued", "queued", "in_progress", "completed"]
    assert {event["response"]["background"] for event in found if "response" in event} == {True}
    assert len({event["response"]["id"] for event in found if "response" in event}) == 1


def test_the_input_and_the_response_are_there_while_it_is_queued() -> None:
    shown, items, first = background().queued()
    assert (response(shown)["status"], response(shown)["output"], response(shown)["store"]) == ("queued", [], True)
    assert json.loads(items)[0]["content"] == [{"type": "input_text", "text": "hi"}]
    assert count_events(first) == 2


def test_items_that_are_done_are_shown_while_the_answer_is_made() -> None:
    made = background()
    assert response(made.so_far())["status"] == "queued"
    made.feed(sse(chunk({"reasoning": "because"}), done=False))
    assert (response(made.so_far())["status"], response(made.so_far())["output"]) == ("in_progress", [])
    made.feed(sse(chunk({"content": "a"}), done=False))
    assert [item["type"] for item in response(made.so_far())["output"]] == ["reasoning"]


@pytest.mark.parametrize("first", [0, 7])
def test_the_events_behind_a_number_are_the_rest_of_the_batch(first: int) -> None:
    whole = told()
    count = count_events(whole)
    assert count == len(events(whole))
    batch = EventBatch(first, first + count - 1, whole)
    for number in range(first - 2, first + count + 2):
        rest = events_after(batch, number)
        assert whole.endswith(rest)
        assert count_events(rest) == min(count, max(0, first + count - 1 - number))


@pytest.mark.parametrize(("finish", "status"), [("stop", "completed"), ("length", "incomplete"), ("content_filter", "incomplete")])
def test_the_last_event_tells_the_end_of_the_response(finish: str, status: str) -> None:
    made = background()
    made.queued()
    made.feed(sse(chunk({"content": "a"}), chunk({}, finish)))
    seen, shown = end_told_by(made.released())
    assert (seen, response(shown)["status"]) == (status, status)


@pytest.mark.parametrize("begun", [False, True])
def test_a_fault_is_told_by_an_event_whatever_has_begun(begun: bool) -> None:
    made = background()
    made.queued()
    if begun:
        made.feed(sse(chunk({"content": "a"}), done=False))
    rendered = made.refusal(Fault(Kind.OVERLOADED, "Too many."), "req_1")
    assert rendered.status == 503
    status, shown = end_told_by(rendered.body)
    failed = response(shown)
    assert (status, failed["status"], failed["error"]) == ("failed", "failed", {"code": "server_error", "message": "Too many."})


@pytest.mark.parametrize("fault", [None, Fault(Kind.INTERNAL, "Gone.")], ids=["cancelled", "failed"])
def test_an_end_from_outside_keeps_all_of_the_response_but_its_state(fault: Fault | None) -> None:
    shown, items, _ = background(metadata={"a": "b"}).queued()
    seen = BackgroundResponse(
        id="resp_1", tenant=TenantId("acme"), created_unix=1.0, expires_unix=9.0, last=4, lease_until_unix=5.0, response=shown, items=items
    )
    ended, event = ended_from_outside(seen, fault)
    before, after = response(shown), response(ended.response)
    error = None if fault is None else {"code": "server_error", "message": "Gone."}
    assert after == {**before, "status": "cancelled" if fault is None else "failed", "error": error}
    assert (ended.status, ended.last, ended.lease_until_unix, ended.items) == (after["status"], 5, 0.0, items)
    (last,) = events(event)
    assert (last["type"], last["sequence_number"]) == ("response.incomplete" if fault is None else "response.failed", 5)
    assert last["response"] == after
