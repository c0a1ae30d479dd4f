"""Objects of one kind at an API server of Kubernetes, kept up to date: a list, then a watch of the changes.

One step lists, every later one waits for the next event of the watch. The watch goes on from the last resource version, also after a lost
connection, and bookmarks move that version where nothing else changes. Only "410 Gone" makes the watch list again. The API server is
asked to end each watch after a minute, so that a connection on which nothing comes for longer is known to be dead.

lightkube, an extra, is imported at the first step: it costs a worker 23 MB (decision 0037).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from domain.clock import Clock, Rng
from domain.membership import Member, Role, SourceError

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
"""Objects asked for at once."""

MAX_LABEL: Final = 63
"""Characters of a label's value."""

MAX_OBJECTS: Final = 2000
MAX_MEMBERS: Final = 1000
"""Every worker polls each of them (as `domain.membership.MAX_REGISTERED`)."""

PACE_S: Final = 0.2
"""Shortest time between two reads, so that the events of a rolling upgrade are taken together."""
MOST_AT_ONCE: Final = 1000
"""Events taken in one read."""

BACKOFF_S: Final = (1.0, 30.0)
"""Pause after the first failure and the longest one; it doubles, and a random half of it is waived."""

LONG_AWAY_S: Final = 300.0
"""After how long without the API server the log warns again."""

ROLE_LABEL: Final = "tidegate/role"
POOL_LABEL: Final = "tidegate/pool"
REVISION_LABEL: Final = "tidegate/revision"
ROLES: Final[dict[str, Role]] = {"both": "both", "prefill": "prefill", "decode": "decode"}


class ClusterAccess(msgspec.Struct, frozen=True):
    """Where the API server is and how to prove who asks."""

    server: str
    """`https://host:port`."""
    token_file: str | None = None
    """Read again when the server says 401: tokens of service accounts rotate."""
    ca: str | None = None
    """File with the CAs of the server's certificate; None for the system's."""


class ObjectKind(msgspec.Struct, frozen=True):
    """One kind of objects."""

    group: str
    """Empty for the core API."""
    version: str
    name: str
    plural: str


