"""Backends that Kubernetes names in EndpointSlices (discovery.k8s.io/v1).

A source that has no slice at all has no answer: the Service is missing, or its name is wrong. A Service without pods has an empty slice.

Slices have the labels of their Service, and none of the pods behind their endpoints. Where the labels of pods choose, the pods that have
them are watched too, and an endpoint is a backend while its pod is among them.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any, Final

import msgspec

from backends.discovery.dns import ResolvedAddresses, member_id
from backends.discovery.kubernetes.watch import (
    PODS,
    ROLE_LABEL,
    ROLES,
    SLICES,
    ClusterAccess,
    LabelRule,
    ObjectKind,
    ObjectQuery,
    ObjectWatch,
    bounded,
    ended,
    labels_of,
    whole,
)
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
    rule: LabelRule = LabelRule()
    """With a selector of its own, for the labels of pods."""

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
        self.left_out: Mapping[str, int] = {}
        """A `domain.membership.SelectiveSource`."""

        def watch(kind: ObjectKind, labels: str, keep: Callable[[Any], Any]) -> ObjectWatch:
            return ObjectWatch(ObjectQuery(kind, query.namespace, labels), access, clock, rng, keep)

        self._slices = watch(SLICES, query.labels, whole)
        self._pods = watch(PODS, query.rule.selector, labels_of) if query.rule.selector else None
        self._steps: dict[ObjectWatch, asyncio.Task[None]] = {}
        self._troubles: dict[ObjectWatch, BaseException] = {}
        """Why the last step of a watch failed."""

    @property
    def every_s(self) -> float:
        """The pause before the next read."""
        return self._slices.every_s if self._pods is None else max(self._slices.every_s, self._pods.every_s)

    async def read(self) -> Sequence[Member]:
        """List, or wait for the next change: up to a minute. Raises SourceError."""
        if self._pods is None:
            await self._slices.advance()
        else:
            await self._advance_any((self._slices, self._pods))
        slices = self._slices.objects
        if not slices:
            raise SourceError(f"there is no EndpointSlice of {self._query.shown}; create the Service, or mend discover.kubernetes")
        pods = None if self._pods is None else self._pods.objects
        left_out: Counter[str] = Counter()
        members = members_of(slices.values(), self._query, pods, left_out)
        self.left_out = left_out
        return members

    @property
    def trouble(self) -> str:
        """A `domain.membership.SelectiveSource`: slices go on while pods cannot be read, and the other way round."""
        return next((str(error) for watch, error in self._troubles.items() if watch.is_failing), "")

    async def _advance_any(self, watches: Sequence[ObjectWatch]) -> None:
        """List what is not listed; else wait for the next change of any. An error is raised where nothing else has changed."""
        steps = self._steps
        if new := [watch for watch in watches if not watch.listed and watch not in steps]:
            for watch in new:
                await watch.advance()
                self._troubles.pop(watch, None)
            return
        for watch in watches:
            if watch not in steps:
                steps[watch] = asyncio.create_task(watch.advance())
        done, _ = await asyncio.wait(steps.values(), return_when=asyncio.FIRST_COMPLETED)
        troubles = []
        for watch in [watch for watch, step in steps.items() if step in done]:
            self._troubles.pop(watch, None)
            if (error := steps.pop(watch).exception()) is not None:
                self._troubles[watch] = error
                troubles.append(error)
        if len(troubles) == len(done):
            raise troubles[0]

    async def close(self) -> None:
        """Close the connections; the next read opens them again, and goes on from the version seen last."""
        steps, self._steps = self._steps, {}
        for step in steps.values():
            await ended(step)
        for watch in filter(None, (self._slices, self._pods)):
            await watch.close()


def members_of(
    slices: Iterable[Any], query: SliceQuery, pods: Mapping[str, Mapping[str, str]] | None = None, left_out: Counter[str] | None = None
) -> list[Member]:
    """The backends that slices name: ready endpoints, and drained ones that terminate; by address.

    An endpoint may stand in two slices while the control plane moves it, and a pod has one for each address family: it is one backend,
    by its IPv4 address where it has one. It terminates when one of them says so.

    Args:
        pods: the labels of the pods that have those of the rule, by name; None where the labels of slices are enough.
        left_out: counts the endpoints that the rule leaves out, by reason.
    """
    found: dict[tuple[str, int], Member] = {}
    refused: dict[tuple[str, int], str] = {}
    for piece in sorted(slices, key=lambda each: (each.addressType, each.metadata.name)):
        if piece.addressType not in ("IPv4", "IPv6") or (port := port_of(piece, query.port)) is None:
            continue
        shown = labels_of(piece)
        for endpoint in piece.endpoints or ():
            said = endpoint.conditions
            ready = said is None or said.ready is not False
            leaving = said is not None and said.terminating is True
            if not endpoint.addresses or not (ready or leaving):
                continue
            address = endpoint.addresses[0]
            key = (endpoint.targetRef.uid if endpoint.targetRef is not None else None) or address, port
            labels = _labels(endpoint, shown, pods)
            if why := f"not {query.rule.selector}" if labels is None else query.rule.refusal(labels):
                refused[key] = why
                continue
            role = ROLES.get((labels or {}).get(ROLE_LABEL, ""), query.role)
            member = found.setdefault(key, _member(query, address, port, role, endpoint.zone or ""))
            if leaving:
                found[key] = msgspec.structs.replace(member, drain_grace_s=query.grace_s)
    if left_out is not None:
        left_out.update(why for key, why in refused.items() if key not in found)
    return bounded(sorted(found.values(), key=lambda member: member.id), f"the endpoints of {query.shown}")


def _labels(endpoint: Any, of_slice: dict[str, str], pods: Mapping[str, Mapping[str, str]] | None) -> Mapping[str, str] | None:
    """The labels that count for an endpoint; None where its pod is none of `pods`."""
    target = endpoint.targetRef
    if pods is None or target is None or target.kind != "Pod":
        return of_slice
    of_pod = pods.get(target.name)
    return None if of_pod is None else {**of_slice, **of_pod}


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
