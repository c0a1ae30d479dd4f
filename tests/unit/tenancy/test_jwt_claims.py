"""Verified claims become a Caller, or a refusal with its reason."""

from typing import Any

import msgspec
import pytest

from tenancy.jwt import IssuerRules, JwtOutcome, Mapped, Rejected, Roles, caller_of, key_id
from tests.issuer import ISSUER, NOW, claims_of

RULES = IssuerRules(
    ISSUER, frozenset({"tidegate"}), frozenset({"RS256"}), tenant=Mapped(claim=("tenant",)), project=Mapped(fixed="default")
)
TABLE = {"llm-acme": "acme", "llm-acme-too": "acme", "llm-bolt": "bolt"}


def rules(**changes: Any) -> IssuerRules:
    return msgspec.structs.replace(RULES, **changes)


def claims(**changes: Any) -> dict[str, Any]:
    return {name: value for name, value in (claims_of() | changes).items() if value is not None}


def test_a_good_token_is_its_caller_until_it_expires() -> None:
    caller, until = caller_of(claims(), RULES, NOW)
    assert (caller.tenant, caller.project, caller.roles, caller.user) == ("acme", "default", (), "")
    assert caller.key_id == key_id(ISSUER, "user-1")
    assert until == NOW + 600 + 60


def test_subjects_are_known_by_digests_that_never_meet() -> None:
    assert key_id("a", "bc") != key_id("ab", "c")
    assert len(key_id("a", "b")) == len("jwt:") + 16
    assert "alice" not in key_id(ISSUER, "alice@example.com")


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"exp": None}, JwtOutcome.CLAIMS),
        ({"exp": "soon"}, JwtOutcome.CLAIMS),
        ({"exp": True}, JwtOutcome.CLAIMS),
        ({"exp": -1}, JwtOutcome.CLAIMS),
        ({"exp": 1e300}, JwtOutcome.CLAIMS),
        ({"exp": 10**3000}, JwtOutcome.CLAIMS),
        ({"exp": [NOW + 60]}, JwtOutcome.CLAIMS),
        ({"exp": int(NOW) - 60}, JwtOutcome.EXPIRED),
        ({"exp": 0}, JwtOutcome.EXPIRED),
        ({"nbf": int(NOW) + 61}, JwtOutcome.NOT_YET_VALID),
        ({"iat": int(NOW) + 61}, JwtOutcome.NOT_YET_VALID),
        ({"nbf": "now"}, JwtOutcome.CLAIMS),
        ({"nbf": {}}, JwtOutcome.CLAIMS),
        ({"iat": None}, JwtOutcome.CLAIMS),
        ({"iat": int(NOW) - 86_460}, JwtOutcome.TOO_OLD),
        ({"aud": None}, JwtOutcome.AUDIENCE),
        ({"aud": "other"}, JwtOutcome.AUDIENCE),
        ({"aud": "tidegate "}, JwtOutcome.AUDIENCE),
        ({"aud": "Tidegate"}, JwtOutcome.AUDIENCE),
        ({"aud": []}, JwtOutcome.AUDIENCE),
        ({"aud": ["other", 7, None]}, JwtOutcome.AUDIENCE),
        ({"aud": {"tidegate": 1}}, JwtOutcome.AUDIENCE),
        ({"aud": [["tidegate"]]}, JwtOutcome.AUDIENCE),
        ({"sub": None}, JwtOutcome.CLAIMS),
        ({"sub": ""}, JwtOutcome.CLAIMS),
        ({"sub": 7}, JwtOutcome.CLAIMS),
        ({"sub": "x" * 257}, JwtOutcome.CLAIMS),
        ({"tenant": None}, JwtOutcome.CLAIMS),
        ({"tenant": ""}, JwtOutcome.CLAIMS),
        ({"tenant": 7}, JwtOutcome.CLAIMS),
        ({"tenant": ["acme"]}, JwtOutcome.CLAIMS),
        ({"tenant": {"name": "acme"}}, JwtOutcome.CLAIMS),
        ({"tenant": "Acme"}, JwtOutcome.CLAIMS),
        ({"tenant": "*"}, JwtOutcome.CLAIMS),
        ({"tenant": "acme\n"}, JwtOutcome.CLAIMS),
        ({"tenant": "../acme"}, JwtOutcome.CLAIMS),
        ({"tenant": "a" * 64}, JwtOutcome.CLAIMS),
    ],
    ids=lambda value: str(value)[:60],
)
def test_claims_that_are_refused(changes: dict[str, Any], outcome: JwtOutcome) -> None:
    with pytest.raises(Rejected) as caught:
        caller_of(claims(**changes), RULES, NOW)
    assert caught.value.outcome is outcome
    assert caught.value.issuer == ISSUER


