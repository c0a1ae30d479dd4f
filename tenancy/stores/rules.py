"""Rules that all directory stores share: which records a call reaches, which tenant owns a limit, and the messages of refusals. Pure."""

from typing import Final

from domain.identity import KeyId, ProjectId, TenantId
from tenancy.accounts import DEFAULT_ORGANISATION, DEFAULT_PROJECT, Project
from tenancy.directory_ports import MAX_PAGE, AlreadyExists, Conflict, NotFound, StillInUse, Within
from tenancy.limits import Level, Limit, LimitWindow, Meter, Scope, state_key

MAX_MODEL_CHARS: Final = 256


def reaches(within: Within, tenant: str) -> bool:
    """Whether a call may touch records of this tenant; records that belong to no tenant have `""`."""
    return within is None or within == tenant


def page_size(limit: int) -> int:
    """How many records a page has at most: `limit`, between 1 and `MAX_PAGE`."""
    return max(1, min(limit, MAX_PAGE))


def no_organisation(name: str) -> NotFound:
    """The error for an organisation that does not exist."""
    return NotFound(f"no organisation {name!r}")


def no_tenant(name: str) -> NotFound:
    """The error for a tenant that does not exist or is not within reach."""
    return NotFound(f"no tenant {name!r}")


def no_project(tenant: str, name: str) -> NotFound:
    """The error for a project that does not exist."""
    return NotFound(f"no project {name!r} in tenant {tenant!r}")


def no_key(key_id: str) -> NotFound:
    """The error for a key that does not exist or is not within reach."""
    return NotFound(f"no key {key_id!r}")


def no_limit(scope: Scope, meter: Meter, window: LimitWindow) -> NotFound:
    """The error for a limit that does not exist or is not within reach."""
    return NotFound(f"no limit on {meter.name.lower()} per {window.value} of {scope}")


def out_of_reach(scope: Scope) -> NotFound:
    """The error for a limit of the gateway or of a model, asked for within one tenant."""
    return NotFound(f"no {scope} here")


def taken(record: str) -> AlreadyExists:
    """The error for a name or id that is taken; `record` names it in words."""
    return AlreadyExists(f"{record} exists already")


def retired(name: str) -> AlreadyExists:
    """The error for the name of a deleted tenant."""
    return AlreadyExists(f"tenant {name!r} was deleted, and its usage stands under that name; no name is used twice, so take another")


def changed(record: str) -> Conflict:
    """The error for a record that has another version by now; `record` names it in words."""
    return Conflict(f"{record} was changed by somebody else meanwhile; read it again")


def keys_left(record: str, count: int) -> StillInUse:
    """The error for deleting a tenant or project with keys that are not revoked; `record` names it in words."""
    return StillInUse(f"{record} has {count} keys that are not revoked; revoke them first, or disable it")


def check_organisation_goes(name: str, tenants: int) -> None:
    """Raise InUse when an organisation with this many tenants cannot be deleted."""
    if name == DEFAULT_ORGANISATION:
        raise StillInUse(f"organisation {name!r} is where tenants without another belong; it stays")
    if tenants:
        raise StillInUse(f"organisation {name!r} has {tenants} tenants; move or delete them first")


def check_project_goes(name: ProjectId) -> None:
    """Raise InUse for the project that every tenant has."""
    if name == DEFAULT_PROJECT:
        raise StillInUse(f"project {name!r} is there as long as its tenant")


def default_project(tenant: TenantId, created_unix: float) -> Project:
    """The project that a new tenant has."""
    return Project(tenant, DEFAULT_PROJECT, created_unix=created_unix)


def place_of(scope: Scope) -> tuple[TenantId, ProjectId | None]:
    """Tenant and project in the name of a scope of level tenant, project or user; None for no project."""
    tenant, slash, project = scope.name.partition("/")
    return TenantId(tenant), ProjectId(project) if slash else None


def check_scope(scope: Scope) -> None:
    """Raise NotFound for a name that no scope of its level can have; the store checks whether the scope exists."""
    if scope.level is Level.GLOBAL and scope.name:
        raise NotFound("limits of the whole gateway have no name")
    if scope.level is Level.MODEL and not 0 < len(scope.name) <= MAX_MODEL_CHARS:
        raise NotFound(f"a model's name has 1 to {MAX_MODEL_CHARS} characters")
    if scope.level is Level.TENANT and "/" in scope.name:
        raise no_tenant(scope.name)
    if scope.level is Level.PROJECT and place_of(scope)[1] is None:
        raise NotFound(f"project {scope.name!r}: write tenant/project")


def key_id_of(scope: Scope) -> KeyId:
    """The id of the key that a scope of level key names."""
    return KeyId(scope.name)


def key_of_limit(limit: Limit) -> str:
    """The key under which a limit is stored."""
    return state_key(limit.scope, limit.meter, limit.window)
