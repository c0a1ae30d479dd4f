"""Verifies JWTs: form and size first, then the issuer's key and the signature, and only then the claims. Pure.

`Tokens` verifies. Checking a signature takes tens of microseconds, so verified tokens are cached until they expire. The cache's key is the
SHA-256 of the WHOLE token: a part of it is the same for many people (CVE-2026-35030 was a cache keyed by the first 20 characters). Tokens
that failed are not cached, so nobody can fill the cache without an issuer's signature.

`caller_of` turns the claims of a token whose signature was checked into a Caller: issuer's rules, times, audience, and the claims that name
tenant and user. Every refusal (`Rejected`) has a `JwtOutcome` for metrics and logs; callers get the same message for all of them.

The issuers' keys are fetched and kept current by `gateway/auth/`.
"""

import functools
import hashlib
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final, NoReturn

import msgspec

from domain.identity import TOKEN_PREFIX, Caller, KeyId, ProjectId, TenantId
from tenancy.accounts import NAME
from tenancy.jwt_keys import ALGORITHMS, KeySet

Claims = Mapping[str, Any]
"""The payload as decoded JSON: whatever the issuer wrote."""

MAX_TEXT_CHARS: Final = 256
"""Longest subject, user or value that is looked up; OpenID Connect caps `sub` at 255."""
MAX_VALUES: Final = 1000
"""Values of a list claim that are read: directories put every group of a person into one claim."""
_ID_BYTES: Final = 8


class JwtOutcome(Enum):
    """How a verification ended; the values are those of the metric's label."""

    CACHED = "cached"
    """Verified before, and still valid."""
    VERIFIED = "verified"
    MALFORMED = "malformed"
    """Not a token: wrong form, size, header or JSON."""
    UNKNOWN_ISSUER = "unknown_issuer"
    ALGORITHM = "algorithm"
    """An algorithm that the issuer's list does not have, `none` and the symmetric ones among them."""
    NO_KEYS = "no_keys"
    """The issuer's keys have never been read; the only refusal that is not the token's fault."""
    UNKNOWN_KEY = "unknown_key"
    SIGNATURE = "signature"
    EXPIRED = "expired"
    NOT_YET_VALID = "not_yet_valid"
    TOO_OLD = "too_old"
    AUDIENCE = "audience"
    CLAIMS = "claims"
    """A claim that is needed is missing, of another type, or has a value that no rule knows."""
    UNKNOWN_TENANT = "unknown_tenant"
    """The token names a tenant or project that does not exist here, or is disabled."""


class Rejected(Exception):
    """A token is refused; `issuer` is a configured one or empty. The message is for operators and repeats no claim."""

    def __init__(self, outcome: JwtOutcome, why: str = "", issuer: str = "") -> None:
        super().__init__(why or outcome.value)
        self.outcome = outcome
        self.issuer = issuer


class Mapped(msgspec.Struct, frozen=True):
    """Where the name of a tenant or project comes from: fixed, or a claim, as it is or through a table."""

    fixed: str = ""
    claim: tuple[str, ...] = ()
    """Path into the claims, outermost name first."""
    table: Mapping[str, str] | None = None
    """Names by the claim's value. The values of a list claim must give exactly one name."""
    otherwise: str = ""
    """The name when the claim is missing; empty to refuse the token."""


class Roles(msgspec.Struct, frozen=True):
    """The mapping of a claim's values to roles."""

    claim: tuple[str, ...]
    table: Mapping[str, str]


class IssuerRules(msgspec.Struct, frozen=True):
    """The rules for one issuer's tokens. Times are in seconds, sizes in bytes."""

    issuer: str
    audiences: frozenset[str]
    algorithms: frozenset[str]
    tenant: Mapped
    project: Mapped
    roles: Roles | None = None
    user: tuple[str, ...] = ()
    """Path of the claim that names the end user; empty when the tokens name none."""
    required: Mapping[str, str] = {}
    """Claims that must have exactly this value."""
    leeway_s: float = 60.0
    max_age_s: float | None = 86_400.0
    """Age since `iat` beyond which a token is refused, whatever its `exp`."""
    max_token_bytes: int = 8192


