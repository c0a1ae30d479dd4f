"""Presence of processes in a shared store: one sorted set for each group, scored by the server's clock, so that only that one matters."""

from typing import Final

from tenancy.ports import Seats
from tenancy.stores.valkey.client import Scripts

NOW: Final = 0
"""Given in place of the microseconds after which a member is gone, it removes the member."""


class ValkeyPresence:
    """Presence of this process in Valkey (`tenancy.ports.Presence`).

    Args:
        member: this process's own id.
        gone_after_s: how long a member counts as alive after it was last heard.
    """

    def __init__(self, scripts: Scripts, member: str, gone_after_s: float) -> None:
        self._scripts = scripts
        self._member = member.encode()
        self._gone_after_us = int(gone_after_s * 1e6)

    async def beat(self, group: str) -> Seats:
        count, rank = await self._scripts.run("seats", [_key(group)], [self._member, self._gone_after_us])
        return Seats(int(count), int(rank))

    async def leave(self, group: str) -> None:
        await self._scripts.run("seats", [_key(group)], [self._member, NOW])


def _key(group: str) -> bytes:
    """The key of a group's set, with a hash tag of its own, so that groups lie on all nodes of a cluster."""
    return b"tidegate:{at:%b}:seats" % group.encode()
