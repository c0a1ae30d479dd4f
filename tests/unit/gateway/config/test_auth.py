from typing import Any

import pytest
from pydantic import ValidationError

from gateway.config.auth import AuthSettings, ClaimSettings, IssuerSettings, JwksSettings, ProviderSignInSettings

GOOD: dict[str, Any] = {"issuer": "https://login.example.com/realms/llm", "audiences": ["tidegate"], "tenant": {"fixed": "acme"}}


def test_what_is_written_is_what_is_verified() -> None:
    written = GOOD | {
        "algorithms": ["EdDSA"],
        "tenant": {"claim": ["org", "id"], "map": {"A": "acme"}, "otherwise": "guests"},
        "roles": {"claim": ["roles"], "map": {"boss": "tenant-admin"}},
        "user": ["sub"],
        "required": {"token_use": "access"},
        "leeway_s": 5.0,
        "max_age_s": None,
    }
    rules = IssuerSettings.model_validate(written).rules()
    assert (rules.algorithms, rules.tenant.claim, rules.tenant.table, rules.tenant.otherwise) == (
        {"EdDSA"},
        ("org", "id"),
        {"A": "acme"},
        "guests",
    )
    assert rules.project.fixed == "default"
    assert rules.roles is not None
    assert (rules.roles.table, rules.user, rules.required) == ({"boss": "tenant-admin"}, ("sub",), {"token_use": "access"})
    assert (rules.leeway_s, rules.max_age_s, rules.max_token_bytes) == (5.0, None, 8192)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"issuer": "http://login.example.com"}, "could be changed on its way"),
        ({"issuer": "https://user:pw@login.example.com"}, "no address of an issuer"),
        ({"issuer": "https://login.example.com/?a=b"}, "has a query"),
        ({"issuer": "https://login.example.com/#a"}, "no address of an issuer"),
        ({"issuer": "https://169.254.169.254/"}, "metadata"),
        ({"issuer": "https://[::ffff:169.254.169.254]/"}, "metadata"),
        ({"issuer": "https://0x7f.1/"}, "four decimal numbers"),
        ({"issuer": "ftp://login.example.com"}, "no address of an issuer"),
        ({"issuer": "https://login.example.com\\@evil"}, "no address of an issuer"),
        ({"issuer": "login"}, "no address of an issuer"),
        ({"audiences": []}, "at least 1"),
        ({"audiences": [""]}, "at least 1"),
        ({"algorithms": ["HS256"]}, "'RS256'"),
        ({"algorithms": ["none"]}, "'RS256'"),
        ({"algorithms": []}, "at least 1"),
        ({"tenant": {}}, "says nothing, or two things"),
        ({"tenant": {"fixed": "a", "claim": ["b"]}}, "says nothing, or two things"),
        ({"tenant": {"fixed": "a", "map": {"b": "c"}}}, "mean nothing"),
        ({"tenant": {"fixed": "Acme"}}, "names no tenant"),
        ({"tenant": {"claim": ["a"], "map": {"x": "*"}}}, "names no tenant"),
        ({"tenant": {"claim": []}}, "at least 1"),
        ({"roles": {"claim": ["r"], "map": {"x": "root"}}}, "'owner'"),
        ({"jwks": {"url": "https://a/k", "file": "k.json"}}, "names two places"),
        ({"jwks": {"url": "http://a/k"}}, "could be changed"),
        ({"leeway_s": -1.0}, "greater than or equal to 0"),
        ({"secret": "x"}, "Extra inputs"),
    ],
    ids=str,
)
def test_what_is_wrong_is_said(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        IssuerSettings.model_validate(GOOD | wrong)


def test_an_issuer_on_this_machine_needs_no_tls() -> None:
    for host in ("127.0.0.1:8000", "[::1]:8000", "localhost"):
        assert IssuerSettings.model_validate(GOOD | {"issuer": f"http://{host}/realm"}).jwks == JwksSettings()


def test_an_issuer_is_written_once() -> None:
    AuthSettings.model_validate({"jwt": [GOOD, GOOD | {"issuer": "https://other.example"}]})
    with pytest.raises(ValidationError, match="twice"):
        AuthSettings.model_validate({"jwt": [GOOD, GOOD]})


def test_keys_may_be_at_a_url_with_a_query() -> None:
    assert JwksSettings(url="https://login.example.com/keys?p=b2c_1").url


def test_a_fixed_name_maps_to_itself() -> None:
    assert ClaimSettings(fixed="acme").mapped().fixed == "acme"


CONSOLE: dict[str, Any] = {
    "issuer": GOOD["issuer"],
    "client_id": "console",
    "redirect_url": "https://gate.example.com/console/callback",
}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"redirect_url": "http://gate.example.com/console/callback"}, "could be changed on its way"),
        ({"redirect_url": "https://gate.example.com/console/"}, "no address of the console"),
        ({"redirect_url": "https://gate.example.com/a?b=/console/callback"}, "no address of the console"),
        ({"redirect_url": "https://gate.example.com/console/callback?a=b"}, "no address of the console"),
        ({"client_secret": "literal"}, "holds a secret itself"),
        ({"scopes": ["profile"]}, "lack openid"),
        ({"scopes": ["openid", "two words"]}, "pattern"),
        ({"token": "refresh_token"}, "'id_token'"),
    ],
    ids=str,
)
def test_what_is_wrong_with_the_sign_in_to_the_console_is_said(wrong: dict[str, Any], says: str) -> None:
    assert ProviderSignInSettings.model_validate(CONSOLE).scopes == ["openid"]
    with pytest.raises(ValidationError, match=says):
        ProviderSignInSettings.model_validate(CONSOLE | wrong)
