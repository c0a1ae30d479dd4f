"""Runs the gateway's scripts on one Valkey, on the primary that Sentinels name, or on a cluster (`ValkeyScripts`).

`Scripts` is the port through which the counters run them; a script may be run twice when its server loses the first answer, so every script
must be safe to repeat. `TEXTS` are the scripts' texts: files in `lua/`, with shared code and the constants of the Python reference put in
front.
"""

import asyncio
import contextlib
import hashlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final, Protocol

from hiredis import ReplyError

from tenancy.counter_url import Address, CounterUrl, StoreKind
from tenancy.limits import MAX_RATE
from tenancy.ports import CountersAway
from tenancy.quota import LEASE_US, REAP_AT_MOST, REAPED_US, SETTLED_US
from tenancy.rates import MAX_AHEAD_US, MAX_COUNT, OTHERS
from tenancy.stores.valkey.breaker import NodeBreaker
from tenancy.stores.valkey.link import pack
from tenancy.stores.valkey.node import Node
from tenancy.stores.valkey.topology import Map, slot_of, topology_of


class Scripts(Protocol):
    """Runs the scripts of `tenancy.stores.valkey.client` by name."""

    async def run(self, script: str, keys: Sequence[bytes], args: Sequence[bytes | int]) -> Any:
        """The script's reply: bytes for a packed one, an int, or a list of ints. All keys are in the slot of `keys[0]`. Raises
        CountersAway when the store cannot be reached now, whether the script ran or not: every script may be run again with the same
        arguments."""
        ...


_CONSTANTS: Final = {
    "LEASE_US": LEASE_US,
    "SETTLED_US": SETTLED_US,
    "REAPED_US": REAPED_US,
    "REAP_AT_MOST": REAP_AT_MOST,
    "MAX_RATE": MAX_RATE,
    "MAX_AHEAD_US": MAX_AHEAD_US,
    "MAX_COUNT": MAX_COUNT,
    "OTHERS": f"'{OTHERS}'",
}
_PARTS: Final = {
    "admit": ("books", "prune", "admit"),
    "beat": ("books", "beat"),
    "settle": ("books", "settle"),
    "look": ("books", "look"),
    "seed": ("books", "prune", "seed"),
    "presence": ("presence",),
    "turn": ("turn",),
    "seats": ("seats",),
}


def _text(parts: tuple[str, ...]) -> str:
    folder = files("tenancy.stores.valkey").joinpath("lua")
    constants = "".join(f"local {name} = {value}\n" for name, value in _CONSTANTS.items())
    return constants + "".join(folder.joinpath(f"{part}.lua").read_text() for part in parts)


TEXTS: Final = {name: _text(parts) for name, parts in _PARTS.items()}
"""Texts by the name that `Scripts.run` takes."""


MAX_NODES: Final = 1000
"""Primaries of a cluster; its own recommended ceiling."""
_NODE_CANNOT: Final = ("LOADING", "MASTERDOWN", "CLUSTERDOWN", "BUSY", "OOM", "MISCONF", "NOREPLICAS", "TRYAGAIN", "NOPERM", "NOAUTH")
"""First words of error replies by which a node says that it cannot serve now."""


