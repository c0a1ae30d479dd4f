"""What came of a line: whether it is its result, and how files and the ledger show it."""

import json

import pytest
from msgspec import structs

from domain.batches import StoredBatch, TokenSums
from domain.faults import Kind
from domain.identity import Caller, KeyId, ProjectId, TenantId
from domain.usage import Usage
from gateway.batches.line import ATTEMPTS, LineOutcome, ledger_record, line_id, one_line, result_of, unsent
from gateway.ledger.writer import usage_event
from gateway.record import OK, Record
from gateway.story import Story

CALLER = Caller(TenantId("acme"), ProjectId("default"), KeyId("tg_1"))
BATCH = StoredBatch(
    id="batch_1",
    tenant="acme",
    caller=CALLER,
    endpoint="/v1/chat/completions",
    input_file_id="file-1",
    created_unix=1.0,
    expires_unix=2.0,
    in_progress_unix=1.5,
)


def record(outcome: str = OK) -> Record:
    closed = Story("req-1", 0.0, 1_000_000.0, 0.0, "req-1").close(1.0)
    return structs.replace(closed, outcome=outcome, status=200, usage=Usage(5, 7, 2, 1), closing="settle")


def outcome(word: str = OK, body: bytes = b'{\n "a": 1\n}') -> LineOutcome:
    return LineOutcome(record(word), 200 if word == OK else 400, body)


@pytest.mark.parametrize(
    ("kind", "finals"),
    [
        (Kind.INVALID_VALUE, [True, True]),
        (Kind.GUARD_BLOCKED, [True, True]),
        (Kind.QUOTA_SPENT, [True, True]),
        (Kind.CRASHES_ENGINES, [True, True]),
        (Kind.OVERLOADED, [False, False]),
        (Kind.TOKEN_LIMIT, [False, False]),
        (Kind.NO_BACKEND, [False, False]),
        (Kind.SHUTTING_DOWN, [False, False]),
        (Kind.ENGINE_ERROR, [False, True]),
        (Kind.INTERNAL, [False, True]),
    ],
    ids=lambda value: value.value if isinstance(value, Kind) else "",
)
def test_which_faults_are_the_result_of_a_line(kind: Kind, finals: list[bool]) -> None:
    """After the first attempt, and after the last one."""
    assert [outcome(kind.value).is_final(attempts) for attempts in (1, ATTEMPTS)] == finals


def test_an_answer_is_a_result() -> None:
    assert outcome().is_final(1)


def test_the_output_is_one_line() -> None:
    result = result_of(outcome(), BATCH, 3, "mine")
    assert "\n" not in result.output and (result.line, result.failed) == (3, False)
    assert json.loads(result.output) == {
        "id": line_id("batch_1", 3),
        "custom_id": "mine",
        "response": {"status_code": 200, "request_id": "req-1", "body": {"a": 1}},
        "error": None,
    }
    assert result.usage == TokenSums(5, 2, 7, 1)
    refused = result_of(outcome(Kind.INVALID_VALUE.value, b"no JSON"), BATCH, 3, "mine")
    assert (refused.failed, refused.usage, json.loads(refused.output)["response"]["body"]) == (True, TokenSums(), "no JSON")
    assert json.loads(unsent(BATCH, 4, "mine", "batch_expired", "Late.").output)["error"] == {"code": "batch_expired", "message": "Late."}


def test_a_reply_that_is_no_json_is_kept_as_a_text() -> None:
    assert one_line(b"\xff{") == "\ufffd{"


def test_the_ledger_has_one_row_for_a_line_however_often_it_is_sent() -> None:
    events = [usage_event(ledger_record(structs.replace(record(), request_id=f"req-{at}", at_unix=9e8 * at), BATCH, 3)) for at in (1, 2)]
    assert {(event.request_id, event.at_unix_ms) for event in events if event is not None} == {(line_id("batch_1", 3), 1500)}
    assert line_id("batch_1", 3) != line_id("batch_1", 4) != line_id("batch_2", 4)
