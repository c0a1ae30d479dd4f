"""Whether anybody of one pool takes one more request, and of whom: some of the room may be kept for tenants that have less."""

from collections.abc import Callable
from typing import Final

from routing.board import Board
from routing.fleet import Pool
from routing.room import has_no_room

PartOf = Callable[[str], float]
"""Of the room, how much a tenant's next request may fill: see `gateway.placing.holders`."""


def everything(_tenant: str) -> float:
    """Nothing is kept for anybody."""
    return 1.0


class Room:
    """See the module. What it finds for a tenant it remembers until the next `look`: a long line asks for the same ones again and again."""

    __slots__ = ("_any", "_board", "_found", "_part_of", "_pool_of")

    def __init__(self, board: Board, pool_of: Callable[[], Pool], part_of: PartOf = everything) -> None:
        self._board = board
        self._pool_of = pool_of
        self._part_of: Final = part_of
        self._any = False
        self._found: dict[str, bool] = {}

    def look(self) -> bool:
        """Whether there is room for anybody now."""
        self._found.clear()
        self._any = self._free(1.0)
        return self._any

    def free_for(self, tenant: str) -> bool:
        """Whether there is room for a request of this tenant, as far as can be told without the request."""
        found = self._found.get(tenant)
        if found is None:
            part = self._part_of(tenant)
            found = self._found[tenant] = self._any if part == 1.0 else self._any and self._free(part)
        return found

    def all_for(self, tenant: str) -> bool:
        """Whether nothing of the room is kept from it: another's place that is taken back could be its own."""
        return self._part_of(tenant) == 1.0

    def _free(self, part: float) -> bool:
        board = self._board
        return any([not has_no_room(board, board.row_of[one.id], 1.0, part) for one in self._pool_of().up])
