"""Backends that are the pods of an InferencePool (inference.networking.k8s.io/v1, the inference extension of the Gateway API).

The pool's `selector.matchLabels` says which pods, its `targetPorts` say their ports; a pod with several is a backend for each. The
source watches the pool and its pods: a change of the selector or of the ports lists the pods anew. While the pool cannot be read, its
pods are followed by what was known of it last.
"""

import asyncio
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Final

import msgspec

from backends.discovery.kubernetes.pods import PodQuery, PodSource
from backends.discovery.kubernetes.watch import INFERENCE_POOLS, ClusterAccess, ObjectQuery, ObjectWatch, ended
from domain.clock import Clock, Rng
from domain.membership import Member, SourceError

MAX_LABELS: Final = 64
MAX_PORTS: Final = 8
"""Bounds of the CRD."""


class PoolTarget(msgspec.Struct, frozen=True):
    """What an InferencePool selects."""

    selector: str = ""
    ports: tuple[int, ...] = ()
    trouble: str = ""
    """Why the pool selects nothing that we can follow."""


def target_of(pool: Any) -> PoolTarget:
    """The target of an InferencePool as the API server sent it."""
    spec = pool.get("spec")
    try:
        labels, ports = dict(spec["selector"]["matchLabels"]), [int(port["number"]) for port in spec["targetPorts"]]
    except (KeyError, TypeError, ValueError):
        return PoolTarget(trouble="has no spec.selector.matchLabels and spec.targetPorts as version v1 has them")
    if not labels or not ports or len(labels) > MAX_LABELS or len(ports) > MAX_PORTS:
        return PoolTarget(
            trouble=f"has {len(labels)} labels and {len(ports)} ports; 1 to {MAX_LABELS} and 1 to {MAX_PORTS} can be followed"
        )
    return PoolTarget(",".join(f"{key}={value}" for key, value in sorted(labels.items())), tuple(ports))


class InferencePoolSource:
    """The members of one pool that an InferencePool selects (a `domain.membership.ConnectedSource`).

    Args:
        query: the pods; their selector and ports come from the InferencePool.
        name: the name of the InferencePool, in the namespace of the query.
    """

    owner: Final = "kubernetes"
    keep_s = inf
    """Engines are polled, so an API server that is away makes no backend worse; one that has left is found down."""

    def __init__(self, query: PodQuery, name: str, access: ClusterAccess, clock: Clock, rng: Rng) -> None:
        self._shown = f"InferencePool {query.namespace}/{name}"
        self.name = f"Kubernetes {self._shown}"
        self.pool = query.pool
        self._query = query
        self._parts = (access, clock, rng)
        self._watch = ObjectWatch(ObjectQuery(INFERENCE_POOLS, query.namespace, fields=f"metadata.name={name}"), *self._parts, target_of)
        self._target = PoolTarget()
        self._pods: PodSource | None = None
        self._pool_step: asyncio.Task[None] | None = None
        self._pods_step: asyncio.Task[Sequence[Member]] | None = None

    @property
    def every_s(self) -> float:
        """The pause before the next read."""
        return self._watch.every_s if self._pods is None else max(self._watch.every_s, self._pods.every_s)

    async def read(self) -> Sequence[Member]:
        """List, or wait for the next change of the pool or of its pods: up to a minute. Raises SourceError."""
        if self._pods is None:
            await self._watch.advance()
            return await (await self._followed()).read()
        before = self._pods
        pool = self._pool_step = self._pool_step or asyncio.create_task(self._watch.advance())
        pods = self._pods_step = self._pods_step or asyncio.create_task(before.read())
        await asyncio.wait((pool, pods), return_when=asyncio.FIRST_COMPLETED)
        trouble: SourceError | None = None
        if pool.done():
            self._pool_step = None
            try:
                pool.result()
                if (now := await self._followed()) is not before:
                    return await now.read()
            except SourceError as error:
                trouble = error
        if pods.done() or not before.listed:
            self._pods_step = None
            return await pods
        if trouble is not None:
            raise trouble
        return before.members()

    @property
    def left_out(self) -> Mapping[str, int]:
        """A `domain.membership.SelectiveSource`."""
        return {} if self._pods is None else self._pods.left_out

    @property
    def trouble(self) -> str:
        """Nothing: pool and pods fail together."""
        return ""

    async def _followed(self) -> PodSource:
        """The source of the pods that the pool selects now; a new one where it selects others than before. Raises SourceError."""
        target = next(iter(self._watch.objects.values()), None)
        if target is None:
            raise SourceError(f"there is no {self._shown}; create it, or mend discover.kubernetes.inference_pool")
        if target.trouble:
            raise SourceError(f"{self._shown} {target.trouble}")
        if self._pods is None or target != self._target:
            await self._end_pods()
            query = msgspec.structs.replace(self._query, selector=target.selector, ports=target.ports)
            self._target, self._pods = target, PodSource(query, self._shown, *self._parts)
        return self._pods

    async def _end_pods(self) -> None:
        step, self._pods_step = self._pods_step, None
        await ended(step)
        if self._pods is not None:
            await self._pods.close()

    async def close(self) -> None:
        """End what waits for changes, and close the connections."""
        step, self._pool_step = self._pool_step, None
        await ended(step)
        await self._watch.close()
        await self._end_pods()
