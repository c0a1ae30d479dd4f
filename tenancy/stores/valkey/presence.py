"""Who is there, on a shared store: one sorted set for each group, scored by the server's own clock, so that nobody else's matters."""

from typing import Final

from tenancy.ports import Seats
from tenancy.stores.valkey.ports import Scripts

NOW: Final = 0
"""In the place of the microseconds after which one is gone."""


class ValkeyPresence:
    """See `tenancy.ports.Presence`.

    Args:
        member: this process's own id.
        gone_after_s: how long one that is not heard counts as there.
    """

    def __init__(self, scripts: Scripts, member: str, gone_after_s: float) -> None:
        self._scripts, self._member = scripts, member.encode()
        self._gone_after_us = int(gone_after_s * 1e6)

    async def beat(self, group: str) -> Seats:
        """See the port."""
        count, rank = await self._scripts.run("seats", [_key(group)], [self._member, self._gone_after_us])
        return Seats(int(count), int(rank))

    async def leave(self, group: str) -> None:
        """See the port."""
        await self._scripts.run("seats", [_key(group)], [self._member, NOW])


def _key(group: str) -> bytes:
    """With a tag of its own, so that groups lie on all nodes of a cluster."""
    return b"tidegate:{at:%b}:seats" % group.encode()
