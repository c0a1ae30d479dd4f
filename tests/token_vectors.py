"""Tokens that must open nothing, by name: what the literature and past advisories tell of forging, confusing and flooding verifiers."""

import hashlib
import hmac
import json
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import RSAAlgorithm

from tests.issuer import Signer, claims_of, part, rsa_key, signer


def _with(token: str, header: Any = None, payload: Any = None, signature: str | None = None) -> str:
    """The token with parts replaced, its signature as it was unless given."""
    one, two, three = token.split(".")
    return ".".join(
        (one if header is None else part(header), two if payload is None else part(payload), three if signature is None else signature)
    )


def _hmac(header: dict[str, Any], payload: dict[str, Any], secret: bytes) -> str:
    text = f"{part(header)}.{part(payload)}"
    digest = {"HS256": hashlib.sha256, "HS384": hashlib.sha384, "HS512": hashlib.sha512}[header["alg"]]
    return f"{text}.{part(hmac.new(secret, text.encode(), digest).digest())}"


def forged(known: Signer, now: float, iss: str) -> dict[str, str]:
    """What somebody can make who has the issuer's public key, a good token of somebody else, and any keys of their own."""
    good = known.token(**claims_of(now) | {"iss": iss})
    claims = claims_of(now) | {"iss": iss}
    stranger, elliptic = signer(known.kid, number=7), signer(known.kid, "ES256")
    public = known.private.public_key()
    shapes = {
        "pem": public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        "pkcs1": public.public_bytes(Encoding.PEM, PublicFormat.PKCS1),
        "der": public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        "jwk": json.dumps(known.jwk).encode(),
        "n": known.jwk["n"].encode(),
        "empty": b"",
        "kid": known.kid.encode(),
    }
    out = {}
    for algorithm in ("HS256", "HS384", "HS512"):
        for name, secret in shapes.items():
            out[f"{algorithm} keyed with the public key as {name}"] = _hmac({"alg": algorithm, "kid": known.kid}, claims, secret)
    for none in ("none", "None", "NONE", "nOnE", "", " none", "null"):
        out[f"alg {none!r}, empty signature"] = f"{part({'alg': none, 'kid': known.kid})}.{part(claims)}."
        out[f"alg {none!r}, its signature"] = _with(good, {"alg": none, "kid": known.kid})
    for other in ("RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA", "HS256", "rs256", "RS256 ", "RSA-OAEP", "dir", "ES256K"):
        out[f"alg {other!r} over an RS256 signature"] = _with(good, {"alg": other, "kid": known.kid})
    for odd in (None, 7, True, [], ["RS256"], {"a": "RS256"}):
        out[f"alg {odd!r}"] = _with(good, {"alg": odd, "kid": known.kid})
    out["no alg"] = _with(good, {"kid": known.kid})
    out["a stranger's key under a known kid"] = stranger.token(**claims)
    out["a stranger's key, carried in jwk"] = stranger.token({"jwk": stranger.jwk}, **claims)
    out["a stranger's key, at jku"] = stranger.token({"jku": "http://127.0.0.1:1/keys"}, **claims)
    out["a stranger's key, at x5u"] = stranger.token({"x5u": "http://127.0.0.1:1/chain"}, **claims)
    out["a stranger's chain in x5c"] = stranger.token({"x5c": ["MIIB"]}, **claims)
    out["an elliptic key under an RSA kid"] = elliptic.token(**claims)
    tricks = ("", "no-such", "../../../../dev/null", "k1\x00", "k1'--", "' OR 1=1 --", "k1/", "K1", " k1", "http://127.0.0.1/k", "x" * 4000)
    for kid in tricks:
        out[f"a stranger's key under kid {kid[:24]!r}"] = stranger.token({"kid": kid}, **claims)
    for kid in (7, None, True, ["k1"], {"k1": 1}):
        out[f"kid {kid!r}"] = _with(good, {"alg": "RS256", "kid": kid})
    for crit in (["exp"], ["b64"], [], "b64", {"b64": 1}, None):
        out[f"crit {crit!r}"] = _raw(known, claims, {"alg": "RS256", "kid": known.kid, "crit": crit, "exp": 1})
    for b64 in (False, True, None, "true"):
        out[f"b64 {b64!r}"] = _raw(known, claims, {"alg": "RS256", "kid": known.kid, "b64": b64})
    out["zip"] = known.token({"zip": "DEF"}, **claims)
    for typ in ("logout+jwt", "dpop+jwt", "secevent+jwt", "JWS", "jwt2", "application/json"):
        out[f"typ {typ!r}"] = known.token({"typ": typ}, **claims)
    out["another payload under a good signature"] = _with(good, payload=claims | {"tenant": "bolt"})
    out["another issuer"] = known.token(**claims | {"iss": "https://login.example.com/realms/other"})
    for wrong in (iss + "/", iss.upper(), iss + "?", " " + iss, "https://evil.example/" + iss, "", None, 7, [iss]):
        out[f"iss {str(wrong)[:40]!r} {type(wrong).__name__}"] = _raw(known, claims | {"iss": wrong})
    return out


