from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.identity import KeyId, ProjectId, TenantId
from tenancy.accounts import Contents, Organisation, Project, Tenant
from tenancy.keys import KeyRecord, Pepper
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tenancy.prices import Price, TokenRates
from tenancy.rights import Caps, KeyScope, Rights, Role
from tenancy.sealed import MAGIC, NotSealed, SealedDirectory, seal, unseal

PEPPER = Pepper("k1", b"p" * 32)
RIGHTS = Rights(frozenset({"m"}), None, frozenset(), Caps(1, 2, 3, 0, False))
FULL = SealedDirectory(
    5.5,
    Contents(
        7,
        (Organisation("default", "x", True, RIGHTS, 1.0, 3),),
        (Tenant(TenantId("acme"), "default", "x", True, RIGHTS, 1.0, 3),),
        (Project(TenantId("acme"), ProjectId("lab"), "x", True, RIGHTS, 1.0, 3),),
        (
            KeyRecord(
                *(KeyId("abcdefghij"), TenantId("acme"), ProjectId("lab"), "k1", (b"a" * 32, b"b" * 32), "x", 1.0, 2.0, 3.0, 4.0, True),
                *(frozenset(KeyScope), frozenset(Role), RIGHTS, 9),
            ),
        ),
        (Limit(Scope(Level.USER, "acme"), Meter.TOKENS, Window.MINUTE, 5, 6, 7, 8, 9.0),),
        (Price("p", "m", "*", 1.0, TokenRates(10**14, 2, 3, 4), TokenRates(5, 6, 7, 8)),),
    ),
)
SEALED = seal(FULL, PEPPER)


def test_everything_comes_back() -> None:
    assert unseal(SEALED, PEPPER) == FULL


@given(st.integers(0, len(SEALED) - 1), st.integers(1, 255))
def test_any_changed_byte_is_noticed(at: int, by: int) -> None:
    changed = bytearray(SEALED)
    changed[at] ^= by
    with pytest.raises(NotSealed):
        unseal(bytes(changed), PEPPER)


@given(st.integers(0, len(SEALED) - 1))
def test_half_a_file_is_noticed(length: int) -> None:
    with pytest.raises(NotSealed):
        unseal(SEALED[:length], PEPPER)


def test_another_pepper_opens_nothing() -> None:
    with pytest.raises(NotSealed, match="another pepper"):
        unseal(SEALED, Pepper("k1", b"q" * 32))


def test_what_a_later_version_sealed_is_refused_and_not_half_read() -> None:
    import hashlib
    import hmac

    later: dict[str, Any] = {"at_unix": 1.0, "contents": {"keys": "elsewhere"}}
    body = msgspec.msgpack.encode(later)
    key = hmac.digest(PEPPER.secret, b"tidegate directory snapshot v1", hashlib.sha256().name)
    with pytest.raises(NotSealed, match="does not know"):
        unseal(MAGIC + hmac.digest(key, MAGIC + body, hashlib.sha256().name) + body, PEPPER)
