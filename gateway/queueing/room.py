"""Whether any backend of one pool has capacity for one more request, and for which tenants: a share of the capacity may be reserved for
tenants with little in flight."""

from collections.abc import Callable
from typing import Final

from routing.fleet import Pool
from routing.load import LoadTable
from routing.room import has_no_room

PartOf = Callable[[str], float]
"""The part of the capacity that a tenant's next request may fill, 0 to 1; `gateway.placing.holders` computes it."""


def everything(_tenant: str) -> float:
    """A `PartOf` that reserves nothing."""
    return 1.0


class Room:
    """The capacity of one pool. The result for a tenant is remembered until the next `look`, because a long queue asks for the same tenants
    again and again."""

    __slots__ = ("_any", "_board", "_free_for", "_part_of", "_pool_of")

    def __init__(self, board: LoadTable, pool_of: Callable[[], Pool], part_of: PartOf = everything) -> None:
        self._board = board
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
            free = self._free_for[tenant] = self._any if part == 1.0 else self._any and self._free(part)
        return free

    def all_for(self, tenant: str) -> bool:
        """Whether this tenant may use the whole capacity: only then does preempting another request help it."""
        return self._part_of(tenant) == 1.0

    def _free(self, part: float) -> bool:
        board = self._board
        return any([not has_no_room(board, board.row_of[backend.id], 1.0, part) for backend in self._pool_of().up])
