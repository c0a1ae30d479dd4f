"""A real admin port over a real SQLite file, with callers of every role."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from hashlib import sha512
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
from fastapi import FastAPI
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.routing import Mount

from cache.answers import Answer
from cache.ports import KeptEntry, Selection
from cache.semantic.control import Proof
from domain.adapters import RegisteredAdapter
from domain.identity import TenantId
from domain.membership import Owner
from domain.usage import Usage
from gateway.admin import Parts
from gateway.admin.access import Authenticator, Principal
from gateway.admin.app import create_admin_app
from gateway.admin.call import DatabasePolicies, PolicyFiles
from gateway.admin.simulations import Simulations
from gateway.answers.cache import AuditedHits
from gateway.config.pools import LoraSettings, PoolSettings
from gateway.fleet.adapters import AdapterRegistry
from gateway.guards.inspection import JudgeAsked, RuleApplied, TextJudged
from gateway.placement.backend_state import BackendState
from gateway.placement.decisions import Contender, Explained
from gateway.placement.explain import NoPlacement, Would, WouldAnswer
from gateway.process.snapshots import PolicyState, SlotState, Supervision, WorkerSnapshot
from gateway.queue.outlook import PoolQueueSeen, ProspectSeen
from gateway.request_log.collector import RequestCollector
from gateway.request_log.reader import RequestLog
from gateway.sync.policy_copy import compiled_from
from gateway.telemetry.scaling_gauges import PoolScaling
from gateway.wiring.admin import StoreTransactions, id_of, text_of
from routing.scaling import ScaleSettings
from tenancy.accounts import DirectoryBounds
from tenancy.hold import LimitUsage
from tenancy.keys import Pepper
from tenancy.limits import Group
from tenancy.responses import ResponseSealer
from tenancy.rights import Role
from tenancy.stores.memory import MemoryCachePurges, MemoryRequests
from tenancy.stores.sql import SqlAlerts, SqlFeedback, SqlJournal, SqlUsageQueries, open_engine
from tests.databases import migrated_file
from tests.unit.gateway.fleet.test_registry import registry

TOKEN = "a-token-of-more-than-24-characters"
OWNER = {"authorization": f"Bearer {TOKEN}"}
PEPPER = Pepper("k1", b"p" * 32)
API = "/admin/v1"
BOUNDS = DirectoryBounds()


POLICY = 'tenant: "*"\nmodels: [{name: sim, pool: chat}]\n'
"""The only policy file of the gateway that the API belongs to."""


class Wall:
    """The time, as a test sets it."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Admin:
    """What a test holds in its hands."""

    client: httpx.AsyncClient
    app: FastAPI
    engine: AsyncEngine
    journal: SqlJournal
    wall: Wall
    parts: Parts
    run_dir: Path
    told: list[Mapping[str, Any]]
    """What was passed on of rollouts."""

    async def actions(self) -> list[str]:
        """What the audit says was done, oldest first."""
        return [row.entry.action for row in await self.journal.page(0, 1000)]


def bearer(role: str, tenant: str = "acme") -> dict[str, str]:
    """The header of a caller with one role."""
    return {"authorization": f"Bearer {role}@{tenant}"}


async def holder(token: str, _now: float) -> Principal | None:
    """Keys of the harness say who they are: `role@tenant`; `none@tenant` is one of the data port."""
    role, at, tenant = token.partition("@")
    if not at or role == "none":
        return None
    return Principal(f"key {role[:4]}@{tenant}", frozenset({Role(role)}), TenantId(tenant))


async def collect(*, with_metrics: bool) -> list[WorkerSnapshot]:
    """One worker with a backend from a file and one from the settings."""
    fleet = (BackendState("chat", "f", up=True, state="up", source="file"), BackendState("chat", "s", up=True, state="up", source="static"))
    return [WorkerSnapshot(index=0, pid=1, state="ready", started_at=0.0, fleet=fleet)]


async def look(group: Group) -> list[LimitUsage]:
    """Every limit is used by one."""
    return [LimitUsage(line, 1, 0, line.amount - 1, 60_000_000) for line in group.lines]


async def seen() -> Mapping[str, Owner]:
    """The same, as the API sees it."""
    return {"f": "file", "s": "static"}


EXPLAINED = Explained(
    "req-1",
    1_800_000_000.0,
    "acme",
    "sim",
    "chat",
    "predicted_latency",
    "f",
    1000,
    200,
    800,
    (Contender("f", 0.1, 960.0, {"queue_s": 0.1}), Contender("s", 0.3, 0.0, {"queue_s": 0.3}, "costs 0.2 more (queue_s +0.2)")),
    chain_blocks=15,
)


