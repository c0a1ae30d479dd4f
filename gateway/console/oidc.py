"""Signing in at an identity provider: OpenID Connect's authorisation-code flow with PKCE, up to the provider's token.

`ProviderSignIn.begin` gives the address to which the browser goes and a cookie for the way back; `finish` checks what came back, redeems
the code and returns the token. The token then is the credential of the session, and the admin API checks it as it checks every token.

The cookie holds state, nonce and PKCE verifier, sealed with a key derived from the pepper: any replica finishes a sign-in that another one
began, and the gateway keeps nothing. A provider redeems a code once, and the cookie is removed as soon as the browser is back.

Nothing here writes a token, a code or a claim into a log or a message.
"""

import asyncio
import binascii
import hmac
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from backends.fetch import FetchedReply, FetchError
from domain.clock import Clock, WallClock
from gateway.auth.jwks import Discovered
from gateway.config.addresses import checked_key_url
from gateway.console.session import CookieSeal
from tenancy.jwt_keys import JwksError

COOKIE: Final = "tidegate_sign_in"
SIGN_IN_S: Final = 600.0
"""Longest time at the provider: a person looks for a second factor. Providers' own codes live for a minute or ten."""
RANDOM_BYTES: Final = 32
"""The length of state, nonce and verifier: 43 characters, the least that RFC 7636 allows for a verifier."""
MAX_CODE_CHARS: Final = 4096
DISCOVERY_S: Final = 300.0
"""How long the provider's discovery document is used, as `jwks.refresh_s`."""
ANEW_S: Final = 5.0
"""Least time between two readings of a discovery document that cannot be read."""
STARTS_AT_ONCE: Final = 20.0
STARTS_PER_S: Final = 2.0
"""Bounds on the requests that strangers can make the gateway send to the provider; people sign in once a day."""

Ask = Callable[[str, bytes, str | None], Awaitable[FetchedReply]]
"""Posts a form to a URL, with an Authorization header or none. Raises OSError or FetchError."""

ERRORS: Final[Mapping[str, str]] = {
    "access_denied": "it refused the sign-in, or it was cancelled there",
    "login_required": "it wants a sign-in of its own first",
    "interaction_required": "it wants an answer of its own first",
    "consent_required": "nobody has consented to this client",
    "temporarily_unavailable": "it is overloaded",
    "server_error": "it had an error",
    "invalid_scope": "it does not know one of the scopes of auth.console",
    "invalid_request": "it does not understand the request; the redirect address of auth.console may not be registered there",
    "unauthorized_client": "this gateway's client may not use the authorisation-code flow",
}
"""What a provider's error means. Other texts in the address are not repeated: anybody can write them there."""


class SignInRefused(Exception):
    """A sign-in ends without a session.

    Attributes:
        status: of the HTTP answer.
        reason: one word, for the log.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class RegisteredClient(msgspec.Struct, frozen=True):
    """This gateway at the provider."""

    issuer: str
    client_id: str
    secret: str
    """Empty for a public client."""
    in_body: bool
    """Whether the secret is sent in the form, and not in a header."""
    redirect_url: str
    scopes: tuple[str, ...]
    token: str
    """The token that becomes the credential: `id_token` or `access_token`."""
    label: str

    @property
    def host(self) -> str:
        """Host and port to which the provider sends browsers back."""
        return urlsplit(self.redirect_url).netloc

    @property
    def secure(self) -> bool:
        """Whether cookies are for TLS alone."""
        return self.redirect_url.startswith("https:")


class _SignInBegun(msgspec.Struct, frozen=True, array_like=True):
    """The content of the cookie."""

    state: str
    nonce: str
    verifier: str
    until_unix: float


class PersonsToken(msgspec.Struct, frozen=True):
    """The token of a person who has signed in."""

    token: str
    until_unix: float
    """Its own end."""


class _TokenReply(msgspec.Struct):
    """The part of a token endpoint's answer that is used."""

    id_token: str = ""
    access_token: str = ""
    error: str = ""


