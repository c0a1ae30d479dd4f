"""Changing the fleet over the admin port: registers backends, drains them, lets them resume, takes them away.

Checks what may be done and says in a sentence why not; whoever is allowed to ask is decided before (`http/admin_backends.py`).
Workers hear of changes through the store and the run directory, never from here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec
import structlog
from pydantic import AfterValidator, Field, StringConstraints, ValidationError

from backends.reach import Reach
from domain.clock import WallClock
from domain.membership import OWNED_BY, KvEvents, Member, MembersFull, MemberStore, MemberTaken, Owner
from domain.strict import Strict
from gateway.addresses import checked_engine_url, checked_events_endpoint
from gateway.fleet.drain_orders import OrdersUnreadable, end_drain, order_drain
from gateway.fleet.kv_listener import events_refusal
from gateway.settings_backend import Name

audit = structlog.get_logger("tidegate.audit", audit=True)

RESOLVE_WITHIN_S: Final = 5.0
MAX_GRACE_S: Final = 86_400.0
WHO: Final = "admin token"

T = TypeVar("T")

Events = Annotated[str, StringConstraints(max_length=256), AfterValidator(checked_events_endpoint)]
Url = Annotated[str, StringConstraints(max_length=2048), AfterValidator(checked_engine_url)]


class RegisteredEvents(Strict):
    """Where a registered backend publishes its KV events."""

    endpoint: Events = Field(description="Where it publishes: `tcp://address:port`.")
    replay: Events | None = Field(default=None, description="Where it answers replay requests: `tcp://address:port`.")


class Registration(Strict):
    """What one has to say of a backend to register it."""

    pool: Name = Field(description="The pool it joins.")
    id: Name = Field(description="Its name in metrics, logs and headers; unique in the whole fleet.")
    url: Url = Field(description="Where it listens: `http(s)://host[:port][/prefix]`, without `/v1`.")
    kv_events: RegisteredEvents | None = Field(default=None, description="Where it publishes its KV events.")


class Refusal(Exception):
    """A change that is not made: HTTP status, OpenAI-style code, and a sentence that says why and what to do."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Registry:
    """The fleet as operators change it.

    Args:
        pools: the pools there are.
        static: ids that stand in the settings.
        store: what is registered.
        reach: what may be registered.
        resolve: the addresses of a host and port; raises OSError.
        run_dir: where drains of this gateway are written down.
        grace_s: the grace of a drain that names none.
        wall: when a registration was made.
        close: lets the store's connections go.
    """

    def __init__(
        self,
        *,
        pools: Sequence[str],
        static: Sequence[str],
        store: MemberStore,
        reach: Reach,
        resolve: Callable[[str, int], Awaitable[Sequence[str]]],
        run_dir: Path,
        grace_s: float,
        wall: WallClock,
        close: Callable[[], Awaitable[None]],
    ) -> None:
        self._pools = tuple(pools)
        self._static = frozenset(static)
        self._store = store
        self._reach = reach
        self._resolve = resolve
        self._run_dir = run_dir
        self._grace_s = grace_s
        self._wall = wall
        self.close = close

    async def register(self, body: bytes, seen: Mapping[str, Owner]) -> Member:
        """Add a backend; `seen` are the backends workers know, with their owners. Raises Refusal."""
        wanted = _registration(body)
        if wanted.pool not in self._pools:
            raise Refusal(400, "unknown_pool", f"There is no pool {wanted.pool!r}; there are: {', '.join(self._pools)[:500]}.")
        owner = "static" if wanted.id in self._static else seen.get(wanted.id)
        if owner not in (None, "registered"):
            raise Refusal(409, "backend_exists", f"The id {wanted.id!r} is taken by a backend of {OWNED_BY[owner]}; choose another.")
        await self._check_reach(wanted.url)
        told = wanted.kv_events
        events = None if told is None else KvEvents(told.endpoint, told.replay)
        if events is not None and (refusal := events_refusal(events, self._reach)):
            raise Refusal(400, "address_not_allowed", f"kv_events: {refusal}.")
        member = Member(wanted.pool, wanted.id, wanted.url, "registered", kv_events=events)
        try:
            await _stored(self._store.add(member, self._wall()))
        except MemberTaken:
            raise Refusal(
                409, "backend_exists", f"The id {wanted.id!r} is registered already; choose another, or remove that one first."
            ) from None
        except MembersFull as error:
            raise Refusal(409, "too_many_backends", f"{error}.") from None
        audit.info("backend registered", who=WHO, pool=member.pool, backend=member.id, url=member.url)
        return member

    async def drain(self, backend_id: str, grace: str | None, seen: Mapping[str, Owner]) -> tuple[Owner, float]:
        """Give it no new requests; what runs has `grace` seconds. Returns its owner and the grace. Raises Refusal."""
        grace_s = self._grace_of(grace)
        if await _stored(self._store.set_drain(backend_id, grace_s)):
            owner: Owner = "registered"
        else:
            owner = self._owner(backend_id, seen)
            _written(lambda: order_drain(self._run_dir, backend_id, grace_s))
        audit.info("backend drained", who=WHO, backend=backend_id, source=owner, grace_s=grace_s)
        return owner, grace_s

    async def resume(self, backend_id: str, seen: Mapping[str, Owner]) -> Owner:
        """Let a drained backend take requests again. Raises Refusal."""
        if await _stored(self._store.set_drain(backend_id, None)):
            owner: Owner = "registered"
        else:
            owner = self._owner(backend_id, seen)
            if not _written(lambda: end_drain(self._run_dir, backend_id)):
                raise Refusal(409, "not_drained", f"The backend {backend_id!r} is not drained.")
        audit.info("backend resumed", who=WHO, backend=backend_id, source=owner)
        return owner

    async def remove(self, backend_id: str, seen: Mapping[str, Owner]) -> None:
        """Forget a registered backend: it drains, and is gone once nothing runs on it. Raises Refusal."""
        if not await _stored(self._store.remove(backend_id)):
            owner = self._owner(backend_id, seen)
            raise Refusal(
                409,
                "not_registered",
                f"The backend {backend_id!r} belongs to {OWNED_BY[owner]}; take it out there. Until then it can be drained.",
            )
        audit.info("backend removed", who=WHO, backend=backend_id)

    def _owner(self, backend_id: str, seen: Mapping[str, Owner]) -> Owner:
        owner = "static" if backend_id in self._static else seen.get(backend_id)
        if owner is None or owner == "registered":  # registered, seen a moment ago, and removed meanwhile
            raise Refusal(404, "backend_not_found", "There is no such backend; `tidegate backend list` shows those there are.")
        return owner

    def _grace_of(self, text: str | None) -> float:
        if text is None:
            return self._grace_s
        try:
            grace_s = float(text)
        except ValueError:
            grace_s = -1.0
        if not 0 <= grace_s <= MAX_GRACE_S:
            raise Refusal(400, "invalid_value", f"grace_s is no number of seconds from 0 to {MAX_GRACE_S:g}.")
        return grace_s

    async def _check_reach(self, url: str) -> None:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        try:
            async with asyncio.timeout(RESOLVE_WITHIN_S):
                addresses = await self._resolve(host, port)
        except (OSError, TimeoutError, UnicodeError):
            raise Refusal(400, "invalid_url", f"The host {host!r} does not resolve from here; register it when it does.") from None
        for address in addresses:
            refusal = self._reach.refusal(address, port)
            if refusal:
                audit.warning("registration refused", who=WHO, url=url, reason=f"{address} {refusal}")
                raise Refusal(400, "address_not_allowed", f"The URL's address {address} {refusal}.")


