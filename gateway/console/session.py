"""Signing in to the console: a credential of the admin API in a cookie that only the gateway can read.

A person gives an admin token, a key with a role, or an identity provider's token once. `ConsoleSessions` seals it into a cookie that
scripts cannot read, and puts it into the `Authorization` header of the requests that the browser sends with the cookie. The admin API
checks it as it checks any other credential, at each request: a revoked key is refused within seconds, and roles apply as they do to
programs. The gateway keeps nothing, so a session outlives a restart and holds on every replica with the same pepper.

Cross-site requests: the cookie is `SameSite=Strict`, and it counts only on requests with the header `x-tidegate-console`, which no foreign
page can send, from the console's own origin.
"""

import base64
import binascii
import hmac
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from domain.clock import WallClock
from gateway.admin.problem import error_reply

COOKIE: Final = "tidegate_session"
HEADER: Final = "x-tidegate-console"
"""The console's scripts send it with every request; its value does not matter."""
SESSION_S: Final = 12 * 3600.0
"""A session's length: a working day. Then the person signs in again."""
MAX_CREDENTIAL_CHARS: Final = 2800
"""Longest credential that fits a cookie: browsers keep 4,096 bytes, and sealing makes it a third longer."""
NONCE_BYTES: Final = 12
_PURPOSE: Final = b"tidegate console session v1"

SIGN_IN_AGAIN: Final = "The session is over, or another gateway began it. Sign in again."
FOREIGN: Final = f"A session of the console counts only on requests of the console itself, with the header {HEADER}."


class _Session(msgspec.Struct, frozen=True, array_like=True):
    """The content of a cookie."""

    credential: str
    until_unix: float


class CookieSeal:
    """Seals bytes into cookie values and opens them again (AES-256-GCM, with a key derived from the pepper).

    Args:
        pepper: the gateway's secret for digests of keys; every replica has the same.
        entropy: random bytes, so many.
        purpose: a value that is sealed for one purpose opens for no other.
    """

    def __init__(self, pepper: bytes, entropy: Callable[[int], bytes], purpose: bytes) -> None:
        self._cipher = AESGCM(hmac.digest(pepper, purpose, "sha256"))
        self._entropy = entropy
        self._purpose = purpose

    def seal(self, content: bytes) -> str:
        """The cookie's value."""
        nonce = self._entropy(NONCE_BYTES)
        return base64.urlsafe_b64encode(nonce + self._cipher.encrypt(nonce, content, self._purpose)).decode()

    def open(self, value: str) -> bytes | None:
        """The content; None for a value that is damaged, or sealed with another pepper or for another purpose."""
        try:
            sealed = base64.urlsafe_b64decode(value.encode("ascii"))
            return self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], self._purpose)
        except (ValueError, UnicodeError, binascii.Error, InvalidTag):
            return None


class SessionSeal:
    """Seals credentials into the cookie values of sessions and opens them again.

    Args:
        pepper: the gateway's secret for digests of keys; every replica has the same.
        entropy: random bytes, so many.
        wall: seconds since the epoch.
    """

    def __init__(self, pepper: bytes, entropy: Callable[[int], bytes], wall: WallClock) -> None:
        self._seal = CookieSeal(pepper, entropy, _PURPOSE)
        self._wall = wall

    def length_s(self, until_unix: float | None = None) -> float:
        """How long a session lasts that begins now with a credential that ends at `until_unix`."""
        return SESSION_S if until_unix is None else max(0.0, min(SESSION_S, until_unix - self._wall()))

    def seal(self, credential: str, until_unix: float | None = None) -> str:
        """The cookie's value; it ends after `SESSION_S`, and with the credential where that ends sooner."""
        return self._seal.seal(msgspec.msgpack.encode(_Session(credential, self._wall() + self.length_s(until_unix))))

    def open(self, value: str) -> str | None:
        """The credential; None for a value that is over, damaged, or sealed with another pepper."""
        content = self._seal.open(value)
        try:
            session = None if content is None else msgspec.msgpack.decode(content, type=_Session)
        except msgspec.DecodeError:
            return None
        return session.credential if session is not None and self._wall() < session.until_unix else None


def cookie_for(value: str, *, secure: bool, length_s: float = SESSION_S) -> str:
    """The `Set-Cookie` header of a session; an empty value ends it."""
    age_s = int(length_s) if value else 0
    return f"{COOKIE}={value}; Path=/; Max-Age={age_s}; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}"


def own_request(headers: Headers) -> bool:
    """Whether a request comes from the console's own pages, and from no page of another site."""
    if HEADER not in headers or headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return False
    origin = headers.get("origin")
    # the scheme is left out: a proxy in front of the port may speak TLS
    return origin is None or origin.partition("://")[2] == headers.get("host", "")


class ConsoleSessions:
    """An ASGI app that turns the cookie of a session into the `Authorization` header that the admin API reads.

    A request with an `Authorization` header of its own passes as it is.

    Args:
        app: the admin port.
        seal: opens cookies.
    """

    def __init__(self, app: ASGIApp, seal: SessionSeal) -> None:
        self._app = app
        self._seal = seal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request with its session."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        value = None if "authorization" in headers else session_cookie(headers)
        if value is None:
            await self._app(scope, receive, send)
            return
        if not own_request(headers):
            # a page or an image of the port is nobody's request: it passes without the session
            if scope["path"].startswith("/admin/"):
                await error_reply(403, FOREIGN, "foreign_request")(scope, receive, send)
            else:
                await self._app(scope, receive, send)
            return
        credential = self._seal.open(value)
        if credential is None:
            reply = error_reply(401, SIGN_IN_AGAIN, "session_over", {"set-cookie": cookie_for("", secure=scope["scheme"] == "https")})
            await reply(scope, receive, send)
            return
        await self._app(_with(scope, credential), receive, _private(send))


def _with(scope: Scope, credential: str) -> Scope:
    """The request with its credential in place of the cookie."""
    kept = [(name, value) for name, value in scope["headers"] if name != b"cookie"]
    return {**scope, "headers": [*kept, (b"authorization", f"Bearer {credential}".encode("latin-1", "replace"))]}


def _private(send: Send) -> Send:
    """Answers to a session are for its browser alone."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).setdefault("cache-control", "no-store")
        await send(message)

    return sent


def session_cookie(headers: Headers, name: str = COOKIE) -> str | None:
    """The value of the session's cookie, or of another one; None without one."""
    jar: SimpleCookie = SimpleCookie()
    try:
        jar.load(headers.get("cookie", ""))
    except CookieError:
        return None
    morsel = jar.get(name)
    return morsel.value if morsel is not None and morsel.value else None
