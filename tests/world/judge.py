"""What must hold in every world, whatever went wrong in it. Each breach is a sentence; a world is right when there is none."""

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

from gateway.deps import Deps
from gateway.record import Record
from tenancy.drift import spent_in
from tenancy.hold import BEAT_S, LEASE_S
from tenancy.limits import Level, Limit, Meter, Window, state_key
from tenancy.rates import KINDS
from tenancy.usage import LOST, UsageEvent
from tests.world.callers import Ask
from tests.world.engines import Job
from tests.world.gateways import Gateway
from tests.world.seen import Seen, understand

if TYPE_CHECKING:
    from tests.world.world import World

LOOK_S = 5.0
MOST_TOLD = 20
ENDS_WITHIN_S = 120.0
"""Longest life of a request: a slow body, two attempts, a dripping answer; every step of it has a shorter limit of its own."""
MOST_ATTEMPTS = 2
WRONG_OUTCOMES = ("internal", "refused_by_engine", "model_not_found", "key_invalid", "key_missing")
"""No request of a world deserves them."""
CALENDAR = (Window.DAY, Window.MONTH, Window.EVER)


class Judge:
    """Watches one world and judges it in the end."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.breaches = world.breaches

    def _breach(self, what: str) -> None:
        if what not in self.breaches and len(self.breaches) < MOST_TOLD:
            self.breaches.append(what)
            self._world.log("BREACH", what)

    # --- while it lives -------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Look again and again."""
        while True:
            await asyncio.sleep(LOOK_S)
            for gateway in self._living():
                self._counts(gateway, gateway.deps)
            if self._world.plan.strict:
                for limit in self._world.directory.contents.limits:
                    self._within(limit)
            for ask in self._world.asks:
                if not ask.over and self._world.loop.now - ask.began_at > ENDS_WITHIN_S:
                    self._breach(f"{ask.id} at {ask.gateway} hangs")

    def _living(self) -> list[Gateway]:
        return [one for one in self._world.gateways.values() if one.host.alive and one.deps is not None]

    def _counts(self, gateway: Gateway, deps: Deps | None) -> None:
        assert deps is not None
        load_table = deps.pool_states["chat"].load_table
        for name, count in (("active", deps.budget.active), ("retrying", deps.budget.retrying), ("in its load table", load_table.total())):
            if count < 0:
                self._breach(f"{gateway.name}: {count} requests {name}")
        if load_table.total() > deps.budget.active:
            self._breach(f"{gateway.name}: {load_table.total()} in the load table of {deps.budget.active} requests")

    def _within(self, limit: Limit) -> None:
        """A limit that the store alone decides on holds at every moment."""
        settled, held = self._counted(limit)
        if limit.window is Window.MINUTE:
            return
        if settled + held > limit.amount + self._twice(limit):
            self._breach(f"{_named(limit)}: {settled} settled and {held} held of {limit.amount}")
        if settled < 0 or held < 0:
            self._breach(f"{_named(limit)}: {settled} settled, {held} held")
        if limit.meter is Meter.CONCURRENT_REQUESTS and self._world.plan.peaceful:
            tenant = limit.scope.name
            running = sum(
                one.hold.tenant == tenant or not tenant for gateway in self._living() for one in gateway.worker._deps.holds._open.values()
            )
            if running > limit.amount:
                self._breach(f"{_named(limit)}: {running} run of {limit.amount}")

    def _twice(self, limit: Limit) -> int:
        """What requests of killed gateways used may be counted twice: by the ledger's word, and by their holds until the leases end. The
        comparison with the ledger takes it away again, and what is billed stays within the limit."""
        lost = [row for row in self._world.ledger.rows.values() if row.closing == LOST]
        return _billed(lost, limit) if lost and limit.window in CALENDAR else 0

    def _counted(self, limit: Limit) -> tuple[int, int]:
        scope, store = limit.scope, self._world.store
        books = store.of(scope.name.encode() if scope.level is Level.TENANT else b"global/")
        key = state_key(scope, limit.meter, limit.window)
        if limit.window is Window.NOW:
            return 0, books._gauges.get(key, 0)
        cell = books._cells.get(key)
        if cell is None or cell[0] != store.calendar.periods[KINDS[limit.window]]:
            return 0, 0
        return cell[1], cell[2]

    # --- at rest --------------------------------------------------------------------------------------------------

    async def at_rest(self) -> None:
        """Nothing goes wrong any more; when every request has ended and every lease is over, nothing is left of them."""
        world = self._world
        for _ in range(round(ENDS_WITHIN_S)):
            if all(ask.over for ask in world.asks):
                break
            await asyncio.sleep(1.0)
        for ask in world.asks:
            if not ask.over:
                self._breach(f"{ask.id} at {ask.gateway} never ends")
        await asyncio.sleep(LEASE_S + BEAT_S + 3.0)
        for tag, books in world.store.books.items():
            books.reap(world.store._now_us())
            if books._open:
                self._breach(f"open holds of {tag!r} in the store: {list(books._open)[:3]}")
        for limit in world.directory.contents.limits:
            _, held = self._counted(limit)
            if held:
                self._breach(f"{_named(limit)}: {held} held by nobody")
        for gateway in self._living():
            self._at_rest(gateway, gateway.deps)
        for engine in world.engines.values():
            if engine.sim is not None and (engine.sim.in_flight or engine.sim.batcher.running):
                self._breach(f"{engine.name} still answers {engine.sim.in_flight} requests that nobody waits for")

    def _at_rest(self, gateway: Gateway, deps: Deps | None) -> None:
        assert deps is not None
        left = {
            "active": deps.budget.active,
            "retrying": deps.budget.retrying,
            "holds": len(deps.holds),
            "waiting": deps.queues["chat"].waiting,
            "in the load table": deps.pool_states["chat"].load_table.total(),
            "watched": len(deps.watch.relays()),
            "detectors asked": len(deps.noting),
            "connections": len(gateway.worker._connections.open),
        }
        for name, count in left.items():
            if count:
                self._breach(f"{gateway.name}: {count} {name} at rest")
        for backend in deps.live.fleet.pools["chat"].backends:
            if backend.state.value != "up":
                self._breach(f"{gateway.name}: {backend.id} is {backend.state.value} long after it was mended: {backend.reason}")

    # --- in the end -----------------------------------------------------------------------------------------------

    def after_all(self, told_to_go: list[Gateway]) -> None:
        """Every gateway was told to go."""
        world = self._world
        for gateway in [*told_to_go, *world.gone]:
            if gateway.killed_with is None and not gateway.task.done():
                self._breach(f"{gateway.name} does not end when it is told to")
            elif gateway.task.done() and not gateway.task.cancelled() and gateway.task.exception() is not None:
                self._breach(f"{gateway.name} ended with {gateway.task.exception()!r}")
        for what in [*world.parts.defects, *world.loop.troubles]:
            self._breach(f"nobody caught: {what}")
        records = self._records()
        jobs = defaultdict(list)
        for job in world.jobs:
            jobs[job.request_id].append(job)
        for ask in world.asks:
            seen = understand(ask.status, ask.body, stream=ask.manners.stream, whole=ask.whole)
            self._reply(ask, seen)
            record = records.get(ask.id)
            if record is not None:
                self._record(ask, seen, record, jobs[record.own_id])
        self._rows(records, jobs)
        self._salts()
        self._totals()

    def _records(self) -> dict[str, Record]:
        world, found = self._world, dict[str, Record]()
        for _, record in world.parts.records:
            if record.request_id in found:
                self._breach(f"two records of {record.request_id}")
            found[record.request_id] = record
        killed = {one for gateway in world.gone if gateway.killed_with is not None for one in (gateway.name,)}
        for ask in world.asks:
            if ask.id not in found and not (ask.refused_to_connect or ask.left or ask.gateway in killed):
                self._breach(f"no record of {ask.id} at {ask.gateway}, status {ask.status}")
        return found

    def _reply(self, ask: Ask, seen: Seen) -> None:
        """Of what it says, whatever it is: right from its beginning, and never called whole when it is not."""
        for wrong in seen.wrong:
            self._breach(f"{ask.id}: {wrong}")
        for choice, text in seen.texts.items():
            expected = "".join(ask.expected(choice))
            if not expected.startswith(text):
                self._breach(f"{ask.id}: got {text[:60]!r}, not its own {expected[:60]!r}")
            if choice in seen.finished and text != expected:
                self._breach(f"{ask.id}: choice {choice} ends after {len(text)} of {len(expected)} characters")
        if ask.status == 200 and ask.whole:
            finished = len(seen.finished) == ask.manners.choices
            if not finished or seen.error is not None or (ask.manners.stream and seen.done != 1):
                self._breach(f"{ask.id}: whole by its framing with {seen.finished}, {seen.done} [DONE], error {seen.error}")
        if set(seen.finished.values()) - {"stop", "length"}:
            self._breach(f"{ask.id}: finished by {seen.finished}")
        if seen.done and (seen.error is not None or len(seen.finished) != ask.manners.choices):
            self._breach(f"{ask.id}: [DONE] after a failure")
        if ask.status not in (0, 200) and ask.whole and seen.error is None:
            self._breach(f"{ask.id}: status {ask.status} without an error")

    def _record(self, ask: Ask, seen: Seen, record: Record, jobs: list[Job]) -> None:
        most = MOST_ATTEMPTS + record.pulled_back
        # connections that were refused have asked nothing of an engine: a request may wait, and try again
        if len(record.failed) >= MOST_ATTEMPTS or (record.attempts > most and not record.queued):
            self._breach(f"{ask.id}: {record.attempts} attempts, repeated after {record.failed}")
        # batch for a higher class, others for a tenant with less in flight, of the same class or a higher one: here one tenant is critical
        if record.pulled_back and record.priority_class == "critical":
            self._breach(f"{ask.id} is {record.priority_class} and gave its place")
        if record.tenant not in ("", ask.tenant):
            self._breach(f"{ask.id} of {ask.tenant} is recorded as {record.tenant}'s")
        if ask.status and ask.status != record.status:
            self._breach(f"{ask.id}: status {ask.status}, recorded {record.status}")
        ok = record.outcome == "ok"
        if record.outcome in WRONG_OUTCOMES:
            self._breach(f"{ask.id}: {record.outcome} {record.detail}")
        if ok and not (ask.left or ask.manners.stalls_s) and ask.status == 200 and not ask.whole and self._alive_then(ask):
            self._breach(f"{ask.id}: recorded as ok, and its caller did not get it whole")
        if not ok and ask.whole and ask.status == 200:
            self._breach(f"{ask.id}: recorded as {record.outcome}, and its caller got it whole")
        produced = max((job.produced for job in jobs), default=0)
        usage, choices = record.usage, ask.manners.choices
        if record.closing == "settle" and ok:
            truths = {(job.prompt_tokens // choices, job.produced) for job in jobs}
            if (usage.prompt_tokens, usage.completion_tokens) not in truths:
                self._breach(f"{ask.id}: billed {usage}, engines say {truths}")
        elif record.closing == "release" and seen.tokens:
            self._breach(f"{ask.id}: {seen.tokens} tokens were delivered and none is billed")
        if record.closing and usage.completion_tokens > produced + choices:
            self._breach(f"{ask.id}: {usage.completion_tokens} tokens billed of {produced} that were generated")
        if ask.manners.stream and record.closing and seen.tokens > usage.completion_tokens:
            self._breach(f"{ask.id}: {seen.tokens} tokens delivered, {usage.completion_tokens} billed")

    def _alive_then(self, ask: Ask) -> bool:
        """Whether nobody killed its gateway before it was over."""
        return all(one.name != ask.gateway for one in self._world.gone if one.killed_with is not None)

    def _rows(self, records: dict[str, Record], jobs: dict[str, list[Job]]) -> None:
        """The ledger has one row of each request that was admitted."""
        world, rows = self._world, dict(self._world.ledger.rows)
        if world.ledger.repeated:
            self._breach(f"booked twice: {world.ledger.repeated[:3]}")
        for record in records.values():
            row = rows.pop(record.own_id, None)
            if bool(record.closing) != (row is not None):
                self._breach(f"{record.request_id}, closed by {record.closing or 'nothing'}: row {row}")
            elif row is not None and (row.tenant, row.usage, row.closing) != (record.tenant, record.usage, record.closing):
                self._breach(f"{record.request_id}: row {row} is not its record")
        killed = {one for gateway in world.gone for one in gateway.killed_with or ()}
        for request_id, row in rows.items():
            if request_id not in killed or row.closing != LOST:
                self._breach(f"a row of nobody: {row}")
            self._lost(row, jobs.get(request_id, []))
        if killed - set(world.ledger.rows):
            self._breach(f"killed and not billed: {killed - set(world.ledger.rows)}")

    def _lost(self, row: UsageEvent, jobs: list[Job]) -> None:
        produced = max((job.produced for job in jobs), default=0)
        if row.usage.completion_tokens > produced + 2:
            self._breach(f"{row.request_id}: killed, {row.usage.completion_tokens} tokens billed of {produced} generated")

    def _salts(self) -> None:
        """Prefix caches are kept apart by tenant: one salt each, never another's, and no request without."""
        salts: dict[str, set[str]] = defaultdict(set)
        for job in self._world.jobs:
            if " asks number " in job.prompt:
                salts[job.prompt.split(" ", 1)[0]].add(job.salt)
        every = [salt for found in salts.values() for salt in found]
        if len(every) != len(set(every)) or any(len(found) != 1 for found in salts.values()) or "" in every:
            self._breach(f"salts: {dict(salts)}")

    def _totals(self) -> None:
        """Counters say what the ledger says, and the ledger says that limits were kept."""
        world = self._world
        rows = list(world.ledger.rows.values())
        for limit in world.directory.contents.limits:
            if limit.window is not Window.EVER:
                continue
            billed = _billed(rows, limit)
            settled, _ = self._counted(limit)
            if world.plan.strict and world.plan.peaceful and settled != billed:
                self._breach(f"{_named(limit)}: {settled} counted, {billed} billed")
            if billed > world.bound(limit):
                self._breach(f"{_named(limit)}: {billed} billed, at most {world.bound(limit)} of {limit.amount} may be")


def _billed(rows: list[UsageEvent], limit: Limit) -> int:
    """What these rows come to under a limit."""
    found = spent_in(rows, limit.scope.level, None)
    return next((one.amounts.vector()[limit.meter] for one in found if one.name == limit.scope.name), 0)


def _named(limit: Limit) -> str:
    return f"{limit.scope} {limit.meter.name.lower()} {limit.window.value}"
