"""Who should be in the fleet: one wanted backend, where the wish comes from, and what becomes of wishes that contradict.

Values only. Every source (settings, a file, DNS, what operators registered) says the same kind of thing, so that nothing
behind it needs to know which one it was.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final, Literal, Protocol

import msgspec

Owner = Literal["static", "file", "dns", "registered"]
"""Where a backend is written down, and so where it can be taken away."""

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

    def same_place(self, other: "Member") -> bool:
        """Whether both lead to the same process. Another URL under the same id is another process: nothing known of the old
        one holds for it."""
        return (self.pool, self.url, self.address, self.kv_events) == (other.pool, other.url, other.address, other.kv_events)


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


def merged(wanted: Iterable[Member], pools: Collection[str]) -> tuple[dict[str, Member], tuple[str, ...]]:
    """One owner for each id, and a sentence for every wish that lost or leads nowhere.

    Args:
        wanted: of all sources, in any order.
        pools: the pools there are.
    """
    members: dict[str, Member] = {}
    clashes: list[str] = []
    for member in sorted(wanted, key=lambda m: (RANK.index(m.owner), m.id)):
        where = OWNED_BY[member.owner]
        if member.pool not in pools:
            clashes.append(f"backend {member.id!r} of {where} is for pool {member.pool!r}, which this gateway does not have; remove it")
            continue
        keeper = members.setdefault(member.id, member)
        if keeper is not member:
            clashes.append(
                f"backend {member.id!r} is in {OWNED_BY[keeper.owner]} (pool {keeper.pool}) and in {where} (pool {member.pool}); "
                f"the first one counts, give the other one its own id"
            )
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