def _raw(known: Signer, claims: dict[str, Any], header: dict[str, Any] | None = None) -> str:
    """A well signed token that the library itself would not write."""
    text = f"{part(header or {'alg': 'RS256', 'kid': known.kid})}.{part({n: v for n, v in claims.items() if v is not None})}"
    return f"{text}.{part(_sign(known, text.encode()))}"


def _sign(known: Signer, message: bytes) -> bytes:
    return RSAAlgorithm(RSAAlgorithm.SHA256).sign(message, known.private)


def signed_bytes(known: Signer, payload: bytes) -> str:
    """A well signed token of any bytes."""
    text = f"{part({'alg': 'RS256', 'kid': known.kid})}.{part(payload)}"
    return f"{text}.{part(_sign(known, text.encode()))}"


def broken(known: Signer, now: float, iss: str) -> dict[str, str]:
    """What is no token, or one that a careless reader trips over."""
    good = known.token(**claims_of(now) | {"iss": iss})
    one, two, three = good.split(".")
    claims = claims_of(now) | {"iss": iss}
    out = {
        "two dots only": "..",
        "no signature": f"{one}.{two}.",
        "no payload": f"{one}..{three}",
        "no header": f".{two}.{three}",
        "padding": f"{one}=.{two}.{three}",
        "standard base64": f"{one}.{two}.{three[:-2]}+/",
        "a space inside": f"{one}.{two} .{three}",
        "a tab behind": f"{one}.{two}.{three}\tx",
        "a last character that decodes alike": good[:-1] + _alike(good[-1]),
        "cut": good[:-10],
        "doubled signature": f"{one}.{two}.{three}{three}",
        "signature of zeros": _with(good, signature=part(b"\0" * 256)),
        "empty signature bytes": _with(good, signature="AA"),
        "header is no JSON": _with(good, header=b"{"),
        "header is a list": _with(good, header=[]),
        "header is a number": _with(good, header=1),
        "header is null": f"{part(b'null')}.{two}.{three}",
        "header with a byte-order mark": _with(good, header=b"\xef\xbb\xbf{}"),
        "header in another encoding": _with(good, header='{"alg":"RS256"}'.encode("utf-16")),
        "header, deep": _with(good, header=b'{"alg":"RS256","x":' + b"[" * 2000 + b"]" * 2000 + b"}"),
        "payload, deep, signed": signed_bytes(known, b'{"iss":"%b","x":' % iss.encode() + b"[" * 2500 + b"]" * 2500 + b"}"),
        "payload, deep objects, signed": signed_bytes(known, b'{"iss":"%b","x":' % iss.encode() + b'{"a":' * 900 + b"1" + b"}" * 901),
        "payload is a list": signed_bytes(known, b"[]"),
        "payload is text": signed_bytes(known, b'"x"'),
        "payload is a number": signed_bytes(known, b"1"),
        "payload is no JSON": signed_bytes(known, b"{'iss': 1}"),
        "payload is not UTF-8": signed_bytes(known, b'{"iss":"\xff"}'),
        "payload has a number without end": signed_bytes(known, b'{"iss":"%b","exp":1%b}' % (iss.encode(), b"0" * 3000)),
        "payload has an infinite exp": signed_bytes(known, b'{"iss":"%b","exp":1e999,"sub":"x"}' % iss.encode()),
        "payload has NaN": signed_bytes(known, b'{"iss":"%b","exp":NaN}' % iss.encode()),
        "huge payload": known.token(**claims | {"more": "x" * 9000}),
        "many small parts": known.token(**claims | {"more": list(range(2500))}),
        "expired": known.token(**claims | {"exp": int(now) - 61}),
        "not yet valid": known.token(**claims | {"nbf": int(now) + 3600}),
        "issued tomorrow": known.token(**claims | {"iat": int(now) + 86_400}),
        "a year old": known.token(**claims | {"iat": int(now) - 31_000_000, "nbf": None}),
        "no exp": known.token(**claims | {"exp": None}),
        "wrong audience": known.token(**claims | {"aud": "other"}),
        "no audience": known.token(**claims | {"aud": None}),
        "a tenant that does not exist": known.token(**claims | {"tenant": "nobody"}),
        "no tenant": known.token(**claims | {"tenant": None}),
        "tenant *": known.token(**claims | {"tenant": "*"}),
        "no subject": known.token(**claims | {"sub": None}),
        "a weak key": _raw(Signer("weak", "RS256", rsa_key(0, 1024)), claims, {"alg": "RS256", "kid": "weak"}),
        "JWE's five parts": f"{one}.{two}.{three}.{two}.{three}",
        "percent-encoded": good.replace(".", "%2E"),
        "twice, joined by a comma": f"{good},{good}",
    }
    return out


def _alike(last: str) -> str:
    """Another character whose top two bits are the same: a 256-byte signature ends in four unused bits."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    at = alphabet.index(last)
    return alphabet[(at & 0b110000) | ((at + 1) & 0b001111)]
