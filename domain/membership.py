"""Fleet membership: the wanted backends, their sources, and how contradicting sources are merged.

Values only. Every source (settings, a file, DNS, Kubernetes, the admin API's registrations) returns the same values, so that their readers
need not know which source it was.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal, Protocol, runtime_checkable
from urllib.parse import urlsplit

import msgspec

Owner = Literal["static", "file", "dns", "kubernetes", "registered"]
"""The source that a backend is written in, and from which it can be removed."""

Role = Literal["both", "prefill", "decode"]
"""Whether a backend serves requests whole (`both`, the usual engine), or only computes prompts or decodes (`routing.disaggregation`)."""

RANK: Final[tuple[Owner, ...]] = ("static", "file", "dns", "kubernetes", "registered")
"""Precedence of sources that name the same id: first the source that is harder to change by mistake or from outside."""

FOUND: Final[frozenset[Owner]] = frozenset({"dns", "kubernetes", "registered"})
"""Sources whose addresses have to lie in `engines.register_networks`: others than who wrote the settings can change them."""

MAX_CLASHES: Final = 20
"""Contradictions reported at once; the first ones suffice to find the cause of more."""

OWNED_BY: Final[dict[Owner, str]] = {
    "static": "tidegate.yaml",
    "file": "the pool's discover.file",
    "dns": "the pool's discover.dns",
    "kubernetes": "the pool's discover.kubernetes",
    "registered": "the admin API",
}
"""Each source in an operator's words."""


class KvEvents(msgspec.Struct, frozen=True):
    """Where a backend publishes its KV events; see `kv_events` in docs/reference/configuration.md."""

    endpoint: str
    replay: str | None = None
    bind: bool = False


class LoadPush(msgspec.Struct, frozen=True):
    """Where a backend pushes its load; see `load_push` in docs/reference/configuration.md."""

    endpoint: str
    """Endpoint of the first data-parallel rank: `tcp://host:port`."""
    ranks: int = 1

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The endpoint of each rank, on consecutive ports."""
        host, _, port = self.endpoint.rpartition(":")
        return tuple(f"{host}:{int(port) + rank}" for rank in range(self.ranks))


class EnginePorts(msgspec.Struct, frozen=True):
    """The ports of engines that a source finds, beside that of the API; None for what they do not have."""

    kv_events: int | None = None
    kv_replay: int | None = None
    load_push: int | None = None
    load_push_ranks: int = 1
    bootstrap: int | None = None
    """The bootstrap port; prefill engines alone have one."""


class Traits(msgspec.Struct, frozen=True):
    """An operator's settings for a backend that do not change which process it is: they may change while requests run there."""

    max_in_flight: int = 0
    """Requests that each worker may have in flight there; 0: no cap."""
    context_tokens: int = 0
    """Longest prompt and answer together, in tokens; 0: as set for its pool."""
    price: float = 0.0
    """Price of a token, relative to the other backends of its pool."""
    region: str = ""
    hardware: str = ""
    """The class of `routing.rates.PRIORS` with the prior of its speed; empty: as set for its pool."""
    usd_per_hour: float = 0.0
    """What an hour of its engine costs, in dollars; 0: as set for its pool."""


NO_TRAITS: Final = Traits()


class Member(msgspec.Struct, frozen=True):
    """One wanted backend."""

    pool: str
    id: str
    url: str
    owner: Owner
    address: str = ""
    """The IP address to connect to, where it was resolved already (DNS); empty to resolve the URL's host."""
    kv_events: KvEvents | None = None
    drain_grace_s: float | None = None
    """Wanted but drained, with so many seconds of grace for running requests; None when it takes requests."""
    load_push: LoadPush | None = None
    role: Role = "both"
    bootstrap_port: int | None = None
    """Port on the address, or else the URL's host, at which decode engines fetch KV; None for engines that do not."""
    traits: Traits = NO_TRAITS

    @property
    def bootstrap(self) -> tuple[str, int] | None:
        """Host and port at which decode engines fetch KV; None without a port."""
        return None if self.bootstrap_port is None else (self.address or urlsplit(self.url).hostname or "", self.bootstrap_port)

    def same_place(self, other: "Member") -> bool:
        """Whether both are the same engine process. Another URL under the same id is another process, for which nothing known of
        the old one holds."""
        return self._place() == other._place()

    def _place(self) -> tuple[object, ...]:
        return self.pool, self.url, self.address, self.kv_events, self.load_push, self.role, self.bootstrap_port


