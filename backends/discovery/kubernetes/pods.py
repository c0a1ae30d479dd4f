"""Backends that are the pods of a label selector: of one in the settings, of an InferencePool, or of KServe's LLMInferenceService.

A pod takes requests while its condition `Ready` is true. One that has a deletion timestamp and still runs drains. No pod at all is an
answer: the pool is scaled to zero.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any, Final

import msgspec

from backends.discovery.dns import ResolvedAddresses, member_id
from backends.discovery.kubernetes.watch import (
    PODS,
    ROLE_LABEL,
    ROLES,
    ClusterAccess,
    LabelRule,
    ObjectQuery,
    ObjectWatch,
    bounded,
    labels_of,
)
from domain.clock import Clock, Rng
from domain.membership import Member, Role, SourceError, Traits

LLM_D_ROLE_LABEL: Final = "llm-d.ai/role"
"""The role of an engine in llm-d and KServe: `both`, `prefill` or `decode`."""

ZONE_LABEL: Final = "topology.kubernetes.io/zone"
"""Kubernetes 1.35 copies it from the node to the pod (KEP 4742); a pod carries it before only where somebody set it."""

ENGINE_CONTAINER: Final = "main"
"""The container of the engine in KServe's pods, which may have a routing sidecar beside it."""

LAST_S: Final = 5.0
"""Seconds before the end of a pod at which its drain ends: what runs then goes on elsewhere or is cut by the gateway, which says why, and
not by the engine's death, which looks like a fault."""

KSERVE_PORT: Final = 8000
"""The engines' port in KServe's templates, where their container declares none."""


class PodQuery(msgspec.Struct, frozen=True):
    """Which pods are backends."""

    pool: str
    namespace: str
    selector: str
    ports: tuple[int | str, ...] = ()
    """Numbers or names; a pod is a backend for each. Empty for pods with a single port."""
    scheme: str = "http"
    host: str = ""
    """The name in the certificates, with `https`; empty for the address of the pod."""
    role: Role = "both"
    fallback_port: int | None = None
    """The port of pods that declare none, where `ports` is empty."""
    grace_s: float = 120.0
    """How long requests on a pod that terminates may go on, where the pod itself has that time."""
    rule: LabelRule = LabelRule()


class PodFacts(msgspec.Struct, frozen=True):
    """The part of a pod that discovery needs."""

    address: str
    ready: bool
    leaving: bool
    ends_in_s: float
    """Seconds that the pod had when its end was asked for; infinite while it stays."""
    role: str
    zone: str
    named_ports: tuple[tuple[str, int], ...]
    """Name and number of the TCP ports of all containers that have a name."""
    engine_ports: tuple[int, ...]
    """The TCP ports of the container `main`, or without it of all containers."""
    labels: dict[str, str] = {}
    """The labels that discovery needs (`labels_of`)."""


def kserve_selector(service: str) -> str:
    """The label selector of the pods that KServe makes for an LLMInferenceService (v1alpha1 and v1alpha2)."""
    return f"app.kubernetes.io/name={service},app.kubernetes.io/part-of=llminferenceservice,kserve.io/component=workload"


def kserve_host(service: str, namespace: str) -> str:
    """The name that the certificates of KServe's engines are for: that of the Service of the workload."""
    return f"{service}-kserve-workload-svc.{namespace}.svc"


def facts_of(pod: Any) -> PodFacts:
    """The facts of a pod as lightkube gives it."""
    labels = pod.metadata.labels or {}
    status = pod.status
    runs = status is not None and status.phase == "Running"
    conditions = {said.type: said.status for said in (status.conditions if status is not None else None) or ()}
    containers = (pod.spec.containers if pod.spec is not None else None) or ()
    engines = [each for each in containers if each.name == ENGINE_CONTAINER] or containers
    leaving = pod.metadata.deletionTimestamp is not None
    return PodFacts(
        (status.podIP if status is not None else None) or "",
        runs and not leaving and conditions.get("Ready") == "True",
        runs and leaving,
        pod.metadata.deletionGracePeriodSeconds if leaving and pod.metadata.deletionGracePeriodSeconds is not None else inf,
        labels.get(ROLE_LABEL) or labels.get(LLM_D_ROLE_LABEL) or "",
        labels.get(ZONE_LABEL) or "",
        tuple((port.name, port.containerPort) for port in _tcp_ports(containers) if port.name),
        tuple(port.containerPort for port in _tcp_ports(engines)),
        labels_of(pod),
    )


