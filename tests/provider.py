"""An OpenID provider for tests: an authorisation endpoint with a page and a button, and a token endpoint that checks client, redirect
address, code and PKCE as RFC 6749 and RFC 7636 ask, over HTTP on loopback, with the keys of `tests/issuer.py`."""

import asyncio
import json
import time
from base64 import b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from html import escape
from itertools import count
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from tests.issuer import document, signer

CLIENT: Final = "tidegate-console"
SECRET: Final = "the secret: of+this client"
Answer = tuple[int, dict[str, str], bytes]


class OpenIdProvider:
    """The provider's state. Set its fields to make it answer otherwise.

    Args:
        host: the name by which browsers and the gateway reach it.
    """

    def __init__(self, host: str, redirect_url: str) -> None:
        self.host = host
        self.url = ""
        self.redirect_url = redirect_url
        self.signer = signer("k1")
        self.claims: dict[str, Any] = {"groups": ["llm-operators"], "tenant": "acme"}
        """Of the person who signs in."""
        self.lifetime_s = 600.0
        self.error = ""
        """What the authorisation endpoint answers instead of a code."""
        self.in_body = False
        """Whether the client's secret is expected in the form."""
        self.away = False
        self.asked: list[tuple[str, dict[str, str], dict[str, str]]] = []
        """Path, query or form, and headers of each request."""
        self.given: list[str] = []
        """Every token that was given out."""
        self._codes: dict[str, dict[str, str]] = {}
        self._numbers = count()

    def token(self, **claims: Any) -> str:
        """A signed token about the person."""
        now = time.time()
        whole = {"iss": self.url, "aud": CLIENT, "sub": "person-1", "iat": int(now), "nbf": int(now), "exp": now + self.lifetime_s}
        return self.signer.token(**{**whole, **self.claims, **claims})

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        """The answer to a request."""
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        self.asked.append((parts.path, form or query, headers))
        if self.away:
            return 503, {}, b"away"
        if parts.path == "/.well-known/openid-configuration":
            told = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
            told |= {"authorization_endpoint": f"{self.url}/authorize", "token_endpoint": f"{self.url}/token"}
            return 200, {"content-type": "application/json"}, json.dumps(told).encode()
        if parts.path == "/keys":
            return 200, {"content-type": "application/json"}, document(self.signer)
        if parts.path == "/authorize":
            return self._authorize(method, target, query)
        if parts.path == "/token":
            status, told = self._token(form, headers.get("authorization", ""))
            return status, {"content-type": "application/json"}, json.dumps(told).encode()
        return 404, {}, b""

    def _authorize(self, method: str, target: str, query: dict[str, str]) -> Answer:
        wanted = {"client_id": CLIENT, "redirect_uri": self.redirect_url, "response_type": "code", "code_challenge_method": "S256"}
        if any(query.get(name) != value for name, value in wanted.items()) or "openid" not in query["scope"].split():
            return 400, {}, b"the request is not that of a registered client"
        if method == "GET":
            page = f'<!doctype html><title>Provider</title><form method="post" action="{escape(target)}"><button>Continue</button></form>'
            return 200, {"content-type": "text/html"}, page.encode()
        if self.error:
            return 303, {"location": f"{self.redirect_url}?{urlencode({'error': self.error, 'state': query['state']})}"}, b""
        code = f"code-{next(self._numbers)}-{sha256(query['state'].encode()).hexdigest()[:20]}"
        self._codes[code] = query
        return 303, {"location": f"{self.redirect_url}?{urlencode({'code': code, 'state': query['state'], 'iss': self.url})}"}, b""

    def _token(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, str]]:
        if self.in_body:
            client = (form.get("client_id", ""), form.get("client_secret", ""))
        else:
            name, _, secret = b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
            client = (unquote(name), unquote(secret))
        if client != (CLIENT, SECRET):
            return 401, {"error": "invalid_client"}
        begun = self._codes.pop(form.get("code", ""), None)
        challenge = urlsafe_b64encode(sha256(form.get("code_verifier", "").encode()).digest()).rstrip(b"=").decode()
        if begun is None or form.get("redirect_uri") != self.redirect_url or begun["code_challenge"] != challenge:
            return 400, {"error": "invalid_grant"}
        given = self.token(nonce=begun["nonce"])
        self.given.append(given)
        return 200, {"id_token": given, "access_token": "opaque", "token_type": "Bearer"}


@asynccontextmanager
async def provider(redirect_url: str, host: str = "127.0.0.1") -> AsyncIterator[OpenIdProvider]:
    """A running provider on a free loopback port."""
    made = OpenIdProvider(host, redirect_url)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, target, _ = head[0].split(" ")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            status, more, answer = made.answer(method, target, headers, body)
            lines = "".join(f"{name}: {value}\r\n" for name, value in more.items())
            writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(answer)}\r\n{lines}connection: close\r\n\r\n".encode() + answer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError, ValueError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    made.url = f"http://{host}:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        await server.wait_closed()
