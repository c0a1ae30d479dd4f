"""Every fact of a Record that the ledger keeps gets there; requests without a hold do not."""

import msgspec
import pytest

from domain.usage import Usage
from gateway.guards.facts import GuardCount, GuardRecord
from gateway.ledger.writer import usage_event
from gateway.record import Fell, Record
from gateway.story import Story
from tenancy.usage import GuardBlock
from tests.stories import with_facts

RECORD = Record(
    request_id="theirs",
    at_unix=1_767_229_200.1234,
    outcome="ok",
    status=200,
    duration_s=1.2345,
    overhead_s=0.0,
    tenant="acme",
    project="lab",
    key_id="k1",
    endpoint="/v1/chat/completions",
    model="m",
    pool="p",
    revision="2",
    usage=Usage(10, 20, 3, 4),
    closing="settle",
    engine_request_id="req-own",
    lora="support-1",
    user="ann",
    organisation="north",
    units=5,
    cost_nanousd=6,
    price_id="price-1",
    priority_class="batch",
    asked_model="big",
    steps=("trim_output_tokens", "model=m"),
    reported="prompt 1000, completion 20",
)


def test_every_field_is_filled_from_its_own() -> None:
    event = usage_event(RECORD)
    assert msgspec.structs.asdict(event) == {
        "request_id": "req-own",
        "at_unix_ms": 1_767_229_200_123,
        "tenant": "acme",
        "project": "lab",
        "key_id": "k1",
        "user": "ann",
        "endpoint": "/v1/chat/completions",
        "model": "m",
        "pool": "p",
        "revision": "2",
        "lora": "support-1",
        "outcome": "ok",
        "closing": "settle",
        "usage": Usage(10, 20, 3, 4),
        "units": 5,
        "cost_nanousd": 6,
        "price_id": "price-1",
        "duration_ms": 1234,
        "organisation": "north",
        "priority_class": "batch",
        "asked_model": "big",
        "steps": "trim_output_tokens, model=m",
        "reported": "prompt 1000, completion 20",
        "blocked": None,
    }


def test_the_id_is_never_the_callers() -> None:
    same = msgspec.structs.replace(RECORD, request_id="req-own", engine_request_id="")
    for record in (RECORD, same):
        event = usage_event(record)
        assert event is not None
        assert event.request_id == record.own_id == "req-own"


@pytest.mark.parametrize("closing", ["settle", "estimate", "release"])
def test_a_request_that_had_a_hold_is_written_however_it_ended(closing: str) -> None:
    event = usage_event(msgspec.structs.replace(RECORD, closing=closing, outcome="client_gone"))
    assert event is not None
    assert (event.closing, event.outcome) == (closing, "client_gone")


def test_a_request_that_never_had_one_is_not() -> None:
    assert usage_event(msgspec.structs.replace(RECORD, closing="", outcome="key_invalid")) is None


def test_what_steps_note_in_the_story_is_in_the_record() -> None:
    story = with_facts(
        Story("theirs", 1.0, 2.0, 1.0, "req-own"), user="ann", organisation="north", units=5, cost_nanousd=6, price_id="price-1"
    )
    record = story.close(3.0)
    assert record.own_id == "req-own"
    assert (record.user, record.organisation, record.units, record.cost_nanousd, record.price_id) == ("ann", "north", 5, 6, "price-1")


FOUND = (
    GuardCount("keys", "aws_key", "block", "input", 2),
    GuardCount("keys", "jwt", "block", "input", 1),
    GuardCount("keys", "private_key", "block", "output", 1),
    GuardCount("people", "email", "redact", "input", 1),
)
BLOCKED = GuardRecord("block", "keys", "input", False, FOUND, (), (), "0123")


def test_a_block_goes_to_the_audit_with_the_kinds_that_its_rule_found() -> None:
    booked = usage_event(msgspec.structs.replace(RECORD, guards=BLOCKED))
    assert booked is not None
    assert booked.blocked == GuardBlock("keys", "aws_key,jwt", "input", "0123", False)


def test_a_block_that_another_model_answered_for_goes_to_the_audit_with_the_refused_model() -> None:
    passed = GuardRecord("passed", "", "", False, (), (), (), "4567")
    steps = (Fell("big", "mid", "error", "engine_error"), Fell("mid", "m", "content_filter", "guard_blocked", BLOCKED))
    booked = usage_event(msgspec.structs.replace(RECORD, guards=passed, fell_back=steps))
    assert booked is not None
    assert booked.blocked == GuardBlock("keys", "aws_key,jwt", "input", "0123", False, "mid")
    own = msgspec.structs.replace(BLOCKED, by="people")
    booked = usage_event(msgspec.structs.replace(RECORD, guards=own, fell_back=steps))
    assert booked is not None
    assert booked.blocked is not None
    assert (booked.blocked.rule, booked.blocked.model) == ("people", ""), "the block of the model that the row is of comes first"


@pytest.mark.parametrize("word", ["passed", "flagged", "changed", "unavailable", "too_long"])
def test_what_no_rule_blocked_is_no_block(word: str) -> None:
    booked = usage_event(msgspec.structs.replace(RECORD, guards=msgspec.structs.replace(BLOCKED, word=word)))
    assert booked is not None
    assert booked.blocked is None
