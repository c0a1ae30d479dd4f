"""Secrets: every published format is found in its place, what only looks like one is not, a wrong checksum is none."""

import random
import string
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.guards.generated import NAMED, TOKENS, checksummed, negatives, private_key, secrets
from guardrails.rules.secret_formats import KINDS, base62_crc, entropy
from guardrails.rules.secrets import Secrets
from guardrails.text import Text

RULE = Secrets("keys")


@pytest.mark.parametrize("kind", sorted(TOKENS.keys() | NAMED.keys()))
def test_made_secrets_are_found_whole_and_alone(kind: str) -> None:
    made = [one for one in secrets(seed=7, each=20) if one.kind == kind]
    exact = 0
    for one in made:
        found = RULE.scan(Text(one.text))
        exact += [(f.kind, f.begin, f.end) for f in found] == [(kind, one.begin, one.end)]
    assert exact >= 0.95 * len(made)


def test_what_looks_like_a_secret_and_is_none() -> None:
    assert [text for text in negatives(seed=3, count=400) if RULE.scan(Text(text))] == []


@given(st.integers(), st.sampled_from(["ghp_", "gho_", "npm_"]), st.integers(0, 5), st.sampled_from(string.ascii_letters + string.digits))
def test_a_checksum_digit_changed_is_no_token(seed: int, prefix: str, at: int, other: str) -> None:
    token = checksummed(random.Random(seed), prefix)
    place = len(token) - 6 + at
    changed = token[:place] + other + token[place + 1 :]
    assert bool(RULE.scan(Text(changed))) is (other == token[place])


def test_checksum_is_crc32_in_base62() -> None:
    """Read back digit by digit, it is the CRC-32 of the characters in front, in both orders of the alphabet."""
    small, capital = string.ascii_lowercase, string.ascii_uppercase
    for order, alphabet in enumerate((string.digits + capital + small, string.digits + small + capital)):
        value = 0
        for digit in base62_crc("0" * 30, order):
            value = value * 62 + alphabet.index(digit)
        assert value == zlib.crc32(b"0" * 30)


def test_spans_are_of_the_original_where_letters_are_hidden() -> None:
    token = checksummed(random.Random(1), "ghp_")
    hidden = token[:10] + "\u200b" + token[10:]
    text = f"é {hidden} é"
    (found,) = RULE.scan(Text(text))
    assert text[found.begin : found.end] == hidden


def test_only_chosen_kinds_and_only_known_ones() -> None:
    token = checksummed(random.Random(1), "ghp_")
    assert Secrets("keys", ["github_token"]).scan(Text(token))
    assert not Secrets("keys", ["aws_key"]).scan(Text(token))
    with pytest.raises(ValueError, match="no kind of secret called pgp; the kinds are aws_key"):
        Secrets("keys", ["pgp"])


def test_no_finding_is_longer_than_the_rule_says() -> None:
    assert all(f.end - f.begin <= RULE.longest for one in secrets(1, 5) for f in RULE.scan(Text(one.text)))
    block = private_key(random.Random(2))
    (found,) = RULE.scan(Text(f"see\n{block}"))
    assert (found.begin, found.end) == (4, 4 + len(block))


def test_a_text_of_prefixes_alone_is_scanned_in_bounded_time() -> None:
    assert RULE.scan(Text("AKIA" * 2000 + "-----BEGIN PRIVATE KEY-----" * 100)) == ()


def test_entropy() -> None:
    assert entropy("") == entropy("aaaa") == 0
    assert entropy("abcd" * 4) == 2
    assert len(set(KINDS)) == len(KINDS) >= 50


@pytest.mark.parametrize("value", ["MyPassword123!", "securePass123", "user_password_1", "TempPass!2024"])
def test_the_word_password_with_a_number_behind_it_is_no_password(value: str) -> None:
    assert not RULE.scan(Text(f"the password is {value} for all"))
    assert RULE.scan(Text(f"the password is {value[:4]}kT7!wQ2 for all"))


def test_a_prefix_inside_another_ones_match_is_tried_too() -> None:
    """What a scan finds does not depend on where it began."""
    token = checksummed(random.Random(4), "ghp_")
    text = f"postgres://{token}:pw@h"
    assert "github_token" in [f.kind for f in RULE.scan(Text(text))]
