"""Rollouts as they are kept for every gateway: what was asked for, how far it is, and what every worker counted.

Values only; what stands in `document` and `state` is for `policies.rollout` to read.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

MAX_OPEN: Final = 50
"""Rollouts in force at a time."""
MAX_ROWS: Final = 10_000
"""Of sums, read at once: of a hundred workers, the intervals of a quarter of an hour."""


class StoredRollout(msgspec.Struct, frozen=True):
    """One rollout."""

    id: str
    """Its own, never used again; also what its traffic is dealt out by."""
    name: str
    """As operators call it; one of those in force at most has it."""
    document: str
    """JSON: `policies.rollout.document.RolloutDocument`."""
    state: str
    """JSON: `policies.rollout.progress.State`."""
    version: int
    """Raised by every write, so that of two writers one notices."""
    open: bool
    """Whether it is in force: until it was rolled back or closed. One that reached all of the traffic stays until it is closed."""
    created_unix: float
    changed_unix: float


class RolloutTaken(ValueError):
    """The name, or one of the pools, belongs to a rollout in force already; the message says to which."""


class RolloutsFull(ValueError):
    """As many rollouts are in force as can be."""


class RolloutStore(Protocol):
    """What workers need of rollouts; shared by every gateway on the database."""

    async def in_force(self) -> Sequence[StoredRollout]:
        """Those that are open, by name; cheap enough to ask every second."""
        ...

    async def put_sums(self, rollout_id: str, source: str, sums: Mapping[int, str]) -> None:
        """What one worker counted.

        Args:
            source: the worker, unique over gateways and restarts; 128 characters at most.
            sums: by interval index, JSON of `policies.rollout.samples.Interval`; what the same source wrote of an interval before is
                replaced, so that a write can be repeated.
        """
        ...

    async def sums(self, rollout_id: str, first: int, below: int) -> Sequence[str]:
        """What all workers counted in intervals from `first` to before `below`: a JSON each, whole intervals, oldest first. Where they
        are more than `MAX_ROWS`, the rest is left to another call."""
        ...


class RolloutBook(RolloutStore, Protocol):
    """What operators, and the keeper that acts for them, need besides."""

    async def find(self, name: str) -> StoredRollout | None:
        """The one of this name in force; else that which was started last."""
        ...

    async def start(self, rollout: StoredRollout, baseline: str, canary: str) -> None:
        """Put one in force.

        Args:
            baseline: the pool that answers now.
            canary: the pool with what is new.

        Raises:
            RolloutTaken: one in force has its name, or one of its pools.
            RolloutsFull: at `MAX_OPEN`.
        """
        ...

    async def write(self, rollout: StoredRollout) -> bool:
        """Replace state, `open` and `changed_unix`, and raise the version; False when `version` is not the one that is kept: somebody else
        was first. One that is closed is never changed."""
        ...

    async def closed(self, before: tuple[float, str] | None, limit: int) -> Sequence[StoredRollout]:
        """Those that are over, the last changed first.

        Args:
            before: `changed_unix` and id of the last one of the page before; None from the newest.
        """
        ...

    async def forget_sums(self, rollout_id: str, below: int) -> None:
        """Of intervals before `below`, which nobody reads again."""
        ...

    async def forget_closed(self) -> None:
        """Sums of everything that is not in force."""
        ...
