import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.identity import Caller, ProjectId, TenantId
from tenancy.keys import ENTROPY_BYTES, KeyRecord, KeyRing, Minted, Pepper, digest_of, mint, parse

PEPPER = Pepper("k1", b"pepper" * 6)
entropy = st.binary(min_size=ENTROPY_BYTES, max_size=ENTROPY_BYTES)


def record(minted: Minted, **fields: object) -> KeyRecord:
    made = {"tenant": TenantId("acme"), "project": ProjectId("default"), "kid": "k1", "digests": (digest_of(PEPPER.secret, minted.secret),)}
    return KeyRecord(id=minted.id, **{**made, **fields})  # type: ignore[arg-type]


@given(entropy)
def test_minted_keys_have_the_documented_form_and_parse_back(random: bytes) -> None:
    minted = mint("live", random)
    assert re.fullmatch(r"gw_live_[0-9A-Za-z]{10}_[0-9A-Za-z]{43}[0-9A-Za-z]{6}", minted.text)
    parsed = parse(minted.text)
    assert parsed is not None
    assert (parsed.id, parsed.secret) == (minted.id, minted.secret)


@given(entropy, st.integers(0, 67), st.sampled_from("0aZ_-"))
def test_a_single_typo_is_noticed_without_a_look_up(random: bytes, at: int, instead: str) -> None:
    text = mint("live", random).text
    mistyped = text[:at] + instead + text[at + 1 :]
    # a typo in the environment's name keeps the form, so the checksum has to notice it as well
    assert mistyped == text or parse(mistyped) is None


@pytest.mark.req("R12")
@given(st.text() | st.text("gw_live0aZ'\";\\\0\x7f\u202e", max_size=80))
def test_any_text_is_refused_quietly(text: str) -> None:
    assert KeyRing([], PEPPER).authenticate(text, 0.0) is None
    assert KeyRing([], PEPPER).authenticate(text * 20_000, 0.0) is None


@pytest.mark.req("R12")
def test_no_sql_is_joined_from_strings() -> None:
    root = Path(__file__).parents[3] / "tenancy" / "stores" / "sql"
    for source in root.rglob("*.py"):
        assert not re.search(r"\btext\(|\.format\(|execute\(\s*f[\"']", source.read_text()), source.name


def test_ring_knows_its_keys_and_nobody_else() -> None:
    ours, other = mint("live", b"\1" * ENTROPY_BYTES), mint("live", b"\2" * ENTROPY_BYTES)
    ring = KeyRing([record(ours)], PEPPER)
    for _ in range(2):  # the second time it is remembered
        assert ring.authenticate(ours.text, 0.0) == Caller(TenantId("acme"), ProjectId("default"), ours.id)
        assert ring.authenticate(other.text, 0.0) is None


@pytest.mark.req("R35")
def test_both_secrets_of_a_rotation_work_and_others_do_not() -> None:
    old, new = mint("live", b"\1" * ENTROPY_BYTES), mint("live", b"\3" * 32 + b"\1" * 8)
    assert old.id == new.id
    digests = (digest_of(PEPPER.secret, old.secret), digest_of(PEPPER.secret, new.secret))
    ring = KeyRing([record(old, digests=digests)], PEPPER)
    assert ring.authenticate(old.text, 0.0) == ring.authenticate(new.text, 0.0) is not None
    assert KeyRing([record(old, digests=digests[1:])], PEPPER).authenticate(old.text, 0.0) is None


@pytest.mark.parametrize("fields", [{"revoked_unix": 5.0}, {"expires_unix": 10.0}, {"kid": "another"}])
def test_revoked_expired_and_foreign_keys_look_unknown(fields: dict[str, object]) -> None:
    minted = mint("live", b"\1" * ENTROPY_BYTES)
    ring = KeyRing([record(minted, **fields)], PEPPER)
    assert ring.authenticate(minted.text, 10.0) is None


def test_a_key_works_until_the_moment_it_expires() -> None:
    minted = mint("live", b"\1" * ENTROPY_BYTES)
    ring = KeyRing([record(minted, expires_unix=10.0)], PEPPER)
    assert ring.authenticate(minted.text, 9.999) is not None
    assert ring.authenticate(minted.text, 10.0) is None


@pytest.mark.req("R16")
def test_an_unknown_id_costs_the_same_keyed_hash_as_a_wrong_secret() -> None:
    calls: list[bytes] = []

    def counting(pepper: bytes, secret: bytes) -> bytes:
        calls.append(secret)
        return digest_of(pepper, secret)

    ours = mint("live", b"\1" * ENTROPY_BYTES)
    wrong_secret, unknown = mint("live", b"\4" * 32 + b"\1" * 8), mint("live", b"\5" * ENTROPY_BYTES)
    ring = KeyRing([record(ours)], PEPPER, counting)
    for text in (wrong_secret.text, unknown.text):
        calls.clear()
        assert ring.authenticate(text, 0.0) is None
        assert len(calls) == 1


def test_nothing_shows_a_secret() -> None:
    minted = mint("live", b"\1" * ENTROPY_BYTES)
    ring = KeyRing([record(minted)], PEPPER)
    ring.authenticate(minted.text, 0.0)
    shown = repr(minted) + repr(parse(minted.text)) + repr(record(minted)) + repr(ring) + repr(PEPPER)
    assert minted.secret.decode() not in shown
    assert "pepper" * 2 not in shown


@pytest.mark.parametrize(("environment", "random"), [("LIVE", b"\0" * ENTROPY_BYTES), ("", b"\0" * ENTROPY_BYTES), ("live", b"\0")])
def test_minting_refuses_what_it_cannot_use(environment: str, random: bytes) -> None:
    with pytest.raises(ValueError, match=r"environment|random bytes"):
        mint(environment, random)
