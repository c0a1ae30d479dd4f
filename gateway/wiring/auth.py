"""Builds the verification of JWTs and the sign-in to the console: the issuers of the settings, and the HTTP requests to them."""

import asyncio
import random
import secrets
import time
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

from backends.clients.endpoint import endpoint
from backends.clients.http1 import RelayUpstream
from backends.fetch import POLL_ID, FetchedReply, fetch_call
from backends.ports import Call
from backends.reach import Reach, networks_of
from gateway.auth.jwks import Discovered, JwksDiscovery, JwksFile, JwksUrl, JwksWatch, discovered, kept_file
from gateway.auth.jwt import CountToken, JwtVerifier
from gateway.config.load import Settings
from gateway.config.read_secrets import read_client_secret
from gateway.console.oidc import ProviderSignIn, RegisteredClient
from gateway.console.session import CookieSeal
from tenancy.jwt import Tokens
from tenancy.jwt_keys import MAX_DOCUMENT_BYTES
from tenancy.keys import Pepper

ISSUER_WITHIN_S: Final = 5.0
"""Longest wait for an issuer's document, and for its answer to a code."""
SIGN_IN_ID: Final = "tidegate-sign-in"
"""The request id that token endpoints see."""
SIGN_IN_PURPOSE: Final = b"tidegate console sign-in v1"


async def token_gate_for(settings: Settings, count: CountToken, run_dir: Path | None = None) -> JwtVerifier | None:
    """The verifier of JWTs, with the keys of every issuer that answers; None when no issuer is configured.

    Args:
        count: called once per verification.
        run_dir: where the last good keys of issuers are kept.
    """
    if not settings.auth.jwt:
        return None
    tokens = Tokens(issuer.rules() for issuer in settings.auth.jwt)
    get = partial(_get, asyncio.get_running_loop())
    watches = {}
    for issuer in settings.auth.jwt:
        jwks = issuer.jwks
        source = JwksDiscovery(issuer.issuer, get)
        watches[issuer.issuer] = JwksWatch(
            issuer.issuer,
            JwksFile(settings.base_dir / jwks.file) if jwks.file else JwksUrl(jwks.url, get) if jwks.url else source,
            frozenset(issuer.algorithms),
            tokens.take_keys,
            refresh_s=jwks.refresh_s,
            unknown_key_s=jwks.unknown_key_s,
            clock=time.monotonic,
            rng=random.Random(secrets.randbits(64)),
            keep=None if run_dir is None else kept_file(run_dir, issuer.issuer),
        )
    gate = JwtVerifier(tokens, watches, count)
    await gate.learn()
    return gate


def provider_sign_in_for(settings: Settings, pepper: Pepper) -> ProviderSignIn | None:
    """Sign-in at the identity provider of `auth.console`; None where none is configured. Raises SecretError."""
    written = settings.auth.console
    if written is None:
        return None
    client = RegisteredClient(
        issuer=written.issuer,
        client_id=written.client_id,
        secret=read_client_secret(settings),
        in_body=written.client_auth == "post",
        redirect_url=written.redirect_url,
        scopes=tuple(dict.fromkeys(written.scopes)),
        token=written.token,
        label=written.label,
    )

    async def discover() -> Discovered:
        return await discovered(written.issuer, partial(_get, asyncio.get_running_loop()))

    async def ask(url: str, form: bytes, authorization: str | None) -> FetchedReply:
        return await _post_form(asyncio.get_running_loop(), url, form, authorization)

    seal = CookieSeal(pepper.secret, secrets.token_bytes, SIGN_IN_PURPOSE)
    return ProviderSignIn(client, seal, discover, ask, secrets.token_bytes, (time.monotonic, time.time))


async def _get(loop: asyncio.AbstractEventLoop, url: str) -> FetchedReply:
    """Fetch a document of an issuer, on a connection of its own because one is fetched every few minutes.

    The resolved address is checked before connecting: `http` goes to this machine alone, and nothing goes to link-local and
    cloud-metadata addresses.
    """
    parts = urlsplit(url)
    return await _asked(loop, url, Call("GET", _target(parts), b"", POLL_ID), None)


async def _post_form(loop: asyncio.AbstractEventLoop, url: str, form: bytes, authorization: str | None) -> FetchedReply:
    """Post a form to an issuer's token endpoint, within the bounds of `_get`. A redirect is not followed."""
    call = Call("POST", _target(urlsplit(url)), form, SIGN_IN_ID, content_type=b"application/x-www-form-urlencoded")
    return await _asked(loop, url, call, authorization)


def _target(parts: SplitResult) -> str:
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


async def _asked(loop: asyncio.AbstractEventLoop, url: str, call: Call, authorization: str | None) -> FetchedReply:
    parts = urlsplit(url)
    anywhere = ("0.0.0.0/0", "::/0")
    loopback = ("127.0.0.0/8", "::1/128")
    reach = Reach(networks_of(loopback if parts.scheme == "http" else anywhere))
    target = endpoint(f"{parts.scheme}://{parts.netloc}", reach=reach, authorization=authorization)
    upstream = RelayUpstream(target, time.monotonic, loop)
    try:
        return await fetch_call(upstream, call, timeout_s=ISSUER_WITHIN_S, max_bytes=MAX_DOCUMENT_BYTES)
    finally:
        await upstream.close()
