"""The settings of JWTs: accepted issuers, the location of their keys, the mapping of claims to tenants, projects and roles, and the sign-in
to the console at an issuer."""

import re
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from domain.strict import Strict
from gateway.config.addresses import checked_key_url, checked_redirect_url
from gateway.config.secrets import SecretReference
from tenancy.accounts import NAME
from tenancy.jwt import IssuerRules, Mapped, Roles

Url = Annotated[str, StringConstraints(max_length=512), AfterValidator(checked_key_url)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=256)]
ClaimPath = Annotated[list[Text], Field(min_length=1, max_length=8)]
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
Role = Literal["owner", "admin", "operator", "billing", "auditor", "tenant-admin"]

_QUERY: Final = re.compile(r"[?&]")


def _issuer(url: str) -> str:
    if _QUERY.search(url):
        raise ValueError("has a query; write the issuer exactly as its tokens have it in iss")
    return checked_key_url(url)


def _names(table: dict[str, str] | None, *more: str | None) -> None:
    for name in (*(table or {}).values(), *more):
        if name is not None and not NAME.fullmatch(name):
            raise ValueError("names no tenant or project; write 1 to 63 lower-case letters, digits and inner dashes")


class JwksSettings(Strict):
    """The source of an issuer's keys: a URL, a file, or by default the URL in the issuer's discovery document."""

    url: Url | None = Field(default=None, description="URL of the JWKS document; https, or http to this machine.")
    file: str | None = Field(
        default=None, min_length=1, max_length=4096, description="File with the JWKS document, relative to the settings file."
    )
    refresh_s: float = Field(default=300.0, ge=10, le=86_400, description="Time between two reads of the JWKS document.")
    unknown_key_s: float = Field(
        default=10.0,
        ge=1,
        le=3600,
        description="Least time between two reads of the JWKS document when a token with an unknown key causes the second.",
    )

    @model_validator(mode="after")
    def _one(self) -> "JwksSettings":
        if self.url is not None and self.file is not None:
            raise ValueError("names two places; write url or file, or neither for the issuer's discovery document")
        return self


class ClaimSettings(Strict):
    """A name that is fixed, or comes from a claim."""

    fixed: str | None = Field(default=None, description="The name for every token of this issuer.")
    claim: ClaimPath | None = Field(default=None, description="Path of the claim that holds the name, outermost name first: `[org, name]`.")
    map: dict[Text, Text] | None = Field(
        default=None,
        max_length=10_000,
        description="Names by the claim's value; tokens with other values are refused. If the claim is a list, one of its values may "
        "be here.",
    )
    otherwise: str | None = Field(
        default=None, description="The name when the claim is missing; without `otherwise` such tokens are refused."
    )

    @model_validator(mode="after")
    def _whole(self) -> "ClaimSettings":
        if (self.fixed is None) == (self.claim is None):
            raise ValueError("says nothing, or two things; write either {fixed: name} or {claim: [path]}")
        if self.fixed is not None and (self.map is not None or self.otherwise is not None):
            raise ValueError("is fixed, so map and otherwise mean nothing; remove them")
        _names(self.map, self.fixed, self.otherwise)
        return self

    def mapped(self) -> Mapped:
        """The mapping as the verifier takes it."""
        return Mapped(self.fixed or "", tuple(self.claim or ()), self.map, self.otherwise or "")


class RoleSettings(Strict):
    """Roles by the values of a claim."""

    claim: ClaimPath = Field(description="Path of the claim, outermost name first; its value is a text or a list.")
    map: dict[Text, Role] = Field(max_length=1000, description="Roles by the claim's value; other values give no role.")