class Explains:
    """Knows one request, and where any other of the tenant `acme` would go."""

    async def of(self, request_id: str, tenant: str = "") -> Explained | None:
        if tenant == EXPLAINED.tenant and request_id == "mine":
            return msgspec.structs.replace(EXPLAINED, caller_request_id="mine")
        return EXPLAINED if request_id == EXPLAINED.request_id and tenant in ("", EXPLAINED.tenant) else None

    async def would(self, asked: Would) -> WouldAnswer | None:
        if asked.tenant == "away":
            return None
        if asked.tenant != "acme":
            return WouldAnswer(refusal=NoPlacement(f"The policy of tenant {asked.tenant!r} has no model 'sim'.", "request.model"))
        return WouldAnswer(EXPLAINED)


class Reloads:
    """Workers whose folder is as it was, until it is said what they answer."""

    def __init__(self) -> None:
        self.states = [PolicyState("d1", 7.0), PolicyState("d1", 7.0)]
        self.uses: list[str] | None = []
        """What leads to the baseline of any rollout."""

    async def reload(self) -> list[PolicyState]:
        return self.states

    async def uses_of_baseline(self, document: str) -> list[str] | None:
        return self.uses


class Keeps:
    """Each owner has one answer, of the model `sim`; workers of the owner `group:away` do not answer."""

    def __init__(self) -> None:
        self.asked: list[tuple[Selection, int]] = []

    async def entries(self, selection: Selection, most: int) -> list[KeptEntry] | None:
        self.asked.append((selection, most))
        if selection.owner == "group:away":
            return None
        kept = kept_answer(selection.owner)
        entry = KeptEntry(key=kept.key.hex(), model="sim", namespace="n", bytes=70, kept_at=5.0, expires_at=65.0, writer="k1")
        return [entry] if selection.covers(kept) else []

    async def content(self, owner: str, key: bytes) -> Answer | None:
        kept = kept_answer(owner)
        return kept if key == kept.key else None

    async def audited(self) -> list[AuditedHits]:
        return [
            AuditedHits(owner, 0.01, Proof(audits=200.0, wrong=wrong, lower=0.0, upper=0.1, stopped=wrong > 5))
            for owner, wrong in (("acme", 1.0), ("bolt", 9.0), ("group:all", 0.0))
        ]


def kept_answer(owner: str) -> Answer:
    """The answer that the workers of `Keeps` have of an owner."""
    return Answer(owner, b"k" * 32, b'{"id":"x","choices":[]}', Usage(3, 4), "sim", 5.0, 65.0, "n", "k1")


class Judges:
    """Everything that has a tenant passes; the tenant `away` has no worker that answers."""

    def __init__(self) -> None:
        self.asked: list[JudgeAsked] = []

    async def judge(self, asked: JudgeAsked) -> TextJudged | None:
        self.asked.append(asked)
        if asked.tenant == "away":
            return None
        verdicts: dict[str, Any] = {"model": None, "version": "v", "action": "pass", "results": [], "unread": []}
        return TextJudged(msgspec.json.encode(verdicts), (RuleApplied("r", "pii", "shadow", ("input",), "shadow pii on input"),))


class Queues:
    """One pool in which the tenant `acme` waits."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.seen: list[PoolQueueSeen] | None = [
            PoolQueueSeen("chat", 1, 0, 500.0, (ProspectSeen("acme", "default", 3, 1, 1.5, 2.5, 60.0, {"tenant_count": 1}),))
        ]

    async def outlook(self, tokens: int) -> list[PoolQueueSeen] | None:
        self.asked.append(tokens)
        return self.seen


class Processes:
    """The processes of a gateway that runs nowhere: signals are noted, and a signal replaces every process."""

    accept_s = 0.0
    grace_s = 30.0
    counters = "memory"

    def __init__(self) -> None:
        self.signals: list[tuple[int, int]] = []
        self.kept: list[str] = []
        self.refused = ""
        """Why no new process could start."""
        self.failing = ""
        """How every replacement ends, once a signal has come."""
        self.snapshots = [WorkerSnapshot(index=0, pid=1, state="ready", started_at=1_800_000_000.0, policies=PolicyState("d1", 7.0))]

    def supervision(self) -> Supervision | None:
        if self.failing:
            worker = SlotState("worker-0", 2, 0, 0, "", len(self.signals), self.failing)
            return Supervision(7, 8080, 8081, (SlotState("admin", 1, 0, 0), worker))
        turn = 10 * len(self.signals)
        return Supervision(7, 8080, 8081, (SlotState("admin", 1 + turn, 0, 0), SlotState("worker-0", 2 + turn, 0, 0)))

    async def workers(self) -> list[WorkerSnapshot]:
        return self.snapshots

    def unapplied(self) -> list[str]:
        return self.kept

    async def refusal(self, *, new_start: bool) -> str:
        return self.refused

    def signal(self, pid: int, number: int) -> None:
        self.signals.append((pid, number))


def adapter_pools(folder: Path) -> list[PoolSettings]:
    """Pools, of which one takes adapters below `folder/adapters`."""
    sql = LoraSettings(name="sql", digest="0" * 64, path="/adapters/sql")
    chat = PoolSettings(name="chat", model="base-model", loras=[sql], lora_folder=str(folder / "adapters"), backends=[])
    return [chat, PoolSettings(name="bare", model="bare-model", backends=[])]


async def _prepared() -> None:
    """A store in memory is ready."""


def request_log(run_dir: Path, wall: Wall) -> RequestLog:
    """A request log in memory, which fetches from whatever workers there are in the folder; its streams do not wait."""
    store = MemoryRequests()
    collector = RequestCollector(run_dir, store, _prepared, MemoryCachePurges(), wall, hours=1, most=10_000)
    sealer = ResponseSealer([PEPPER], bytes)
    return RequestLog(collector, sealer, sleep=lambda _seconds: asyncio.sleep(0))


async def followed() -> None:
    """This gateway's folder follows the database by itself."""