def _registration(body: bytes) -> Registration:
    try:
        value: Any = msgspec.json.decode(body)
        return Registration.model_validate(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Refusal(400, "invalid_json", 'The body is not JSON; send {"pool": …, "id": …, "url": …}.') from None
    except ValidationError as error:
        said = [f"{'.'.join(map(str, one['loc'])) or 'the body'}: {_plain(one)}" for one in error.errors(include_url=False)[:5]]
        raise Refusal(400, "invalid_value", f"The registration cannot be used: {'; '.join(said)}.") from None


def _plain(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "is no known field"
    return str(error["msg"]).removeprefix("Value error, ")


async def _stored(write: Awaitable[T]) -> T:
    try:
        return await write
    except (MemberTaken, MembersFull):
        raise
    except Exception as error:
        audit.error("the database cannot be written", error=f"{type(error).__name__}: {error}"[:200])
        raise Refusal(503, "store_unavailable", "The database cannot be written now; nothing was changed. Try again.") from error


def _written(write: Callable[[], T]) -> T:
    try:
        return write()
    except OrdersUnreadable as error:
        why = f"The drains in force cannot be read ({error}); nothing was changed. Mend that file, or remove it to end them all."
        raise Refusal(503, "store_unavailable", why) from None
    except OSError as error:
        raise Refusal(503, "store_unavailable", f"The run directory cannot be written ({error.strerror}); nothing was changed.") from None
