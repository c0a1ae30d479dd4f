"""Settings of the request log (docs/reference/request-log.md).

Size: a section of the settings, like the others beside it.
"""

from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, Field, StringConstraints

from domain.strict import Strict
from gateway.config.addresses import sqlite_file
from gateway.config.traces import OtlpTarget

MEMORY: Final = "memory://"
"""The store of the admin process alone."""
OWN_FILE: Final = "tidegate-requests.db"
"""Beside the SQLite file of tenants and keys: what is written once a second does not hold up what is written there."""


def _checked_store(url: str) -> str:
    if url == MEMORY:
        return url
    file = sqlite_file(url)
    if file is not None:
        if file in ("", ":memory:") or "?" in file:
            raise ValueError("is no file of a SQLite database; write sqlite:///file.db, or memory:// for the last requests alone")
        return url
    if not url.startswith(("postgresql://", "postgres://")):
        raise ValueError("names a store that is not supported; write memory://, sqlite:///file.db or postgresql://user@host/database")
    return url


class RequestLogSettings(Strict):
    """Finished requests, for `tidegate logs` and the console."""

    enabled: bool = Field(default=True, description="Whether finished requests are kept at all.")
    store: Annotated[str, StringConstraints(min_length=1, max_length=4096), AfterValidator(_checked_store)] | None = Field(
        default=None,
        description="Where they are kept: `sqlite:///file` (relative to the settings file), `postgresql://…`, or `memory://` for the last "
        "10,000 in the admin process. Null: in the Postgres of `stores.sql`, which gateways share, or in a file `tidegate-requests.db` "
        "beside its SQLite file.",
    )
    hours: float = Field(
        default=72, gt=0, le=87_600, description="Hours for which a request is kept whose tenant's policy (`request_log`) does not say."
    )
    max_requests: int = Field(
        default=200_000,
        ge=100,
        le=1_000_000_000,
        description="Requests that are kept; the oldest are deleted first. About 2 KB each.",
    )
    parquet: Annotated[str, StringConstraints(min_length=1, max_length=4096)] | None = Field(
        default=None,
        description="Folder, relative to the settings file, that finished requests are written to as Parquet files, by day; null for none. "
        "Needs the extra `parquet`.",
    )
    parquet_days: int = Field(default=30, ge=1, le=36_500, description="Days for which Parquet files are kept.")
    otlp: OtlpTarget | None = Field(
        default=None,
        description="An OTLP receiver that gets finished requests as log records, without texts, at an endpoint such as "
        "`http://collector:4318/v1/logs`; null for none. Needs the extra `otel`.",
    )

    def store_url(self, base_dir: Path, sql_url: str) -> str:
        """The store, with a SQLite file's path made absolute.

        Args:
            sql_url: of the SQL store, absolute.
        """
        if self.store is None:
            file = sqlite_file(sql_url)
            return f"sqlite:///{Path(file).parent / OWN_FILE}" if file else sql_url
        file = None if self.store == MEMORY else sqlite_file(self.store)
        return f"sqlite:///{(base_dir / file).resolve()}" if file else self.store
