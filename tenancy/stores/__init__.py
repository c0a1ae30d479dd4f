"""Adapters of the tenancy ports: `memory` (in process), `valkey` (counters), `sql` (SQLite, Postgres). Only wiring and the CLI may
import them."""
