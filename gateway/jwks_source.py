"""Reads an issuer's JWKS document: from its URL, through its discovery document, or from a file.

Only URLs that the operator configured or the issuer's own discovery document names are fetched: no header of a token (`jku`, `x5u`) is
followed. Redirects are not followed, sizes and times are bounded, and the scheme is https, or http to this machine.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec

from backends.fetch import FetchedReply
from gateway.addresses import checked_key_url
from tenancy.jwt_keys import MAX_DOCUMENT_BYTES, JwksError

Get = Callable[[str], Awaitable[FetchedReply]]
"""Fetches a URL that was checked. Raises OSError or `backends.fetch.FetchError`."""

WELL_KNOWN: Final = "/.well-known/openid-configuration"


class _Discovered(msgspec.Struct):
    """The part of a discovery document that is used."""

    issuer: str
    jwks_uri: str


class JwksUrl:
    """A JWKS document at a URL."""

    def __init__(self, url: str, get: Get) -> None:
        self._url = url
        self._get = get

    async def read(self) -> bytes:
        """The document. Raises JwksError, or the transport's errors."""
        return await _fetched(self._get, self._url)


class JwksDiscovery:
    """A JWKS document at the URL that the issuer's discovery document names (OpenID Connect Discovery §4)."""

    def __init__(self, issuer: str, get: Get) -> None:
        self._issuer = issuer
        self._get = get

    async def read(self) -> bytes:
        """The document. Raises JwksError, or the transport's errors."""
        body = await _fetched(self._get, self._issuer.rstrip("/") + WELL_KNOWN)
        try:
            discovered = msgspec.json.decode(body, type=_Discovered)
            url = checked_key_url(discovered.jwks_uri)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise JwksError("the discovery document has no issuer and jwks_uri") from None
        except ValueError as error:
            raise JwksError(f"jwks_uri of the discovery document {error}") from None
        if discovered.issuer != self._issuer:
            raise JwksError("the discovery document is another issuer's; write issuer exactly as it says")
        return await _fetched(self._get, url)


class JwksFile:
    """A JWKS document in a file, for issuers that this machine cannot reach."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def read(self) -> bytes:
        """The document. Raises OSError."""
        return await asyncio.to_thread(_first_bytes, self._path)


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_DOCUMENT_BYTES + 1)


async def _fetched(get: Get, url: str) -> bytes:
    fetched = await get(url)
    if 300 <= fetched.status < 400:
        raise JwksError(f"{url} answers {fetched.status}, and redirects are not followed")
    if fetched.status != 200:
        raise JwksError(f"{url} answers {fetched.status}")
    if fetched.headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise JwksError(f"{url} answers compressed, unasked")
    return fetched.body