def _tcp_ports(containers: Iterable[Any]) -> list[Any]:
    return [port for each in containers for port in each.ports or () if port.protocol in (None, "TCP")]


class PodSource:
    """The members of one pool that are pods (a `domain.membership.ConnectedSource`)."""

    owner: Final = "kubernetes"
    keep_s = inf
    """Engines are polled, so an API server that is away makes no backend worse; one that has left is found down."""

    def __init__(self, query: PodQuery, shown: str, access: ClusterAccess, clock: Clock, rng: Rng) -> None:
        self.name = f"Kubernetes {shown}"
        self.pool = query.pool
        self.query = query
        self.left_out: Mapping[str, int] = {}
        """A `domain.membership.SelectiveSource`, with `trouble`."""
        self.trouble = ""
        self._watch = ObjectWatch(ObjectQuery(PODS, query.namespace, query.selector), access, clock, rng, facts_of)

    @property
    def every_s(self) -> float:
        """The pause before the next read."""
        return self._watch.every_s

    async def read(self) -> Sequence[Member]:
        """List, or wait for the next change: up to a minute. Raises SourceError."""
        await self._watch.advance()
        return self.members()

    @property
    def listed(self) -> bool:
        """Whether the pods have been listed, so that `members` knows them."""
        return self._watch.listed

    def members(self) -> Sequence[Member]:
        """The members by what is known now. Raises SourceError where pods are there and none has the port."""
        taken, self.left_out = taken_of(self._watch.objects, self.query.rule)
        return members_of(taken, self.query)

    async def close(self) -> None:
        """Close the connections; the next read opens them again, and goes on from the version seen last."""
        await self._watch.close()


def taken_of(pods: dict[str, PodFacts], rule: LabelRule) -> tuple[dict[str, PodFacts], Counter[str]]:
    """The pods that the rule takes, and how many usable ones it leaves out, by reason."""
    why = {name: rule.refusal(facts.labels) for name, facts in pods.items()}
    left_out = Counter(why[name] for name, facts in pods.items() if why[name] and facts.address and (facts.ready or facts.leaving))
    return {name: facts for name, facts in pods.items() if not why[name]}, left_out


def members_of(pods: dict[str, PodFacts], query: PodQuery) -> list[Member]:
    """The backends that pods are: ready ones, and drained ones that terminate; by id.

    Raises:
        SourceError: pods are there and none has a port that is known.
    """
    found: dict[str, Member] = {}
    used = [facts for facts in pods.values() if facts.address and (facts.ready or facts.leaving)]
    for facts in used:
        for port in ports_of(facts, query):
            member = _member(query, facts, port)
            found[member.id] = member
    if used and not found:
        wanted = " and ".join(str(port) for port in query.ports)
        trouble = f"has the port {wanted}" if wanted else "declares exactly one port"
        raise SourceError(f"none of the {len(used)} pods of {query.selector} {trouble}; write the number of the engines' port as port")
    return bounded([found[each] for each in sorted(found)], f"the pods of {query.selector}")


def ports_of(facts: PodFacts, query: PodQuery) -> Iterable[int]:
    """The numbers of the wanted ports; without those that the pod does not have by name."""
    if query.ports:
        named = dict(facts.named_ports)
        numbers = [port if isinstance(port, int) else named.get(port) for port in query.ports]
        return [number for number in numbers if number is not None]
    if len(facts.engine_ports) == 1:
        return facts.engine_ports
    return [] if facts.engine_ports or query.fallback_port is None else [query.fallback_port]


def _member(query: PodQuery, facts: PodFacts, port: int) -> Member:
    address = facts.address
    host = query.host if query.scheme == "https" and query.host else f"[{address}]" if ":" in address else address
    return Member(
        query.pool,
        member_id(query.pool, ResolvedAddresses(address, port)),
        f"{query.scheme}://{host}:{port}",
        "kubernetes",
        address,
        drain_grace_s=max(0.0, min(query.grace_s, facts.ends_in_s - LAST_S)) if facts.leaving else None,
        role=ROLES.get(facts.role, query.role),
        traits=Traits(region=facts.zone),
    )
