"""In-process adapters: the ledger every worker starts with, and a key store for tests and embedding."""

from tenancy.stores.memory.keys import MemoryKeyStore
from tenancy.stores.memory.ledger import MemoryLedger

__all__ = ["MemoryKeyStore", "MemoryLedger"]
