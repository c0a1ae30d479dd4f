"""The authorisation-code flow: what the cookie holds, what is checked on the way back, and what the provider is asked."""

import itertools
import json
from base64 import b64decode, urlsafe_b64encode
from hashlib import sha256, sha512
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec
import pytest

from backends.fetch import FetchedReply, FetchError
from gateway.auth.jwks import Discovered
from gateway.console.oidc import (
    ANEW_S,
    DISCOVERY_S,
    SIGN_IN_S,
    STARTS_AT_ONCE,
    PersonsToken,
    ProviderSignIn,
    RegisteredClient,
    SignInRefused,
)
from gateway.console.session import CookieSeal
from tests.issuer import ISSUER, NOW, part

CLIENT = RegisteredClient(
    ISSUER, "console", "s:cret", False, "https://gate.example.com/console/callback", ("openid", "groups"), "id_token", "Example"
)
ENDPOINTS = Discovered(ISSUER, f"{ISSUER}/keys", f"{ISSUER}/auth?kc=1", f"{ISSUER}/token")


class World:
    """A provider that answers as a test says, and a clock."""

    def __init__(self, client: RegisteredClient = CLIENT) -> None:
        self.client = client
        self.now = NOW
        self.document: Discovered | Exception = ENDPOINTS
        self.read = 0
        self.status = 200
        self.body: bytes | Exception | None = None
        """What the token endpoint answers; None for a good token."""
        self.claims: dict[str, Any] = {}
        self.nonce = ""
        self.asked: list[tuple[str, dict[str, str], str | None]] = []
        self._numbers = itertools.count()

    def flow(self, pepper: bytes = b"p" * 32) -> ProviderSignIn:
        """The flow in one process."""
        seal = CookieSeal(pepper, self._entropy, b"test")
        return ProviderSignIn(self.client, seal, self._discover, self._ask, self._entropy, (lambda: self.now, lambda: self.now))

    def _entropy(self, length: int) -> bytes:
        return sha512(b"%d" % next(self._numbers)).digest()[:length]

    async def _discover(self) -> Discovered:
        self.read += 1
        if isinstance(self.document, Exception):
            raise self.document
        return self.document

    async def _ask(self, url: str, form: bytes, authorization: str | None) -> FetchedReply:
        self.asked.append((url, {name: values[0] for name, values in parse_qs(form.decode()).items()}, authorization))
        if isinstance(self.body, Exception):
            raise self.body
        claims = {"iss": ISSUER, "aud": "console", "exp": self.now + 300, "nonce": self.nonce} | self.claims
        body = self.body if self.body is not None else json.dumps({"id_token": f"{part({})}.{part(claims)}.c2ln"}).encode()
        return FetchedReply(self.status, {}, body)

    async def begun(self, flow: ProviderSignIn) -> tuple[dict[str, str], str]:
        """The query of the provider's address, and the cookie."""
        where, cookie = await flow.begin("gate.example.com")
        query = {name: values[0] for name, values in parse_qs(urlsplit(where).query).items()}
        self.nonce = query["nonce"]
        return query, cookie


async def refusal(flow: ProviderSignIn, query: dict[str, str], cookie: str | None) -> tuple[int, str]:
    with pytest.raises(SignInRefused) as refused:
        await flow.finish(query, cookie)
    return refused.value.status, refused.value.reason


async def test_the_browser_carries_a_challenge_and_the_cookie_its_verifier() -> None:
    world = World()
    query, cookie = await world.begun(world.flow())
    assert query["kc"] == "1", "the endpoint's own query stays"
    assert (query["response_type"], query["scope"], query["redirect_uri"]) == ("code", "openid groups", CLIENT.redirect_url)
    # another process with the same pepper finishes it
    credential = await world.flow().finish({"code": "c", "state": query["state"], "iss": ISSUER}, cookie)
    assert credential.until_unix == NOW + 300
    [(url, form, authorization)] = world.asked
    assert url == ENDPOINTS.token_endpoint
    assert authorization is not None
    assert unquote(b64decode(authorization.removeprefix("Basic ")).decode()) == "console:s:cret"
    challenge = urlsafe_b64encode(sha256(form["code_verifier"].encode()).digest()).rstrip(b"=").decode()
    assert (form["grant_type"], form["code"], challenge) == ("authorization_code", "c", query["code_challenge"])
    assert "client_secret" not in form
    secrets = (form["code_verifier"], query["state"], query["nonce"])
    assert not any(secret in cookie for secret in secrets)
    assert form["code_verifier"] not in query.values()
    assert len(set(secrets)) == 3
    assert all(len(secret) >= 43 for secret in secrets)


async def test_the_secret_may_be_in_the_form_and_a_public_client_has_none() -> None:
    for client, sent in (
        (msgspec.structs.replace(CLIENT, in_body=True), {"client_id": "console", "client_secret": "s:cret"}),
        (msgspec.structs.replace(CLIENT, secret=""), {"client_id": "console"}),
    ):
        world = World(client)
        query, cookie = await world.begun(world.flow())
        await world.flow().finish({"code": "c", "state": query["state"]}, cookie)
        [(_, form, authorization)] = world.asked
        assert authorization is None
        assert {name: value for name, value in form.items() if name.startswith("client_")} == sent


