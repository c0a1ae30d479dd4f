"""Alembic's entry point: runs migrations on the connection that `schema.migrate` hands in, inside its transaction and lock."""

from alembic import context

from tenancy.stores.sql.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
