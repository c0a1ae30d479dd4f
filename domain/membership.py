"""Who should be in the fleet: one wanted backend, where the wish comes from, and what becomes of wishes that contradict.

Values only. Every source (settings, a file, DNS, what operators registered) says the same kind of thing, so that nothing
behind it needs to know which one it was.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final, Literal, Protocol
from urllib.parse import urlsplit

import msgspec

Owner = Literal["static", "file", "dns", "registered"]
"""Where a backend is written down, and so where it can be taken away."""

Role = Literal["both", "prefill", "decode"]
"""What a backend does: serve requests whole, or one half of them. `both` is the usual engine (`routing.disaggregation`)."""

RANK: Final[tuple[Owner, ...]] = ("static", "file", "dns", "registered")
"""Who keeps an id that several sources name: the one that is harder to change by mistake or from outside."""

MAX_CLASHES: Final = 20
"""Contradictions told at once; with more of them the first ones say enough."""

OWNED_BY: Final[dict[Owner, str]] = {
    "static": "tidegate.yaml",
    "file": "the pool's discover.file",
    "dns": "the pool's discover.dns",
    "registered": "the admin API",
}
"""Each owner in an operator's words."""


class KvEvents(msgspec.Struct, frozen=True):
    """Where a backend publishes its KV events; see `kv_events` in docs/configuration.md."""

    endpoint: str
    replay: str | None = None
    bind: bool = False


class LoadPush(msgspec.Struct, frozen=True):
    """Where a backend pushes its load; see `load_push` in docs/configuration.md."""

    endpoint: str
    """Of the first data-parallel rank: `tcp://host:port`."""
    ranks: int = 1

    @property
    def endpoints(self) -> tuple[str, ...]:
        """One for each rank: the ports that follow."""
        host, _, port = self.endpoint.rpartition(":")
        return tuple(f"{host}:{int(port) + rank}" for rank in range(self.ranks))


class Traits(msgspec.Struct, frozen=True):
    """What an operator says of a backend that leads to no other process: it may change while requests run there."""

    max_in_flight: int = 0
    """Requests that each worker may have there at a time; 0: no cap."""
    context_tokens: int = 0
    """Tokens of prompt and answer together that it takes; 0: what its pool says."""
    price: float = 0.0
    """What a token costs there, relative to the other backends of its pool."""
    region: str = ""
    hardware: str = ""
    """The class of `routing.rates.PRIORS` that its speed is taken from until it is measured; empty: what its pool says."""


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
    """Wanted but drained, with this much grace for what runs; None when it takes requests."""
    load_push: LoadPush | None = None
    role: Role = "both"
    bootstrap_port: int | None = None
    """Where decoding engines ask it for KV, for dialects whose engines do; on the URL's host."""
    traits: Traits = NO_TRAITS

    @property
    def bootstrap(self) -> tuple[str, int] | None:
        """The host and port there; None where it has none."""
        return None if self.bootstrap_port is None else (urlsplit(self.url).hostname or "", self.bootstrap_port)

    def same_place(self, other: "Member") -> bool:
        """Whether both lead to the same process. Another URL under the same id is another process: nothing known of the old
        one holds for it."""
        return self._place() == other._place()

    def _place(self) -> tuple[object, ...]:
        return self.pool, self.url, self.address, self.kv_events, self.load_push, self.role, self.bootstrap_port


class SourceState(msgspec.Struct, frozen=True):
    """One source as one worker sees it."""

    name: str
    pool: str
    """The pool it fills; empty for all of them."""
    owner: Owner
    members: int
    """Backends of the answer in force."""
    trouble: str = ""
    """Why it cannot be read now; empty when it can."""
    age_s: float | None = None
    """Age of the answer in force; None while there is none."""


class SourceError(Exception):
    """A source cannot be read now; the message says why and what to do. Its last good answer stays in force meanwhile."""


class MemberSource(Protocol):
    """Somewhere that wanted backends are written down."""

    @property
    def name(self) -> str:
        """In an operator's words, for the log and the list."""
        ...

    @property
    def owner(self) -> Owner:
        """What its members are owned by."""
        ...

    @property
    def pool(self) -> str:
        """The pool it fills; empty for all of them."""
        ...

    @property
    def every_s(self) -> float:
        """How often it is worth reading."""
        ...

    @property
    def keep_s(self) -> float:
        """How long its last good answer holds while it cannot be read."""
        ...

    async def read(self) -> Sequence[Member]:
        """Everything it wants now. Raises SourceError."""
        ...


class Clash(msgspec.Struct, frozen=True):
    """One wish that lost against another, leads nowhere, or means the same engine again."""

    member: Member
    why: str
    """A sentence for operators, with what to do."""


def merged(wanted: Iterable[Member], pools: Collection[str]) -> tuple[dict[str, Member], tuple[Clash, ...]]:
    """One owner for each id, and a clash for every wish that lost or leads nowhere. Two ids for one place in a pool both stay:
    both answer, though what one has in flight is not seen on the other.

    Args:
        wanted: of all sources, in any order.
        pools: the pools there are.
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
    """What operators registered, shared by every gateway on the database."""

    async def version(self) -> int:
        """A number that every write raises; cheap enough to ask every second."""
        ...

    async def load(self) -> list[Member]:
        """Every registered backend, by id."""
        ...

    async def add(self, member: Member, now_unix: float) -> None:
        """Register one. Raises MemberTaken when the id is registered, MembersFull at `MAX_REGISTERED`."""
        ...

    async def set_drain(self, backend_id: str, grace_s: float | None) -> bool:
        """Drain it, or let it take requests again (None); False when it is not registered."""
        ...

    async def remove(self, backend_id: str) -> bool:
        """Forget it; False when it is not registered."""
        ...


class MemberTaken(ValueError):
    """The id is registered already."""


class MembersFull(ValueError):
    """As many backends are registered as can be."""


MAX_REGISTERED: Final = 1000
"""Registered backends of one database; every worker polls each of them."""
