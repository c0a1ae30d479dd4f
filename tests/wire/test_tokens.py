"""Tokens through the whole gateway, with a real issuer on loopback: good ones serve, bad ones get one answer, keys change and go away."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from gateway.telemetry.access_log import line_of
from gateway.telemetry.families import NONE, TOKEN_CHECKS, TOKEN_OUTCOMES
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tests.gateway_harness import Gateway, chat, gateway
from tests.issuer import Issuer, Signer, claims_of, document, issuer, signer
from tests.timing import HANG_S
from tests.token_vectors import broken, forged

ONE, TWO = signer("k1"), signer("k2", number=1)


def auth(url: str, **changes: Any) -> dict[str, Any]:
    entry = {
        "issuer": url,
        "audiences": ["tidegate"],
        "tenant": {"claim": ["tenant"]},
        "user": ["sub"],
        "jwks": {"unknown_key_s": 1.0},
    }
    return {"jwt": [entry | changes]}


def token(by: Signer, url: str, **claims: Any) -> str:
    return by.token(**claims_of(time.time()) | {"iss": url} | claims)


@asynccontextmanager
async def served(*signers: Signer, **changes: Any) -> AsyncIterator[tuple[Gateway, Issuer, httpx.AsyncClient]]:
    async with issuer(*signers) as idp, SimEngine(SimSettings(models=("sim",), speed=1000)) as engine:
        async with gateway(engine.url, auth=auth(idp.url, **changes)) as running:
            async with httpx.AsyncClient(base_url=running.url, trust_env=False, timeout=20) as client:
                yield running, idp, client


async def models(client: httpx.AsyncClient, credential: str, header: str = "authorization") -> httpx.Response:
    value = credential if header == "x-api-key" else f"Bearer {credential}"
    return await client.get("/v1/models", headers={header: value.encode("utf-8")})


def counted(running: Gateway) -> dict[tuple[str, str], float]:
    rows = running.metrics.snapshot().families[TOKEN_CHECKS.name]
    return {(labels[0], word): n for labels, cell in rows for word, n in zip(TOKEN_OUTCOMES, cell, strict=True) if n}


async def test_a_token_serves_like_a_key_and_keys_go_on_serving() -> None:
    async with served(ONE) as (running, idp, client):
        mine = token(ONE, idp.url)
        for _ in range(3):
            reply = await client.post("/v1/chat/completions", json=chat(), headers={"authorization": f"Bearer {mine}"})
            assert reply.status_code == 200
        assert (await models(client, mine, "x-api-key")).status_code == 200
        assert (await models(client, running.keys["acme"])).status_code == 200
        records = await running.recorded(5)
        assert {record.tenant for record in records} == {"acme"}
        assert records[0].key_id.startswith("jwt:")
        assert {record.user for record in records} == {"user-1", ""}
        assert b"user-1" not in b"".join(map(line_of, records)), "the log knows digests alone"
        assert counted(running) == {(idp.url, "verified"): 1, (idp.url, "cached"): 3}
    assert idp.asked == ["/.well-known/openid-configuration", "/keys"]


async def test_every_bad_token_gets_the_answer_of_a_bad_key(record_property: pytest.FixtureRequest) -> None:
    async with served(ONE) as (running, idp, client):
        now = time.time()
        vectors = forged(ONE, now, idp.url) | broken(ONE, now, idp.url)
        # a head cannot carry these two at all; the edge says so before anybody looks at tokens
        vectors = {name: bad for name, bad in vectors.items() if len(bad) < 15_000}
        assert len(vectors) >= 100
        reference = await models(client, "gw_live_0000000000_" + "0" * 49)

        def shape(reply: httpx.Response) -> Any:
            varying = {"x-request-id", "x-tidegate-request-id", "openai-processing-ms", "date"}
            return reply.status_code, reply.content, sorted((n, v) for n, v in reply.headers.items() if n not in varying)

        for name, bad in vectors.items():
            reply = await models(client, bad)
            assert shape(reply) == shape(reference), name
        outcomes = {word for _, word in counted(running)}
        assert {"malformed", "unknown_issuer", "algorithm", "unknown_key", "signature", "expired", "not_yet_valid", "too_old"} <= outcomes
        assert {"audience", "claims", "unknown_tenant"} <= outcomes
        assert not {"verified", "cached", "no_keys"} & outcomes
        assert {name for name, _ in counted(running)} <= {idp.url, NONE}
        record_property("figure", f"{len(vectors)} bad tokens, one answer")  # type: ignore[operator]  # pytest's fixture is a function
        assert idp.asked.count("/keys") <= 3, "made-up key names must not cost the issuer one reading each"
        assert (await models(client, token(ONE, idp.url))).status_code == 200


async def test_new_keys_work_from_the_first_token_and_old_ones_end() -> None:
    async with served(ONE, jwks={"unknown_key_s": 1.0, "refresh_s": 10.0}) as (_, idp, client):
        old = token(ONE, idp.url)
        assert (await models(client, old)).status_code == 200
        idp.publish(ONE, TWO)
        await asyncio.sleep(1.05)
        assert (await models(client, token(TWO, idp.url))).status_code == 200
        assert (await models(client, old)).status_code == 200
        idp.publish(TWO)
        await asyncio.sleep(1.05)
        assert (await models(client, token(signer("k3", number=2), idp.url))).status_code == 401
        assert (await models(client, old)).status_code == 401, "its key is gone, so what it verified is forgotten"


async def test_while_the_issuer_is_away_its_last_keys_count() -> None:
    async with served(ONE) as (running, idp, client):
        idp.answers = {path: (503, b"away") for path in idp.answers}
        await asyncio.sleep(1.05)
        assert (await models(client, token(TWO, idp.url))).status_code == 401
        assert (await models(client, token(ONE, idp.url))).status_code == 200
        assert running.deps.tokens is not None
        (state,) = running.deps.tokens.states()
        assert (state.keys, "answers 503" in state.trouble) == (1, True)


async def test_an_issuer_that_was_never_there_is_no_fault_of_the_caller() -> None:
    async with issuer(ONE) as idp:
        idp.answers = {}
        async with gateway(auth=auth(idp.url)) as running:
            async with httpx.AsyncClient(base_url=running.url, trust_env=False, timeout=20) as client:
                reply = await models(client, token(ONE, idp.url))
                assert (reply.status_code, reply.json()["error"]["code"]) == (503, "identity_unavailable")
                assert reply.headers["retry-after"] == "5"
                assert (await models(client, running.keys["acme"])).status_code == 200
                idp.publish(ONE)
                await asyncio.sleep(1.05)
                assert (await models(client, token(ONE, idp.url))).status_code == 200


@pytest.mark.parametrize(
    ("path", "status", "more"),
    [
        ("/keys", 302, b"location: /elsewhere\r\n"),
        ("/.well-known/openid-configuration", 301, b"location: /elsewhere\r\n"),
        ("/keys", 500, b""),
    ],
)
async def test_redirects_are_not_followed(path: str, status: int, more: bytes) -> None:
    async with issuer(ONE) as idp:
        idp.answers |= {path: (status, b""), "/elsewhere": (200, document(ONE))}
        idp.headers[path] = more
        async with gateway(auth=auth(idp.url)) as running:
            async with httpx.AsyncClient(base_url=running.url, trust_env=False, timeout=20) as client:
                assert (await models(client, token(ONE, idp.url))).status_code == 503
        assert "/elsewhere" not in idp.asked


async def test_a_giant_document_is_not_read() -> None:
    async with issuer(ONE) as idp:
        idp.answers["/keys"] = (200, json.dumps({"keys": [ONE.jwk], "more": "x" * 300_000}).encode())
        async with gateway(auth=auth(idp.url)) as running:
            assert running.deps.tokens is not None
            (state,) = running.deps.tokens.states()
            assert "more than 262144 bytes" in state.trouble


async def test_keys_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_bytes(document(ONE))
    name = "https://login.example.com"
    async with gateway(auth=auth(name, jwks={"file": "keys.json"}), base_dir=tmp_path) as running:
        async with httpx.AsyncClient(base_url=running.url, trust_env=False, timeout=20) as client:
            assert (await models(client, token(ONE, name))).status_code == 200


async def test_limits_of_tenant_and_user_count_for_tokens() -> None:
    limits = [
        Limit(Scope(Level.USER, "acme"), Meter.REQUESTS, Window.DAY, 1),
        Limit(Scope(Level.TENANT, "acme"), Meter.REQUESTS, Window.DAY, 2),
    ]
    async with issuer(ONE) as idp, SimEngine(SimSettings(models=("sim",), speed=1000)) as engine:
        async with gateway(engine.url, auth=auth(idp.url), limits=limits) as running:
            async with httpx.AsyncClient(base_url=running.url, trust_env=False, timeout=20) as client:

                async def ask(sub: str, claimed: str) -> int:
                    headers = {"authorization": f"Bearer {token(ONE, idp.url, sub=sub)}"}
                    return (await client.post("/v1/chat/completions", json=chat(user=claimed), headers=headers)).status_code

                assert [await ask(*who) for who in (("a", "x"), ("a", "y"), ("b", "x"), ("c", "x"))] == [200, 429, 200, 429]


async def test_without_issuers_a_token_is_just_a_wrong_key() -> None:
    async with gateway() as running, httpx.AsyncClient(base_url=running.url, trust_env=False, timeout=HANG_S) as client:
        reply = await models(client, token(ONE, "https://login.example.com"))
        assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")
