import random
import re
import time
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.identity import Caller, ProjectId, TenantId
from tenancy.keys import (
    ENTROPY_BYTES,
    OVERLAP_S,
    SECRET_BYTES,
    KeyRecord,
    KeyRing,
    Minted,
    Pepper,
    digest_of,
    mint,
    mint_again,
    parse,
    revoked,
    rotated,
)
from tenancy.rights import KeyScope, Role
from tests.timing import skip_stalled, welch_t

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


def test_what_is_remembered_is_bounded_by_the_keys_there_are() -> None:
    """The environment in a key's text says nothing, so its holder can spell one key in any number of ways."""
    digests = 0

    def counted(pepper: bytes, secret: bytes) -> bytes:
        nonlocal digests
        digests += 1
        return digest_of(pepper, secret)

    ours = mint("live", b"\1" * ENTROPY_BYTES)
    ring = KeyRing([record(ours)], PEPPER, counted)
    spellings = [mint(f"e{n}", b"\1" * ENTROPY_BYTES).text for n in range(50)]
    for _ in range(2):
        assert all(ring.authenticate(text, 0.0) for text in spellings)
    assert digests == 100, "the first ones had to go before they came again"
    assert ring.authenticate(spellings[-1], 0.0) and digests == 100


@pytest.mark.req("R35")
def test_both_secrets_of_a_rotation_work_until_the_overlap_ends() -> None:
    old, new = mint("live", b"\1" * ENTROPY_BYTES), mint("live", b"\3" * 32 + b"\1" * 8)
    assert old.id == new.id
    after = rotated(record(old), "k1", digest_of(PEPPER.secret, new.secret), 1_000.0, OVERLAP_S)
    ring = KeyRing([after], PEPPER)
    assert ring.authenticate(old.text, 1_000.0 + OVERLAP_S - 0.001) == ring.authenticate(new.text, 1_000.0) is not None
    assert ring.authenticate(old.text, 1_000.0 + OVERLAP_S) is None
    assert ring.authenticate(new.text, 1_000.0 + OVERLAP_S) is not None


@pytest.mark.req("R35")
def test_a_rotation_without_an_overlap_ends_every_secret_before_it() -> None:
    first, second, third = (mint("live", bytes([seed]) * 32 + b"\1" * 8) for seed in (1, 2, 3))
    overlapping = rotated(record(first), "k1", digest_of(PEPPER.secret, second.secret), 0.0, 60.0)
    at_once = rotated(overlapping, "k1", digest_of(PEPPER.secret, third.secret), 1.0, 0.0)
    again = rotated(overlapping, "k1", digest_of(PEPPER.secret, third.secret), 1.0, 60.0)
    taken = [
        [KeyRing([state], PEPPER).authenticate(key.text, 2.0) is not None for key in (first, second, third)] for state in (at_once, again)
    ]
    assert taken == [[False, False, True], [False, True, True]]


def test_what_cannot_be_rotated_is_refused() -> None:
    minted = mint("live", b"\1" * ENTROPY_BYTES)
    for state, overlap_s in ((revoked(record(minted), 1.0), 0.0), (record(minted), -1.0), (record(minted), 1e9)):
        with pytest.raises(ValueError, match=r"revoked|overlap"):
            rotated(state, "k1", b"d" * 32, 2.0, overlap_s)


def test_a_key_is_taken_only_where_its_scopes_say() -> None:
    minted = mint("live", b"\1" * ENTROPY_BYTES)
    admin = record(minted, scopes=frozenset({KeyScope.ADMIN}), roles=frozenset({Role.AUDITOR}))
    ring = KeyRing([admin], PEPPER)
    assert ring.authenticate(minted.text, 0.0) is None
    assert ring.authenticate(minted.text, 0.0, KeyScope.ADMIN) is not None


@pytest.mark.parametrize(
    "fields",
    [
        {"scopes": frozenset()},
        {"scopes": frozenset({KeyScope.ADMIN})},
        {"roles": frozenset({Role.OWNER})},
        {"digests": ()},
        {"digests": (b"a", b"b")},
        {"old_until_unix": 5.0},
    ],
)
def test_records_that_contradict_themselves_cannot_be_made(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"key"):
        record(mint("live", b"\1" * ENTROPY_BYTES), **fields)


@pytest.mark.parametrize("fields", [{"revoked_unix": 5.0}, {"expires_unix": 10.0}, {"kid": "another"}, {"disabled": True}])
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


@pytest.mark.req("R16")
def test_nobody_can_tell_by_time_which_ids_there_are(record_property: pytest.FixtureRequest) -> None:
    """A known id with a wrong secret, and an unknown id: 5,000 of each in random order, so that whatever else the machine does hits
    both alike. Of whole times, t stays below 4.5; medians, which no outlier moves, differ by less than 2 % (75 ns; another cache line is
    100: three look-ups in a small dictionary make 4 %). One of three rounds has to be so, and a
    difference of the code has the same sign in all."""
    dice = random.Random(16)
    known = [mint("live", dice.randbytes(ENTROPY_BYTES)) for _ in range(1000)]
    ring = KeyRing([record(key) for key in known], PEPPER)
    clock = time.perf_counter_ns
    apart = []
    for _ in range(3):
        tokens = [(0, mint_again("live", dice.choice(known).id, dice.randbytes(SECRET_BYTES)).text) for _ in range(5000)]
        tokens += [(1, mint("live", dice.randbytes(ENTROPY_BYTES)).text) for _ in range(5000)]
        dice.shuffle(tokens)
        took: tuple[list[float], list[float]] = ([], [])
        for kind, token in tokens:
            began = clock()
            ring.authenticate(token, 0.0)
            took[kind].append(clock() - began)
        t = welch_t(*took)
        wrong, unknown = map(median, took)
        if alike := abs(t) < 4.5 and abs(wrong - unknown) < 0.02 * unknown:
            break
        apart.append((t if abs(t) >= 4.5 else wrong - unknown) > 0)
    told = f"|t| {abs(t):.1f}; medians {wrong:.0f} and {unknown:.0f} ns"
    record_property("figure", told)  # type: ignore[operator]
    if not alike and len(set(apart)) == 2:
        skip_stalled(f"differences of both signs in three rounds: {told}")
    assert alike, told


def test_a_ring_without_keys_takes_none() -> None:
    assert KeyRing([], PEPPER).authenticate(mint("live", b"\1" * ENTROPY_BYTES).text, 0.0) is None


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


def test_a_caller_has_the_tags_of_its_key() -> None:
    minted = mint("live", bytes(ENTROPY_BYTES))
    caller = KeyRing([record(minted, tags=(("tier", "gold"),))], PEPPER).authenticate(minted.text, 0.0)
    assert caller is not None
    assert caller.tags == (("tier", "gold"),)