class SourceState(msgspec.Struct, frozen=True):
    """The state of one source in one worker."""

    name: str
    pool: str
    """The pool that the source fills; empty for all pools."""
    owner: Owner
    members: int
    """Number of backends in the last good answer."""
    trouble: str = ""
    """Why the source cannot be read now; empty when it can."""
    age_s: float | None = None
    """Age of the last good answer, seconds; None before the first."""
    left_out: int = 0
    """Engines that were found and are not of the pool, by their labels."""
    labels: tuple[str, ...] = ()
    """What these labels are, the most frequent first; at most five."""


class SourceError(Exception):
    """A source cannot be read now; the message says why and what to do. Its last good answer stays in use meanwhile."""


class MemberSource(Protocol):
    """A source of wanted backends."""

    @property
    def name(self) -> str:
        """Name of the source in an operator's words, for the log and the admin API."""
        ...

    @property
    def owner(self) -> Owner:
        """Owner of the source's members."""
        ...

    @property
    def pool(self) -> str:
        """The pool that the source fills; empty for all pools."""
        ...

    @property
    def every_s(self) -> float:
        """Seconds between two reads."""
        ...

    @property
    def keep_s(self) -> float:
        """Seconds for which the last good answer stays in use while the source cannot be read."""
        ...

    async def read(self) -> Sequence[Member]:
        """All wanted backends of the source. Raises SourceError."""
        ...


@runtime_checkable
class ConnectedSource(Protocol):
    """A source that keeps a connection between two reads."""

    async def close(self) -> None:
        """Close the connection."""
        ...


@runtime_checkable
class SelectiveSource(Protocol):
    """A source that leaves out engines which it finds, by their labels."""

    @property
    def left_out(self) -> Mapping[str, int]:
        """Their numbers by reason, as of the last read."""
        ...

    @property
    def trouble(self) -> str:
        """Why a part of what the source reads cannot be read now, so that what was known of it stands; empty where all can."""
        ...


class Clash(msgspec.Struct, frozen=True):
    """A wanted backend that lost against another with the same id, is in an unknown pool, or is the same engine again."""

    member: Member
    why: str
    """A sentence for operators, with what to do."""


def merged(wanted: Iterable[Member], pools: Collection[str]) -> tuple[dict[str, Member], tuple[Clash, ...]]:
    """The wanted backends of all sources by id, with one owner each, and the clashes (see `Clash`). Two ids for one engine in a pool both
    stay: both answer, though the load of one is not seen on the other.

    Args:
        wanted: members of all sources, in any order.
        pools: names of the existing pools.
    """
    members: dict[str, Member] = {}
    places: dict[tuple[str, str, str], Member] = {}
    clashes: list[Clash] = []
    for member in sorted(wanted, key=lambda m: (RANK.index(m.owner), m.id)):
        where = OWNED_BY[member.owner]
        if member.pool not in pools:
            why = f"backend {member.id!r} of {where} is for pool {member.pool!r}, which this gateway does not have; remove it"
            clashes.append(Clash(member, why))
            continue
        keeper = members.setdefault(member.id, member)
        if keeper is not member:
            why = (
                f"backend {member.id!r} is in {OWNED_BY[keeper.owner]} (pool {keeper.pool}) and in {where} (pool {member.pool}); "
                f"the first one counts, give the other one its own id"
            )
            clashes.append(Clash(member, why))
            continue
        first = places.setdefault((member.pool, member.url.rstrip("/"), member.address), member)
        if first is not member:
            why = (
                f"backend {member.id!r} of {where} has the URL of backend {first.id!r} of {OWNED_BY[first.owner]} (pool {first.pool}); "
                f"one engine counts as two, remove one of them"
            )
            clashes.append(Clash(member, why))
    return members, tuple(clashes[:MAX_CLASHES])


class MemberStore(Protocol):
    """The registered backends, shared by every gateway on the database."""

    async def version(self) -> int:
        """A number that increases with every write; cheap enough to read every second."""
        ...

    async def load(self) -> list[Member]:
        """Every registered backend, by id."""
        ...

    async def add(self, member: Member, now_unix: float) -> None:
        """Register a backend. Raises MemberTaken when the id is registered, MembersFull at `MAX_REGISTERED`."""
        ...

    async def set_drain(self, backend_id: str, grace_s: float | None) -> bool:
        """Drain a backend with so many seconds of grace, or end the drain (None); False when it is not registered."""
        ...

    async def remove(self, backend_id: str) -> bool:
        """Remove a backend; False when it is not registered."""
        ...


class MemberTaken(ValueError):
    """The id is registered already."""


class MembersFull(ValueError):
    """`MAX_REGISTERED` backends are registered."""


MAX_REGISTERED: Final = 1000
"""Registered backends of one database; every worker polls each of them."""
