"""The `stores` section of `tidegate.yaml`: the stores of persistent state, by URL."""

from typing import Final

from pydantic import Field, field_validator

from domain.strict import Strict
from gateway.addresses import sqlite_file
from gateway.settings_secret import File
from tenancy.counter_url import parse_counter_url
from tenancy.limits import MOST_LABELS

CURRENT: Final = "current"
"""Name of the newest version of the database's policies in the folder of their copies on this machine."""


def _check_database_url(url: str) -> None:
    # imported only here: the import takes 0.4 s, which `--help` with SQLite should not cost
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        driver = make_url(url).drivername
    except (ArgumentError, ValueError):
        raise ValueError("is no database URL; write sqlite:///file.db or postgresql://user@host/database") from None
    if driver != "postgresql":
        raise ValueError("names a database that is not supported; write sqlite:///file.db or postgresql://user@host/database")


class StoreSettings(Strict):
    """The stores of persistent state, by URL."""

    sql: str = Field(
        default="sqlite:///tidegate.db",
        description="Tenants and keys: `sqlite:///file` (relative to the settings file) or `postgresql://…`.",
    )
    counters: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="Limits and what is used of them: `memory://`, `valkey+embedded://`, `redis://…`, `rediss://…`, `unix:///socket`, "
        "`redis+sentinel://h1,h2/service` or `redis+cluster://h1,h2`; see docs/stores.md. Unset: `memory://` with one worker, "
        "`valkey+embedded://` with several.",
    )

    end_users_per_tenant: int = Field(
        default=MOST_LABELS,
        ge=1,
        le=1_000_000,
        description="End-user labels of a tenant that are counted by themselves: in limits per end user, and in the totals of a day. "
        "Callers choose labels; what comes with further ones is counted together, as `(other)`.",
    )

    directory_file: File = Field(
        default="tidegate.directory",
        description="Where the last directory (tenants, keys, limits, prices) is kept, sealed, to start with while the database is away; "
        "relative to the settings file. On a disk that outlives the process.",
    )

    policies_copy: File = Field(
        default="tidegate.policies",
        description="Folder in which the policies of the database are kept (`policies_from`), to be read, and to start with while it is "
        "away; relative to the settings file. On a disk that outlives the process.",
    )

    @field_validator("sql")
    @classmethod
    def _known(cls, url: str) -> str:
        file = sqlite_file(url)
        if file in ("", ":memory:"):
            raise ValueError("keeps keys in memory, where other processes cannot see them; write sqlite:///file.db")
        if file is None:
            _check_database_url(url)
        elif "?" in file:
            raise ValueError("has options, and a SQLite file takes none; write sqlite:///file.db")
        return url

    @field_validator("counters")
    @classmethod
    def _parses(cls, url: str | None) -> str | None:
        if url is not None:
            parse_counter_url(url)
        return url