async def test_no_cookie_a_foreign_one_and_a_late_one_are_told_apart_from_a_good_one() -> None:
    world = World()
    query, cookie = await world.begun(world.flow())
    back = {"code": "c", "state": query["state"]}
    assert await refusal(world.flow(), back, None) == (400, "cookie")
    assert await refusal(world.flow(), back, cookie[:-6] + "AAAAAA") == (400, "cookie")
    assert await refusal(world.flow(b"q" * 32), back, cookie) == (400, "cookie")
    assert await refusal(world.flow(), {**back, "state": "é"}, cookie) == (400, "state")
    assert await refusal(world.flow(), {"code": "c"}, cookie) == (400, "state")
    assert await refusal(world.flow(), {"state": query["state"]}, cookie) == (400, "code")
    assert await refusal(world.flow(), {**back, "code": "c" * 5000}, cookie) == (400, "code")
    assert await refusal(world.flow(), {**back, "iss": "https://evil.example"}, cookie) == (400, "issuer")
    assert await refusal(world.flow(), {**back, "error": "access_denied"}, cookie) == (403, "provider_refused")
    assert world.asked == [], "the provider was asked nothing"
    world.now += SIGN_IN_S
    assert await refusal(world.flow(), back, cookie) == (400, "late")


@pytest.mark.parametrize(
    ("status", "body", "claims", "refused"),
    [
        (200, None, {"nonce": "another"}, (400, "nonce")),
        (200, None, {"nonce": None}, (400, "nonce")),
        (200, None, {"aud": "another"}, (502, "id_token")),
        (200, None, {"aud": ["console", "b"], "azp": "b"}, (502, "id_token")),
        (200, None, {"iss": "https://evil.example"}, (502, "id_token")),
        (200, None, {"exp": "soon"}, (502, "token_form")),
        (200, b"{}", {}, (502, "no_id_token")),
        (200, b'{"id_token": "a.b.c"}', {}, (502, "id_token")),
        (400, b'{"error": "invalid_grant"}', {}, (400, "code")),
        (401, b'{"error": "invalid_client"}', {}, (502, "client")),
        (302, b"", {}, (503, "provider_away")),
        (500, b"[" * 10_000, {}, (503, "provider_away")),
        (200, FetchError("gone"), {}, (503, "provider_away")),
    ],
    ids=str,
)
async def test_what_the_token_endpoint_answers_is_checked(
    status: int, body: bytes | Exception | None, claims: dict[str, Any], refused: tuple[int, str]
) -> None:
    world = World()
    world.status, world.body, world.claims = status, body, claims
    query, cookie = await world.begun(world.flow())
    assert await refusal(world.flow(), {"code": "c", "state": query["state"]}, cookie) == refused


async def test_the_access_token_may_be_the_credential() -> None:
    world = World(msgspec.structs.replace(CLIENT, token="access_token"))
    query, cookie = await world.begun(world.flow())
    own = f"{part({})}.{part({'iss': ISSUER, 'aud': 'console', 'nonce': query['nonce'], 'exp': NOW + 900})}.c2ln"
    access = f"{part({})}.{part({'exp': NOW + 60})}.c2ln"
    world.body = json.dumps({"id_token": own, "access_token": access}).encode()
    assert await world.flow().finish({"code": "c", "state": query["state"]}, cookie) == PersonsToken(access, NOW + 60)
    world.body = json.dumps({"id_token": own, "access_token": "opaque"}).encode()
    assert await refusal(world.flow(), {"code": "c", "state": query["state"]}, cookie) == (502, "token_form")


async def test_a_console_at_another_host_is_told_where_to_go() -> None:
    with pytest.raises(SignInRefused, match=r"sends people back to gate\.example\.com") as refused:
        await World().flow().begin("127.0.0.1:8081")
    assert refused.value.status == 421


@pytest.mark.parametrize(
    "document",
    [
        OSError("refused"),
        FetchError("no answer"),
        Discovered(ISSUER, f"{ISSUER}/keys"),
        Discovered(ISSUER, f"{ISSUER}/keys", f"{ISSUER}/auth", "http://10.0.0.1/token"),
    ],
    ids=str,
)
async def test_a_provider_that_is_away_is_asked_again_after_a_while(document: Discovered | Exception) -> None:
    world = World()
    world.document = document
    flow = world.flow()
    for _ in range(3):
        with pytest.raises(SignInRefused) as refused:
            await flow.begin("gate.example.com")
        assert (refused.value.status, refused.value.reason) == (503, "provider_away")
    assert world.read == 1
    world.now += ANEW_S
    world.document = ENDPOINTS
    for _ in range(3):
        await flow.begin("gate.example.com")
    assert world.read == 2
    world.now += DISCOVERY_S
    await flow.begin("gate.example.com")
    assert world.read == 3


async def test_strangers_do_not_make_the_gateway_ask_the_provider_at_will() -> None:
    world = World()
    flow = world.flow()
    query, cookie = await world.begun(flow)
    back = {"code": "c", "state": query["state"]}
    for _ in range(int(STARTS_AT_ONCE)):
        await flow.finish(back, cookie)
    assert await refusal(flow, back, cookie) == (429, "too_many")
    assert len(world.asked) == STARTS_AT_ONCE
    world.now += 1
    await flow.finish(back, cookie)
