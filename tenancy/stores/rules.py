"""What every directory store agrees on: who reaches what, whose a limit is, and the sentences of refusals. Pure."""

from typing import Final

from domain.identity import KeyId, ProjectId, TenantId
from tenancy.accounts import DEFAULT_ORGANISATION, DEFAULT_PROJECT, Project
from tenancy.directory_ports import MAX_PAGE, AlreadyExists, Conflict, InUse, NotFound, Within
from tenancy.limits import Level, Limit, Meter, Scope, Window, state_key

MAX_MODEL_CHARS: Final = 256


def reaches(within: Within, tenant: str) -> bool:
    """Whether a call may touch what is this tenant's; what is nobody's belongs to `""`."""
    return within is None or within == tenant


def page_size(limit: int) -> int:
    """How many records a page has."""
    return max(1, min(limit, MAX_PAGE))


def no_organisation(name: str) -> NotFound:
    """The refusal."""
    return NotFound(f"no organisation {name!r}")


def no_tenant(name: str) -> NotFound:
    """The refusal."""
    return NotFound(f"no tenant {name!r}")


def no_project(tenant: str, name: str) -> NotFound:
    """The refusal."""
    return NotFound(f"no project {name!r} in tenant {tenant!r}")


def no_key(key_id: str) -> NotFound:
    """The refusal."""
    return NotFound(f"no key {key_id!r}")


def no_limit(scope: Scope, meter: Meter, window: Window) -> NotFound:
    """The refusal."""
    return NotFound(f"no limit on {meter.name.lower()} per {window.value} of {scope}")


def out_of_reach(scope: Scope) -> NotFound:
    """The refusal."""
    return NotFound(f"no {scope} here")


def taken(what: str) -> AlreadyExists:
    """The refusal."""
    return AlreadyExists(f"{what} exists already")


def retired(name: str) -> AlreadyExists:
    """The refusal."""
    return AlreadyExists(f"tenant {name!r} was deleted, and its usage stands under that name; no name is used twice, so take another")


def changed(what: str) -> Conflict:
    """The refusal."""
    return Conflict(f"{what} was changed by somebody else meanwhile; read it again")


def keys_left(what: str, count: int) -> InUse:
    """The refusal."""
    return InUse(f"{what} has {count} keys that are not revoked; revoke them first, or disable it")


def check_organisation_goes(name: str, tenants: int) -> None:
    """Raises InUse."""
    if name == DEFAULT_ORGANISATION:
        raise InUse(f"organisation {name!r} is where tenants without another belong; it stays")
    if tenants:
        raise InUse(f"organisation {name!r} has {tenants} tenants; move or delete them first")


def check_project_goes(name: ProjectId) -> None:
    """Raises InUse."""
    if name == DEFAULT_PROJECT:
        raise InUse(f"project {name!r} is there as long as its tenant")


def default_project(tenant: TenantId, created_unix: float) -> Project:
    """The one a tenant begins with."""
    return Project(tenant, DEFAULT_PROJECT, created_unix=created_unix)


def place_of(scope: Scope) -> tuple[TenantId, ProjectId | None]:
    """Tenant and project that a scope of the levels tenant, project and user names."""
    tenant, slash, project = scope.name.partition("/")
    return TenantId(tenant), ProjectId(project) if slash else None


def check_scope(scope: Scope) -> None:
    """Raises NotFound for a name that no scope of its level can have; whether it exists is the store's to know."""
    if scope.level is Level.GLOBAL and scope.name:
        raise NotFound("limits of the whole gateway have no name")
    if scope.level is Level.MODEL and not 0 < len(scope.name) <= MAX_MODEL_CHARS:
        raise NotFound(f"a model's name has 1 to {MAX_MODEL_CHARS} characters")
    if scope.level is Level.TENANT and "/" in scope.name:
        raise no_tenant(scope.name)
    if scope.level is Level.PROJECT and place_of(scope)[1] is None:
        raise NotFound(f"project {scope.name!r}: write tenant/project")


def key_id_of(scope: Scope) -> KeyId:
    """The key a scope of that level names."""
    return KeyId(scope.name)


def key_of_limit(limit: Limit) -> str:
    """What a limit is kept under."""
    return state_key(limit.scope, limit.meter, limit.window)