class ValkeyScripts:
    """`Scripts` over the network. Made inside the running loop that uses it; `start` before use, `close` after."""

    def __init__(self, url: CounterUrl, scripts: Mapping[str, str] = TEXTS) -> None:
        self._loop = asyncio.get_running_loop()
        self._url = url
        self._texts = {name: text.encode() for name, text in scripts.items()}
        self._shas = {name: hashlib.sha1(text, usedforsecurity=False).hexdigest().encode() for name, text in self._texts.items()}
        self._topology = topology_of(url)
        self._nodes: dict[Address, Node] = {}
        self._map = Map((), ())
        self._only: Node | None = None
        """The node that owns all slots, where there is one."""
        self._why = f"{url.shown()}: not asked yet"
        self._look = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def start(self, within_s: float = 2.0) -> bool:
        """Find and connect the servers; returns whether all are up within `within_s`. Goes on trying in any case."""
        self._task = asyncio.create_task(self._watch())
        give_up_at = self._loop.time() + within_s
        while self._loop.time() < give_up_at:
            if self._nodes and all(node.up for node in self._nodes.values()):
                return True
            await asyncio.sleep(0.005)
        return False

    async def close(self) -> None:
        """End every connection."""
        self._closed = True
        self._look.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        nodes = list(self._nodes.values())
        self._nodes = {}
        self._only = None
        self._map = Map((), ())
        self._why = "closed"
        for node in nodes:
            await node.close()

    @property
    def up(self) -> bool:
        """Whether every server is connected and answers in time."""
        return bool(self._nodes) and all(node.up for node in self._nodes.values())

    @property
    def why(self) -> str:
        """The last failure, in words."""
        return next((node.why for node in self._nodes.values() if not node.up), self._why)

    @property
    def is_cluster(self) -> bool:
        """Whether different keys may lie on different servers."""
        return self._url.kind is StoreKind.CLUSTER

    def lineage(self, key: bytes) -> str:
        """The replication id of the server that owns a key, as of the last connection to it; empty when not known."""
        try:
            return (self._only or self._owner(key)).lineage
        except CountersAway:
            return ""

    async def run(self, script: str, keys: Sequence[bytes], args: Sequence[bytes | int]) -> Any:
        """Run a script (`Scripts.run`); never takes longer than the node's `timeout_s`.

        Raises:
            CountersAway: the store cannot be reached, or the script failed.
        """
        began = self._loop.time()
        packed = pack(("EVALSHA", self._shas[script], len(keys), *keys, *args))
        node = self._only or self._owner(keys[0])
        reply = await node.call(packed)
        if reply.__class__ is ReplyError:
            try:
                async with asyncio.timeout_at(began + node.timeout_s):
                    return await self._again(node, script, packed, str(reply))
            except TimeoutError:
                raise CountersAway("the store did not answer in time") from None
        return reply

    def _owner(self, key: bytes) -> Node:
        slot_map = self._map
        at = bisect_left(slot_map.ends, slot_of(key))
        node = self._nodes.get(slot_map.owners[at]) if at < len(slot_map.owners) else None
        if node is None:
            raise CountersAway(self._why)
        return node

    async def _again(self, node: Node, script: str, packed: bytes, error: str) -> Any:
        """Run a script once more where the error reply says what to do first: load it, or ask another node."""
        word, _, rest = error.partition(" ")
        if word == "NOSCRIPT":
            load = pack(("SCRIPT", "LOAD", self._texts[script]))
            _, reply = await asyncio.gather(node.call(load), node.call(packed))  # one after the other, on one connection
        elif word in ("MOVED", "ASK") and self._url.kind is StoreKind.CLUSTER:
            host, _, port = rest.rpartition(" ")[2].rpartition(":")
            owner = self._node(Address(host.strip("[]") or node.address.host, int(port)))
            if word == "MOVED":
                self._look.set()
                reply = await owner.call(packed)
            else:
                _, reply = await asyncio.gather(owner.call(pack(("ASKING",))), owner.call(packed))
        else:
            reply = None
        if reply is None or isinstance(reply, ReplyError):
            raise CountersAway(self._understood(node, script, str(reply or error)))
        return reply

    def _understood(self, node: Node, script: str, error: str) -> str:
        word = error.partition(" ")[0]
        if word == "READONLY":  # the primary has become a replica
            node.drop(error)
            self._look.set()
        elif word in _NODE_CANNOT:
            node.failed(error)
            self._look.set()
        return f"script {script}: {error}"

    def _node(self, address: Address) -> Node:
        node = self._nodes.get(address)
        if node is None:
            if len(self._nodes) >= MAX_NODES:
                raise CountersAway(f"more than {MAX_NODES} nodes")
            node = self._nodes[address] = Node(address, self._url, self._texts, NodeBreaker())
        return node

    async def _watch(self) -> None:
        """Find the owners of the slots, again whenever there is reason to."""
        while not self._closed:  # checked too, because a library may swallow the one cancellation there is
            self._look.clear()
            try:
                await self._take(await self._topology.find())
                pause_s = self._topology.every_s
            except CountersAway as error:
                self._why = str(error)
                pause_s = 0.25
            if pause_s is not None and not self.up:
                pause_s = min(pause_s, 0.25)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._look.wait()
                    await asyncio.sleep(0.02)  # several requests may report a move at once

    async def _take(self, slot_map: Map) -> None:
        if slot_map == self._map or self._closed:
            return
        owners = {address: self._node(address) for address in slot_map.owners}
        self._map = slot_map
        self._only = next(iter(owners.values())) if len(owners) == 1 else None
        gone = [node for address, node in self._nodes.items() if address not in owners]
        self._nodes = owners
        for node in gone:
            await node.close()
