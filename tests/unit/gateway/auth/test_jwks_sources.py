"""Where keys are read from, and what of it is refused. Fetching itself is `tests/wire/test_tokens.py`'s."""

import json
from pathlib import Path
from typing import Any

import pytest

from backends.fetch import FetchedReply
from gateway.auth.jwks import WELL_KNOWN, JwksDiscovery, JwksFile, JwksUrl
from tenancy.jwt_keys import MAX_DOCUMENT_BYTES, JwksError

ISSUER = "https://login.example.com/realms/llm"


class Web:
    """Answers by URL, and remembers what was asked."""

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, FetchedReply] = answers
        self.asked: list[str] = []

    async def __call__(self, url: str) -> FetchedReply:
        self.asked.append(url)
        return self.answers.get(url, FetchedReply(404, {}, b""))


def web(discovered: Any, keys: bytes = b"keys") -> Web:
    body = discovered if isinstance(discovered, bytes) else json.dumps(discovered).encode()
    made = Web()
    made.answers = {ISSUER + WELL_KNOWN: FetchedReply(200, {}, body), "https://keys.example.com/jwks?v=1": FetchedReply(200, {}, keys)}
    return made


async def test_keys_are_where_the_discovery_document_says() -> None:
    made = web({"issuer": ISSUER, "jwks_uri": "https://keys.example.com/jwks?v=1", "more": []})
    assert await JwksDiscovery(ISSUER, made).read() == b"keys"
    assert made.asked == [ISSUER + "/.well-known/openid-configuration", "https://keys.example.com/jwks?v=1"]


@pytest.mark.parametrize(
    ("discovered", "says"),
    [
        ({"issuer": "https://evil.example", "jwks_uri": "https://keys.example.com/jwks?v=1"}, "another issuer's"),
        ({"issuer": ISSUER + "/", "jwks_uri": "https://keys.example.com/jwks?v=1"}, "another issuer's"),
        ({"issuer": ISSUER}, "no issuer and jwks_uri"),
        ({"issuer": ISSUER, "jwks_uri": 7}, "no issuer and jwks_uri"),
        ({"issuer": ISSUER, "jwks_uri": "http://keys.example.com/jwks"}, "could be changed on its way"),
        ({"issuer": ISSUER, "jwks_uri": "http://169.254.169.254/latest"}, "could be changed on its way"),
        ({"issuer": ISSUER, "jwks_uri": "https://169.254.169.254/latest"}, "metadata"),
        ({"issuer": ISSUER, "jwks_uri": "https://metadata.google.internal/"}, "metadata"),
        ({"issuer": ISSUER, "jwks_uri": "file:///etc/passwd"}, "no address"),
        ({"issuer": ISSUER, "jwks_uri": "https://keys.example.com\\@127.0.0.1/"}, "no address"),
        ({"issuer": ISSUER, "jwks_uri": "https://a@127.0.0.1/"}, "no address"),
        (b"<html>", "no issuer and jwks_uri"),
        (b"[" * 100_000, "no issuer and jwks_uri"),
        (b"\xff", "no issuer and jwks_uri"),
    ],
    ids=lambda value: str(value)[:50],
)
async def test_discovery_documents_that_lead_nowhere(discovered: Any, says: str) -> None:
    made = web(discovered)
    with pytest.raises(JwksError, match=says):
        await JwksDiscovery(ISSUER, made).read()
    assert len(made.asked) == 1, "nothing that was refused is asked"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (FetchedReply(302, {b"location": b"https://evil.example"}, b""), "redirects are not followed"),
        (FetchedReply(500, {}, b""), "answers 500"),
        (FetchedReply(200, {b"content-encoding": b"gzip"}, b""), "compressed"),
    ],
)
async def test_other_answers_are_said(answer: FetchedReply, says: str) -> None:
    made = Web()
    made.answers = {"https://a/k": answer}
    with pytest.raises(JwksError, match=says):
        await JwksUrl("https://a/k", made).read()
    assert made.asked == ["https://a/k"]


async def test_a_file_is_read_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(b"x" * (2 * MAX_DOCUMENT_BYTES))
    assert len(await JwksFile(path).read()) == MAX_DOCUMENT_BYTES + 1
    with pytest.raises(OSError, match="No such file"):
        await JwksFile(tmp_path / "nowhere").read()
