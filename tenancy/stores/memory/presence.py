"""Presence of the members that share one process: a lone worker, and the members of a test."""

from domain.clock import Clock
from tenancy.ports import Seats


class MemoryRoom:
    """The state that members share: bounded by the number of members."""

    def __init__(self, clock: Clock, gone_after_s: float) -> None:
        self.clock = clock
        self.gone_after_s = gone_after_s
        self.heard: dict[str, dict[str, float]] = {}
        """When each member was last heard, by group."""


class MemoryPresence:
    """Presence of one member, in memory (`tenancy.ports.Presence`)."""

    def __init__(self, room: MemoryRoom, member: str) -> None:
        self._room = room
        self._member = member

    async def beat(self, group: str) -> Seats:
        room = self._room
        now = room.clock()
        heard = room.heard.setdefault(group, {})
        heard[self._member] = now
        for member in [member for member, at in heard.items() if now - at > room.gone_after_s]:
            del heard[member]
        return Seats(len(heard), sum(member < self._member for member in heard))

    async def leave(self, group: str) -> None:
        self._room.heard.get(group, {}).pop(self._member, None)
