"""Checks of `tidegate engine run` before it starts an engine: its port is free, and its pool exists.

An engine takes minutes to load, so a mistake is reported before and not after that.
"""

import socket
from typing import Final
from urllib.parse import urlsplit

import msgspec

from backends.launch.resolve import Launch
from gateway.cli.admin_client import AdminClient
from gateway.cli.printing import fail

WITHIN_S: Final = 2.0
"""Longest wait for a connection to the engine's port; on the same machine the answer is immediate."""


class PoolSeen(msgspec.Struct, frozen=True):
    """A pool as the admin port lists it."""

    name: str
    model: str
    """The model name that the gateway's requests carry."""
    dialect: str

    def mismatches(self, launch: Launch) -> list[str]:
        """The mismatches between this engine and the pool, one sentence each."""
        sentences = []
        if launch.served_name != self.model:
            mend = f"the gateway will not use it; start it with --set served_name={self.model}, or change the pool's model"
            sentences.append(f"it serves {launch.served_name}, and pool {self.name} asks for {self.model}: {mend}")
        if launch.engine != self.dialect:
            sentences.append(f"it is {launch.engine}, and pool {self.name} speaks {self.dialect}: register it in another pool")
        return sentences


class _Pools(msgspec.Struct):
    pools: list[PoolSeen]


def need_free_port(launch: Launch) -> None:
    """End the command when another process accepts connections on this engine's port: its health would pass for the engine's."""
    host = urlsplit(launch.url).hostname or ""
    try:
        socket.create_connection((host, launch.port), timeout=WITHIN_S).close()
    except OSError:
        return
    fail(
        f"port {launch.port} of {host} is taken: something accepts connections there already; "
        "end that first, or choose another port with --set port=NUMBER"
    )


def need_pool(admin: AdminClient, name: str) -> PoolSeen:
    """The pool as the gateway lists it; ends the command when no pool has that name, or no gateway answers."""
    try:
        pools = msgspec.json.decode(admin.get("/pools"), type=_Pools).pools
    except msgspec.DecodeError:
        fail("the admin port does not list its pools like a gateway of this version; look at --admin")
    match = next((pool for pool in pools if pool.name == name), None)
    if match is None:
        fail(f"--pool {name}: the gateway has no such pool; there are {', '.join(pool.name for pool in pools)[:500] or 'none'}")
    return match
