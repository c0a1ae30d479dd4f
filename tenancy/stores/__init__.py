"""Adapters of the tenancy ports: `memory` (in process) and `sql` (SQLite, Postgres). Only wiring and the CLI may import them."""
