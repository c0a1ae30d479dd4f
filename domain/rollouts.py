"""Stored rollouts, shared by every gateway: the requested rollout, its progress, and the sums that every worker counted.

Values only; `policies.rollout` reads the contents of `document` and `state`.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

MAX_OPEN: Final = 50
"""Open rollouts at a time."""
MAX_ROWS: Final = 10_000
"""Rows of sums in one read: the intervals of a quarter of an hour from a hundred workers."""


class StoredRollout(msgspec.Struct, frozen=True):
    """A rollout in the database."""

    id: str
    """Unique id, never reused; the hash that splits the traffic into variants depends on it."""
    name: str
    """The operators' name for it; unique among open rollouts."""
    document: str
    """JSON: `policies.rollout.document.RolloutDocument`."""
    state: str
    """JSON: `policies.rollout.progress.RolloutState`."""
    version: int
    """Increased by every write, for optimistic locking."""
    open: bool
    """Whether the rollout is in force: until it is rolled back or closed. A rollout that has reached all traffic stays open until it is
    closed."""
    created_unix: float
    changed_unix: float


class RolloutTaken(ValueError):
    """The name, or one of the pools, belongs to an open rollout; the message names it."""


class RolloutsFull(ValueError):
    """`MAX_OPEN` rollouts are open."""


class RolloutStore(Protocol):
    """The operations on rollouts that workers need; shared by every gateway on the database."""

    async def in_force(self) -> Sequence[StoredRollout]:
        """The open rollouts, by name; cheap enough to read every second."""
        ...

    async def put_sums(self, rollout_id: str, source: str, sums: Mapping[int, str]) -> None:
        """Store the sums that one worker counted.

        Args:
            source: the worker, unique over gateways and restarts; 128 characters at most.
            sums: JSON of `policies.rollout.samples.Interval` by interval index; replaces the sums that the same source wrote for
                an interval before, so that a write can be repeated.
        """
        ...

    async def sums(self, rollout_id: str, first: int, below: int) -> Sequence[str]:
        """The sums of all workers for intervals from `first` to before `below`: one JSON per row, whole intervals, oldest first, at most
        `MAX_ROWS` rows; the caller asks again for the rest."""
        ...


class RolloutBook(RolloutStore, Protocol):
    """The further operations that operators, and the keeper that acts for them, need."""

    async def find(self, name: str) -> StoredRollout | None:
        """The open rollout of this name; else the rollout of this name that was started last; else the one with this id; else None. No name
        looks like an id."""
        ...

    async def start(self, rollout: StoredRollout, baseline: str, canary: str) -> None:
        """Store a new open rollout.

        Args:
            baseline: the pool that serves now.
            canary: the pool with the new variant.

        Raises:
            RolloutTaken: an open rollout has its name, or one of its pools.
            RolloutsFull: at `MAX_OPEN`.
        """
        ...

    async def write(self, rollout: StoredRollout) -> bool:
        """Replace state, `open` and `changed_unix`, and increase the version; False when `version` is not the stored one: another writer
        was first. A closed rollout is never changed."""
        ...

    async def closed(self, before: tuple[float, str] | None, limit: int) -> Sequence[StoredRollout]:
        """At most `limit` closed rollouts, the last changed first.

        Args:
            before: `changed_unix` and id of the last rollout of the previous page; None: from the newest.
        """
        ...

    async def forget_sums(self, rollout_id: str, below: int) -> None:
        """Delete the sums of a rollout's intervals before `below`, which are not read again."""
        ...

    async def forget_closed(self) -> None:
        """Delete the sums of all closed rollouts."""
        ...
