"""A world in which a rollout runs its course: two gateways, a pool with two engines, a canary pool with two, callers who come all the
while, and the keeper that decides; on virtual time. Nothing else goes wrong, and everything is counted that callers and the audit saw."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import msgspec

from backends.simengine.settings import PRESETS, SimSettings, Timing
from domain.rollouts import StoredRollout
from gateway.rollouts.keeper import RolloutKeeper
from policies.compile import compiled
from policies.rollout.document import RolloutDocument, text_of
from policies.rollout.progress import OVER, RolloutState, begin
from policies.schema import PolicyDocument
from tenancy.audit import Entry
from tests.world.accounts import KEYS
from tests.world.callers import MODEL, Ask, Manners, callers_host, send
from tests.world.configured import SETTINGS
from tests.world.engines import PORT
from tests.world.hosts import Host
from tests.world.world import BEGAN_S, EPOCH_UNIX, World

POOLS = {"chat": ("e0", "e1"), "chat-v2": ("e2", "e3")}
NAMES = ("g0", "g1")
USUAL = PRESETS["h100-8b"]
SLOWER = "h100-8b, decoding 1.3 times as long"
SLOW = Timing(1.3 * USUAL.c0, USUAL.c1, USUAL.c1a, 1.3 * USUAL.c2, 1.3 * USUAL.c3, USUAL.kv_tokens)

STEPS: list[dict[str, Any]] = [
    {"share": 0.1, "min_requests": 30, "min_s": 120.0},
    {"share": 0.5, "min_requests": 300, "min_s": 1500.0, "max_s": 14_400.0},
    {"share": 1.0},
]
"""A plan that takes half an hour; the usual one takes hours."""


class Books:
    """The audit, and the rollouts, in one transaction that never fails."""

    def __init__(self, store: Any) -> None:
        self.rollouts, self.change, self.entries = store, self, list[Entry]()

    async def write_down(self, entry: Entry) -> None:
        self.entries.append(entry)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        yield SimpleNamespace(change=self, rollouts=self.rollouts)


class RollingWorld(World):
    """Made from a rollout's document and what its canary's engines are, run once.

    Args:
        preset: timing of the canary's engines.
        per_s: requests that come a second.
        within_s: longest time until the rollout is over.
    """

    def __init__(self, run_dir: Path, document: Mapping[str, Any], preset: str, *, per_s: float, within_s: float, seed: int = 1) -> None:
        with presets_known():
            self._preset = preset
            super().__init__(seed, run_dir)
        pools = [{"name": p, "model": MODEL, "backends": [{"id": e, "url": f"http://{e}:{PORT}"} for e in es]} for p, es in POOLS.items()]
        given = SETTINGS.model_dump(mode="json", by_alias=True, exclude_unset=True) | {"pools": pools}
        self.parts.settings = type(SETTINGS).model_validate(given).based_at(SETTINGS.base_dir)
        model = {"name": MODEL, "pool": "chat"}
        self.parts.policies = compiled([PolicyDocument.model_validate({"tenant": "*", "models": [model], "expose_headers": True})])
        self.directory.contents = msgspec.structs.replace(self.directory.contents, limits=())
        self.document = RolloutDocument.model_validate({"name": "v2", "baseline": "chat", "canary": "chat-v2", **document})
        self.per_s, self.within_s = per_s, within_s
        self.rng = random.Random(f"{seed} comings")
        self.books = Books(self.parts.rollouts)
        self.told: list[Mapping[str, Any]] = []
        """What a webhook would be told."""
        self.last: RolloutState
        """As it was seen last."""
        self.over_at: float | None = None
        """When it was over, by this world's clock."""

    def _sim(self, name: str) -> SimSettings:
        preset = self._preset if name in POOLS["chat-v2"] else "h100-8b"
        # slow enough that the fifth of a millisecond that gateways take is nothing beside it
        return SimSettings(models=(MODEL,), speed=0.2, preset=preset, max_num_seqs=32)

    def run(self) -> None:
        """See `World`."""
        with presets_known():
            super().run()

    @property
    def told_in_short(self) -> str:
        """How it ended, after how long and how much."""
        assert self.over_at is not None
        after = (
            f"{(self.over_at - BEGAN_S) / 60:.0f} min, {len(self.asks):,} requests and {self.last.evidence.requests} counted of the canary"
        )
        return f"{self.last.status.value} after {after}; {sum(not ask.whole for ask in self.asks)} answers cut"

    async def state(self) -> tuple[StoredRollout, RolloutState]:
        """Of the rollout, as it is kept."""
        found = await self.parts.rollouts.find("v2")
        assert found is not None
        return found, msgspec.json.decode(found.state, type=RolloutState)

    async def _live(self) -> None:
        self.start_store()
        for engine in self.engines.values():
            await engine.start()
        for name in NAMES:
            self.start_gateway(name)
        await asyncio.sleep(5.0)
        began = begin(self.document.plan("ro_1"), self._now_unix())
        state = msgspec.json.encode(began).decode()
        kept = StoredRollout("ro_1", "v2", text_of(self.document), state, 1, True, self._now_unix(), self._now_unix())
        await self.parts.rollouts.start(kept, "chat", "chat-v2")
        keeper = RolloutKeeper(self.parts.rollouts, self.books.open, self._now_unix, lambda: self.loop.now, self.told.append)
        self.loop.begin(Host("keeper"), keeper.run())
        await self._come()
        for gateway in self.gateways.values():
            gateway.terminate()
        await asyncio.sleep(30.0)
        for host in [*(gateway.host for gateway in self.gateways.values()), *(engine.host for engine in self.engines.values())]:
            host.alive = False
            await self.loop.bury(host)

    async def _come(self) -> None:
        """Callers, until a minute after the rollout is over."""
        callers, number, until = callers_host(), 0, BEGAN_S + self.within_s
        while self.loop.now < until:
            await asyncio.sleep(self.rng.expovariate(self.per_s))
            number += 1
            self.loop.begin(callers, self._one(number))
            self.last = (await self.state())[1]
            if self.over_at is None and self.last.status in OVER:
                self.over_at = self.loop.now
                until = min(until, self.loop.now + 60.0)

    async def _one(self, number: int) -> None:
        tenant = self.rng.choice(tuple(KEYS))
        prompt = f"{tenant} asks number {number}: {'what is new? ' * self.rng.randrange(20)}"
        ask = Ask(number, tenant, KEYS[tenant].text, prompt, Manners(usage=True, max_tokens=24))
        self.asks.append(ask)
        await send(ask, self.rng.choice(NAMES), self.loop)

    def _now_unix(self) -> float:
        return EPOCH_UNIX + self.loop.now


def rolled(folder: Path, preset: str, *, whole_plan: bool = False) -> RollingWorld:
    """A world that has run, with the usual plan or with `STEPS`."""
    plan: dict[str, Any] = {} if whole_plan else {"steps": STEPS}
    world = RollingWorld(folder, plan, preset, per_s=4.0 if whole_plan else 0.6, within_s=100_000 if whole_plan else 6000)
    world.run()
    return world


@contextlib.contextmanager
def presets_known() -> Iterator[None]:
    """Engines may have the timings of this module."""
    with patch.dict(PRESETS, {SLOWER: SLOW}):  # type: ignore[arg-type] # a mapping that nobody else changes
        yield
