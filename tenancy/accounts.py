"""The records of a directory as stored: organisations, tenants, projects, limits, and the bounds on one tenant. Pure values.

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
"""The organisation that always exists; a tenant that names no other belongs to it."""
DEFAULT_PROJECT: Final = ProjectId("default")
"""The project every tenant has from the start."""

NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""Names of organisations, tenants and projects. A DNS label: it fits metric labels, file names and hash tags."""
NAME_RULE: Final = "1 to 63 lower-case letters, digits and inner dashes, for instance acme-research"
MAX_LABEL_CHARS: Final = 200


class Organisation(msgspec.Struct, frozen=True):
    """Tenants that are limited and billed together. While it is disabled, every key of its tenants is refused."""

    name: str
    label: str = ""
    disabled: bool = False
    rights: Rights = NO_RIGHTS_SET
    created_unix: float = 0.0
    version: int = 1


class Tenant(msgspec.Struct, frozen=True):
    """A customer whose data is isolated from every other tenant's. While it is disabled, every one of its keys is refused."""

    name: TenantId
    organisation: str = DEFAULT_ORGANISATION
    label: str = ""
    disabled: bool = False
    rights: Rights = NO_RIGHTS_SET
    created_unix: float = 0.0
    version: int = 1


class Project(msgspec.Struct, frozen=True):
    """A part of a tenant with keys of its own. While it is disabled, its keys are refused."""

    tenant: TenantId
    name: ProjectId
    label: str = ""
    disabled: bool = False
    rights: Rights = NO_RIGHTS_SET
    created_unix: float = 0.0
    version: int = 1


class LimitRecord(msgspec.Struct, frozen=True):
    """A limit as stored. `tenant` owns it; empty for limits of an organisation, a model or the gateway."""

    limit: Limit
    tenant: str = ""
    version: int = 1


class DirectoryBounds(msgspec.Struct, frozen=True):
    """The most records that one tenant may have, so that a tenant's administrator cannot fill the directory that all tenants share."""

    keys: int = 10_000
    """Keys that are not revoked. The same number of revoked keys is remembered."""
    projects: int = 1_000


class Contents(msgspec.Struct, frozen=True):
    """The records that a directory is built from, as of one `version` of its store."""

    version: int = 0
    organisations: tuple[Organisation, ...] = ()
    tenants: tuple[Tenant, ...] = ()
    projects: tuple[Project, ...] = ()
    keys: tuple[KeyRecord, ...] = ()
    limits: tuple[Limit, ...] = ()
    prices: tuple[Price, ...] = ()
