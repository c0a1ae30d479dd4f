"""Laws of the admin port's roles; `test_access_roles.py` asks every route of a real port."""

import itertools

import pytest

from domain.identity import TenantId
from gateway.admin.access import MAY_GRANT, ROLE_TABLE, Authenticator, Principal, may_grant
from gateway.admin.problem import AdminProblem
from tenancy.rights import Role


def test_nobody_grants_a_set_with_a_role_that_he_may_not_grant_alone() -> None:
    for holder in Role:
        for granted in itertools.combinations(Role, 2):
            assert may_grant([holder], granted) == all(role in MAY_GRANT.get(holder, ()) for role in granted), (holder, granted)


def test_what_a_tenants_admin_changes_lies_inside_of_his_tenant() -> None:
    """What bounds the tenant (its own rights and adapters, its organisation, prices, models) is set by those who run the gateway."""
    # three paths name no tenant: the key is looked up inside the caller's own one, and a purge and a trial of guard rules name a tenant in
    # their bodies; all are a 404 elsewhere
    inside = (
        *("/tenants/{tenant}/projects", "/tenants/{tenant}/keys", "/limits/{limit_id:path}", "/keys/{key_id}/revoke"),
        *("/cache/purge", "/guards/test"),
    )
    changes = [path for (method, path), roles in ROLE_TABLE.items() if Role.TENANT_ADMIN in roles and method != "GET"]
    assert changes
    assert [path for path in changes if not path.startswith(inside)] == []


def test_only_who_runs_the_gateway_changes_what_is_outside_of_tenants() -> None:
    readers = {Role.AUDITOR, Role.BILLING}
    changed_by_readers = {path for (method, path), roles in ROLE_TABLE.items() if method != "GET" and roles & readers}
    assert changed_by_readers <= {"/prices"}


@pytest.mark.parametrize(("address", "allowed"), [("203.0.113.9", True), ("::ffff:203.0.113.9", True), ("203.0.114.9", False), ("", False)])
async def test_a_key_is_refused_on_the_admin_port_outside_its_networks(address: str, allowed: bool) -> None:
    holder = Principal("key k1", frozenset({Role.ADMIN}), TenantId("acme"), ("203.0.113.0/24",))

    async def found(_token: str, _now: float) -> Principal:
        return holder

    authenticator = Authenticator("a token of the gateway's own", found, lambda: 0.0, lambda: 0.0)
    if allowed:
        assert await authenticator.authenticate("Bearer a key", "GET", "/admin/v1/self", address) is holder
    else:
        with pytest.raises(AdminProblem, match=address or "without an address") as refused:
            await authenticator.authenticate("Bearer a key", "GET", "/admin/v1/self", address)
        assert refused.value.status == 403
    bootstrap = await authenticator.authenticate("Bearer a token of the gateway's own", "GET", "/admin/v1/self", address)
    assert bootstrap.roles == {Role.OWNER}, "the bootstrap token has no networks"
