"""The gate counts what happens to every token, asks for new keys when it must, and tells callers one thing."""

from typing import Any

import pytest

from domain.faults import Fault, Kind
from domain.identity import ProjectId, TenantId
from gateway.auth.jwt import JwtVerifier
from gateway.process.snapshots import IssuerState
from tenancy.jwt import IssuerRules, JwtOutcome, Mapped, Tokens
from tenancy.jwt_keys import key_set
from tests.issuer import ISSUER, NOW, document, signer

RULES = IssuerRules(
    ISSUER, frozenset({"tidegate"}), frozenset({"RS256"}), tenant=Mapped(claim=("tenant",)), project=Mapped(fixed="default")
)
ONE, TWO = signer("one"), signer("two", number=1)


class Watch:
    """Publishes what it is told to, when keys are wanted."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.next: bytes | None = None
        self.wanted_times = 0

    async def wanted(self) -> None:
        self.wanted_times += 1
        if self.next is not None:
            self.tokens.take_keys(ISSUER, key_set(self.next, RULES.algorithms))

    def state(self) -> IssuerState:
        return IssuerState(ISSUER, 1, 0.0)


def gate(*published: Any) -> tuple[JwtVerifier, Watch, list[tuple[str, JwtOutcome]]]:
    tokens, seen = Tokens([RULES]), list[tuple[str, JwtOutcome]]()
    watch = Watch(tokens)
    if published:
        tokens.take_keys(ISSUER, key_set(document(*published), RULES.algorithms))
    return JwtVerifier(tokens, {ISSUER: watch}, lambda issuer, outcome: seen.append((issuer, outcome))), watch, seen  # type: ignore[dict-item]  # as much of a watch as the gate asks of one


class Projects:
    """A directory with the default project of every tenant, or of those given."""

    def __init__(self, *tenants: str) -> None:
        self.tenants = tenants

    @property
    def directory(self) -> "Projects":
        return self

    def for_tenant(self, tenant: TenantId, project: ProjectId, now_unix: float) -> object | None:
        return ((not self.tenants or tenant in self.tenants) and project == "default") or None


everyone = Projects()


async def test_each_check_is_counted_once() -> None:
    made, watch, seen = gate(ONE)
    token = ONE.token()
    for _ in range(3):
        assert await made.authenticate(token, NOW, everyone) is not None
    assert await made.authenticate(token + "x", NOW, everyone) is None
    assert await made.authenticate("a.b.c", NOW, everyone) is None
    assert seen == [
        (ISSUER, JwtOutcome.VERIFIED),
        (ISSUER, JwtOutcome.CACHED),
        (ISSUER, JwtOutcome.CACHED),
        ("", JwtOutcome.MALFORMED),
        ("", JwtOutcome.MALFORMED),
    ]
    assert watch.wanted_times == 0
    assert made.states() == (IssuerState(ISSUER, 1, 0.0),)


async def test_a_new_key_is_asked_for_and_then_works() -> None:
    made, watch, seen = gate(ONE)
    watch.next = document(ONE, TWO)
    assert await made.authenticate(TWO.token(), NOW, everyone) is not None
    assert (watch.wanted_times, seen) == (1, [(ISSUER, JwtOutcome.VERIFIED)])


async def test_a_key_that_nobody_has_is_asked_for_and_refused() -> None:
    made, watch, seen = gate(ONE)
    assert await made.authenticate(TWO.token(), NOW, everyone) is None
    assert (watch.wanted_times, seen) == (1, [(ISSUER, JwtOutcome.UNKNOWN_KEY)])


async def test_a_wrong_signature_asks_for_nothing() -> None:
    made, watch, seen = gate(ONE)
    forged = signer("one", number=1).token()
    assert await made.authenticate(forged, NOW, everyone) is None
    assert (watch.wanted_times, seen) == (0, [(ISSUER, JwtOutcome.SIGNATURE)])


async def test_an_unknown_tenant_is_refused_also_when_it_was_known_before() -> None:
    made, _, seen = gate(ONE)
    token = ONE.token()
    assert await made.authenticate(token, NOW, Projects("acme")) is not None
    assert await made.authenticate(token, NOW, Projects("bolt")) is None
    assert seen[-1] == (ISSUER, JwtOutcome.UNKNOWN_TENANT)


async def test_without_any_keys_it_is_our_fault() -> None:
    made, watch, seen = gate()
    with pytest.raises(Fault) as caught:
        await made.authenticate(ONE.token(), NOW, everyone)
    assert caught.value.kind is Kind.IDENTITY_UNAVAILABLE
    assert caught.value.retry.should
    assert (watch.wanted_times, seen) == (1, [(ISSUER, JwtOutcome.NO_KEYS)])