class IssuerSettings(Strict):
    """One issuer of tokens."""

    issuer: Annotated[str, StringConstraints(max_length=512), AfterValidator(_issuer)] = Field(
        description="Name of the issuer, exactly as in the tokens' `iss`; https, or http to this machine."
    )
    audiences: list[Text] = Field(
        min_length=1, max_length=20, description="Values of `aud` that stand for this gateway; a token needs one of them."
    )
    algorithms: list[Algorithm] = Field(
        default=["RS256", "ES256"],
        min_length=1,
        max_length=10,
        description="Signature algorithms that are accepted; symmetric algorithms and `none` never are.",
    )
    jwks: JwksSettings = Field(default=JwksSettings(), description="Source of the issuer's keys.")
    tenant: ClaimSettings = Field(description="The tenant of the token's requests; it must exist.")
    project: ClaimSettings = Field(
        default=ClaimSettings(fixed="default"), description="The tenant's project that the token's requests belong to."
    )
    roles: RoleSettings | None = Field(
        default=None, description="Roles that tokens give on the admin port; without it tokens are accepted on the data port only."
    )
    user: ClaimPath | None = Field(
        default=None, description="Path of the claim that names the end user, whose limits then apply; without it tokens name no end user."
    )
    required: dict[Text, Text] = Field(
        default={}, max_length=20, description="Claims that must have exactly this value, for instance {token_use: access}."
    )
    leeway_s: float = Field(default=60.0, ge=0, le=600, description="Tolerated deviation of the issuer's clock.")
    max_age_s: float | None = Field(
        default=86_400.0,
        ge=60,
        le=31_536_000,
        description="Greatest age of a token since `iat`; older ones are refused. Null for no bound.",
    )
    max_token_bytes: int = Field(default=8192, ge=512, le=65_536, description="Longest token; the bound on the request head applies too.")

    def rules(self) -> IssuerRules:
        """The issuer's rules as the verifier takes them."""
        return IssuerRules(
            issuer=self.issuer,
            audiences=frozenset(self.audiences),
            algorithms=frozenset(self.algorithms),
            tenant=self.tenant.mapped(),
            project=self.project.mapped(),
            roles=None if self.roles is None else Roles(tuple(self.roles.claim), dict[str, str](self.roles.map)),
            user=tuple(self.user or ()),
            required=self.required,
            leeway_s=self.leeway_s,
            max_age_s=self.max_age_s,
            max_token_bytes=self.max_token_bytes,
        )


class ProviderSignInSettings(Strict):
    """Sign-in to the console at an identity provider, by OpenID Connect's authorisation-code flow with PKCE."""

    issuer: Text = Field(
        description="The provider: the `issuer` of one entry of `auth.jwt`. That entry's rules check its tokens and give the roles."
    )
    client_id: Text = Field(description="Name of this gateway at the provider.")
    client_secret: SecretReference | None = Field(
        default=None, description="Secret of this gateway at the provider; null for a public client, which PKCE alone protects."
    )
    client_auth: Literal["basic", "post"] = Field(
        default="basic",
        description="Place of the client secret in the request for a token: `basic`, the Authorization header; `post`, the body.",
    )
    redirect_url: Annotated[str, StringConstraints(max_length=512), AfterValidator(checked_redirect_url)] = Field(
        description="Address to which the provider sends the browser back, as registered there: `https://HOST/console/callback`, with the "
        "host by which people open the console; `http` only on this machine."
    )
    scopes: list[Annotated[str, StringConstraints(pattern=r"^[\x21\x23-\x5b\x5d-\x7e]{1,128}$")]] = Field(
        default=["openid"], min_length=1, max_length=20, description="Scopes that are asked for; `openid` is among them."
    )
    token: Literal["id_token", "access_token"] = Field(
        default="id_token",
        description="The token of the provider's answer that becomes the credential of the session. `id_token` needs the client id among "
        "the issuer's `audiences`; `access_token` needs access tokens that are JWTs.",
    )
    label: Annotated[str, StringConstraints(min_length=1, max_length=64)] = Field(
        default="your identity provider", description="Name of the provider on the button of the sign-in page."
    )

    @field_validator("scopes")
    @classmethod
    def _openid(cls, scopes: list[str]) -> list[str]:
        if "openid" not in scopes:
            raise ValueError("lack openid, without which a provider sends no ID token; add it")
        return scopes


class AuthSettings(Strict):
    """Authentication of callers besides API keys."""

    jwt: list[IssuerSettings] = Field(default=[], max_length=20, description="Issuers whose tokens are accepted; empty for none.")
    console: ProviderSignInSettings | None = Field(
        default=None, description="Sign-in to the console at an identity provider; null for none: a token or key is pasted."
    )

    @model_validator(mode="before")
    @classmethod
    def _distinct(cls, value: Any) -> Any:
        entries = value.get("jwt") if isinstance(value, dict) else None
        names = [entry.get("issuer") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
        twice = [name for at, name in enumerate(names) if isinstance(name, str) and name in names[:at]]
        if twice:
            raise ValueError("has an issuer twice; write it once, with all its audiences")
        return value