def caller_of(claims: Claims, rules: IssuerRules, now_unix: float) -> tuple[Caller, float]:
    """The caller a token stands for, and until when (seconds since the epoch, leeway included).

    Raises:
        Rejected: the token is expired, too old or not valid yet, is for another audience, or lacks a claim.
    """
    until = _valid_until(claims, rules, now_unix)
    audience = claims.get("aud")
    named = [audience] if isinstance(audience, str) else audience if isinstance(audience, list) else []
    if not any(isinstance(name, str) and name in rules.audiences for name in named):
        raise Rejected(JwtOutcome.AUDIENCE, "aud names none of the audiences", rules.issuer)
    for name, value in rules.required.items():
        if claims.get(name) != value:
            _reject_claims(rules, f"{name} is not what auth.jwt requires")
    subject = _text(claims.get("sub"))
    if not subject:
        _reject_claims(rules, "sub is missing")
    caller = Caller(
        TenantId(_name(claims, rules.tenant, rules, "tenant")),
        ProjectId(_name(claims, rules.project, rules, "project")),
        key_id(rules.issuer, subject),
        roles=_roles(claims, rules.roles) if rules.roles is not None else (),
        user=_user(claims, rules) if rules.user else "",
    )
    return caller, until


def key_id(issuer: str, subject: str) -> KeyId:
    """The id of a subject in logs and limits: `jwt:` and 16 hex digits of a digest over issuer and subject, so that neither names nor
    mail addresses get there. Length-prefixed, so that no two pairs give the same bytes."""
    message = b"".join(b"%d:%b" % (len(raw), raw) for raw in (issuer.encode(), subject.encode()))
    return KeyId(TOKEN_PREFIX + hashlib.blake2b(message, digest_size=_ID_BYTES, person=b"tidegate subject").hexdigest())


def _valid_until(claims: Claims, rules: IssuerRules, now_unix: float) -> float:
    expires = _moment(claims, "exp", rules)
    if expires is None:
        _reject_claims(rules, "exp is missing")
    until = expires + rules.leeway_s
    if now_unix >= until:
        raise Rejected(JwtOutcome.EXPIRED, issuer=rules.issuer)
    begins = _moment(claims, "nbf", rules)
    issued = _moment(claims, "iat", rules)
    if max(begins or 0.0, issued or 0.0) > now_unix + rules.leeway_s:
        raise Rejected(JwtOutcome.NOT_YET_VALID, issuer=rules.issuer)
    if rules.max_age_s is not None:
        if issued is None:
            _reject_claims(rules, "iat is missing, and auth.jwt max_age_s needs it")
        until = min(until, issued + rules.max_age_s + rules.leeway_s)
        if now_unix >= until:
            raise Rejected(JwtOutcome.TOO_OLD, issuer=rules.issuer)
    return until


def _moment(claims: Claims, name: str, rules: IssuerRules) -> float | None:
    value = claims.get(name)
    if value is None and name not in claims:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e12:
        _reject_claims(rules, f"{name} is no time")
    return float(value)


def _at(claims: Claims, path: tuple[str, ...]) -> Any:
    at: Any = claims
    for step in path:
        at = at.get(step) if isinstance(at, Mapping) else None
    return at


def _text(value: Any) -> str:
    """The value if it is a text of at most MAX_TEXT_CHARS; else an empty text."""
    if not isinstance(value, str) or len(value) > MAX_TEXT_CHARS:
        return ""
    return value


def _texts(value: Any) -> list[str]:
    values = value[:MAX_VALUES] if isinstance(value, list) else [value]
    return [text for text in map(_text, values) if text]


def _name(claims: Claims, mapped: Mapped, rules: IssuerRules, field: str) -> str:
    if mapped.fixed:
        return mapped.fixed
    value = _at(claims, mapped.claim)
    if value is None and mapped.otherwise:
        return mapped.otherwise
    table = mapped.table
    names = [_text(value)] if table is None else sorted({table[text] for text in _texts(value) if text in table})
    if len(names) != 1 or not NAME.fullmatch(names[0]):
        _reject_claims(rules, f"the claim for {field} names {'none' if len(names) <= 1 else 'more than one'}")
    return names[0]


