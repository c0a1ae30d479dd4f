"""What may not leave with an engine's sentence never does, wherever it stands; what helps the caller stays."""

import json
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.dialects.errors import fault_from_reply
from backends.dialects.explanations import MAX_PASSED_CHARS, explained
from backends.dialects.redaction import READ_CHARS, redacted
from domain.ask import Endpoint

SERVED, OTHERS = ("acme/base-v2",), ("globex", "globex-lora", "gpu-alpha.corp", "org/private")

LEAKS: Final[list[tuple[str, str]]] = [
    ("The template at </data/acme/x> is missing", "acme"),
    ("The template at (/data/acme/x) is missing", "acme"),
    ("Cannot open file '/data/my acme/x y.bin' for reading", "acme"),
    ("Cannot open C:\\data\\acme for reading", "acme"),
    ("Cannot open \\\\share\\acme for reading", "acme"),
    ("Could not read ~/acme/weights for this request", "acme"),
    ("Could not reach 2001:db8::5 for this request", "db8"),
    ("Could not reach [2001:db8::5]:8000 for this request", "db8"),
    ("Could not reach fe80::1%eth7 for this request", "fe80"),
    ("Could not reach ::ffff:10.1.2.3 for this request", "10.1"),
    ("Could not reach 10.1.2.3 for this request", "10.1"),
    ("Could not reach HTTP://Acme.Internal/x for this request", "cme"),
    ("Could not reach gRPC+TLS://acme,internal/x for this request", "internal"),
    ("The connection failed: host='acme', port=8017", "acme"),
    ("The connection failed: host='acme', port=8017", "8017"),
    ('The connection failed: "host": "acme"', "acme"),
    ("The connection failed: Host = acme now", "acme"),
    ("Cannot connect to ('10.1.2.3', 8017) for this request", "8017"),
    ("Could not reach 3node:8000 for this request", "3node"),
    ("Could not reach 7gpu.acme.corp for this request", "acme"),
    ("Could not reach gpu_box:8000 for this request", "gpu_box"),
    ("Wrong header Authorization: Bearer sk-acme was sent", "acme"),
    ("Wrong header Bearer qwertz was sent", "qwertz"),
    ("The token hf_AbcDefGhiJkl is not valid", "hf_"),
    ("The token hf_abcdefghijkl is not valid", "hf_"),
    ("The key sk-live-acme is not valid", "sk-"),
    ("Variable AWS_SECRET_ACCESS_KEY=acme is not valid", "acme"),
    ("Variable AWS_SECRET_ACCESS_KEY=acme is not valid", "AWS"),
    ("Variable ACME_DB_URL=x is not valid", "ACME"),
    ("Variable ACME_API_TOKEN is not valid", "ACME"),
    ("There is no /v1/models/acme on this server", "acme"),
    ("There is no /v1/models/globex/x on this server", "globex"),
    ("Adapter acme is not loaded", "acme"),
    ("The adapter acme was not found", "acme"),
    ("There is no LoRA adapter acme", "acme"),
    ("There is no adapter named 'acme'", "acme"),
    ("The tokenizer of GLOBEX-LORA has no template", "LORA"),
    ("The tokenizer of globex has no template", "globex"),
    ("The tokenizer of acme/base-v2 has no template", "base"),
    ("The tokenizer of Acme/Base-v2 has no template", "ase-v2"),
    ("Wrong value {'a': {'b': 'acme'}, 'c': 'acme'} in the request", "acme"),
    ('Wrong value {"a": {"b": ["acme", {"c": 1}]}} in the request', "acme"),
    ("Wrong value {'a': {'b': 'acme in the request", "acme"),
    ("Wrong mail bob@acme.com in the request", "acme"),
    ("Wrong value data:image/png;base64,AcmeAcme in the request", "Acme"),
    ("Failed with password: acme in the request", "acme"),
    ("Failed with api_key='acme' in the request", "acme"),
    ("Failed with x-api-key: acme in the request", "acme"),
    ("Failed at acme::server::run in the request", "acme"),
    ("Failed at acme.engine.run in the request", "acme"),
    ("Failed with caf\u00e9-acme in the request", "acme"),
    ("Failed with 6f1e9a77-3d5c-4a9e-8f00-5d5cf3f0a111 in the request", "6f1e"),
    ("Failed with AKIAIOSFODNN7EXAMPLE in the request", "AKIA"),
    ("Failed with eyJhbGciOi.eyJzdWIiOi.c2ln in the request", "eyJ"),
]

