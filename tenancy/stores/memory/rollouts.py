"""Rollouts in memory, for tests and for trying things out."""

from collections.abc import Mapping, Sequence

import msgspec

from domain.rollouts import MAX_OPEN, MAX_ROWS, RolloutsFull, RolloutTaken, StoredRollout


class MemoryRolloutStore:
    """Rollouts in memory (`domain.rollouts.RolloutBook`)."""

    def __init__(self) -> None:
        self._rollouts: dict[str, tuple[StoredRollout, frozenset[str]]] = {}
        self._sums: dict[tuple[str, int, str], str] = {}

    async def in_force(self) -> Sequence[StoredRollout]:
        return sorted((rollout for rollout, _ in self._rollouts.values() if rollout.open), key=lambda rollout: rollout.name)

    async def put_sums(self, rollout_id: str, source: str, sums: Mapping[int, str]) -> None:
        self._sums.update({(rollout_id, index, source): text for index, text in sums.items()})

    async def sums(self, rollout_id: str, first: int, below: int) -> Sequence[str]:
        keys = sorted(key for key in self._sums if key[0] == rollout_id and first <= key[1] < below)
        if len(keys) > MAX_ROWS and keys[0][1] != (cut := keys[MAX_ROWS][1]):
            keys = [key for key in keys if key[1] < cut]
        return [self._sums[key] for key in keys]

    async def find(self, name: str) -> StoredRollout | None:
        named = [rollout for rollout, _ in self._rollouts.values() if name in (rollout.name, rollout.id)]
        return max(named, key=lambda rollout: (rollout.open, rollout.created_unix), default=None)

    async def start(self, wanted: StoredRollout, baseline: str, canary: str) -> None:
        in_force = [(rollout, pools) for rollout, pools in self._rollouts.values() if rollout.open]
        for rollout, pools in in_force:
            if rollout.name == wanted.name:
                raise RolloutTaken(f"rollout {wanted.name!r} is in force already; close it, or take another name")
            if shared := {baseline, canary} & pools:
                raise RolloutTaken(f"pool {min(shared)!r} takes part in rollout {rollout.name!r}, which is in force; close it first")
        if len(in_force) >= MAX_OPEN:
            raise RolloutsFull(f"{MAX_OPEN} rollouts are in force already; close some")
        self._rollouts[wanted.id] = (wanted, frozenset({baseline, canary}))

    async def write(self, wanted: StoredRollout) -> bool:
        stored, pools = self._rollouts.get(wanted.id, (None, frozenset[str]()))
        if stored is None or not stored.open or stored.version != wanted.version:
            return False
        new = {"state": wanted.state, "open": wanted.open, "changed_unix": wanted.changed_unix, "version": wanted.version + 1}
        self._rollouts[wanted.id] = (msgspec.structs.replace(stored, **new), pools)
        return True

    async def closed(self, before: tuple[float, str] | None, limit: int) -> Sequence[StoredRollout]:
        closed = [
            rollout
            for rollout, _ in self._rollouts.values()
            if not rollout.open and (before is None or (rollout.changed_unix, rollout.id) < before)
        ]
        return sorted(closed, key=lambda rollout: (rollout.changed_unix, rollout.id), reverse=True)[:limit]

    async def forget_sums(self, rollout_id: str, below: int) -> None:
        self._sums = {key: text for key, text in self._sums.items() if key[0] != rollout_id or key[1] >= below}

    async def forget_closed(self) -> None:
        open_ids = {rollout.id for rollout, _ in self._rollouts.values() if rollout.open}
        self._sums = {key: text for key, text in self._sums.items() if key[0] in open_ids}
