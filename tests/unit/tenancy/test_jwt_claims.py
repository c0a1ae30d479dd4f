"""Verified claims become a Caller, or a refusal with its reason."""

from typing import Any

import msgspec
import pytest

from tenancy.jwt_claims import IssuerRules, Mapped, Outcome, Rejected, Roles, caller_of, key_id
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
        ({"exp": None}, Outcome.CLAIMS),
        ({"exp": "soon"}, Outcome.CLAIMS),
        ({"exp": True}, Outcome.CLAIMS),
        ({"exp": -1}, Outcome.CLAIMS),
        ({"exp": 1e300}, Outcome.CLAIMS),
        ({"exp": 10**3000}, Outcome.CLAIMS),
        ({"exp": [NOW + 60]}, Outcome.CLAIMS),
        ({"exp": int(NOW) - 60}, Outcome.EXPIRED),
        ({"exp": 0}, Outcome.EXPIRED),
        ({"nbf": int(NOW) + 61}, Outcome.NOT_YET_VALID),
        ({"iat": int(NOW) + 61}, Outcome.NOT_YET_VALID),
        ({"nbf": "now"}, Outcome.CLAIMS),
        ({"nbf": {}}, Outcome.CLAIMS),
        ({"iat": None}, Outcome.CLAIMS),
        ({"iat": int(NOW) - 86_460}, Outcome.TOO_OLD),
        ({"aud": None}, Outcome.AUDIENCE),
        ({"aud": "other"}, Outcome.AUDIENCE),
        ({"aud": "tidegate "}, Outcome.AUDIENCE),
        ({"aud": "Tidegate"}, Outcome.AUDIENCE),
        ({"aud": []}, Outcome.AUDIENCE),
        ({"aud": ["other", 7, None]}, Outcome.AUDIENCE),
        ({"aud": {"tidegate": 1}}, Outcome.AUDIENCE),
        ({"aud": [["tidegate"]]}, Outcome.AUDIENCE),
        ({"sub": None}, Outcome.CLAIMS),
        ({"sub": ""}, Outcome.CLAIMS),
        ({"sub": 7}, Outcome.CLAIMS),
        ({"sub": "x" * 257}, Outcome.CLAIMS),
        ({"tenant": None}, Outcome.CLAIMS),
        ({"tenant": ""}, Outcome.CLAIMS),
        ({"tenant": 7}, Outcome.CLAIMS),
        ({"tenant": ["acme"]}, Outcome.CLAIMS),
        ({"tenant": {"name": "acme"}}, Outcome.CLAIMS),
        ({"tenant": "Acme"}, Outcome.CLAIMS),
        ({"tenant": "*"}, Outcome.CLAIMS),
        ({"tenant": "acme\n"}, Outcome.CLAIMS),
        ({"tenant": "../acme"}, Outcome.CLAIMS),
        ({"tenant": "a" * 64}, Outcome.CLAIMS),
    ],
    ids=lambda value: str(value)[:60],
)
def test_claims_that_are_refused(changes: dict[str, Any], outcome: Outcome) -> None:
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
    assert caught.value.outcome is Outcome.CLAIMS


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
