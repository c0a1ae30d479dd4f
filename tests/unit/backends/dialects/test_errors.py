"""Error bodies nobody recorded: odd shapes, other versions, hostile text."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.attempt import ELSEWHERE
from backends.dialects.errors import fault_from_reply as fault_at
from backends.dialects.explanations import MAX_PASSED_CHARS
from domain.ask import Endpoint
from domain.faults import NEVER, Fault, Kind, Source


def fault_from_reply(status: int, body: bytes, *, retry_after: bytes | None = None, served: tuple[str, ...] = ()) -> Fault:
    return fault_at(status, body, endpoint=Endpoint.CHAT, retry_after=retry_after, served=served)


def nested(message: str, **more: object) -> bytes:
    return json.dumps({"error": {"message": message, **more}}).encode()


SHAPES: list[tuple[int, bytes, Kind]] = [
    (400, b"", Kind.REFUSED_BY_ENGINE),
    (500, b"", Kind.ENGINE_ERROR),
    (500, b"Internal Server Error", Kind.ENGINE_ERROR),
    (502, b"<html><h1>Bad Gateway</h1></html>", Kind.ENGINE_ERROR),
    (504, b"\xff\xfe", Kind.ENGINE_ERROR),
    (400, b'{"error":"text only"}', Kind.REFUSED_BY_ENGINE),
    (400, b'{"error":5}', Kind.REFUSED_BY_ENGINE),
    (400, b'{"error":{"message":"The response was filtered","code":"content_filter","param":"prompt"}}', Kind.CONTENT_FILTERED),
    (400, b'{"error":{"message":"Rejected","code":"content_policy_violation"}}', Kind.CONTENT_FILTERED),
    (400, b'{"error":{"message":"Rejected","code":{"a":1}}}', Kind.REFUSED_BY_ENGINE),
    (400, b"[" * 100_000, Kind.REFUSED_BY_ENGINE),
    (400, b'{"error":{"message":"cut in the mid', Kind.REFUSED_BY_ENGINE),
    (422, b'{"detail":[{"loc":["body","messages",0,"role"],"msg":"bad","type":"x"}]}', Kind.REFUSED_BY_ENGINE),
    (422, b'{"detail":[]}', Kind.REFUSED_BY_ENGINE),
    (413, b"too large", Kind.REFUSED_BY_ENGINE),
    (401, b'{"error":"Unauthorized"}', Kind.ENGINE_ERROR),
    (403, b'{"detail":"Forbidden"}', Kind.ENGINE_ERROR),
    (404, b"", Kind.ENGINE_ERROR),
    (404, nested("The model `x` does not exist. Not Found", param="model"), Kind.MODEL_NOT_SERVED),
    (404, b'{"detail":"Not Found"}', Kind.UNSUPPORTED_PARAMETER),
    (405, b'{"detail":"Method Not Allowed"}', Kind.UNSUPPORTED_PARAMETER),
    (400, nested("The model does not support Embeddings API"), Kind.UNSUPPORTED_PARAMETER),
    (429, b"", Kind.ENGINE_BUSY),
    (503, b"", Kind.ENGINE_BUSY),
    (503, nested("The request queue is full."), Kind.ENGINE_BUSY),
    (503, nested("Loading model", type="unavailable_error"), Kind.ENGINE_BUSY),
    (301, b"", Kind.ENGINE_ERROR),
    (204, b"", Kind.ENGINE_ERROR),
]

CONTEXT: list[tuple[str, str | None, str | None]] = [
    (
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4800 in the messages, 200 in the "
        "completion).",
        "4096",
        "5000",
    ),
    ("The decoder prompt (length 5000) is longer than the maximum model length of 2048.", "2048", "5000"),
    ("The engine prompt length 5000 exceeds the max_model_len 2048. Please reduce prompt.", "2048", "5000"),
    (
        "Requested token count exceeds the model's maximum context length of 2048 tokens. You requested a total of 3000 tokens: "
        "2500 tokens from the input messages and 500 tokens for the completion.",
        "2048",
        "3000",
    ),
    ("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048. Given: 3000 `inputs` tokens and 20", "2048", "3000"),
    ("context length exceeded", None, None),
]


@pytest.mark.parametrize(("status", "body", "kind"), SHAPES)
def test_shapes(status: int, body: bytes, kind: Kind) -> None:
    fault = fault_from_reply(status, body)
    assert fault.kind is kind
    assert fault.retry.should == (status in (429, 503) or status >= 500)
    assert str(status) in (fault.detail or "")


@pytest.mark.parametrize(("message", "limit", "count"), CONTEXT)
@pytest.mark.parametrize(("endpoint", "param"), [(endpoint, endpoint.prompt_fields[0]) for endpoint in Endpoint])
def test_other_words_for_a_prompt_that_is_too_long(
    message: str, limit: str | None, count: str | None, endpoint: Endpoint, param: str
) -> None:
    fault = fault_at(400, nested(message), endpoint=endpoint)
    assert (fault.kind, fault.param) == (Kind.CONTEXT_TOO_LONG, param)
    assert re.findall(r"\d+", fault.message.replace(param, "")) == [n for n in (limit, count) if n]


def test_a_newer_wording_for_too_many_output_tokens() -> None:
    text = (
        "'max_tokens' or 'max_completion_tokens' is too large: 5000. This model's maximum context length is 2048 tokens and your "
        "request has 14 input tokens (5000 > 2048 - 14)."
    )
    fault = fault_from_reply(400, nested(text))
    assert (fault.kind, fault.param) == (Kind.INVALID_VALUE, "max_tokens")
    assert "5000" in fault.message
    assert "2048" in fault.message


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(None, 1.0), (b"7", 7.0), (b"0.5", 0.5), (b"0", 1.0), (b"-3", 1.0), (b"nan", 1.0), (b"inf", 120.0), (b"9999", 120.0), (b"Fri", 1.0)],
)
def test_the_engines_own_wait_is_kept_within_reason(header: bytes | None, seconds: float) -> None:
    assert fault_from_reply(503, b"", retry_after=header).retry.after_s == seconds


LEAKS = [
    "Loading failed: /srv/models/llama/config.json",
    "C:\\models\\x",
    'File "server.py", line 5',
    "Traceback (most recent call last)",
    "connect to 10.1.2.3 failed",
    "connect to engine-0:8000 failed",
    "see http://engine.internal",
    "start with --enable-lora",
    "at 0x7f3a2c",
    "{'role': 'user'}",
    "The model secret-name is sleeping",
    "adapter secret-name is gone",
    "{{ messages[0] }} is undefined",
    "x" * (MAX_PASSED_CHARS + 1),
    "café",
    "\x1b[31mred",
]


@pytest.mark.parametrize("message", LEAKS)
def test_sentences_that_may_hold_internals_stay_inside(message: str) -> None:
    for body in (nested(message), nested(f"Grammar error: {message}"), message.encode(), json.dumps({"detail": message}).encode()):
        assert message not in fault_from_reply(400, body).message


def test_names_of_served_models_stay_inside() -> None:
    body = nested("qwen-prod takes no more than 3 items.")
    assert "qwen-prod" in fault_from_reply(400, body).message
    assert "qwen-prod" not in fault_from_reply(400, body, served=("qwen-prod",)).message


def test_a_plain_sentence_goes_through() -> None:
    assert fault_from_reply(400, nested("min_p must be between 0 and 1")).message == "min_p must be between 0 and 1"


@pytest.mark.parametrize(
    ("param", "shown"),
    [
        ("body.messages", "messages"),
        ("body.messages.0.role", "messages[0].role"),
        ("messages[2].content", "messages[2].content"),
        ("body.messages.0.ChatCompletionUserMessageParam.content", "messages[0]"),
        ("body", None),
        ("body.1", None),
        ("../etc", None),
        ("a b", None),
        ("", None),
    ],
)
def test_paths_of_fields(param: str, shown: str | None) -> None:
    assert fault_from_reply(400, nested("x{}", param=param)).param == shown


def test_the_first_place_of_a_fastapi_error_is_named() -> None:
    fault = fault_from_reply(422, b'{"detail":[{"loc":["body","messages",0,"role"],"input":"the prompt","msg":"bad"}]}')
    assert fault.param == "messages[0].role"
    assert "the prompt" not in fault.message + (fault.detail or "")


@given(st.sampled_from([400, 401, 404, 413, 422, 429, 500, 503]), st.binary(max_size=300) | st.text(max_size=300).map(nested))
def test_anything_becomes_a_fault(status: int, body: bytes) -> None:
    fault = fault_from_reply(status, body)
    assert fault.message.isprintable()
    assert fault.message.isascii()
    assert len(fault.message) <= MAX_PASSED_CHARS + 60


PROVIDERS: list[tuple[int, dict[str, object]]] = [
    (
        400,
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": "Your credit balance is too low to access the API. Please go to Plans & Billing to upgrade.",
            },
        },
    ),
    (
        429,
        {
            "error": {
                "message": "You exceeded your current quota, please check your plan and billing details.",
                "type": "insufficient_quota",
                "param": None,
                "code": "insufficient_quota",
            }
        },
    ),
    (
        400,
        {
            "error": {
                "message": "Billing hard limit has been reached",
                "type": "invalid_request_error",
                "code": "billing_hard_limit_reached",
            }
        },
    ),
    (402, {"error": {"message": "Insufficient Balance", "type": "unknown_error", "code": "invalid_request_error"}}),
    (402, {"error": {"message": "Insufficient credits. Add more using the provider's page", "code": 402}}),
    (
        429,
        {
            "error": {
                "message": "Your account is not active, please check your billing details on our website.",
                "code": "billing_not_active",
            }
        },
    ),
    (400, {"code": "Arrearage", "message": "Access denied, please make sure your account is in good standing."}),
    (403, {"error": {"message": "The account is out of credit.", "code": "insufficient_quota"}}),
]


@pytest.mark.parametrize(("status", "body"), PROVIDERS)
def test_the_operators_account_at_a_provider_is_no_mistake_of_the_caller(status: int, body: dict[str, object]) -> None:
    fault = fault_from_reply(status, json.dumps(body).encode(), retry_after=b"60")
    assert (fault.kind, fault.source, fault.message) == (Kind.ENGINE_ERROR, Source.ENGINE, "The engine serving this request failed.")
    assert (fault.param, fault.code, fault.retry) == (None, None, NEVER)
    assert fault.kind in ELSEWHERE
    assert fault.detail == f"engine answered {status}: the account at its provider has no credit or quota left"


@pytest.mark.parametrize("message", ["'Your credit balance is too low' is not a valid role", "max_tokens must be above the quota of 5"])
def test_words_of_the_caller_do_not_look_like_the_operators_account(message: str) -> None:
    assert fault_from_reply(400, nested(message)).source is Source.CALLER
