"""Bodies of `/v1/feedback`: a rating within its bounds under an id of the gateway, or a refusal that names a field."""

from pathlib import Path
from typing import Any

import pytest

from domain.faults import Fault
from gateway.http.faults import render
from gateway.request.feedback import MAX_USER_CHARS, OWN_ID, rating_in
from tenancy.feedback import MAX_COMMENT_CHARS, MAX_LABEL_CHARS, RATINGS
from tests.fuzz.mutation import Target

ID = b"req-0000002a-000000000000000000000001"
SEEDS = [
    b'{"request_id":"%b","rating":"up"}' % ID,
    b'{"request_id":"chatcmpl-%b","rating":"down","label":"wrong","comment":"a\\nb","user":"ann"}' % ID,
    b'{"request_id":"cmpl-%b","rating":"up","label":null}' % ID,
]
PIECES = [
    *(b'"request_id"', b'"rating"', b'"label"', b'"comment"', b'"user"', b'"up"', b'"down"', b"chatcmpl-", b"req-", b"[]", b"{}", b"null"),
    *(b'"\\ud83d\\ude00"', b'"\\ud800"', b'"\\u0000"', b"\xff", b"[" * 70, b"x" * 3000),
]
BODIES = Target("feedback", PIECES, SEEDS)


def read(body: bytes) -> str:
    try:
        rated = rating_in(body)
    except Fault as fault:
        assert render(fault, "req-1").status == 400
        return f"{fault.kind.value} {fault.param if fault.param in ('request_id', 'rating', 'label', 'comment', 'user') else ''}"
    assert OWN_ID.fullmatch(rated.request_id)
    assert rated.rating in RATINGS
    assert len(rated.label) <= MAX_LABEL_CHARS and rated.label.isprintable()
    assert len(rated.comment) <= MAX_COMMENT_CHARS and "\0" not in rated.comment
    assert len(rated.user) <= MAX_USER_CHARS
    return f"ok {rated.rating}"


@pytest.mark.parametrize("path", BODIES.corpus, ids=lambda path: path.stem)
def test_corpus(path: Path) -> None:
    read(path.read_bytes())


def test_a_rating_is_within_its_bounds_or_a_field_is_named(record_property: Any) -> None:
    record_property("figure", BODIES.run(read, 3_000))
