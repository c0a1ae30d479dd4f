import random

import pytest

from tenancy.isolation import PREFIX, cache_salt


@pytest.mark.req("R5")
def test_ten_thousand_different_fields_have_ten_thousand_salts() -> None:
    rng = random.Random(5)
    alphabet = ["", "a", "ab", "1", "1:a", "2:", "org_1", "2345", "org_12345", ":"]
    tuples = {tuple(rng.choice(alphabet) + str(rng.randrange(40)) * rng.randrange(2) for _ in range(3)) for _ in range(40_000)}
    assert len(tuples) >= 10_000
    assert len({cache_salt(b"s", *fields) for fields in tuples}) == len(tuples)
    assert cache_salt(b"s", "org_1", "2345") != cache_salt(b"s", "org_12345", "")
    assert cache_salt(b"s", "a") != cache_salt(b"t", "a")


def test_engines_accept_its_form() -> None:
    salt = cache_salt(b"s", "tenant", "model")
    assert salt.startswith(PREFIX)
    assert len(salt) <= 128
    assert not set(salt) & set("@/\\\0")
