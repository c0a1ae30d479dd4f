"""One world: three gateways, a counter store, four engines and callers on virtual time, everything drawn from one seed."""

import asyncio
import contextlib
import hashlib
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import structlog

from backends.simengine.faults import FaultRule
from backends.simengine.settings import SimSettings
from gateway.record import Record
from tenancy.limits import Limit, Meter
from tests.world.accounts import KEYS, contents, raised
from tests.world.callers import MODEL, Ask, callers_host, send
from tests.world.configured import POLICIES, SETTINGS
from tests.world.engines import Engine, Job
from tests.world.gateways import Directory, Gateway, Parts, simulated
from tests.world.hosts import OUTSIDE, Host
from tests.world.ledger import Ledger
from tests.world.loop import VirtualLoop
from tests.world.network import Network
from tests.world.plan import CALM_S, ENGINES, GATEWAYS, LENGTH_S, Coming, Trouble, drawn
from tests.world.store import Store, StoreServer

BEGAN_S = 1000.0
"""The monotonic clock when a world begins."""
EPOCH_UNIX = 1_772_495_700.0 - BEGAN_S
"""Five minutes before midnight (UTC) of the third of March 2026, so that a day ends in every world."""


class World:
    """Made from a seed, run once."""

    def __init__(self, seed: int, run_dir: Path) -> None:
        self.seed, self.plan = seed, drawn(seed)
        self.lines: list[str] = []
        """The event log."""
        self.loop = VirtualLoop(random.Random(f"{seed} late"), BEGAN_S)
        self.network = Network(self.loop, random.Random(f"{seed} network"))
        self.ledger = Ledger()
        self.directory = Directory(contents(random.Random(f"{seed} limits")))
        self.parts = Parts(SETTINGS, POLICIES[0], self.directory, self.ledger, run_dir)
        self.parts.on_record = self._recorded
        self.asks: list[Ask] = []
        self.jobs: list[Job] = []
        self.gateways: dict[str, Gateway] = {}
        self.gone: list[Gateway] = []
        """Gateways that ended or were killed."""
        self.engines = {name: Engine(self.loop, name, self._sim(name), self._job) for name in ENGINES}
        self.store = Store(lambda: round((EPOCH_UNIX + self.loop.now) * 1e6), self.log)
        self.store_host = Host("store")
        self.server = StoreServer(self.store)
        self.store_runs = False
        self.breaches: list[str] = []
        self.losses = 0
        """How often the store lost everything."""

    def _sim(self, name: str) -> SimSettings:
        # slower than any machine, so that answers take seconds and what happens meanwhile hits them
        return SimSettings(models=(MODEL,), speed=0.03, preset="h100-8b", max_num_seqs=8)

    @property
    def digest(self) -> str:
        """Of the event log."""
        return hashlib.blake2b("\n".join(self.lines).encode(), digest_size=16).hexdigest()

    def log(self, *what: object) -> None:
        """Note an event."""
        self.lines.append(f"{self.loop.now - BEGAN_S:.6f} " + " ".join(map(str, what)))

    def _recorded(self, gateway: Gateway, record: Record) -> None:
        # the chain of its prompt depends on the seed of the interpreter's hashes
        self.log("record", gateway.name, msgspec.structs.replace(record, routed=None))

    def _job(self, job: Job) -> None:
        self.jobs.append(job)
        self.log("job", job.engine, job.request_id, job.salt[:6])

    def bound(self, limit: Limit) -> int:
        """What may be billed under a limit at most (docs/reference/stores.md, "When the store is away"): the limit itself, and what
        gateways decide alone. One that starts while the store is away knows of nobody, and of nothing that was used."""
        if self.plan.strict:
            return limit.amount
        outages = sum(one.name.startswith("store") for one in self.plan.troubles)
        starts = sum(one.name in ("gateway_killed", "gateway_replaced") for one in self.plan.troubles)
        if limit.meter is Meter.COST_NANOUSD:
            return round(limit.amount * (1 + self.losses + 0.01 * (len(GATEWAYS) * outages + starts)))
        return limit.amount * (2 + self.losses + starts)

    # --- its life ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Everything that happens, and the judgement."""
        outside = Host(OUTSIDE)
        with _quiet(), simulated(self.loop, self.parts, random.Random(f"{self.seed} chance"), EPOCH_UNIX):
            asyncio.set_event_loop(None)
            try:
                outside.context.run(self.loop.run_until_complete, self._live())
            finally:
                self.loop.close()

    async def _live(self) -> None:
        from tests.world.judge import Judge

        judge = Judge(self)
        self.start_store()
        for engine in self.engines.values():
            await engine.start()
        for name in GATEWAYS:
            self.start_gateway(name)
        callers = callers_host()
        happenings = sorted([*self.plan.comings, *self.plan.troubles], key=lambda one: one.at_s)
        mending: list[asyncio.Task[None]] = []
        watching = asyncio.create_task(judge.watch())
        for one in happenings:
            await asyncio.sleep(max(0.0, BEGAN_S + one.at_s - self.loop.now))
            if isinstance(one, Coming):
                self.loop.begin(callers, self._ask(one))
            else:
                mending.append(asyncio.create_task(self._trouble(one)))
        await asyncio.gather(*mending)
        await asyncio.sleep(max(0.0, BEGAN_S + LENGTH_S - CALM_S / 2 - self.loop.now))
        await judge.at_rest()
        watching.cancel()
        await self._end(judge)

    async def _end(self, judge: Any) -> None:
        running = list(self.gateways.values())
        for gateway in running:
            gateway.terminate()
        await asyncio.wait([gateway.task for gateway in running], timeout=30)
        judge.after_all(running)
        for host in [*(gateway.host for gateway in self.gone), *(engine.host for engine in self.engines.values())]:
            host.alive = False
            await self.loop.bury(host)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(1)

    async def _ask(self, one: Coming) -> None:
        prompt = f"{one.tenant} asks number {one.number}: {'what is new? ' * (one.number % 5)}"
        ask = Ask(one.number, one.tenant, KEYS[one.tenant].text, prompt, one.manners)
        self.asks.append(ask)
        self.log("ask", ask.id, one.tenant, one.gateway)
        await send(ask, one.gateway, self.loop)
        body = hashlib.blake2b(ask.body, digest_size=6).hexdigest()
        self.log("answered", ask.id, ask.status, len(ask.body), body, ask.whole, ask.left)

    # --- what goes wrong --------------------------------------------------------------------------------------------

    def start_gateway(self, name: str, skew_s: float = 0.0) -> None:
        """A new process at this address."""
        self.gateways[name] = Gateway(self.loop, self.parts, name, GATEWAYS.index(name), skew_s)

    def start_store(self) -> None:
        """It listens again, with what it knows."""
        self.store_runs = True
        self.store_host = Host("store")
        self.loop.begin(self.store_host, self.server.start(self.loop))

    async def _trouble(self, one: Trouble) -> None:
        self.log("trouble", one.name, one.target, f"{one.for_s:.3f}")
        how = dict(one.how)
        if one.name.startswith("misbehave "):
            await self._misbehave(one, how)
        else:
            await getattr(self, f"_{one.name}")(one, how)
        self.log("over", one.name, one.target)

    async def _misbehave(self, one: Trouble, how: dict[str, float]) -> None:
        rule = FaultRule(
            one.name.removeprefix("misbehave "), after=int(how["after"]), p=how["p"], bytes_per_s=how["bytes_per_s"], delay_s=how["delay_s"]
        )
        engines = [self.engines[name] for name in one.target.split("+")]
        for engine in engines:
            engine.misbehave(rule)
        await asyncio.sleep(one.for_s)
        for engine in engines:
            engine.misbehave()

    async def _engine_killed(self, one: Trouble, how: dict[str, float]) -> None:
        engine = self.engines[one.target]
        if engine.sim is None:
            return
        engine.kill()
        await asyncio.sleep(one.for_s)
        await engine.start()

    async def _engine_silent(self, one: Trouble, how: dict[str, float]) -> None:
        await self._silent(one)

    async def _gateway_silent(self, one: Trouble, how: dict[str, float]) -> None:
        await self._silent(one)

    async def _store_silent(self, one: Trouble, how: dict[str, float]) -> None:
        await self._silent(one)

    async def _silent(self, one: Trouble) -> None:
        if one.target not in self.network.silent:
            self.network.silent.add(one.target)
            await asyncio.sleep(one.for_s)
            self.network.silent.discard(one.target)

    async def _engine_slow(self, one: Trouble, how: dict[str, float]) -> None:
        self.network.slow_s[one.target] = how["more_s"]
        await asyncio.sleep(one.for_s)
        self.network.slow_s.pop(one.target, None)

    _store_slow = _engine_slow

    async def _gateway_killed(self, one: Trouble, how: dict[str, float]) -> None:
        gateway = self.gateways[one.target]
        if not gateway.host.alive or gateway.task.done():
            return
        gateway.kill()
        self.gone.append(gateway)
        await asyncio.sleep(one.for_s)
        self.start_gateway(one.target, gateway.host.skew_s)

    async def _gateway_replaced(self, one: Trouble, how: dict[str, float]) -> None:
        """As a rolling restart does: the new one serves before the old one is told to go. Policies are those of the new one."""
        old = self.gateways[one.target]
        if not old.host.alive or not old.ready:
            return
        self.parts.policies = POLICIES[self.parts.policies is POLICIES[0]]
        self.start_gateway(one.target, old.host.skew_s)
        new = self.gateways[one.target]
        while not new.ready and new.host.alive and not new.task.done():
            await asyncio.sleep(0.1)
        old.terminate()
        self.gone.append(old)

    async def _clock(self, one: Trouble, how: dict[str, float]) -> None:
        self.gateways[one.target].host.skew_s += how["skew_s"]
        await asyncio.sleep(0)

    async def _directory(self, one: Trouble, how: dict[str, float]) -> None:
        self.directory.contents = raised(self.directory.contents)
        await asyncio.sleep(0)

    async def _store_stopped(self, one: Trouble, how: dict[str, float]) -> None:
        if self.store_runs:
            self.store_runs = False
            self.store_host.context.copy().run(self.server.stop)
            await asyncio.sleep(one.for_s)
            self.start_store()

    async def _store_lost(self, one: Trouble, how: dict[str, float]) -> None:
        if self.store_runs:
            self.store.forget()
            self.losses += 1
            await self._store_stopped(one, how)

    async def _store_mute(self, one: Trouble, how: dict[str, float]) -> None:
        self.server.lose_replies()
        await asyncio.sleep(0.04)
        if self.store_runs:
            for served in list(self.server.open):
                self.store_host.context.copy().run(served.transport.abort)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Nothing is logged: worlds are judged by what happens."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)