HARMLESS: Final[list[str]] = [
    "max_tokens:5000 is larger than the limit of 4,096",
    "The content type must be application/json",
    "The image must be image/png or image/jpeg, not image/svg+xml",
    "Expected audio/wav, got audio/*",
    "Use /v1/chat/completions for messages",
    "Send it to /v1/rerank instead.",
    "messages[0].content[1].type must be 'text'",
    "messages.0.role must be one of 'user', 'assistant', 'tool'",
    "temperature must be in [0, 2], got -0.5",
    "top_p=1.5 is not in (0, 1]",
    "Set stream=False or n=1",
    "The tool 'get_weather' has no parameters",
    "The tool get_weather2 has no parameters",
    "Images of 1024x768 are larger than 20MB",
    "The file takes 12.5% of 10 MiB after 30s",
    "Expecting ',' delimiter: line 1 column 25 (char 24)",
    "Conversation roles must alternate user/assistant/user/assistant/...",
    "You can't use both and/or neither of them",
    "'utf-8' codec can't decode byte 0xff in position 0",
    "seed must be between -2**63 and 2**63 - 1",
    "The ratio must be 16:9 or 1:1",
    "Invalid escape '\\d' in regex",
    "ChatCompletionRequest has no field foo_bar",
    "response_format.json_schema.schema is missing",
    "LoRA adapter is not enabled",
    "This model is not supported, see the model list",
    "A date has the form 2026-11-23",
]

SECRETS: Final = st.one_of(
    st.from_regex(r"[a-z0-9]{2,8}(-[a-z0-9]{1,6}){0,2}:[1-9][0-9]{1,4}", fullmatch=True).filter(lambda s: any(c.isalpha() for c in s)),
    st.from_regex(r"[a-z0-9]{2,8}\.(corp|internal|local|example\.net)", fullmatch=True),
    st.from_regex(r"(https?|HTTPS?|Grpc|redis|s3)://[a-z0-9.@:/?&=,;-]{3,40}", fullmatch=True),
    st.ip_addresses().map(str),
    st.ip_addresses(v=6).map(lambda ip: f"[{ip}]:8000"),
    st.from_regex(r"(~|\.|\.\.)?/[a-z]{2,9}(/[\w.-]{2,12}){1,4}", fullmatch=True).filter(
        lambda s: s.isascii() and not s.startswith("/v1/")
    ),
    st.from_regex(r"[A-Z]:\\[a-z]{2,9}(\\[a-z]{2,9}){1,3}", fullmatch=True),
    st.from_regex(r"(sk-|sk-proj-|hf_|ghp_|gw_live_|glpat-|xoxb-|AKIA)[A-Za-z0-9]{16,40}", fullmatch=True).filter(str.isascii),
    st.from_regex(r"[a-f0-9]{32}", fullmatch=True).filter(lambda s: not s.isalpha() and not s.isdigit()),
    st.uuids().map(str),
    st.from_regex(r"[A-Za-z0-9+/]{38}==", fullmatch=True).filter(lambda s: any(c.isdigit() for c in s[:24])),
    st.from_regex(r"Bearer [A-Za-z0-9._-]{12,40}", fullmatch=True).filter(lambda s: any(c.isdigit() for c in s)),
    st.from_regex(r"(host|server|path|password|api_key|url)=[a-z]{4,12}", fullmatch=True),
    st.from_regex(r"[A-Z]{3,8}_[A-Z]{3,8}_(KEY|TOKEN|URL)=[a-z0-9]{4,12}", fullmatch=True),
    st.from_regex(r"\{'[a-z]{3}': \{'[a-z]{3}': '[a-z]{5,9}'\}\}", fullmatch=True),
    st.from_regex(r"[a-z]{4,9}/[A-Za-z0-9.-]{3,12}-[0-9]{1,2}[bB]", fullmatch=True),
    st.sampled_from(OTHERS),
)
WORDS: Final = st.sampled_from(
    [
        "the",
        "value",
        "of",
        "messages[0].content",
        "must",
        "be",
        "a",
        "string,",
        "not",
        "5",
        "(see",
        "'role')",
        "max_tokens=5",
        "in",
        "this",
        "one.",
    ]
)
AROUND: Final = st.sampled_from(
    [("", ""), ("'", "'"), ("<", ">"), ("(", ")"), ("`", "`"), ('"', '"'), ("[", "]"), ("", "."), ("", ","), (": ", ";")]
)