def test_the_leeway_counts_at_both_ends() -> None:
    caller_of(claims(exp=int(NOW) - 59), RULES, NOW)
    caller_of(claims(nbf=int(NOW) + 60, iat=int(NOW) + 60), RULES, NOW)
    with pytest.raises(Rejected):
        caller_of(claims(exp=int(NOW) - 1), rules(leeway_s=0.0), NOW)


def test_age_ends_a_token_before_its_expiry() -> None:
    far = int(NOW) + 10**9
    _, until = caller_of(claims(exp=far), rules(max_age_s=3600.0), NOW)
    assert until == NOW + 3600 + 60
    _, until = caller_of(claims(exp=far, iat=None), rules(max_age_s=None), NOW)
    assert until == far + 60


@pytest.mark.parametrize(
    ("tenant", "given", "name"),
    [
        (Mapped(fixed="acme"), {}, "acme"),
        (Mapped(claim=("org", "id")), {"org": {"id": "bolt"}}, "bolt"),
        (Mapped(claim=("https://example.com/org",)), {"https://example.com/org": "bolt"}, "bolt"),
        (Mapped(claim=("groups",), table=TABLE), {"groups": ["x", "llm-bolt"]}, "bolt"),
        (Mapped(claim=("groups",), table=TABLE), {"groups": "llm-acme"}, "acme"),
        (Mapped(claim=("groups",), table=TABLE), {"groups": ["llm-acme", "llm-acme-too"]}, "acme"),
        (Mapped(claim=("groups",), table=TABLE, otherwise="guests"), {}, "guests"),
        (Mapped(claim=("groups",), table=TABLE, otherwise="guests"), {"groups": ["x"]}, None),
        (Mapped(claim=("groups",), table=TABLE), {"groups": ["llm-acme", "llm-bolt"]}, None),
        (Mapped(claim=("groups",), table=TABLE), {"groups": []}, None),
        (Mapped(claim=("groups",), table=TABLE), {"groups": [["llm-acme"], {"llm-acme": 1}, 7]}, None),
        (Mapped(claim=("groups",), table=TABLE), {"groups": ["x"] * 1000 + ["llm-acme"]}, None),
        (Mapped(claim=("org", "id")), {"org": "bolt"}, None),
        (Mapped(claim=("org", "id")), {"org": ["bolt"]}, None),
    ],
)
def test_where_the_tenant_comes_from(tenant: Mapped, given: dict[str, Any], name: str | None) -> None:
    if name is not None:
        assert caller_of(claims(**given), rules(tenant=tenant), NOW)[0].tenant == name
        return
    with pytest.raises(Rejected) as caught:
        caller_of(claims(**given), rules(tenant=tenant), NOW)
    assert caught.value.outcome is JwtOutcome.CLAIMS


def test_project_roles_and_user_come_from_claims_too() -> None:
    mine = rules(
        project=Mapped(claim=("app",), otherwise="default"),
        roles=Roles(("realm", "roles"), {"llm-admin": "tenant-admin", "llm-audit": "auditor"}),
        user=("preferred_username",),
    )
    given = claims(app="search", realm={"roles": ["offline", "llm-audit", "llm-admin"]}, preferred_username="alice")
    caller, _ = caller_of(given, mine, NOW)
    assert (caller.project, caller.roles, caller.user) == ("search", ("auditor", "tenant-admin"), "alice")
    with pytest.raises(Rejected):
        caller_of(claims(), mine, NOW)


def test_claims_that_must_be_so() -> None:
    mine = rules(required={"token_use": "access"})
    caller_of(claims(token_use="access"), mine, NOW)
    for wrong in (None, "id", ["access"], {"access": 1}):
        with pytest.raises(Rejected):
            caller_of(claims(token_use=wrong), mine, NOW)
