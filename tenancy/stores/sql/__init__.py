"""Keys in SQLite or Postgres through SQLAlchemy; the schema is moved by Alembic (`migrations/`)."""

from tenancy.stores.sql.keys import SqlKeyStore
from tenancy.stores.sql.schema import StoreError, migrate, open_engine

__all__ = ["SqlKeyStore", "StoreError", "migrate", "open_engine"]
