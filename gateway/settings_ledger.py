"""The settings of the ledger: the folder of its log, the retention of usage, and how much may wait on disk."""

from typing import Annotated

from pydantic import Field, StringConstraints

from domain.strict import Strict


class LedgerSettings(Strict):
    """The ledger: usage of every admitted request; docs/ledger.md says how it gets to SQL."""

    enabled: bool = Field(default=True, description="Whether usage is written down at all.")
    folder: Annotated[str, StringConstraints(min_length=1, max_length=4096)] = Field(
        default="tidegate-ledger",
        description="Folder of the write-ahead log, relative to the settings file; on a disk of this host that outlives the process.",
    )
    fsync_ms: int = Field(
        default=50, ge=1, le=1000, description="How long usage waits at most before it is durable: what a crash can lose. In milliseconds."
    )
    max_bytes: int = Field(
        default=1024**3,
        ge=16 * 1024**2,
        le=1024**4,
        description="What may wait on disk while SQL is away; about 4,000 requests per MiB.",
    )
    retention_days: int = Field(default=400, ge=2, le=36_500, description="Days for which single requests are kept; totals per day stay.")
