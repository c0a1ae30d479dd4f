"""Checks that a tenant may have one more key or project. Called in the transaction that creates it, where no other writer writes."""

from domain.identity import TenantId
from tenancy.accounts import Bounds
from tenancy.directory_ports import DirectoryChange


class NoRoom(ValueError):
    """The tenant has as many records as it may; the message says which, how many, and what to do."""


async def room_for_key(change: DirectoryChange, tenant: TenantId, bounds: Bounds) -> None:
    """Forget the tenant's oldest revoked keys beyond the bound. Raises NoRoom when it has as many unrevoked keys as it may."""
    if await change.keys.alive(tenant) >= bounds.keys:
        raise NoRoom(
            f"tenant {tenant!r} has {bounds.keys} keys that are not revoked, which is as many as tenants.max_keys allows; "
            "revoke those that are not needed, expired ones too, or raise it in the settings"
        )
    await change.keys.forget_revoked(tenant, bounds.keys)


async def room_for_project(change: DirectoryChange, tenant: TenantId, bounds: Bounds) -> None:
    """Raises NoRoom when the tenant has as many projects as it may."""
    if await change.projects.count(tenant) >= bounds.projects:
        raise NoRoom(
            f"tenant {tenant!r} has {bounds.projects} projects, which is as many as tenants.max_projects allows; "
            "delete one, or raise it in the settings"
        )
