"""What is kept of Responses, sealed: opened again by the right pepper for the right row, and by nothing else."""

import pytest

from domain.identity import TenantId
from tenancy.keys import Pepper
from tenancy.responses import FORMAT, NONCE_BYTES, ResponseSealer, StoredResponse

OLD, NEW = Pepper("k1", b"p" * 32), Pepper("k2", b"q" * 32)
STORED = StoredResponse(
    id="resp_1", tenant=TenantId("acme"), created_unix=1.0, expires_unix=2.0, response=b'{"text":"a secret"}', items=b'["another"]'
)


def sealer(*peppers: Pepper) -> ResponseSealer:
    return ResponseSealer(peppers, lambda size: b"n" * size)


def test_what_is_sealed_cannot_be_read_and_is_opened_for_its_row_alone() -> None:
    one = sealer(OLD)
    sealed = one.seal(STORED)
    assert one.kid == "k1"
    assert sealed.startswith(FORMAT + b"n" * NONCE_BYTES)
    assert b"secret" not in sealed
    assert b"another" not in sealed
    assert one.opened(sealed, "k1", "acme", "resp_1") == (STORED.response, STORED.items)
    for tenant, name in (("bolt", "resp_1"), ("acme", "resp_2"), ("acmer", "esp_1")):
        assert one.opened(sealed, "k1", tenant, name) is None


def test_a_new_pepper_seals_and_those_of_before_open() -> None:
    before = sealer(OLD).seal(STORED)
    both = sealer(NEW, OLD)
    assert both.opened(before, "k1", "acme", "resp_1") is not None
    assert both.opened(both.seal(STORED), both.kid, "acme", "resp_1") is not None
    assert sealer(NEW).opened(before, "k1", "acme", "resp_1") is None
    assert both.opened(before, "k2", "acme", "resp_1") is None


def test_every_pepper_and_tenant_has_a_key_of_its_own() -> None:
    other = StoredResponse(
        id="resp_1", tenant=TenantId("bolt"), created_unix=1.0, expires_unix=2.0, response=STORED.response, items=STORED.items
    )
    bodies = {one.seal(stored)[len(FORMAT) + NONCE_BYTES :] for one in (sealer(OLD), sealer(NEW)) for stored in (STORED, other)}
    assert len(bodies) == 4


@pytest.mark.parametrize("at", [0, 5, 20, -1])
def test_what_is_damaged_is_not_opened(at: int) -> None:
    one = sealer(OLD)
    sealed = bytearray(one.seal(STORED))
    sealed[at] ^= 1
    assert one.opened(bytes(sealed), "k1", "acme", "resp_1") is None
    assert one.opened(b"", "k1", "acme", "resp_1") is None
    assert one.opened(FORMAT, "k1", "acme", "resp_1") is None
