"""Adapters of the tenancy ports: `memory` (in process), `valkey` (counters), `sql` (SQLite, Postgres). Only the wiring and the CLI may
import them."""
