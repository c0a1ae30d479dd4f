"""Changes the fleet over the admin port: registers backends, drains them, lets them resume, removes them.

Checks whether a change may be made, and refuses it with a sentence that gives the reason; the admin API has authorized the caller
before. Workers learn of changes through the store and the run directory, never from here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, TypeVar
from urllib.parse import urlsplit

import structlog
from pydantic import AfterValidator, Field, StringConstraints

from backends.reach import Reach
from domain.clock import WallClock
from domain.membership import OWNED_BY, KvEvents, LoadPush, Member, MembersFull, MemberStore, MemberTaken, Owner
from domain.strict import Strict
from gateway.config.addresses import checked_engine_url, checked_events_endpoint
from gateway.config.pools import LoadPushSettings, Name
from gateway.fleet.kv_events import events_refusal
from gateway.fleet.load_push import push_refusal
from gateway.fleet.sources import OrdersUnreadable, end_drain, order_drain

audit = structlog.get_logger("tidegate.audit", audit=True)

RESOLVE_WITHIN_S: Final = 5.0
"""Time limit for the name resolution of a URL that is registered."""

MAX_GRACE_S: Final = 86_400.0
"""The longest grace of a drain: one day."""

T = TypeVar("T")

Events = Annotated[str, StringConstraints(max_length=256), AfterValidator(checked_events_endpoint)]
Url = Annotated[str, StringConstraints(max_length=2048), AfterValidator(checked_engine_url)]


class RegisteredEvents(Strict):
    """Where a registered backend publishes its KV events."""

    endpoint: Events = Field(description="Where the engine publishes its KV events: `tcp://address:port`.")
    replay: Events | None = Field(default=None, description="Where the engine answers replay requests: `tcp://address:port`.")


class Registration(Strict):
    """The description of a backend that is to be registered."""

    pool: Name = Field(description="The pool that the backend joins.")
    id: Name = Field(description="Name of the backend in metrics, logs and headers; unique in the whole fleet.")
    url: Url = Field(description="Base URL of the engine: `http(s)://host[:port][/prefix]`, without `/v1`.")
    kv_events: RegisteredEvents | None = Field(default=None, description="Where the engine publishes its KV events.")
    load_push: LoadPushSettings | None = Field(default=None, description="Where the engine pushes its load.")


class FleetRefusal(Exception):
    """A change that is refused: HTTP status, OpenAI-style code, and a sentence that gives the reason and the remedy."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


Effect = Callable[[], None]
"""A write outside the database, to be done last; raises Refusal when it fails."""


