"""Who asks. Values only: how a key is verified is `tenancy.keys`, where keys are kept is `tenancy.stores`."""

from typing import NewType

import msgspec

TenantId = NewType("TenantId", str)
ProjectId = NewType("ProjectId", str)
KeyId = NewType("KeyId", str)
"""The public, loggable part of an API key (10 characters); never the secret."""


class Caller(msgspec.Struct, frozen=True, gc=False):
    """The authenticated origin of one request."""

    tenant: TenantId
    project: ProjectId
    key_id: KeyId
