"""Keys and registered backends in SQLite or Postgres through SQLAlchemy; the schema is moved by Alembic (`migrations/`)."""

from tenancy.stores.sql.keys import SqlKeyStore
from tenancy.stores.sql.members import SqlMemberStore
from tenancy.stores.sql.schema import StoreError, migrate, open_engine

__all__ = ["SqlKeyStore", "SqlMemberStore", "StoreError", "migrate", "open_engine"]
