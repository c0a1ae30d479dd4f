"""Kept answers and their seal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.answers import Answer, Sealer
from domain.usage import Usage

KEY = bytes(range(32))
SEALER = Sealer(b"s" * 32)


def answer(document: bytes = b'{"choices":[]}', owner: str = "acme") -> Answer:
    return Answer(owner, KEY, document, Usage(3, 5), "m", 100.0, 200.0)


@given(st.binary(max_size=5_000), st.text(max_size=20))
def test_what_is_sealed_is_opened(document: bytes, owner: str) -> None:
    kept = answer(document, owner)
    assert SEALER.opened(SEALER.seal(kept), owner, KEY) == kept


def test_a_long_answer_is_compressed() -> None:
    assert len(SEALER.seal(answer(b"word " * 2_000))) < 1_000


@pytest.mark.req("R50")
def test_another_tenant_another_key_and_another_secret_open_nothing() -> None:
    sealed = SEALER.seal(answer())
    assert SEALER.opened(sealed, "beta", KEY) is None
    assert SEALER.opened(sealed, "acme", KEY[::-1]) is None
    assert Sealer(b"t" * 32).opened(sealed, "acme", KEY) is None


@pytest.mark.parametrize("document", [b"short", b"long " * 1_000])
def test_a_damaged_answer_is_a_miss_at_every_byte(document: bytes) -> None:
    sealed = SEALER.seal(answer(document))
    for at in range(len(sealed)):
        damaged = sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :]
        assert SEALER.opened(damaged, "acme", KEY) is None, at
        assert SEALER.opened(sealed[:at], "acme", KEY) is None, at


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        Sealer(b"short")
