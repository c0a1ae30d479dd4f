"""Backends that Kubernetes names in EndpointSlices (discovery.k8s.io/v1): lists them, then watches for changes.

One read lists, every later one waits for the next event of the watch. The watch goes on from the last resource version, also after a lost
connection, and bookmarks move that version where nothing else changes. Only "410 Gone" makes the source list again. The API server is
asked to end each watch after a minute, so that a connection on which nothing comes for longer is known to be dead.

A source that has no slice at all has no answer: the Service is missing, or its name is wrong. A Service without pods has an empty slice.

lightkube, an extra, is imported at the first read: it costs a worker 23 MB (decision 0037).
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from backends.discovery.dns import ResolvedAddresses, member_id
from domain.clock import Clock, Rng
from domain.membership import Member, Role, SourceError, Traits

if TYPE_CHECKING:
    from lightkube.core.generic_client import BasicRequest

log = structlog.get_logger("tidegate.discovery")

WATCH_S: Final = 60
"""After how many seconds the API server is asked to end a watch (`timeoutSeconds`)."""

SILENT_S: Final = 75.0
"""Longest silence on a watch; longer than `WATCH_S`, at whose end a living server ends it."""

ASK_WITHIN_S: Final = 5.0
"""Longest wait for a list, and for the beginning of a watch."""

PAGE: Final = 500
"""Slices asked for at once."""

MAX_SLICES: Final = 2000
MAX_MEMBERS: Final = 1000
"""Every worker polls each of them (as `domain.membership.MAX_REGISTERED`)."""

PACE_S: Final = 0.2
"""Shortest time between two reads, so that the events of a rolling upgrade are taken together."""

BACKOFF_S: Final = (1.0, 30.0)
"""Pause after the first failure and the longest one; it doubles, and a random half of it is waived."""

LONG_AWAY_S: Final = 300.0
"""After how long without the API server the log warns again."""

ROLE_LABEL: Final = "tidegate/role"
SERVICE_LABEL: Final = "kubernetes.io/service-name"

ROLES: Final[Mapping[str, Role]] = {"both": "both", "prefill": "prefill", "decode": "decode"}


class ClusterAccess(msgspec.Struct, frozen=True):
    """Where the API server is and how to prove who asks."""

    server: str
    """`https://host:port`."""
    token_file: str | None = None
    """Read again when the server says 401: tokens of service accounts rotate."""
    ca: str | None = None
    """File with the CAs of the server's certificate; None for the system's."""


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


class Gone(Exception):
    """The API server no longer has the changes since our resource version: list again."""


class SliceApi:
    """One client of an API server, for one list and one watch after it."""

    def __init__(self, access: ClusterAccess, query: SliceQuery) -> None:
        # imported only here, because only pools with Kubernetes need it
        from lightkube.config.client_adapter import ConnectionParams
        from lightkube.config.kubeconfig import SingleConfig
        from lightkube.config.models import Cluster, Context, User
        from lightkube.core.generic_client import GenericAsyncClient

        config = SingleConfig(
            context_name="tidegate",
            context=Context(cluster="tidegate", namespace=query.namespace),
            cluster=Cluster(server=access.server, certificate_auth=access.ca),
            user=User(token_file=access.token_file),
        )
        # no time limits of the client's: every call below stands within one of ours
        # Any: lightkube leaves half of what is used here untyped
        self._client: Any = GenericAsyncClient(ConnectionParams(timeout=None, trust_env=False), config=config)
        self._query = query
        self._lines: AsyncIterator[str] | None = None
        self._response: Any = None

    def _request(self, *, watch: bool, **params: str) -> "BasicRequest":
        from lightkube.resources.discovery_v1 import EndpointSlice

        params["labelSelector"] = self._query.labels
        request: BasicRequest = self._client.prepare_request(
            "list", EndpointSlice, namespace=self._query.namespace, watch=watch, params=params
        )
        return request

    async def list(self) -> tuple[dict[str, Any], str]:
        """Every slice by name, and the resource version that a watch begins at."""
        request = self._request(watch=False, limit=str(PAGE))
        slices: dict[str, Any] = {}
        more, version = True, None
        while more and len(slices) < MAX_SLICES:
            response = await self._client.send(self._client.build_adapter_request(request))
            more, version, page = self._client.handle_response("list", response, request)
            slices |= {found.metadata.name: found for found in page}
        if more:
            raise OSError(f"there are more than {MAX_SLICES} slices; write a narrower selector")
        return slices, version or ""

    @property
    def watching(self) -> bool:
        """Whether a watch is open."""
        return self._lines is not None

    async def watch(self, version: str) -> None:
        """Open a watch of the changes since `version`."""
        request = self._request(watch=True, resourceVersion=version, allowWatchBookmarks="true", timeoutSeconds=str(WATCH_S))
        async with asyncio.timeout(ASK_WITHIN_S):
            response = await self._client.send(self._client.build_adapter_request(request), stream=True)
            if response.is_error:
                await response.aread()
                self._client.raise_for_status(response)
        self._response, self._lines = response, response.aiter_lines()

    async def event(self) -> tuple[str, Any] | None:
        """The next event, (type, slice); None when the watch has ended, as it does every minute.

        Raises:
            Gone: list again.
        """
        from lightkube.core import decoders
        from lightkube.resources.discovery_v1 import EndpointSlice

        assert self._lines is not None
        async with asyncio.timeout(SILENT_S):
            line = await anext(self._lines, None)
        if line is None:
            await self._end_watch()
            return None
        event = decoders.decode_watch_event(line.encode())
        if event.type == "ERROR":
            status = decoders.decode_status(event.object)
            if status.code == 410:
                raise Gone
            raise OSError(f"the watch ends with status {status.code}, {status.message}")
        return event.type, decoders.decode_object(event.object, EndpointSlice)

    async def _end_watch(self) -> None:
        response, self._response, self._lines = self._response, None, None
        if response is not None:
            await response.aclose()

    async def close(self) -> None:
        """Close the connections."""
        await self._end_watch()
        await self._client.close()


class KubernetesSource:
    """The members of one pool that EndpointSlices name (a `domain.membership.ConnectedSource`)."""

    owner: Final = "kubernetes"
    keep_s = inf
    """Engines are polled, so an API server that is away makes no backend worse; one that has left is found down."""

    def __init__(self, query: SliceQuery, access: ClusterAccess, clock: Clock, rng: Rng) -> None:
        self.name = f"Kubernetes {query.shown}"
        self.pool = query.pool
        self._query = query
        self._access = access
        self._clock = clock
        self._rng = rng
        self._api: SliceApi | None = None
        self._slices: dict[str, Any] = {}
        self._version = ""
        """The resource version seen last; empty to list."""
        self._failures = 0
        self._since: float | None = None
        """When the first of the failures in a row was."""

    @property
    def every_s(self) -> float:
        """The pause before the next read."""
        if not self._failures:
            return PACE_S
        first, most = BACKOFF_S
        return min(most, first * 2.0 ** min(self._failures - 1, 10)) * (0.5 + self._rng.random() / 2)

    async def read(self) -> Sequence[Member]:
        """List, or wait for the next change: up to a minute. Raises SourceError."""
        try:
            await self._advance()
        except BaseException as error:
            await self.close()
            if not isinstance(error, Exception):
                raise  # cancelled
            self._failures += 1
            raise SourceError(self._trouble(error)) from None
        if not self._slices:
            raise SourceError(f"there is no EndpointSlice of {self._query.shown}; create the Service, or mend discover.kubernetes")
        return members_of(self._slices.values(), self._query)

    async def _advance(self) -> None:
        api = self._api
        if api is None:
            api = self._api = SliceApi(self._access, self._query)
        try:
            if not self._version:
                async with asyncio.timeout(ASK_WITHIN_S):
                    self._slices, self._version = await api.list()
                quick_end = False
            else:
                opened = not api.watching
                if opened:
                    await api.watch(self._version)
                event = await api.event()
                self._take(event)
                quick_end = opened and event is None
            # a pause after a watch without an event: a proxy that ends each at once is not asked all the time
            self._failures, self._since = int(quick_end), None
        except Exception as error:
            if not isinstance(error, Gone) and status_of(error) != 410:
                raise
            log.info("changes are no longer kept, listing again", source=self.name, pool=self.pool)
            self._version = ""
            await self.close()
            self._failures += 1  # a pause before the list; a server that says it again and again is asked ever more rarely

    def _take(self, event: tuple[str, Any] | None) -> None:
        if event is None:
            return
        kind, found = event
        self._version = found.metadata.resourceVersion
        if kind in ("ADDED", "MODIFIED"):
            self._slices[found.metadata.name] = found
        elif kind == "DELETED":
            self._slices.pop(found.metadata.name, None)

    def _trouble(self, error: Exception) -> str:
        now = self._clock()
        if self._since is None:
            self._since = now
        if isinstance(error, msgspec.DecodeError):
            self._version = ""  # an event is lost: list again
        long = "; for more than five minutes: backends that came or went since are not known" if now - self._since > LONG_AWAY_S else ""
        return f"{why(error, self._query, self._access)}{long}"

    async def close(self) -> None:
        """Close the connections; the next read opens them again, and goes on from the version seen last."""
        api, self._api = self._api, None
        if api is not None:
            await api.close()


def status_of(error: Exception) -> int | None:
    """The HTTP status of a refused request; None for other errors."""
    response = getattr(error, "response", None)
    return None if response is None else int(response.status_code)


def why(error: Exception, query: SliceQuery, access: ClusterAccess) -> str:
    """An error of the client, in a sentence that says what to do."""
    if isinstance(error, ImportError):
        return "the Kubernetes client is missing: pip install 'tidegate[kubernetes]'"
    match status_of(error):
        case 401:
            return f"{access.server} does not accept the token (401); look at token_file {access.token_file or '(none is set)'}"
        case 403:
            return (
                f"{access.server} forbids it (403); give the service account a Role in namespace {query.namespace} with apiGroups "
                f'["discovery.k8s.io"], resources ["endpointslices"], verbs ["get", "list", "watch"]'
            )
        case int(status):
            return f"{access.server} answers {status}"
    if isinstance(error, TimeoutError):
        return f"{access.server} does not answer in time; look at the network towards it"
    if isinstance(error, msgspec.DecodeError):
        return f"{access.server} sends what is no EndpointSlice ({error})"
    return f"{access.server} cannot be read ({type(error).__name__}: {error})"[:300]


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
    return sorted(found.values(), key=lambda member: member.id)[:MAX_MEMBERS]


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
