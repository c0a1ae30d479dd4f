"""The INSERT with ON CONFLICT of the database in use: SQLite and Postgres each have their own.

The dialect of Postgres is imported where a database of Postgres is used: it takes every process 3 MB, and most gateways have SQLite.
"""

from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql


def insert_into(table: sa.Table, dialect: str) -> "sqlite.Insert | postgresql.Insert":
    """An INSERT into the table, with `on_conflict_do_nothing` and `on_conflict_do_update`.

    Args:
        dialect: the name of the engine's or connection's dialect.
    """
    if dialect == "postgresql":
        from sqlalchemy.dialects.postgresql import insert

        return insert(table)
    return sqlite.insert(table)
