"""Builds the verification of JWTs: the issuers of the settings, and the HTTP fetch of their documents."""

import asyncio
import random
import secrets
import time
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from backends.clients.endpoint import endpoint
from backends.clients.http1 import RelayUpstream
from backends.fetch import FetchedReply, fetch
from backends.reach import Reach, networks_of
from gateway.auth.jwks import JwksDiscovery, JwksFile, JwksUrl, JwksWatch, kept_file
from gateway.auth.jwt import CountToken, JwtVerifier
from gateway.config.load import Settings
from tenancy.jwt import Tokens
from tenancy.jwt_keys import MAX_DOCUMENT_BYTES

ISSUER_WITHIN_S: Final = 5.0
"""Longest wait for an issuer's document."""


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


async def _get(loop: asyncio.AbstractEventLoop, url: str) -> FetchedReply:
    """Fetch a document of an issuer, on a connection of its own because one is fetched every few minutes.

    The resolved address is checked before connecting: `http` goes to this machine alone, and nothing goes to link-local and
    cloud-metadata addresses.
    """
    parts = urlsplit(url)
    anywhere = ("0.0.0.0/0", "::/0")
    loopback = ("127.0.0.0/8", "::1/128")
    reach = Reach(networks_of(loopback if parts.scheme == "http" else anywhere))
    upstream = RelayUpstream(endpoint(f"{parts.scheme}://{parts.netloc}", reach=reach), time.monotonic, loop)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        return await fetch(upstream, path, timeout_s=ISSUER_WITHIN_S, max_bytes=MAX_DOCUMENT_BYTES)
    finally:
        await upstream.close()
