"""Sessions of the console: what a cookie holds, whom it lets in, and on which requests it counts."""

import itertools
from hashlib import sha512
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from gateway.console.session import (
    COOKIE,
    HEADER,
    MAX_CREDENTIAL_CHARS,
    SESSION_S,
    ConsoleSessions,
    CookieSeal,
    SessionSeal,
    cookie_for,
    own_request,
)

PEPPER = b"p" * 32


class Wall:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def seal(wall: Wall | None = None, pepper: bytes = PEPPER) -> SessionSeal:
    numbers = itertools.count()
    return SessionSeal(pepper, lambda length: sha512(b"%d" % next(numbers)).digest()[:length], wall or Wall())


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=MAX_CREDENTIAL_CHARS))
def test_a_sealed_credential_opens_again_and_fits_a_cookie(credential: str) -> None:
    sealer = seal()
    value = sealer.seal(credential)
    assert sealer.open(value) == credential
    assert len(f"{COOKIE}={value}") <= 4096
    assert credential not in value or len(credential) < 6


def test_a_session_ends_after_its_time() -> None:
    wall = Wall()
    sealer = seal(wall)
    value = sealer.seal("token")
    wall.now += SESSION_S - 1
    assert sealer.open(value) == "token"
    wall.now += 1
    assert sealer.open(value) is None


def test_a_session_ends_with_its_credential() -> None:
    wall = Wall()
    sealer = seal(wall)
    value = sealer.seal("token", wall.now + 60)
    assert (sealer.length_s(wall.now + 60), sealer.length_s(wall.now + 1e9), sealer.length_s(1.0)) == (60, SESSION_S, 0)
    wall.now += 59
    assert sealer.open(value) == "token"
    wall.now += 1
    assert sealer.open(value) is None


def test_a_value_for_another_purpose_does_not_open() -> None:
    one, other = (CookieSeal(PEPPER, lambda length: b"e" * length, purpose) for purpose in (b"one", b"other"))
    assert one.open(one.seal(b"text")) == b"text"
    assert other.open(one.seal(b"text")) is None


@given(st.binary(max_size=200), st.data())
def test_no_damaged_or_foreign_value_opens(noise: bytes, data: st.DataObject) -> None:
    sealer = seal()
    value = sealer.seal("token")
    at = data.draw(st.integers(0, len(value) - 1))
    other = data.draw(st.sampled_from("ABCDEFGHabcdefgh01234567-_").filter(lambda char: char != value[at]))
    damaged = value[:at] + other + value[at + 1 :]
    # the last character of base64 has bits that mean nothing
    assert sealer.open(damaged) is None or at >= len(value) - 2
    assert sealer.open(noise.decode("latin-1")) is None
    assert seal(pepper=b"q" * 32).open(value) is None


def test_the_cookie_is_kept_from_scripts_other_sites_and_plain_connections() -> None:
    assert cookie_for("x", secure=True) == f"{COOKIE}=x; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict; Secure"
    assert "Max-Age=0" in cookie_for("", secure=False)


@pytest.mark.parametrize(
    ("headers", "own"),
    [
        ({HEADER: "1"}, True),
        ({HEADER: "1", "sec-fetch-site": "same-origin", "origin": "http://gate:8081", "host": "gate:8081"}, True),
        ({HEADER: "1", "origin": "https://gate:8081", "host": "gate:8081"}, True),
        ({}, False),
        ({HEADER: "1", "sec-fetch-site": "cross-site"}, False),
        ({HEADER: "1", "sec-fetch-site": "same-site"}, False),
        ({HEADER: "1", "origin": "http://evil", "host": "gate:8081"}, False),
        ({HEADER: "1", "origin": "null", "host": "gate:8081"}, False),
        ({HEADER: "1", "origin": "http://gate:9", "host": "gate:8081"}, False),
    ],
)
def test_only_requests_of_the_own_pages_count(headers: dict[str, str], own: bool) -> None:
    assert own_request(Headers(headers)) is own


async def asked(
    headers: dict[str, str], path: str = "/admin/v1/self", sealer: SessionSeal | None = None
) -> tuple[int, Scope | None, dict[str, str]]:
    """The status of a request, the request as the app behind got it, and the headers of the answer."""
    reached: list[Scope] = []
    sent: list[Message] = []

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        reached.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        sent.append(message)

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": path, "scheme": "http", "query_string": b"", "headers": raw}
    await ConsoleSessions(app, sealer or seal())(scope, receive, send)
    answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], reached[0] if reached else None, answered


async def test_a_session_stands_for_its_credential_and_the_cookie_goes_no_further() -> None:
    sealer = seal()
    status, scope, answer = await asked({HEADER: "1", "cookie": f"a=b; {COOKIE}={sealer.seal('the-token')}"}, sealer=sealer)
    assert status == 200
    assert scope is not None
    assert Headers(scope=scope)["authorization"] == "Bearer the-token"
    assert "cookie" not in Headers(scope=scope)
    assert answer["cache-control"] == "no-store"


async def test_a_program_with_a_key_passes_as_it_is() -> None:
    for headers in ({"authorization": "Bearer x"}, {}, {"cookie": "other=1"}):
        status, scope, _ = await asked(headers)
        assert (status, dict(Headers(scope=scope) if scope else {})) == (200, headers)


async def test_a_session_that_is_over_is_refused_and_its_cookie_ends() -> None:
    status, scope, answer = await asked({HEADER: "1", "cookie": f"{COOKIE}=nonsense"})
    assert (status, scope) == (401, None)
    assert "Max-Age=0" in answer["set-cookie"]


@pytest.mark.req("R34")
async def test_a_foreign_page_neither_reads_nor_changes_anything_with_the_cookie() -> None:
    sealer = seal()
    cookie = f"{COOKIE}={sealer.seal('the-token')}"
    for headers in ({"cookie": cookie}, {"cookie": cookie, HEADER: "1", "sec-fetch-site": "cross-site"}):
        status, scope, _ = await asked(headers, sealer=sealer)
        assert (status, scope) == (403, None)
    status, scope, _ = await asked({"cookie": cookie}, "/console/app.js", sealer)
    assert status == 200
    assert scope is not None
    assert "authorization" not in Headers(scope=scope)
