"""Rollouts in memory, for tests and for trying things out."""

from collections.abc import Mapping, Sequence

import msgspec

from domain.rollouts import MAX_OPEN, MAX_ROWS, RolloutsFull, RolloutTaken, StoredRollout


class MemoryRolloutStore:
    """See `domain.rollouts.RolloutBook`."""

    def __init__(self) -> None:
        self._rollouts: dict[str, tuple[StoredRollout, frozenset[str]]] = {}
        self._sums: dict[tuple[str, int, str], str] = {}

    async def in_force(self) -> Sequence[StoredRollout]:
        """See the port."""
        return sorted((one for one, _ in self._rollouts.values() if one.open), key=lambda one: one.name)

    async def put_sums(self, rollout_id: str, source: str, sums: Mapping[int, str]) -> None:
        """See the port."""
        self._sums.update({(rollout_id, index, source): text for index, text in sums.items()})

    async def sums(self, rollout_id: str, first: int, below: int) -> Sequence[str]:
        """See the port."""
        found = sorted(key for key in self._sums if key[0] == rollout_id and first <= key[1] < below)
        if len(found) > MAX_ROWS and found[0][1] != (cut := found[MAX_ROWS][1]):
            found = [key for key in found if key[1] < cut]
        return [self._sums[key] for key in found]

    async def find(self, name: str) -> StoredRollout | None:
        """See the port."""
        named = [one for one, _ in self._rollouts.values() if one.name == name]
        return max(named, key=lambda one: (one.open, one.created_unix), default=None)

    async def start(self, wanted: StoredRollout, baseline: str, canary: str) -> None:
        """See the port."""
        there = [(one, pools) for one, pools in self._rollouts.values() if one.open]
        for other, pools in there:
            if other.name == wanted.name:
                raise RolloutTaken(f"rollout {wanted.name!r} is in force already; close it, or take another name")
            if shared := {baseline, canary} & pools:
                raise RolloutTaken(f"pool {min(shared)!r} takes part in rollout {other.name!r}, which is in force; close it first")
        if len(there) >= MAX_OPEN:
            raise RolloutsFull(f"{MAX_OPEN} rollouts are in force already; close some")
        self._rollouts[wanted.id] = (wanted, frozenset({baseline, canary}))

    async def write(self, wanted: StoredRollout) -> bool:
        """See the port."""
        kept, pools = self._rollouts.get(wanted.id, (None, frozenset[str]()))
        if kept is None or not kept.open or kept.version != wanted.version:
            return False
        new = {"state": wanted.state, "open": wanted.open, "changed_unix": wanted.changed_unix, "version": wanted.version + 1}
        self._rollouts[wanted.id] = (msgspec.structs.replace(kept, **new), pools)
        return True

    async def closed(self, before: tuple[float, str] | None, limit: int) -> Sequence[StoredRollout]:
        """See the port."""
        over = [one for one, _ in self._rollouts.values() if not one.open and (before is None or (one.changed_unix, one.id) < before)]
        return sorted(over, key=lambda one: (one.changed_unix, one.id), reverse=True)[:limit]

    async def forget_sums(self, rollout_id: str, below: int) -> None:
        """See the port."""
        self._sums = {key: text for key, text in self._sums.items() if key[0] != rollout_id or key[1] >= below}

    async def forget_closed(self) -> None:
        """See the port."""
        kept = {one.id for one, _ in self._rollouts.values() if one.open}
        self._sums = {key: text for key, text in self._sums.items() if key[0] in kept}
