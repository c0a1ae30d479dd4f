"""An issuer's public keys, from its JWKS document: which of them may verify which algorithms. Pure.

A key is bound to algorithms by its own type before any token is seen, so that no token can choose to have an RSA key read as
something else. Private and symmetric keys have no place in such a document; symmetric ones are left out and private parts dropped.
"""

from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    import jwt

MAX_DOCUMENT_BYTES: Final = 256 * 1024
"""Issuers publish 1 to 10 keys, 1 to 3 KiB each with their certificates."""
MAX_KEYS: Final = 100
MIN_RSA_BITS: Final = 2048
"""The minimum of RFC 7518 §3.3."""

RSA: Final = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
BY_CURVE: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "EdDSA"}
ALGORITHMS: Final = RSA | frozenset(BY_CURVE.values())
"""Every algorithm that can be allowed: no symmetric one, and not `none`."""

_PUBLIC: Final = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}


class JwksError(Exception):
    """The document cannot be used; the message says why."""


class SigningKey(msgspec.Struct, frozen=True):
    """One public key: its `kid` and, by algorithm, the library's view of it."""

    kid: str
    by_algorithm: "dict[str, jwt.PyJWK]"


class KeySet(msgspec.Struct, frozen=True):
    """The usable keys of one issuer."""

    keys: tuple[SigningKey, ...]

    def named(self, kid: str) -> tuple[SigningKey, ...]:
        """The keys with this `kid`; all keys for an empty one."""
        return tuple(key for key in self.keys if key.kid == kid) if kid else self.keys

    def find(self, kid: str, algorithm: str) -> "jwt.PyJWK | None":
        """The one key that can verify a token with this header; None when there is none, or several and no `kid` to choose by."""
        views = [key.by_algorithm[algorithm] for key in self.named(kid) if algorithm in key.by_algorithm]
        return views[0] if len(views) == 1 else None


def key_set(document: bytes, algorithms: frozenset[str]) -> KeySet:
    """The keys of a JWKS document that can verify one of `algorithms`; other keys are left out.

    Raises:
        JwksError: it is no JWKS document, or has no usable key.
    """
    if len(document) > MAX_DOCUMENT_BYTES:
        raise JwksError(f"the document has more than {MAX_DOCUMENT_BYTES} bytes")
    try:
        parsed = msgspec.json.decode(document)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise JwksError("the document is no JSON") from None
    entries = parsed.get("keys") if isinstance(parsed, dict) else None
    if not isinstance(entries, list):
        raise JwksError('the document has no list "keys"')
    keys = tuple(key for key in (_signing_key(entry, algorithms) for entry in entries[:MAX_KEYS]) if key is not None)
    if not keys:
        raise JwksError(f"none of its {len(entries)} keys can verify {', '.join(sorted(algorithms))}")
    return KeySet(keys)


def _signing_key(entry: Any, allowed: frozenset[str]) -> SigningKey | None:
    import jwt  # here, because it brings 10 MB of cryptography that a gateway without issuers does not need

    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
        return None
    operations = entry.get("key_ops")
    if operations is not None and (not isinstance(operations, list) or "verify" not in operations):
        return None
    kind = entry.get("kty")
    kid = entry.get("kid", "")
    if not isinstance(kind, str) or kind not in _PUBLIC or not isinstance(kid, str):
        return None
    public = {"kty": kind} | {name: entry.get(name) for name in _PUBLIC[kind]}
    suited = _suited(kind, entry.get("crv")) & allowed
    if "alg" in entry:
        suited &= {entry["alg"]} if isinstance(entry["alg"], str) else set()
    try:
        views = {name: jwt.PyJWK(public, algorithm=name) for name in suited}
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    views = {name: view for name, view in views.items() if kind != "RSA" or view.key.key_size >= MIN_RSA_BITS}
    return SigningKey(kid, views) if views else None


def _suited(kind: str, curve: Any) -> frozenset[str]:
    if kind == "RSA":
        return RSA
    name = BY_CURVE.get(curve) if isinstance(curve, str) else None
    return frozenset({name}) if name is not None and (name == "EdDSA") is (kind == "OKP") else frozenset()
