"""Verifies JWTs: form and size first, then the issuer's key and the signature, and only then the claims. Pure.

Checking a signature takes tens of microseconds, so verified tokens are cached until they expire. The cache's key is the SHA-256 of
the WHOLE token: a part of it is the same for many people (CVE-2026-35030 was a cache keyed by the first 20 characters). Tokens that
failed are not cached, so nobody can fill the cache without an issuer's signature.
"""

import hashlib
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from typing import Any, Final

import jwt
import msgspec

from domain.identity import Caller
from tenancy.jwt_claims import Claims, IssuerRules, Outcome, Rejected, caller_of
from tenancy.jwt_keys import ALGORITHMS, KeySet

MAX_REMEMBERED: Final = 10_000
"""Verified tokens cached per worker, about 0.5 KiB each; beyond it the oldest is dropped, and verified again when it comes back."""
TYPES: Final = frozenset({"", "jwt", "at+jwt", "application/jwt", "application/at+jwt"})
"""The `typ` of identity and access tokens (RFC 9068), in lower case. Others (`logout+jwt`, `dpop+jwt`, …) were signed by the
same issuer for something else."""

_FORM: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+", re.ASCII)
_LIBRARY: Final = jwt.PyJWS(algorithms=sorted(ALGORITHMS))


class _Header(msgspec.Struct):
    alg: str
    kid: str = ""
    typ: str = ""
    crit: Any = None
    b64: bool = True
    zip: str = ""


class _Issuer(msgspec.Struct):
    iss: str


_decode_header: Final = msgspec.json.Decoder(_Header).decode
_decode_issuer: Final = msgspec.json.Decoder(_Issuer).decode
_decode_claims: Final = msgspec.json.Decoder(dict[str, Any]).decode


def looks_like_token(text: str) -> bool:
    """Whether a bearer credential has the three parts of a JWT; any other is an API key, or invalid."""
    return text.count(".") == 2


class Tokens:
    """Verifies the tokens of the configured issuers with their keys as they were last read, and caches verified tokens.

    Args:
        issuers: rules with distinct issuers.
        most: tokens that are cached.
    """

    __slots__ = ("_keys", "_most", "_remembered", "_rules")

    def __init__(self, issuers: Iterable[IssuerRules], most: int = MAX_REMEMBERED) -> None:
        self._rules = {rules.issuer: rules for rules in issuers}
        self._keys: dict[str, KeySet] = {}
        self._remembered: dict[bytes, tuple[Caller, float, str]] = {}
        self._most = most

    def __len__(self) -> int:
        return len(self._remembered)

    def take_keys(self, issuer: str, keys: KeySet) -> None:
        """Verify an issuer's tokens with these keys from now on. Its cached tokens are dropped, since their key may have been withdrawn."""
        self._keys[issuer] = keys
        self._remembered = {digest: verified for digest, verified in self._remembered.items() if verified[2] != issuer}

    def remembered(self, token: str, now_unix: float) -> tuple[Caller, str] | None:
        """The caller and issuer of a cached token that is still valid, else None; costs one digest and one look-up."""
        verified = self._remembered.get(_digest(token))
        if verified is None or now_unix >= verified[1]:
            return None
        return verified[0], verified[2]

    def verify(self, token: str, now_unix: float) -> tuple[Caller, str]:
        """The caller and issuer of a token, which is cached.

        Raises:
            Rejected: the token is not valid.
        """
        rules, claims = self._signed(token)
        caller, until = caller_of(claims, rules, now_unix)
        remembered = self._remembered
        digest = _digest(token)
        if len(remembered) >= self._most and digest not in remembered:
            del remembered[next(iter(remembered))]
        remembered[digest] = (caller, until, rules.issuer)
        return caller, rules.issuer

    def _signed(self, token: str) -> tuple[IssuerRules, Claims]:
        """The issuer's rules and the claims of a token whose signature is valid."""
        if len(token) > max((rules.max_token_bytes for rules in self._rules.values()), default=0) or not _FORM.fullmatch(token):
            raise Rejected(Outcome.MALFORMED, "form or size")
        header_part, payload_part, signature_part = token.split(".")
        payload = _decoded(payload_part)
        _decoded(signature_part)
        header = _parsed(_decode_header, _decoded(header_part))
        issuer = _parsed(_decode_issuer, payload).iss
        rules = self._rules.get(issuer)
        if rules is None:
            raise Rejected(Outcome.UNKNOWN_ISSUER)
        if len(token) > rules.max_token_bytes:
            raise Rejected(Outcome.MALFORMED, "size", issuer)
        # `crit` and `b64` change how a token is read and `zip` how large it is; we know none of them, so we must refuse them
        if header.crit is not None or not header.b64 or header.zip or header.typ.lower() not in TYPES:
            raise Rejected(Outcome.MALFORMED, "a header that is not spoken here", issuer)
        if header.alg not in rules.algorithms:
            raise Rejected(Outcome.ALGORITHM, issuer=issuer)
        self._check_signature(token, header, issuer)
        return rules, _parsed(_decode_claims, payload)

    def _check_signature(self, token: str, header: _Header, issuer: str) -> None:
        keys = self._keys.get(issuer)
        if keys is None:
            raise Rejected(Outcome.NO_KEYS, "the issuer's keys have never been read", issuer)
        key = keys.find(header.kid, header.alg)
        if key is None:
            # for a known `kid` the issuer's keys need not be read again, whatever the algorithm
            unknown = bool(header.kid) and not keys.named(header.kid)
            raise Rejected(Outcome.UNKNOWN_KEY if unknown else Outcome.SIGNATURE, "no key for kid and alg", issuer)
        try:
            _LIBRARY.decode_complete(token, key=key, algorithms=[header.alg])
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise Rejected(Outcome.SIGNATURE, type(error).__name__, issuer) from None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _decoded(part: str) -> bytes:
    """Decode base64url without padding. Only the canonical spelling is accepted, so that a token has one digest."""
    try:
        raw = urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except ValueError:
        raise Rejected(Outcome.MALFORMED, "base64") from None
    if urlsafe_b64encode(raw).rstrip(b"=").decode() != part:
        raise Rejected(Outcome.MALFORMED, "base64")
    return raw


def _parsed(decode: Any, raw: bytes) -> Any:
    try:
        return decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise Rejected(Outcome.MALFORMED, "JSON") from None
