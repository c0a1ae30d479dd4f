"""In-process adapters: the ledger every worker starts with, and stores of keys and backends for tests and embedding."""

from tenancy.stores.memory.keys import MemoryKeyStore
from tenancy.stores.memory.ledger import MemoryLedger
from tenancy.stores.memory.members import MemoryMemberStore

__all__ = ["MemoryKeyStore", "MemoryLedger", "MemoryMemberStore"]
