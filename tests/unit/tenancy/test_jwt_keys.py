"""JWKS documents: which keys are usable, and for which algorithms alone."""

import json
from typing import Any

import pytest
from jwt.algorithms import RSAAlgorithm

from tenancy.jwt_keys import ALGORITHMS, MAX_DOCUMENT_BYTES, JwksError, key_set
from tests.issuer import Signer, document, rsa_key, signer

ONE = signer()


def keys(*entries: Any, algorithms: frozenset[str] = ALGORITHMS) -> Any:
    return key_set(json.dumps({"keys": entries}).encode(), algorithms)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_every_algorithm_has_keys(algorithm: str) -> None:
    one = signer("k", algorithm)
    found = key_set(document(one), ALGORITHMS).find("k", algorithm)
    assert found is not None
    assert found.algorithm_name == algorithm


def test_a_key_without_alg_verifies_what_its_type_can() -> None:
    entry = {name: value for name, value in ONE.jwk.items() if name != "alg"}
    (key,) = keys(entry, algorithms=frozenset({"RS256", "PS256", "ES256"})).keys
    assert set(key.by_algorithm) == {"RS256", "PS256"}


@pytest.mark.parametrize(
    "entry",
    [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "k", "alg": "HS256"},
        {**ONE.jwk, "alg": "HS256"},
        {**ONE.jwk, "alg": "none"},
        {**ONE.jwk, "alg": "RS384"},
        {**ONE.jwk, "alg": 7},
        {**ONE.jwk, "use": "enc"},
        {**ONE.jwk, "key_ops": ["sign"]},
        {**ONE.jwk, "key_ops": "verify"},
        {**ONE.jwk, "kty": "EC"},
        {**ONE.jwk, "kty": ["RSA"]},
        {**ONE.jwk, "kid": 7},
        {**ONE.jwk, "n": None},
        {**ONE.jwk, "n": "AQAB"},
        {**ONE.jwk, "e": "!!"},
        {**signer("k", "ES256").jwk, "crv": "P-384"},
        {**signer("k", "ES256").jwk, "x": "AAAA"},
        Signer("k", "RS256", rsa_key(0, 1024)).jwk,
        "key",
        7,
        None,
        [],
    ],
)
def test_what_is_no_usable_key_is_left_out(entry: Any) -> None:
    assert [key.kid for key in keys(entry, {**ONE.jwk, "kid": "good"}, algorithms=frozenset({"RS256", "ES256"})).keys] == ["good"]
    with pytest.raises(JwksError, match="can verify"):
        keys(entry, algorithms=frozenset({"RS256", "ES256"}))


def test_private_parts_are_dropped() -> None:
    private = RSAAlgorithm.to_jwk(rsa_key(), as_dict=True)
    (key,) = keys({**private, "kid": "k", "key_ops": ["sign", "verify"]}).keys
    assert not hasattr(key.by_algorithm["RS256"].key, "private_numbers")


def test_without_a_name_there_must_be_one_key_only() -> None:
    one, two = signer("a", number=0), signer("b", number=1)
    assert key_set(document(one), ALGORITHMS).find("", "RS256") is not None
    assert key_set(document(one, two), ALGORITHMS).find("", "RS256") is None
    assert key_set(document(one, signer("b", "ES256")), ALGORITHMS).find("", "RS256") is not None
    assert key_set(document(one, signer("a", number=1)), ALGORITHMS).find("a", "RS256") is None, "one name for two keys tells nothing"


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"{}", b'{"keys": {}}', b'{"keys": []}', b"\xff", b"[" * 100_000, b" " * (MAX_DOCUMENT_BYTES + 1), b"<html>"],
    ids=lambda raw: str(raw[:20]),
)
def test_other_documents_are_refused_with_a_sentence(raw: bytes) -> None:
    with pytest.raises(JwksError):
        key_set(raw, ALGORITHMS)


def test_a_long_list_is_looked_through_to_its_bound_only() -> None:
    assert len(keys(*({**ONE.jwk, "kid": str(at)} for at in range(150))).keys) == 100
