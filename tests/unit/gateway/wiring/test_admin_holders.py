"""Whom the admin port lets in with a key or a token, and that it lets nobody in who may have been revoked."""

from pathlib import Path

import msgspec
import pytest

from gateway.admin.access import Authenticator
from gateway.admin.problem import AdminProblem
from gateway.auth.jwt import JwtVerifier
from gateway.sync.directory import ADMIN_STALE_S
from gateway.wiring.admin import KeyHolders
from tenancy.accounts import Contents
from tenancy.directory import Directory
from tenancy.directory_ports import EVERYWHERE
from tenancy.jwt import IssuerRules, Mapped, Roles, Tokens
from tenancy.jwt_keys import key_set
from tenancy.keys import ENTROPY_BYTES, KeyRecord, Minted, mint, revoked
from tenancy.rights import INFERENCE_ONLY, KeyScope, Role
from tests.issuer import ISSUER, NOW, document, signer
from tests.unit.gateway.sync.test_directory import ACME, PEPPER, Site

BOOTSTRAP = "a-token-of-more-than-24-characters"
GROUPS = {"llm-team": "tenant-admin", "llm-auditors": "auditor"}
RULES = IssuerRules(
    ISSUER,
    frozenset({"tidegate"}),
    frozenset({"RS256"}),
    tenant=Mapped(claim=("tenant",)),
    project=Mapped(fixed="default"),
    roles=Roles(("groups",), GROUPS),
)
ONE = signer("one")


@pytest.fixture
async def site(tmp_path: Path) -> Site:
    return await Site(tmp_path).begin()


def holders(site: Site) -> KeyHolders:
    made = KeyHolders(Directory(Contents(), PEPPER), lambda: site.watch.believes_admins, issuers=True)
    made.directory = site.directory
    return made


async def add(site: Site, seed: int, *roles: Role) -> tuple[Minted, KeyRecord]:
    minted, record = await site.add(seed)
    scopes = frozenset({KeyScope.ADMIN}) if roles else INFERENCE_ONLY
    return minted, await site.put(msgspec.structs.replace(record, scopes=scopes, roles=frozenset(roles)))


def gate(*published: object) -> JwtVerifier:
    tokens = Tokens([RULES])
    if published:
        tokens.take_keys(ISSUER, key_set(document(ONE), RULES.algorithms))
    return JwtVerifier(tokens, {ISSUER: Away()}, lambda _issuer, _outcome: None)  # type: ignore[dict-item]  # as much of a watch as the gate asks of one


class Away:
    """An issuer that does not answer."""

    async def wanted(self) -> None: ...


async def test_a_key_with_roles_is_its_holder_and_one_of_the_data_port_is_nobody(site: Site) -> None:
    made = holders(site)
    made.tokens = gate(ONE)
    admin, record = await add(site, 1, Role.OPERATOR, Role.BILLING)
    data, _ = await add(site, 2)
    await site.watch.refresh(made)
    found = await made(admin.text, site.now)
    assert found is not None
    assert (found.actor, found.roles, found.tenant) == (f"key {record.id}", {Role.OPERATOR, Role.BILLING}, ACME)
    for text in (data.text, "nonsense", "a.b.c", mint("live", b"x" * ENTROPY_BYTES).text):
        assert await made(text, site.now) is None


@pytest.mark.req("R34")
async def test_while_revocations_are_unknown_only_the_bootstrap_token_is_believed(site: Site) -> None:
    made = holders(site)
    made.tokens = gate(ONE)
    admin, record = await add(site, 1, Role.OWNER)
    await site.watch.refresh(made)
    door = Authenticator(BOOTSTRAP, made, lambda: 0.0, lambda: site.now)

    async def asks(text: str) -> str | int:
        try:
            return (await door.authenticate(f"Bearer {text}", "GET", "/self", "")).actor
        except AdminProblem as problem:
            return problem.status

    site.store.away = True
    site.now += ADMIN_STALE_S
    await site.watch.refresh(made)
    assert await asks(admin.text) == f"key {record.id}"
    site.now += 0.1
    assert [await asks(text) for text in (admin.text, ONE.token(groups=["llm-auditors"]), "nonsense")] == [503, 503, 503]
    assert await asks(BOOTSTRAP) == "bootstrap"
    site.store.away = False
    async with site.store.transaction() as change:
        await change.keys.update(EVERYWHERE, revoked(record, site.now))
    await site.watch.refresh(made)
    assert [await asks(text) for text in (admin.text, BOOTSTRAP)] == [401, "bootstrap"]


async def test_a_directory_that_was_never_read_lets_nobody_in(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.directory = (await Site(tmp_path / "other").begin()).directory
    with pytest.raises(AdminProblem) as caught:
        await holders(site)("anything", site.now)
    assert (caught.value.status, caught.value.headers["retry-after"]) == (503, "5")


async def test_until_the_directory_and_the_issuers_were_read_nobody_is_called_unknown(site: Site) -> None:
    made = KeyHolders(Directory(Contents(), PEPPER), lambda: site.watch.believes_admins, issuers=True)
    admin, _ = await add(site, 1, Role.OPERATOR)
    await site.watch.load()  # the store was asked, and what it said is not handed over yet
    assert site.watch.believes_admins
    token = ONE.token(groups=["llm-auditors"])

    async def refusal(text: str) -> tuple[int, str]:
        with pytest.raises(AdminProblem) as caught:
            await made(text, NOW)
        return caught.value.status, caught.value.code

    assert [await refusal(text) for text in (admin.text, token)] == [(503, "store_unavailable")] * 2
    made.directory = site.directory
    assert await refusal(token) == (503, "identity_unavailable")


async def test_a_token_has_the_roles_of_the_operators_table_in_its_own_tenant(site: Site) -> None:
    made = holders(site)
    made.tokens = gate(ONE)
    found = await made(ONE.token(groups=["llm-team", "everybody"]), NOW)
    assert found is not None
    assert (found.roles, found.tenant, found.actor[:4]) == ({Role.TENANT_ADMIN}, ACME, "jwt:")
    for nobody in (
        ONE.token(groups=["everybody"]),
        ONE.token(),
        ONE.token(groups=["owner", "tenant-admin"]),
        ONE.token(groups=["llm-team"], tenant="elsewhere"),
        ONE.token(groups=["llm-team"], aud="another"),
        ONE.token(groups=["llm-team"], exp=int(NOW) - 3600),
        signer("one", number=1).token(groups=["llm-team"]),
    ):
        assert await made(nobody, NOW) is None


async def test_tokens_of_an_issuer_whose_keys_are_not_known_wait(site: Site) -> None:
    made = holders(site)
    made.tokens = gate()
    with pytest.raises(AdminProblem) as caught:
        await made(ONE.token(groups=["llm-team"]), NOW)
    assert (caught.value.status, caught.value.code) == (503, "identity_unavailable")


async def test_a_token_is_known_with_or_without_a_role(site: Site) -> None:
    made = holders(site)
    await site.watch.refresh(made)
    assert not await made.known(ONE.token(), NOW)
    made.tokens = gate(ONE)
    for token, known in (
        (ONE.token(), True),
        (ONE.token(groups=["llm-team"]), True),
        (ONE.token(tenant="globex"), False),
        ("nonsense", False),
    ):
        assert await made.known(token, NOW) is known
    made.tokens = gate()
    assert not await made.known(ONE.token(), NOW)
