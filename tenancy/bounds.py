"""Whether a tenant has room for one more of something. Asked in the transaction that makes it, where nobody else writes."""

from domain.identity import TenantId
from tenancy.accounts import Bounds
from tenancy.directory_ports import DirectoryChange


class NoRoom(ValueError):
    """The tenant has as many as it may; the message says of what, how many, and what to do."""


async def room_for_key(change: DirectoryChange, tenant: TenantId, bounds: Bounds) -> None:
    """Forget the oldest revoked keys where there are too many of them. Raises NoRoom when too many are not revoked."""
    if await change.keys.alive(tenant) >= bounds.keys:
        raise NoRoom(
            f"tenant {tenant!r} has {bounds.keys} keys that are not revoked, which is as many as tenants.max_keys allows; "
            "revoke those that are not needed, expired ones too, or raise it in the settings"
        )
    await change.keys.forget_revoked(tenant, bounds.keys)


async def room_for_project(change: DirectoryChange, tenant: TenantId, bounds: Bounds) -> None:
    """Raises NoRoom."""
    if await change.projects.count(tenant) >= bounds.projects:
        raise NoRoom(
            f"tenant {tenant!r} has {bounds.projects} projects, which is as many as tenants.max_projects allows; "
            "delete one, or raise it in the settings"
        )
