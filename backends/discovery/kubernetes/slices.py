"""Backends that Kubernetes names in EndpointSlices (discovery.k8s.io/v1).

A source that has no slice at all has no answer: the Service is missing, or its name is wrong. A Service without pods has an empty slice.
"""

from collections.abc import Iterable, Sequence
from math import inf
from typing import Any, Final

import msgspec

from backends.discovery.dns import ResolvedAddresses, member_id
from backends.discovery.kubernetes.watch import ROLE_LABEL, ROLES, SLICES, ClusterAccess, ObjectQuery, ObjectWatch, bounded
from domain.clock import Clock, Rng
from domain.membership import Member, Role, SourceError, Traits

SERVICE_LABEL: Final = "kubernetes.io/service-name"


class SliceQuery(msgspec.Struct, frozen=True):
    """Which endpoints of which slices are backends."""

    pool: str
    namespace: str
    service: str = ""
    selector: str = ""
    """A label selector of slices; slices carry the labels of their Service."""
    port: int | str | None = None
    """Number or name; None for slices with a single port."""
    scheme: str = "http"
    role: Role = "both"
    grace_s: float = 120.0
    """How long requests on an endpoint that terminates may go on."""

    @property
    def labels(self) -> str:
        """The label selector that the API server is asked with."""
        return ",".join(filter(None, (f"{SERVICE_LABEL}={self.service}" if self.service else "", self.selector)))

    @property
    def shown(self) -> str:
        """What is looked for, in an operator's words."""
        return f"{self.namespace}/{self.service or self.selector}"


class SliceSource:
    """The members of one pool that EndpointSlices name (a `domain.membership.ConnectedSource`)."""

    owner: Final = "kubernetes"
    keep_s = inf
    """Engines are polled, so an API server that is away makes no backend worse; one that has left is found down."""

    def __init__(self, query: SliceQuery, access: ClusterAccess, clock: Clock, rng: Rng) -> None:
        self.name = f"Kubernetes {query.shown}"
        self.pool = query.pool
        self._query = query
        self._watch = ObjectWatch(ObjectQuery(SLICES, query.namespace, query.labels), access, clock, rng)

    @property
    def every_s(self) -> float:
        """The pause before the next read."""
        return self._watch.every_s

    async def read(self) -> Sequence[Member]:
        """List, or wait for the next change: up to a minute. Raises SourceError."""
        await self._watch.advance()
        slices = self._watch.objects
        if not slices:
            raise SourceError(f"there is no EndpointSlice of {self._query.shown}; create the Service, or mend discover.kubernetes")
        return members_of(slices.values(), self._query)

    async def close(self) -> None:
        """Close the connections; the next read opens them again, and goes on from the version seen last."""
        await self._watch.close()


def members_of(slices: Iterable[Any], query: SliceQuery) -> list[Member]:
    """The backends that slices name: ready endpoints, and drained ones that terminate; by address.

    An endpoint may stand in two slices while the control plane moves it, and a pod has one for each address family: it is one backend,
    by its IPv4 address where it has one. It terminates when one of them says so.
    """
    found: dict[tuple[str, int], Member] = {}
    for piece in sorted(slices, key=lambda each: (each.addressType, each.metadata.name)):
        if piece.addressType not in ("IPv4", "IPv6") or (port := port_of(piece, query.port)) is None:
            continue
        role = ROLES.get((piece.metadata.labels or {}).get(ROLE_LABEL, ""), query.role)
        for endpoint in piece.endpoints or ():
            said = endpoint.conditions
            ready = said is None or said.ready is not False
            leaving = said is not None and said.terminating is True
            if not endpoint.addresses or not (ready or leaving):
                continue
            address = endpoint.addresses[0]
            key = (endpoint.targetRef.uid if endpoint.targetRef is not None else None) or address, port
            member = found.setdefault(key, _member(query, address, port, role, endpoint.zone or ""))
            if leaving:
                found[key] = msgspec.structs.replace(member, drain_grace_s=query.grace_s)
    return bounded(sorted(found.values(), key=lambda member: member.id), f"the endpoints of {query.shown}")


def port_of(piece: Any, wanted: int | str | None) -> int | None:
    """The number of the wanted port of a slice; None when the slice does not have it."""
    ports = {port.name or "": port.port for port in piece.ports or () if port.port is not None and port.protocol in (None, "TCP")}
    if wanted is None:
        return next(iter(ports.values())) if len(ports) == 1 else None
    if isinstance(wanted, str):
        return ports.get(wanted)
    return wanted if not ports or wanted in ports.values() else None


def _member(query: SliceQuery, address: str, port: int, role: Role, zone: str) -> Member:
    shown = f"[{address}]" if ":" in address else address
    # a certificate is for the Service's name, not for the address of a pod
    host = f"{query.service}.{query.namespace}.svc" if query.scheme == "https" and query.service else shown
    return Member(
        query.pool,
        member_id(query.pool, ResolvedAddresses(address, port)),
        f"{query.scheme}://{host}:{port}",
        "kubernetes",
        address,
        role=role,
        traits=Traits(region=zone),
    )
