"""Each kind of fault, before and after the first byte, against the one table and the page that documents it."""

import json
from pathlib import Path

import pytest

from domain.faults import NEVER, SOURCE, Fault, Kind, Retry, Source
from gateway.http.edge.exchange import REASONS
from gateway.http.faults import ROWS, render, render_event

PAGE = (Path(__file__).parents[4] / "docs" / "reference" / "faults.md").read_text("utf-8")
SENT = [kind for kind in Kind if kind is not Kind.CLIENT_GONE]

STATUS = {
    400: {"malformed_http", "invalid_json", "invalid_value", "missing_parameter", "unsupported_parameter", "context_too_long"}
    | {"refused_by_engine", "exceeds_limit", "crashes_engines", "content_filtered", "guard_blocked"},
    401: {"key_missing", "key_invalid", "key_revoked"},
    403: {"not_permitted"},
    404: {"unknown_path", "model_not_found", "prompt_not_found", "object_not_found"},
    405: {"method_not_allowed"},
    408: {"request_timeout", "slow_reader"},
    413: {"body_too_large"},
    415: {"unsupported_media"},
    417: {"expectation_failed"},
    429: {"request_limit", "token_limit", "concurrency_limit", "quota_spent", "address_limit"},
    431: {"headers_too_large"},
    499: {"client_gone"},
    500: {"internal"},
    502: {"connect_failed", "reset_before_reply", "engine_error", "invalid_reply", "broken_stream", "engine_aborted", "wrong_model"}
    | {"model_not_served", "backend_drained", "guard_limit"},
    503: {"overloaded", "shutting_down", "no_backend", "engine_busy", "lora_unavailable", "quota_unknown", "identity_unavailable"}
    | {"guard_unavailable", "storage_unavailable"},
    504: {"first_token_timeout", "token_gap_timeout", "backend_lost", "deadline_passed", "not_cached"},
}


def test_every_kind_has_its_status() -> None:
    assert {kind.value: row.status for kind, row in ROWS.items()} == {kind: status for status, kinds in STATUS.items() for kind in kinds}


@pytest.mark.parametrize("kind", SENT)
def test_before_the_first_byte(kind: Kind) -> None:
    rendered = render(Fault(kind, "Said so.", param="a[0].b"), "req-1")
    headers = dict(rendered.headers)
    row = ROWS[kind]
    assert rendered.status == row.status
    assert rendered.status in REASONS
    assert json.loads(rendered.body) == {"error": {"message": "Said so.", "type": row.type, "param": "a[0].b", "code": row.code}}
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"x-request-id"] == b"req-1"
    assert headers[b"x-should-retry"] == b"false"
    assert len(headers) == len(rendered.headers)


@pytest.mark.parametrize("kind", SENT)
def test_after_the_first_byte(kind: Kind) -> None:
    event = render_event(Fault(kind, "Line\nbreak", detail="host 10.0.0.1"), "req-1")
    row = ROWS[kind]
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    assert event.count(b"\n") == 2
    assert b"[DONE]" not in event
    error = {"message": "Line\nbreak", "type": row.type, "param": None, "code": row.code, "request_id": "req-1"}
    assert json.loads(event.removeprefix(b"data: ")) == {"error": error}


@pytest.mark.parametrize("kind", SENT)
def test_details_for_operators_stay_inside(kind: Kind) -> None:
    if kind is Kind.METHOD_NOT_ALLOWED:
        return  # its detail is the list of methods
    fault = Fault(kind, "Said so.", detail="host 10.0.0.1 said secret")
    rendered = render(fault, "r")
    assert b"secret" not in rendered.body + render_event(fault, "r") + b"".join(name + value for name, value in rendered.headers)


def test_nobody_reads_a_reply_to_a_caller_that_left() -> None:
    for renderer in (render, render_event):
        with pytest.raises(ValueError, match="gone"):
            renderer(Fault(Kind.CLIENT_GONE, "x"), "r")


@pytest.mark.parametrize("kind", Kind)
def test_types_follow_the_side(kind: Kind) -> None:
    callers = {"invalid_request_error"} if ROWS[kind].status != 429 else {"requests", "tokens", "insufficient_quota"}  # OpenAI's words
    assert (ROWS[kind].type in callers) == (SOURCE[kind] is Source.CALLER)
    by_http = kind is Kind.NOT_CACHED  # RFC 9111, section 5.2.1.7 gives the status
    assert (ROWS[kind].status >= 500) == (SOURCE[kind] is not Source.CALLER or by_http)


@pytest.mark.parametrize(
    ("retry", "expected"),
    [
        (NEVER, (b"false", None, None)),
        (Retry(should=False, after_s=5), (b"false", None, None)),
        (Retry(should=True), (b"true", None, None)),
        (Retry(should=True, after_s=0.0), (b"true", b"1", b"0")),
        (Retry(should=True, after_s=0.0301), (b"true", b"1", b"31")),
        (Retry(should=True, after_s=2.5), (b"true", b"3", b"2500")),
        (Retry(should=True, after_s=60), (b"true", b"60", b"60000")),
    ],
)
def test_retry_hints(retry: Retry, expected: tuple[bytes | None, ...]) -> None:
    headers = dict(render(Fault(Kind.NO_BACKEND, "x", retry=retry), "r").headers)
    assert tuple(headers.get(name) for name in (b"x-should-retry", b"retry-after", b"retry-after-ms")) == expected


def test_headers_that_http_asks_for() -> None:
    assert (b"www-authenticate", b"Bearer") in render(Fault(Kind.KEY_MISSING, "x"), "r").headers
    assert (b"www-authenticate", b"Bearer") in render(Fault(Kind.KEY_INVALID, "x"), "r").headers
    assert (b"allow", b"GET, HEAD") in render(Fault(Kind.METHOD_NOT_ALLOWED, "x", detail="GET, HEAD"), "r").headers


def test_callers_text_cannot_break_out_of_body_or_event() -> None:
    evil = 'x"}}\r\n\r\ndata: [DONE]\n\n\u2028'
    fault = Fault(Kind.INVALID_VALUE, evil, param=evil)
    assert json.loads(render(fault, "r").body)["error"]["message"] == evil
    assert render_event(fault, "r").count(b"\n") == 2


def test_the_page_says_what_the_table_says() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    expected = []
    for kind, row in ((kind, ROWS[kind]) for kind in Kind):
        code = f"`{row.code}`" if row.code else "null"
        expected.append(f"| `{kind.value}` | {row.status} | `{row.type}` | {code} | {SOURCE[kind].value} |")
    assert [line.rpartition("|")[0].rpartition("|")[0] + "|" for line in rows] == expected
    assert all(line.split("|")[6].strip() for line in rows)