class ProviderSignIn:
    """The flow with one provider.

    Args:
        discover: reads the provider's discovery document. Raises JwksError, OSError or FetchError.
        ask: posts to the token endpoint.
        entropy: random bytes, so many.
    """

    def __init__(
        self,
        client: RegisteredClient,
        seal: CookieSeal,
        discover: Callable[[], Awaitable[Discovered]],
        ask: Ask,
        entropy: Callable[[int], bytes],
        clocks: tuple[Clock, WallClock],
    ) -> None:
        self.client = client
        self._seal = seal
        self._discover = discover
        self._ask = ask
        self._entropy = entropy
        self._clock, self._wall = clocks
        self._one = asyncio.Lock()
        self._document: Discovered | None = None
        self._read_at: float | None = None
        self._starts = STARTS_AT_ONCE
        self._counted_at = self._clock()

    async def begin(self, host: str, *, afresh: bool = False) -> tuple[str, str]:
        """The provider's address for the browser, and the cookie's value.

        Args:
            host: the `Host` header of the request.
            afresh: whether the provider asks for the password even of those that it knows.

        Raises:
            SignInRefused: the way back leads to another host, or the provider is away.
        """
        if host.lower() != self.client.host.lower():
            message = (
                f"This console was opened at {host[:100]}, and the identity provider sends people back to {self.client.host}. "
                f"Open the console there, or ask an operator to correct auth.console.redirect_url."
            )
            raise SignInRefused(421, "other_host", message)
        document = await self._endpoints()
        begun = _SignInBegun(self._random(), self._random(), self._random(), self._wall() + SIGN_IN_S)
        challenge = _text(sha256(begun.verifier.encode()).digest())
        query = {
            "response_type": "code",
            "client_id": self.client.client_id,
            "redirect_uri": self.client.redirect_url,
            "scope": " ".join(self.client.scopes),
            "state": begun.state,
            "nonce": begun.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            **({"prompt": "login"} if afresh else {}),
        }
        at = document.authorization_endpoint
        return f"{at}{'&' if '?' in at else '?'}{urlencode(query, quote_via=quote)}", self._seal.seal(msgspec.msgpack.encode(begun))

    async def finish(self, query: Mapping[str, str], cookie: str | None) -> PersonsToken:
        """The person's token, for what the provider put into the address on the way back.

        Raises:
            SignInRefused: something of it is wrong, late, or used before, or the provider is away or refuses.
        """
        begun = self._begun(cookie)
        if not hmac.compare_digest(query.get("state", "").encode(), begun.state.encode()):
            message = "The answer of the identity provider belongs to another sign-in than the last one of this browser. Sign in again."
            raise SignInRefused(400, "state", message)
        # RFC 9207: an answer of another provider is not for this one's token endpoint
        if query.get("iss", self.client.issuer) != self.client.issuer:
            raise SignInRefused(400, "issuer", "The answer comes from another identity provider than the sign-in went to. Sign in again.")
        if "error" in query:
            words = ERRORS.get(query["error"], "it gave a reason that is not known here")
            raise SignInRefused(403, "provider_refused", f"{self._provider} did not sign you in: {words}. Sign in again.")
        code = query.get("code", "")
        if not code or len(code) > MAX_CODE_CHARS:
            raise SignInRefused(400, "code", "The identity provider sent no usable code. Sign in again.")
        answer = await self._redeemed(code, begun.verifier)
        self._check_id_token(answer.id_token, begun.nonce)
        token = answer.id_token if self.client.token == "id_token" else answer.access_token
        return PersonsToken(token, self._end_of(token))

    @property
    def _provider(self) -> str:
        return f"The identity provider ({urlsplit(self.client.issuer).netloc})"

    def _random(self) -> str:
        return _text(self._entropy(RANDOM_BYTES))

    def _begun(self, cookie: str | None) -> _SignInBegun:
        opened = None if cookie is None else self._seal.open(cookie)
        try:
            begun = None if opened is None else msgspec.msgpack.decode(opened, type=_SignInBegun)
        except msgspec.DecodeError:
            begun = None
        if begun is None:
            message = "This sign-in is finished already, or was begun in another browser or at another address. Sign in again."
            raise SignInRefused(400, "cookie", message)
        if self._wall() >= begun.until_unix:
            raise SignInRefused(400, "late", f"The sign-in took longer than {SIGN_IN_S / 60:.0f} minutes. Sign in again.")
        return begun

    def _away(self, why: str) -> SignInRefused:
        message = f"{self._provider} cannot be used now: {why}. Try again shortly; a key with a role or the admin token works meanwhile."
        return SignInRefused(503, "provider_away", message)

    def _count(self) -> None:
        now = self._clock()
        self._starts = min(STARTS_AT_ONCE, self._starts + (now - self._counted_at) * STARTS_PER_S)
        self._counted_at = now
        if self._starts < 1.0:
            raise SignInRefused(429, "too_many", "Too many sign-ins are under way. Try again in a few seconds.")
        self._starts -= 1.0

    async def _endpoints(self) -> Discovered:
        async with self._one:
            age_s = None if self._read_at is None else self._clock() - self._read_at
            if self._document is not None and age_s is not None and age_s < DISCOVERY_S:
                return self._document
            if self._document is None and age_s is not None and age_s < ANEW_S:
                raise self._away("its discovery document could not be read")
            self._read_at = self._clock()
            self._document = None
            try:
                document = await self._discover()
                checked_key_url(document.authorization_endpoint)
                checked_key_url(document.token_endpoint)
            except (JwksError, FetchError, OSError, TimeoutError):
                raise self._away("its discovery document could not be read") from None
            except ValueError:
                raise self._away("its discovery document names no usable authorization_endpoint and token_endpoint") from None
            self._document = document
            return document

    async def _redeemed(self, code: str, verifier: str) -> _TokenReply:
        self._count()
        document = await self._endpoints()
        client = self.client
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": client.redirect_url, "code_verifier": verifier}
        authorization = None
        if client.secret and not client.in_body:
            # RFC 6749 §2.3.1: both parts are form-encoded first
            pair = f"{quote(client.client_id, safe='')}:{quote(client.secret, safe='')}"
            authorization = f"Basic {b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": client.client_id, **({"client_secret": client.secret} if client.secret else {})}
        try:
            reply = await self._ask(document.token_endpoint, urlencode(form).encode(), authorization)
        except (FetchError, OSError, TimeoutError):
            raise self._away("its token endpoint does not answer") from None
        try:
            answer = msgspec.json.decode(reply.body, type=_TokenReply)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            answer = _TokenReply()
        if reply.status == 200 and answer.id_token:
            return answer
        if reply.status == 200:
            raise SignInRefused(502, "no_id_token", f"{self._provider} sent no ID token. An operator has to correct the client there.")
        if answer.error == "invalid_grant":
            raise SignInRefused(400, "code", f"{self._provider} takes the code no more: it was used before, or is too old. Sign in again.")
        if answer.error in ("invalid_client", "unauthorized_client"):
            message = (
                f"{self._provider} does not accept this gateway. An operator has to correct client_id, client_secret or client_auth of "
                "auth.console."
            )
            raise SignInRefused(502, "client", message)
        raise self._away(f"its token endpoint answers {reply.status}")

    def _check_id_token(self, token: str, nonce: str) -> None:
        """Check what is specific to this sign-in. The token came from the token endpoint itself (OpenID Connect Core §3.1.3.7, 6);
        its signature is checked where it is the credential."""
        claims = _claims(token)
        audience = claims.get("aud")
        named = audience if isinstance(audience, list) else [audience]
        party = claims.get("azp", self.client.client_id)
        if claims.get("iss") != self.client.issuer or self.client.client_id not in named or party != self.client.client_id:
            message = (
                f"{self._provider} sent an ID token that is not for this gateway. An operator has to look at issuer and client_id of "
                "auth.console."
            )
            raise SignInRefused(502, "id_token", message)
        said = claims.get("nonce")
        if not isinstance(said, str) or not hmac.compare_digest(said.encode(), nonce.encode()):
            raise SignInRefused(400, "nonce", "The ID token belongs to another sign-in than the one begun in this browser. Sign in again.")

    def _end_of(self, token: str) -> float:
        end = _claims(token).get("exp")
        if isinstance(end, bool) or not isinstance(end, int | float) or not 0 < end < 1e12:
            kind = self.client.token.replace("_", " ")
            message = (
                f"{self._provider} sent no {kind} that can be checked here: it is no JWT with an end. An operator has to correct "
                "auth.console.token."
            )
            raise SignInRefused(502, "token_form", message)
        return float(end)


def _text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def _claims(token: str) -> dict[str, Any]:
    """The payload of a token, unchecked; empty for what is no token."""
    part = token.split(".")[1] if token.count(".") == 2 else ""
    try:
        return msgspec.json.decode(urlsafe_b64decode(part + "=" * (-len(part) % 4)), type=dict[str, Any])
    except (ValueError, binascii.Error, msgspec.DecodeError, RecursionError):
        return {}