class Registry:
    """Operators' changes of the fleet. They are written to the store that a call is given, which takes part in a transaction.

    Args:
        pools: the names of the pools.
        static: ids of the backends of the settings.
        reach: which addresses may be registered.
        resolve: the addresses of a host and port; raises OSError.
        run_dir: where drains of this gateway are written.
        grace_s: the grace of a drain that names none.
        wall: the time of a registration.
        pushing: the pools whose engines can push their load.
    """

    def __init__(
        self,
        *,
        pools: Sequence[str],
        static: Sequence[str],
        reach: Reach,
        resolve: Callable[[str, int], Awaitable[Sequence[str]]],
        run_dir: Path,
        grace_s: float,
        wall: WallClock,
        pushing: Collection[str] = (),
    ) -> None:
        self._pools = tuple(pools)
        self._pushing = frozenset(pushing)
        self._static = frozenset(static)
        self._reach = reach
        self._resolve = resolve
        self._run_dir = run_dir
        self._grace_s = grace_s
        self._wall = wall

    async def checked(self, wanted: Registration, seen: Mapping[str, Owner]) -> Member:
        """The member that would be registered; `seen` are the backends that workers know, with their owners. Resolves names, so it is
        called before a transaction is open. Raises FleetRefusal."""
        if wanted.pool not in self._pools:
            raise FleetRefusal(400, "unknown_pool", f"There is no pool {wanted.pool!r}; there are: {', '.join(self._pools)[:500]}.")
        owner = "static" if wanted.id in self._static else seen.get(wanted.id)
        if owner not in (None, "registered"):
            raise FleetRefusal(409, "backend_exists", f"The id {wanted.id!r} is taken by a backend of {OWNED_BY[owner]}; choose another.")
        await self._check_reach(wanted.url)
        requested = wanted.kv_events
        events = None if requested is None else KvEvents(requested.endpoint, requested.replay)
        if events is not None and (refusal := events_refusal(events, self._reach)):
            raise FleetRefusal(400, "address_not_allowed", f"kv_events: {refusal}.")
        push = self._push_of(wanted)
        return Member(wanted.pool, wanted.id, wanted.url, "registered", kv_events=events, load_push=push)

    async def register(self, member: Member, store: MemberStore) -> None:
        """Add a backend. Raises FleetRefusal."""
        try:
            await store.add(member, self._wall())
        except MemberTaken:
            raise FleetRefusal(
                409, "backend_exists", f"The id {member.id!r} is registered already; choose another, or remove that one first."
            ) from None
        except MembersFull as error:
            raise FleetRefusal(409, "too_many_backends", f"{error}.") from None

    def _push_of(self, wanted: Registration) -> LoadPush | None:
        if wanted.load_push is None:
            return None
        if wanted.pool not in self._pushing:
            message = f"load_push: engines of pool {wanted.pool!r} push no load, by its dialect; leave load_push away."
            raise FleetRefusal(400, "no_load_push", message)
        push = wanted.load_push.value()
        if refusal := push_refusal(push, self._reach):
            raise FleetRefusal(400, "address_not_allowed", f"load_push: {refusal}.")
        return push

    async def drain(
        self, backend_id: str, grace_s: float | None, store: MemberStore, seen: Mapping[str, Owner]
    ) -> tuple[Owner, float, Effect | None]:
        """Drain a backend: no new requests; running requests may go on for `grace_s` seconds. Returns the backend's owner, the grace,
        and the write that is left to do outside the database. Raises FleetRefusal."""
        grace_s = self._grace_s if grace_s is None else grace_s
        if await store.set_drain(backend_id, grace_s):
            return "registered", grace_s, None
        owner = self._owner(backend_id, seen)
        return owner, grace_s, lambda: _written(lambda: order_drain(self._run_dir, backend_id, grace_s))

    async def resume(self, backend_id: str, store: MemberStore, seen: Mapping[str, Owner]) -> tuple[Owner, Effect | None]:
        """Let a drained backend take requests again. Returns its owner and the write that is left to do outside the database. Raises
        Refusal."""
        if await store.set_drain(backend_id, None):
            return "registered", None
        return self._owner(backend_id, seen), lambda: self._end_drain(backend_id)

    async def remove(self, backend_id: str, store: MemberStore, seen: Mapping[str, Owner]) -> None:
        """Remove a registered backend: it drains, and leaves the fleet once no request runs on it. Raises FleetRefusal."""
        if not await store.remove(backend_id):
            owner = self._owner(backend_id, seen)
            raise FleetRefusal(
                409,
                "not_registered",
                f"The backend {backend_id!r} belongs to {OWNED_BY[owner]}; take it out there. Until then it can be drained.",
            )

    def _end_drain(self, backend_id: str) -> None:
        if not _written(lambda: end_drain(self._run_dir, backend_id)):
            raise FleetRefusal(409, "not_drained", f"The backend {backend_id!r} is not drained.")

    def _owner(self, backend_id: str, seen: Mapping[str, Owner]) -> Owner:
        owner = "static" if backend_id in self._static else seen.get(backend_id)
        if owner is None or owner == "registered":  # a registered backend that was removed a moment ago
            raise FleetRefusal(404, "backend_not_found", "There is no such backend; `tidegate backend list` shows those there are.")
        return owner

    async def _check_reach(self, url: str) -> None:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        try:
            async with asyncio.timeout(RESOLVE_WITHIN_S):
                addresses = await self._resolve(host, port)
        except (OSError, TimeoutError, UnicodeError):
            raise FleetRefusal(400, "invalid_url", f"The host {host!r} does not resolve from here; register it when it does.") from None
        for address in addresses:
            refusal = self._reach.refusal(address, port)
            if refusal:
                audit.warning("registration refused", url=url, reason=f"{address} {refusal}")
                raise FleetRefusal(400, "address_not_allowed", f"The URL's address {address} {refusal}.")


def _written(write: Callable[[], T]) -> T:
    try:
        return write()
    except OrdersUnreadable as error:
        why = f"The drains in force cannot be read ({error}); nothing was changed. Mend that file, or remove it to end them all."
        raise FleetRefusal(503, "store_unavailable", why) from None
    except OSError as error:
        raise FleetRefusal(
            503, "store_unavailable", f"The run directory cannot be written ({error.strerror}); nothing was changed."
        ) from None