SLICES: Final = ObjectKind("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
PODS: Final = ObjectKind("", "v1", "Pod", "pods")
INFERENCE_POOLS: Final = ObjectKind("inference.networking.k8s.io", "v1", "InferencePool", "inferencepools")


class ObjectQuery(msgspec.Struct, frozen=True):
    """Which objects of a namespace are watched."""

    kind: ObjectKind
    namespace: str
    labels: str = ""
    """A label selector."""
    fields: str = ""
    """A field selector."""


class LabelRule(msgspec.Struct, frozen=True):
    """Which labels a pod or a slice must have for its engine to be a backend of the pool."""

    revision: str = ""
    """The pool's revision: a label that names another one leaves the engine out. Empty for any."""
    pool: str = ""
    """The value that the label `tidegate/pool` must have; empty for any, and for no such label."""
    labelled: bool = False
    """Whether an engine without the label `tidegate/revision` is left out too."""

    @property
    def selector(self) -> str:
        """The label selector of the pods that have what must be there."""
        wanted = ((POOL_LABEL, self.pool), (REVISION_LABEL, self.revision if self.labelled else ""))
        return ",".join(f"{label}={value}" for label, value in wanted if value)

    def refusal(self, labels: Mapping[str, str]) -> str:
        """Why an engine with these labels is left out; empty when it is taken."""
        for label, wanted, needed in ((POOL_LABEL, self.pool, True), (REVISION_LABEL, self.revision, self.labelled)):
            said = labels.get(label) or ""
            if wanted and said != wanted and (said or needed):
                return f"{label} {said[:MAX_LABEL]}" if said else f"no {label}"
        return ""


def labels_of(found: Any) -> dict[str, str]:
    """The labels of an object that discovery needs."""
    labels = found.metadata.labels or {}
    return {label: labels[label] for label in (ROLE_LABEL, POOL_LABEL, REVISION_LABEL) if label in labels}


def bounded(members: list[Member], what: str) -> list[Member]:
    """The members themselves. Raises SourceError for more than `MAX_MEMBERS`: were some left out, backends that serve would be drained."""
    if len(members) > MAX_MEMBERS:
        raise SourceError(
            f"{what} are {len(members)} backends, and a pool has at most {MAX_MEMBERS} of one source; write a narrower selector"
        )
    return members


class Gone(Exception):
    """The API server no longer has the changes since our resource version: list again."""


def whole(found: Any) -> Any:
    """An object as the API server sent it."""
    return found


def resource_of(kind: ObjectKind) -> Any:
    """lightkube's model of a kind."""
    # imported only here, because only pools with Kubernetes need it
    if kind is SLICES:
        from lightkube.resources.discovery_v1 import EndpointSlice

        return EndpointSlice
    if kind is PODS:
        from lightkube.resources.core_v1 import Pod

        return Pod
    from lightkube.generic_resource import create_namespaced_resource

    return create_namespaced_resource(kind.group, kind.version, kind.name, kind.plural)


class ObjectApi:
    """One client of an API server, for one list and one watch after it."""

    def __init__(self, access: ClusterAccess, query: ObjectQuery) -> None:
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
        self._resource = resource_of(query.kind)
        self._lines: AsyncIterator[str] | None = None
        self._next: asyncio.Task[str | None] | None = None
        """Waits for the line behind the last one."""
        self._response: Any = None

    def _request(self, *, watch: bool, **params: str) -> "BasicRequest":
        query = self._query
        selectors = {"labelSelector": query.labels or None, "fieldSelector": query.fields or None}
        request: BasicRequest = self._client.prepare_request(
            "list", self._resource, namespace=query.namespace, watch=watch, params={**params, **selectors}
        )
        return request

    async def list(self, keep: Callable[[Any], Any]) -> tuple[dict[str, Any], str]:
        """What `keep` leaves of every object by name, and the resource version that a watch begins at."""
        request = self._request(watch=False, limit=str(PAGE))
        objects: dict[str, Any] = {}
        more, version = True, None
        while more and len(objects) < MAX_OBJECTS:
            response = await self._client.send(self._client.build_adapter_request(request))
            more, version, page = self._client.handle_response("list", response, request)
            objects |= {found.metadata.name: keep(found) for found in page}
        if more:
            raise OSError(f"there are more than {MAX_OBJECTS} {self._query.kind.plural}; write a narrower selector")
        return objects, version or ""

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
        """The next event, (type, object); None when the watch has ended, as it does every minute.

        Raises:
            Gone: list again.
        """
        from lightkube.core import decoders

        next_line = self._wait()
        async with asyncio.timeout(SILENT_S):
            await asyncio.wait((next_line,))
        self._next = None
        if (line := next_line.result()) is None:
            await self._end_watch()
            return None
        event = decoders.decode_watch_event(line.encode())
        if event.type == "ERROR":
            status = decoders.decode_status(event.object)
            if status.code == 410:
                raise Gone
            raise OSError(f"the watch ends with status {status.code}, {status.message}")
        return event.type, decoders.decode_object(event.object, self._resource)

    async def has_event(self) -> bool:
        """Whether a further event is here already."""
        if self._lines is None:
            return False
        next_line = self._wait()
        await asyncio.sleep(0)  # what was received together needs no more than one turn
        return next_line.done()

    def _wait(self) -> asyncio.Task[str | None]:
        assert self._lines is not None
        if self._next is None:
            self._next = asyncio.create_task(_line(self._lines))
        return self._next

    async def _end_watch(self) -> None:
        await ended(self._next)
        self._next = None
        response, self._response, self._lines = self._response, None, None
        if response is not None:
            await response.aclose()

    async def close(self) -> None:
        """Close the connections."""
        await self._end_watch()
        await self._client.close()


class ObjectWatch:
    """The objects that a query selects, by name.

    Args:
        query: which objects.
        access: the API server.
        keep: what is kept of an object, of which a pod has some ten KB.
    """

    def __init__(self, query: ObjectQuery, access: ClusterAccess, clock: Clock, rng: Rng, keep: Callable[[Any], Any] = whole) -> None:
        self.objects: dict[str, Any] = {}
        self._query = query
        self._access = access
        self._clock = clock
        self._rng = rng
        self._keep = keep
        self._api: ObjectApi | None = None
        self._version = ""
        """The resource version seen last; empty to list."""
        self._failures = 0
        self._since: float | None = None
        """When the first of the failures in a row was."""

    @property
    def listed(self) -> bool:
        """Whether the next step waits for a change, and does not list."""
        return bool(self._version)

    @property
    def is_failing(self) -> bool:
        """Whether the last two steps failed, or more: one is a connection that was lost."""
        return self._failures > 1

    @property
    def every_s(self) -> float:
        """The pause before the next step."""
        if not self._failures:
            return PACE_S
        first, most = BACKOFF_S
        return min(most, first * 2.0 ** min(self._failures - 1, 10)) * (0.5 + self._rng.random() / 2)

    async def advance(self) -> None:
        """List, or wait for the next change: up to a minute. Raises SourceError."""
        try:
            await self._advance()
        except BaseException as error:
            await self.close()
            if not isinstance(error, Exception):
                raise  # cancelled
            self._failures += 1
            raise SourceError(self._trouble(error)) from None

    async def _advance(self) -> None:
        api = self._api
        if api is None:
            api = self._api = ObjectApi(self._access, self._query)
        try:
            if not self._version:
                async with asyncio.timeout(ASK_WITHIN_S):
                    self.objects, self._version = await api.list(self._keep)
                quick_end = False
            else:
                opened = not api.watching
                if opened:
                    await api.watch(self._version)
                event = await api.event()
                quick_end = opened and event is None
                self._take(event)
                taken = 1
                while event is not None and taken < MOST_AT_ONCE and await api.has_event():
                    event = await api.event()
                    self._take(event)
                    taken += 1
            # a pause after a watch without an event: a proxy that ends each at once is not asked all the time
            self._failures, self._since = int(quick_end), None
        except Exception as error:
            if not isinstance(error, Gone) and status_of(error) != 410:
                raise
            query = self._query
            log.info("changes are no longer kept, listing again", kind=query.kind.name, namespace=query.namespace, labels=query.labels)
            self._version = ""
            await self.close()
            self._failures += 1  # a pause before the list; a server that says it again and again is asked ever more rarely

    def _take(self, event: tuple[str, Any] | None) -> None:
        if event is None:
            return
        kind, found = event
        if kind in ("ADDED", "MODIFIED"):
            self.objects[found.metadata.name] = self._keep(found)
        elif kind == "DELETED":
            self.objects.pop(found.metadata.name, None)
        # only now: the next watch begins behind this version
        self._version = found.metadata.resourceVersion

    def _trouble(self, error: Exception) -> str:
        now = self._clock()
        if self._since is None:
            self._since = now
        if isinstance(error, msgspec.DecodeError):
            self._version = ""  # an event is lost: list again
        long = "; for more than five minutes: backends that came or went since are not known" if now - self._since > LONG_AWAY_S else ""
        return f"{why(error, self._query, self._access)}{long}"

    async def close(self) -> None:
        """Close the connections; the next step opens them again, and goes on from the version seen last."""
        api, self._api = self._api, None
        if api is not None:
            await api.close()


def status_of(error: Exception) -> int | None:
    """The HTTP status of a refused request; None for other errors."""
    response = getattr(error, "response", None)
    return None if response is None else int(response.status_code)


def why(error: Exception, query: ObjectQuery, access: ClusterAccess) -> str:
    """An error of the client, in a sentence that says what to do."""
    if isinstance(error, ImportError):
        return "the Kubernetes client is missing: pip install 'tidegate[kubernetes]'"
    kind = query.kind
    match status_of(error):
        case 401:
            return f"{access.server} does not accept the token (401); look at token_file {access.token_file or '(none is set)'}"
        case 403:
            return (
                f"{access.server} forbids it (403); give the service account a Role in namespace {query.namespace} with apiGroups "
                f'["{kind.group}"], resources ["{kind.plural}"], verbs ["list", "watch"]'
            )
        case 404 if kind is INFERENCE_POOLS:
            return f"{access.server} knows no {kind.plural}.{kind.group}/{kind.version} (404); install the CRDs of the inference extension"
        case int(status):
            return f"{access.server} answers {status}"
    if isinstance(error, TimeoutError):
        return f"{access.server} does not answer in time; look at the network towards it"
    if isinstance(error, msgspec.DecodeError):
        return f"{access.server} sends what is no {kind.name} ({error})"
    return f"{access.server} cannot be read ({type(error).__name__}: {error})"[:300]


async def _line(lines: AsyncIterator[str]) -> str | None:
    """The next line; None behind the last one."""
    return await anext(lines, None)


async def ended(step: asyncio.Task[Any] | None) -> None:
    """Cancel a step that waits for a change, and wait for its end."""
    if step is not None:
        step.cancel()
        await asyncio.wait((step,))
        if not step.cancelled():
            step.exception()  # an error that came just now is nobody's any more
