"""Further ports of engines whose addresses a source finds: where they publish KV events, push their load, and hand over KV.

DNS and Kubernetes name an address and the port of the API alone. What is written for the pool holds for each of its engines; of several
engines on one address, as data-parallel ranks are, the second in the order of API ports has the next number, as vLLM counts them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec

from domain.membership import ConnectedSource, EnginePorts, KvEvents, LoadPush, Member, MemberSource, Owner, SelectiveSource

LAST_PORT: Final = 65_535


class PortedSource:
    """Another source, whose members get the ports of the pool's engines (a `domain.membership.ConnectedSource`)."""

    def __init__(self, source: MemberSource, ports: EnginePorts) -> None:
        self._source = source
        self._ports = ports

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def owner(self) -> Owner:
        return self._source.owner

    @property
    def pool(self) -> str:
        return self._source.pool

    @property
    def every_s(self) -> float:
        return self._source.every_s

    @property
    def keep_s(self) -> float:
        return self._source.keep_s

    @property
    def left_out(self) -> Mapping[str, int]:
        return self._source.left_out if isinstance(self._source, SelectiveSource) else {}

    @property
    def trouble(self) -> str:
        return self._source.trouble if isinstance(self._source, SelectiveSource) else ""

    async def read(self) -> Sequence[Member]:
        return with_ports(await self._source.read(), self._ports)

    async def close(self) -> None:
        if isinstance(self._source, ConnectedSource):
            await self._source.close()


def with_ports(members: Sequence[Member], ports: EnginePorts) -> list[Member]:
    """The members with these ports at their addresses, in the same order."""
    seen: Counter[str] = Counter()
    rank_of: dict[str, int] = {}
    for member in sorted(members, key=lambda each: (each.address, urlsplit(each.url).port or 0)):
        rank_of[member.id] = seen[member.address]
        seen[member.address] += 1
    return [_with_ports(member, ports, rank_of[member.id]) for member in members]


def _with_ports(member: Member, ports: EnginePorts, rank: int) -> Member:
    events = _at(member, ports.kv_events, rank)
    push = _at(member, ports.load_push, rank * ports.load_push_ranks)
    return msgspec.structs.replace(
        member,
        kv_events=None if events is None else KvEvents(events, _at(member, ports.kv_replay, rank)),
        load_push=None if push is None else LoadPush(push, ports.load_push_ranks),
        bootstrap_port=ports.bootstrap if member.role == "prefill" else None,
    )


def _at(member: Member, port: int | None, further: int) -> str | None:
    address = f"[{member.address}]" if ":" in member.address else member.address
    return None if port is None or port + further > LAST_PORT else f"tcp://{address}:{port + further}"
