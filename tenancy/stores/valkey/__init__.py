"""Counters in Valkey or Redis: one script, one round trip per decision, in the server's own time."""

from tenancy.stores.valkey.client import TEXTS, Scripts
from tenancy.stores.valkey.counters import ValkeyCounters
from tenancy.stores.valkey.presence import ValkeyPresence

__all__ = ["TEXTS", "Scripts", "ValkeyCounters", "ValkeyPresence"]
