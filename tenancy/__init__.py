"""Tenants, API keys, rights, limits, holds and the usage ledger, and tenant isolation inside engines. Knows no HTTP and no engine."""