def _roles(claims: Claims, roles: Roles) -> tuple[str, ...]:
    names = {roles.table[text] for text in _texts(_at(claims, roles.claim)) if text in roles.table}
    return tuple(sorted(names))


def _user(claims: Claims, rules: IssuerRules) -> str:
    user = _text(_at(claims, rules.user))
    if not user:
        _reject_claims(rules, "the claim for the user is missing")
    return user


def _reject_claims(rules: IssuerRules, why: str) -> NoReturn:
    raise Rejected(JwtOutcome.CLAIMS, why, rules.issuer)


MAX_REMEMBERED: Final = 10_000
"""Verified tokens cached per worker, about 0.5 KiB each; beyond it the oldest is dropped, and verified again when it comes back."""
TYPES: Final = frozenset({"", "jwt", "at+jwt", "application/jwt", "application/at+jwt"})
"""The `typ` of identity and access tokens (RFC 9068), in lower case. Others (`logout+jwt`, `dpop+jwt`, …) were signed by the
same issuer for something else."""

_FORM: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+", re.ASCII)


class _Header(msgspec.Struct):
    alg: str
    kid: str = ""
    typ: str = ""
    crit: Any = msgspec.UNSET
    b64: Any = msgspec.UNSET
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
            raise Rejected(JwtOutcome.MALFORMED, "form or size")
        header_part, payload_part, signature_part = token.split(".")
        payload = _decoded(payload_part)
        _decoded(signature_part)
        header = _parsed(_decode_header, _decoded(header_part))
        issuer = _parsed(_decode_issuer, payload).iss
        rules = self._rules.get(issuer)
        if rules is None:
            raise Rejected(JwtOutcome.UNKNOWN_ISSUER)
        if len(token) > rules.max_token_bytes:
            raise Rejected(JwtOutcome.MALFORMED, "size", issuer)
        # `crit` and `b64` change how a token is read and `zip` how large it is; we know none of them, so we must refuse them
        if header.crit is not msgspec.UNSET or header.b64 is not msgspec.UNSET or header.zip or header.typ.lower() not in TYPES:
            raise Rejected(JwtOutcome.MALFORMED, "a header that is not spoken here", issuer)
        if header.alg not in rules.algorithms:
            raise Rejected(JwtOutcome.ALGORITHM, issuer=issuer)
        self._check_signature(token, header, issuer)
        return rules, _parsed(_decode_claims, payload)

    def _check_signature(self, token: str, header: _Header, issuer: str) -> None:
        keys = self._keys.get(issuer)
        if keys is None:
            raise Rejected(JwtOutcome.NO_KEYS, "the issuer's keys have never been read", issuer)
        key = keys.find(header.kid, header.alg)
        if key is None:
            # for a known `kid` the issuer's keys need not be read again, whatever the algorithm
            unknown = bool(header.kid) and not keys.named(header.kid)
            raise Rejected(JwtOutcome.UNKNOWN_KEY if unknown else JwtOutcome.SIGNATURE, "no key for kid and alg", issuer)
        import jwt  # here, because it brings 10 MB of cryptography that a gateway without issuers does not need

        try:
            _library().decode_complete(token, key=key, algorithms=[header.alg])
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise Rejected(JwtOutcome.SIGNATURE, type(error).__name__, issuer) from None


@functools.cache
def _library() -> Any:
    import jwt

    return jwt.PyJWS(algorithms=sorted(ALGORITHMS))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _decoded(part: str) -> bytes:
    """Decode base64url without padding. Only the canonical spelling is accepted, so that a token has one digest."""
    try:
        raw = urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except ValueError:
        raise Rejected(JwtOutcome.MALFORMED, "base64") from None
    if urlsafe_b64encode(raw).rstrip(b"=").decode() != part:
        raise Rejected(JwtOutcome.MALFORMED, "base64")
    return raw


def _parsed(decode: Any, raw: bytes) -> Any:
    try:
        return decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise Rejected(JwtOutcome.MALFORMED, "JSON") from None
