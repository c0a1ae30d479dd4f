"""Who is there, of the processes that share one memory: a lone worker, and the members of a test."""

from domain.clock import Clock
from tenancy.ports import Seats


class MemoryRoom:
    """What members have in common. Bounded by who says that it is there."""

    def __init__(self, clock: Clock, gone_after_s: float) -> None:
        self.clock = clock
        self.gone_after_s = gone_after_s
        self.heard: dict[str, dict[str, float]] = {}
        """When each member was heard, by group."""


class MemoryPresence:
    """See `tenancy.ports.Presence`."""

    def __init__(self, room: MemoryRoom, member: str) -> None:
        self._room = room
        self._member = member

    async def beat(self, group: str) -> Seats:
        """See the port."""
        room = self._room
        now = room.clock()
        heard = room.heard.setdefault(group, {})
        heard[self._member] = now
        for member in [member for member, at in heard.items() if now - at > room.gone_after_s]:
            del heard[member]
        return Seats(len(heard), sum(member < self._member for member in heard))

    async def leave(self, group: str) -> None:
        """See the port."""
        self._room.heard.get(group, {}).pop(self._member, None)
