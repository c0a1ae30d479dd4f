"""The settings of the queues in which requests wait for capacity on an engine: how many may wait, and how large."""

from typing import Final, Literal

from pydantic import Field

from domain.priority import CLASSES, Class
from domain.strict import Strict
from tenancy.fair_queue import QueueBounds

USUAL: Final = QueueBounds()


class QueueSettings(Strict):
    """Bounds of each pool's queue in each worker. Requests beyond them are refused at once; the tenant's policy bounds the wait."""

    max_requests: int = Field(default=USUAL.count, ge=0, le=1_000_000, description="Requests that may wait; 0 refuses what cannot be sent.")
    max_bytes: int = Field(default=USUAL.size_bytes, ge=0, le=2**40, description="Bytes of their bodies.")
    max_requests_per_tenant: int = Field(default=USUAL.tenant_count, ge=1, le=1_000_000, description="The same of one tenant.")
    max_bytes_per_tenant: int = Field(default=USUAL.tenant_bytes, ge=1024, le=2**40, description="Bytes of their bodies, of one tenant.")

    preempt: Literal["none", "default", "batch"] = Field(
        default="none",
        description="The class from which on requests without a first token give their place to one of a higher class that waits.",
    )

    @property
    def gives_way(self) -> Class | None:
        """The highest priority class whose requests may be preempted; None where preemption is off."""
        return CLASSES.get(self.preempt)

    @property
    def bounds(self) -> QueueBounds:
        """The bounds as the queue takes them."""
        return QueueBounds(self.max_requests, self.max_bytes, self.max_requests_per_tenant, self.max_bytes_per_tenant)
