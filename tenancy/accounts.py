"""Organisations, their tenants, the tenants' projects, and what else a directory holds, as stored. Pure values.

Every record that can be changed has a `version`: an update names the version it was made from, so that two operators do not
overwrite each other. Times are seconds since the epoch.
"""

import re
from typing import Final

import msgspec

from domain.identity import ProjectId, TenantId
from tenancy.keys import KeyRecord
from tenancy.limits import Limit
from tenancy.prices import Price
from tenancy.rights import NO_RIGHTS_SET, Rights

DEFAULT_ORGANISATION: Final = "default"
"""The one that is always there: tenants that name no other belong to it."""
DEFAULT_PROJECT: Final = ProjectId("default")
"""The project every tenant has from the start."""

NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""Of organisations, tenants and projects. A DNS label: fits metric labels, file names and hash tags."""
NAME_RULE: Final = "1 to 63 lower-case letters, digits and inner dashes, for instance acme-research"
MAX_LABEL_CHARS: Final = 200


class Organisation(msgspec.Struct, frozen=True):
    """Tenants that are limited and billed together. A disabled one refuses every key of its tenants."""

    name: str
    label: str = ""
    disabled: bool = False
    rights: Rights = NO_RIGHTS_SET
    created_unix: float = 0.0
    version: int = 1


class Tenant(msgspec.Struct, frozen=True):
    """Whose data is kept apart from everybody else's. A disabled one refuses every key."""

    name: TenantId
    organisation: str = DEFAULT_ORGANISATION
    label: str = ""
    disabled: bool = False
    rights: Rights = NO_RIGHTS_SET
    created_unix: float = 0.0
    version: int = 1


class Project(msgspec.Struct, frozen=True):
    """A part of a tenant with keys of its own. A disabled one refuses them."""

    tenant: TenantId
    name: ProjectId
    label: str = ""
    disabled: bool = False
    rights: Rights = NO_RIGHTS_SET
    created_unix: float = 0.0
    version: int = 1


class LimitRecord(msgspec.Struct, frozen=True):
    """A limit as stored. `tenant` is whose it is; empty for those of an organisation, a model or the gateway."""

    limit: Limit
    tenant: str = ""
    version: int = 1


class Bounds(msgspec.Struct, frozen=True):
    """What one tenant may have at most, so that nobody who administers a tenant fills the directory of all."""

    keys: int = 10_000
    """That are not revoked. As many revoked ones are remembered."""
    projects: int = 1_000


class Contents(msgspec.Struct, frozen=True):
    """Everything a directory is made from, as it stood at one `version` of its store."""

    version: int = 0
    organisations: tuple[Organisation, ...] = ()
    tenants: tuple[Tenant, ...] = ()
    projects: tuple[Project, ...] = ()
    keys: tuple[KeyRecord, ...] = ()
    limits: tuple[Limit, ...] = ()
    prices: tuple[Price, ...] = ()
