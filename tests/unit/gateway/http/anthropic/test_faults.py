"""Faults in the shape of the Messages API."""

import json

import pytest

from domain.faults import Fault, Kind
from gateway.http.anthropic.faults import render_broken, render_refusal
from gateway.http.faults import ROWS

KINDS = [kind for kind in Kind if kind is not Kind.CLIENT_GONE]


@pytest.mark.parametrize("kind", KINDS, ids=[kind.value for kind in KINDS])
def test_every_kind_has_the_vendors_shape_and_a_type_that_fits_its_status(kind: Kind) -> None:
    rendered = render_refusal(Fault(kind, "It failed."), "req-1")
    body = json.loads(rendered.body)
    assert body == {"type": "error", "error": {"type": body["error"]["type"], "message": body["error"]["message"]}, "request_id": "req-1"}
    assert body["error"]["message"].endswith("It failed.")
    usual = ROWS[kind].status
    assert rendered.status == (529 if kind in (Kind.OVERLOADED, Kind.ENGINE_BUSY) else usual)
    expected = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large"} | {
        429: "rate_limit_error",
        504: "timeout_error",
        529: "overloaded_error",
    }
    assert body["error"]["type"] == expected.get(rendered.status, "invalid_request_error" if usual < 500 else "api_error")
    event, _, data = render_broken(Fault(kind, "It failed."), "req-1").decode().partition("\n")
    assert (event, json.loads(data.removeprefix("data: "))) == ("event: error", body)


def test_agents_know_a_prompt_that_is_too_long() -> None:
    body = json.loads(render_refusal(Fault(Kind.CONTEXT_TOO_LONG, "210 tokens are more than 200."), "r").body)
    assert body["error"]["message"] == "prompt is too long: 210 tokens are more than 200."


def test_nobody_reads_the_reply_to_a_caller_that_is_gone() -> None:
    with pytest.raises(ValueError, match="gone"):
        render_refusal(Fault(Kind.CLIENT_GONE, "x"), "r")