def pieces(secret: str) -> list[str]:
    """The parts of a secret that tell something: every run of four letters and digits which is no key's name."""
    for mark in ("Bearer ", "http://", "https://", "redis://", "s3://", "grpc://"):
        if secret.lower().startswith(mark.lower()):
            secret = secret[len(mark) :]
    if "=" in secret.rstrip("="):
        secret = secret.partition("=")[2]
    words = "".join(char if char.isalnum() else " " for char in secret).split()
    return [word for word in words if len(word) >= 4] or [secret]


@pytest.mark.parametrize(("text", "secret"), LEAKS)
def test_nothing_of_the_deployment_leaves(text: str, secret: str) -> None:
    said = explained(text, SERVED, OTHERS)
    assert secret not in (said or "")
    assert said is not None, "the words around it stay"


@pytest.mark.parametrize("text", HARMLESS)
def test_what_helps_the_caller_stays(text: str) -> None:
    assert explained(text, SERVED, OTHERS) == text


def test_typographic_quotes_are_plain_ones() -> None:
    assert (
        explained("The \u201crole\u201d isn\u2019t one of \u2018user\u2019 \u2014 check it\u2026")
        == "The \"role\" isn't one of 'user' - check it..."
    )


@given(st.lists(WORDS, min_size=2, max_size=12), SECRETS, AROUND, st.integers(0, 12))
def test_a_planted_secret_never_comes_out(words: list[str], secret: str, around: tuple[str, str], at: int) -> None:
    text = " ".join([*words[:at], f"{around[0]}{secret}{around[1]}", *words[at:]])
    said = (explained(text, SERVED, OTHERS) or "").lower()
    plain = " ".join(words).lower()
    for piece in pieces(secret):
        assert piece.lower() not in said or piece.lower() in plain, (text, said)


@given(st.integers(0, 60))
def test_a_secret_that_is_cut_is_not_half_told(back: int) -> None:
    secret = "AcmeSecretKey0123456789abcdefgh"
    text = f"The value is wrong: {'a ' * ((READ_CHARS - 20 - back) // 2)}{secret} and more"
    for told in (text, f"{'[' * 1}x {text}"):
        body = json.dumps({"error": {"message": told}}).encode()
        assert "Acme" not in fault_from_reply(400, body, endpoint=Endpoint.CHAT).message
    sentence = f"The value is wrong {'{' + repr('k') + ': ' + 'x' * back + '}'} {'word ' * 54}{secret} {secret}"
    assert "Acme" not in (explained(sentence) or "")


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": {"detail": "Cannot reach acme now"}}},
        {"error": {"message": "Bad value", "param": {"host": "acme"}}},
        {"error": [{"message": "Cannot reach acme now"}]},
        {"errors": {"a": {"b": "Cannot reach acme now"}}},
        [{"msg": "Cannot reach acme now"}],
    ],
)
def test_an_unknown_layout_is_not_passed_on(body: object) -> None:
    assert "acme" not in fault_from_reply(400, json.dumps(body).encode(), endpoint=Endpoint.CHAT).message


@given(st.text(max_size=400))
def test_any_text_is_one_plain_line_of_bounded_length(text: str) -> None:
    said = explained(text, SERVED, OTHERS)
    assert said is None or (said.isascii() and said.isprintable() and len(said) <= MAX_PASSED_CHARS)


@pytest.mark.parametrize(
    "unit", ["a", "a.", "a-", "{", "{'", "/a", "a/", "a:", "::", "0:", "a=", "host=", "A_", "[", "' ", "\\", "--a", "data:", "x@", "1-"]
)
def test_hostile_text_is_read_to_its_end(unit: str) -> None:
    """A pattern that runs back and forth would take minutes, and the test's time limit ends it."""
    text = (unit * READ_CHARS)[:READ_CHARS]
    assert len(redacted(text, OTHERS)) <= 5 * READ_CHARS
    assert len(explained("a b " + text[:-4], SERVED, OTHERS) or "") <= MAX_PASSED_CHARS