_IDLE_APPS: Final[list[FastAPI]] = []
"""Apps that no port uses now. FastAPI prepares a route when it is first asked for, which takes longer than most tests of the port."""


def _app_over(parts: Parts) -> FastAPI:
    if not _IDLE_APPS:
        return create_admin_app(collect, version="1", workers=1, api=parts)
    app = _IDLE_APPS.pop()
    (mount,) = (route for route in app.routes if isinstance(route, Mount))
    mount.app.state.parts = parts
    return app


@contextlib.asynccontextmanager
async def admin_port(
    folder: Path, token: str | None = TOKEN, bounds: DirectoryBounds = BOUNDS, *, stored: bool = False
) -> AsyncIterator[Admin]:
    """The admin port as one app, called without a socket."""
    if not (folder / "admin.db").exists():  # a port that comes back finds the database of the one before
        await migrated_file(folder / "admin.db")
    engine = open_engine(f"sqlite:///{folder / 'admin.db'}")
    wall, ticks, numbers = Wall(), itertools.count(), itertools.count()
    journal = SqlJournal(engine, wall)
    told: list[Mapping[str, Any]] = []
    parts = Parts(
        authenticator=Authenticator(token, holder, lambda: next(ticks) * 1e-6, wall),
        change=StoreTransactions(journal).change,
        reading=StoreTransactions(journal).reading,
        audit=journal,
        pepper=PEPPER,
        id_of=id_of,
        text_of=text_of,
        entropy=lambda length: sha512(b"%d" % next(numbers)).digest()[:length],
        wall=wall,
        registry=registry(folder),
        seen=seen,
        limit_states=look,
        usage=SqlUsageQueries(engine),
        adapters=[RegisteredAdapter("chat", "sql", "0" * 64, "/adapters/sql")],
        adapter_registry=AdapterRegistry(adapter_pools(folder), wall),
        registered_adapters=StoreTransactions(journal).adapters,
        models=StoreTransactions(journal).models,
        pinned={"tide-8b@v1": {"pinned-chat": "sha256:0123456789ab" + "cd" * 26}},
        bounds=bounds,
        explaining=Explains(),
        reloading=Reloads(),
        kept=Keeps(),
        rollouts=StoreTransactions(journal).rollouts,
        prompts=lambda: ["help@1", "help@2"],
        pools={"chat": ["sql"], "chat-v2": ["sql"], "bare": []},
        announce=told.append,
        requests=request_log(folder, wall),
        alerts=SqlAlerts(engine),
        feedback=SqlFeedback(engine),
        gateway=Processes(),
        policy_files=PolicyFiles("/policies", lambda: {"default.yaml": POLICY}, lambda files: compiled_from(files, ["chat"], {})),
        simulations=Simulations(folder, wall, lambda: "sim_1"),
        queues=Queues(),
        scaling=PoolScaling(
            {"chat": ScaleSettings(min=2), "bare": None, "pairs": None}, wall, {"pairs": {"prefill": ScaleSettings(max=3)}}
        ),
        guards=Judges(),
        policies=DatabasePolicies(StoreTransactions(journal).policies, lambda files: compiled_from(files, ["chat"], {}), followed)
        if stored
        else None,
    )
    app = _app_over(parts)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
        yield Admin(client, app, engine, journal, wall, parts, folder, told)
    assert parts.simulations is not None
    await parts.simulations.close()
    await engine.dispose()
    _IDLE_APPS.append(app)
