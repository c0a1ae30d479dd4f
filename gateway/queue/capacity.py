"""Whether any backend of a pool has capacity for one more request, and for which tenants: a share of the capacity may be reserved for
tenants with little in flight."""

from collections.abc import Callable
from typing import Final

from routing.fleet import Pool
from routing.load import LoadTable
from routing.room import has_no_room

PartOf = Callable[[str], float]
"""The part of the capacity that a tenant's next request may fill, 0 to 1; `gateway.placement.pool_state` computes it."""

OfTenant = Callable[[str], bool]
"""Something that is true of some tenants at a moment."""


def everything(_tenant: str) -> float:
    """A `PartOf` that reserves nothing."""
    return 1.0


def nobody(_tenant: str) -> bool:
    """An `OfTenant` that is true of none."""
    return False


class Capacity:
    """The capacity of one pool. The result for a tenant is remembered until the next `look`, because a long queue asks for the same tenants
    again and again."""

    __slots__ = ("_any", "_free_for", "_held_back", "_load_table", "_part_of", "_pool_of")

    def __init__(
        self, load_table: LoadTable, pool_of: Callable[[], Pool], part_of: PartOf = everything, held_back: OfTenant = nobody
    ) -> None:
        self._held_back: Final = held_back
        self._load_table = load_table
        self._pool_of = pool_of
        self._part_of: Final = part_of
        self._any = False
        self._free_for: dict[str, bool] = {}

    def look(self) -> bool:
        """Read the load table anew; returns whether there is capacity for any tenant."""
        self._free_for.clear()
        self._any = self._free(1.0)
        return self._any

    def free_for(self, tenant: str) -> bool:
        """Whether there is capacity for a request of this tenant, as far as can be decided without the request itself."""
        free = self._free_for.get(tenant)
        if free is None:
            part = self._part_of(tenant)
            free = self._any and not self._held_back(tenant) and (part == 1.0 or self._free(part))
            self._free_for[tenant] = free
        return free

    def only_held_back(self, tenant: str) -> bool:
        """Whether there is capacity, and this tenant has to leave it to others."""
        return self._any and self._held_back(tenant)

    def all_for(self, tenant: str) -> bool:
        """Whether this tenant may use the whole capacity: only then does preempting another request help it."""
        return self._part_of(tenant) == 1.0

    def _free(self, part: float) -> bool:
        load_table = self._load_table
        return any([not has_no_room(load_table, load_table.row_of[backend.id], 1.0, part) for backend in self._pool_of().up])
