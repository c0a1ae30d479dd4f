"""In-process adapters: the counters of a lone worker; stores of the directory, backends, adapters and rollouts for tests and
embedding."""

from tenancy.stores.memory.adapters import MemoryAdapterStore
from tenancy.stores.memory.cache_purges import MemoryCachePurges
from tenancy.stores.memory.counters import MemoryCounters, SteadyWall, up_time
from tenancy.stores.memory.directory import MemoryDirectory
from tenancy.stores.memory.members import MemoryMemberStore
from tenancy.stores.memory.model_revisions import MemoryModelRevisions
from tenancy.stores.memory.presence import MemoryPresence, MemoryRoom
from tenancy.stores.memory.requests import MemoryRequests
from tenancy.stores.memory.rollouts import MemoryRolloutStore

__all__ = [
    "MemoryAdapterStore",
    "MemoryCachePurges",
    "MemoryCounters",
    "MemoryDirectory",
    "MemoryMemberStore",
    "MemoryModelRevisions",
    "MemoryPresence",
    "MemoryRequests",
    "MemoryRolloutStore",
    "MemoryRoom",
    "SteadyWall",
    "up_time",
]
