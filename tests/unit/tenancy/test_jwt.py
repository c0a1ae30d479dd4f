"""Tokens are verified by their whole text, with the issuer's key and nothing else."""

from typing import Any

import msgspec
import pytest

from tenancy.jwt import IssuerRules, JwtOutcome, Mapped, Rejected, Tokens, looks_like_token
from tenancy.jwt_keys import ALGORITHMS, key_set
from tests.issuer import ISSUER, NOW, Signer, claims_of, document, signer
from tests.token_vectors import broken, forged

KNOWN = signer("k1")
RULES = IssuerRules(
    ISSUER, frozenset({"tidegate"}), frozenset({"RS256"}), tenant=Mapped(claim=("tenant",)), project=Mapped(fixed="default")
)
ALLOWED_TO_PASS = {"a tenant that does not exist"}  # the directory's to say, `tests/wire/test_tokens.py` looks at it
BAD = {name: token for name, token in (forged(KNOWN, NOW, ISSUER) | broken(KNOWN, NOW, ISSUER)).items() if name not in ALLOWED_TO_PASS}


def tokens(*signers: Signer, most: int = 100, **changes: Any) -> Tokens:
    rules = msgspec.structs.replace(RULES, **changes)
    made = Tokens([rules], most)
    made.take_keys(ISSUER, key_set(document(*(signers or (KNOWN,))), rules.algorithms))
    return made


def test_there_are_enough_vectors() -> None:
    assert len(BAD) >= 100


@pytest.mark.parametrize("name", BAD)
def test_bad_tokens_are_rejected_and_not_remembered(name: str) -> None:
    mine = tokens()
    for _ in range(2):
        assert mine.remembered(BAD[name], NOW) is None
        with pytest.raises(Rejected):
            mine.verify(BAD[name], NOW)
    assert len(mine) == 0


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_every_algorithm_verifies_its_own(algorithm: str) -> None:
    one = signer("k", algorithm)
    mine = tokens(one, algorithms=frozenset({algorithm}))
    assert mine.verify(one.token(), NOW)[0].tenant == "acme"
    others = ALGORITHMS - {algorithm}
    with pytest.raises(Rejected) as caught:
        tokens(*(signer(name, name) for name in sorted(others)), algorithms=others).verify(one.token(), NOW)
    assert caught.value.outcome is JwtOutcome.ALGORITHM


@pytest.mark.parametrize("typ", ["JWT", "at+jwt", "application/at+jwt", "jwt"])
def test_types_of_identity_and_access_tokens(typ: str) -> None:
    tokens().verify(KNOWN.token({"typ": typ}), NOW)


def test_a_verified_token_is_remembered_until_it_expires() -> None:
    mine, token = tokens(), KNOWN.token()
    caller, issuer = mine.verify(token, NOW)
    assert mine.remembered(token, NOW + 659) == (caller, issuer)
    assert mine.remembered(token, NOW + 660) is None


def test_tokens_that_begin_alike_are_not_each_other() -> None:
    """CVE-2026-35030: a cache keyed by the first 20 characters gave one caller's identity to all of one algorithm."""
    mine, one, other = tokens(), KNOWN.token(sub="alice", tenant="acme"), KNOWN.token(sub="mallory", tenant="bolt")
    assert one[:60] == other[:60]
    first, _ = mine.verify(one, NOW)
    assert mine.remembered(other, NOW) is None
    second, _ = mine.verify(other, NOW)
    assert (first.tenant, second.tenant) == ("acme", "bolt")
    assert first.key_id != second.key_id
    for at in range(len(one)):
        changed = one[:at] + ("A" if one[at] != "A" else "B") + one[at + 1 :]
        assert mine.remembered(changed, NOW) is None


def test_memory_is_bounded_and_the_oldest_goes() -> None:
    mine = tokens(most=3)
    many = [KNOWN.token(sub=f"user-{at}") for at in range(5)]
    for token in many:
        mine.verify(token, NOW)
        mine.verify(token, NOW)
    assert len(mine) == 3
    assert [mine.remembered(token, NOW) is not None for token in many] == [False, False, True, True, True]


def test_new_keys_forget_what_old_ones_verified() -> None:
    mine, token, new = tokens(), KNOWN.token(), signer("k2", number=1)
    mine.verify(token, NOW)
    mine.take_keys(ISSUER, key_set(document(new), RULES.algorithms))
    assert mine.remembered(token, NOW) is None
    with pytest.raises(Rejected) as caught:
        mine.verify(token, NOW)
    assert caught.value.outcome is JwtOutcome.UNKNOWN_KEY
    mine.verify(new.token(), NOW)


def test_before_the_keys_are_known_it_is_not_the_tokens_fault() -> None:
    with pytest.raises(Rejected) as caught:
        Tokens([RULES]).verify(KNOWN.token(), NOW)
    assert (caught.value.outcome, caught.value.issuer) == (JwtOutcome.NO_KEYS, ISSUER)


def test_each_issuer_vouches_for_its_own_alone() -> None:
    other = msgspec.structs.replace(RULES, issuer="https://other.example", tenant=Mapped(fixed="bolt"))
    stranger = signer("k1", number=1)
    mine = Tokens([RULES, other])
    mine.take_keys(ISSUER, key_set(document(KNOWN), RULES.algorithms))
    mine.take_keys(other.issuer, key_set(document(stranger), RULES.algorithms))
    assert mine.verify(KNOWN.token(), NOW)[0].tenant == "acme"
    assert mine.verify(stranger.token(iss=other.issuer), NOW)[0].tenant == "bolt"
    with pytest.raises(Rejected):
        mine.verify(stranger.token(), NOW)
    with pytest.raises(Rejected):
        mine.verify(KNOWN.token(iss=other.issuer), NOW)


def test_an_audience_among_several() -> None:
    tokens().verify(KNOWN.token(aud=["account", "tidegate"]), NOW)


def test_what_looks_like_a_token() -> None:
    assert looks_like_token(KNOWN.token())
    for text in ("", "gw_live_x", "a.b", "a.b.c.d", "sk-1234"):
        assert not looks_like_token(text)


def test_good_claims_are_good() -> None:
    """The vectors' starting point opens the door, or they would prove nothing."""
    assert tokens().verify(KNOWN.token(**claims_of()), NOW)[0].tenant == "acme"
