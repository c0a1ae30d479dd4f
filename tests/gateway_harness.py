"""A whole gateway inside the test's own loop: real edge, lifecycle and relay, real keys and policies, engines of the test's choice."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec

from domain.identity import TenantId
from domain.membership import MemberSource
from gateway.background.runs import BackgroundRuns
from gateway.config.load import Settings
from gateway.deps import Deps
from gateway.files.service import FileService
from gateway.http.data_port import DataPort
from gateway.http.edge.client_address import TrustedProxies
from gateway.http.edge.connection import EdgeConnection
from gateway.http.edge.connections import Connections, EdgeLimits
from gateway.http.edge.listener import DataListener
from gateway.http.edge.per_address import AddressBounds, AddressLimits
from gateway.process.drain import Closes
from gateway.record import Record
from gateway.request.feedback import FeedbackService
from gateway.telemetry.metrics import Metrics
from gateway.wiring.answers import answers_for
from gateway.wiring.auth import token_gate_for
from gateway.wiring.fleet import FleetParts, fleet_for
from gateway.wiring.guards import GuardDetectors
from gateway.wiring.requests import deps_for
from policies.compile import compiled
from policies.prompts.allowed import Registry
from policies.prompts.prompt import RegisteredPrompt, prompt_of
from policies.prompts.schema import PromptDocument
from policies.schema import PolicyDocument
from routing.fleet import Availability, Backend, Fleet
from tenancy.accounts import DEFAULT_ORGANISATION, DEFAULT_PROJECT, Contents, Organisation, Project, Tenant
from tenancy.conversations import ConversationStore
from tenancy.directory import Directory
from tenancy.keys import ENTROPY_BYTES, KeyRecord, Minted, Pepper, digest_of, mint
from tenancy.limits import Limit
from tenancy.ports import Counters
from tenancy.prices import Price
from tenancy.responses import ResponseStore
from tenancy.rights import NO_RIGHTS_SET, Rights
from tests.timing import until

PEPPER = Pepper("test", b"p" * 32)
SWEEP_S = 0.02
CLIENT_S = 60.0
"""A client gives up only where a test hangs: no test waits for this."""


@dataclass
class Gateway:
    """A running gateway and what it observed."""

    port: int
    deps: Deps
    fleet: FleetParts
    connections: Connections
    keys: dict[str, str]
    metrics: Metrics
    """Where verifications of tokens are counted; records are not."""
    records: list[Record] = field(default_factory=list)
    defects: list[BaseException] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, tenant: str = "acme", **options: Any) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self.url, headers={"authorization": f"Bearer {self.keys[tenant]}"}, timeout=CLIENT_S, trust_env=False, **options
        )

    async def recorded(self, count: int) -> list[Record]:
        """Wait until this many requests are closed."""
        await until(lambda: len(self.records) >= count)
        return self.records

    @property
    def open_holds(self) -> int:
        return len(self.deps.holds)


def _key(tenant: str, seed: int) -> tuple[Minted, KeyRecord]:
    minted = mint("test", bytes([seed]) * ENTROPY_BYTES)
    digests = (digest_of(PEPPER.secret, minted.secret),)
    return minted, KeyRecord(minted.id, TenantId(tenant), DEFAULT_PROJECT, PEPPER.kid, digests)


def directory(
    keys: Iterable[KeyRecord], limits: Sequence[Limit] = (), prices: Sequence[Price] = (), rights: Mapping[str, Rights] | None = None
) -> Directory:
    """A directory of one organisation whose tenants are those of the keys. `rights` are those of the tenant `acme`, the project
    `acme/default` and the key `acme/default/key`."""
    given = rights or {}
    records = tuple(msgspec.structs.replace(one, rights=given.get(f"{one.tenant}/{one.project}/key", NO_RIGHTS_SET)) for one in keys)
    names = sorted({record.tenant for record in records})
    contents = Contents(
        organisations=(Organisation(DEFAULT_ORGANISATION),),
        tenants=tuple(Tenant(name, rights=given.get(name, NO_RIGHTS_SET)) for name in names),
        projects=tuple(Project(name, DEFAULT_PROJECT, rights=given.get(f"{name}/default", NO_RIGHTS_SET)) for name in names),
        keys=records,
        limits=tuple(limits),
        prices=tuple(prices),
    )
    return Directory(contents, PEPPER)


def settings_for(urls: Sequence[str], **sections: Any) -> Settings:
    """Settings with one pool `chat` that serves `sim`."""
    backends = [{"id": f"e{i}", "url": url} for i, url in enumerate(urls)]
    pool = {"name": "chat", "model": "sim", "backends": backends, **sections.pop("pool", {})}
    settings = Settings.model_validate({"pools": [pool], **sections})
    settings.__pydantic_private__ = {"_base_dir": Path()}
    return settings


def registry(*documents: dict[str, Any]) -> Registry:
    """Prompts by id and version."""
    found: dict[str, dict[int, RegisteredPrompt]] = {}
    for document in documents:
        prompt, mistakes = prompt_of(PromptDocument.model_validate(document))
        assert prompt is not None, mistakes
        found.setdefault(prompt.id, {})[prompt.version] = prompt
    return found


@asynccontextmanager
async def gateway(
    *engines: str,
    policies: Sequence[dict[str, Any]] = ({"tenant": "*", "models": [{"name": "sim", "pool": "chat"}], "expose_headers": True},),
    prompts: Sequence[dict[str, Any]] = (),
    edge: dict[str, Any] | None = None,
    limits: Sequence[Limit] = (),
    prices: Sequence[Price] = (),
    rights: Mapping[str, Rights] | None = None,
    counters: Counters | None = None,
    poll: bool = True,
    registered: MemberSource | None = None,
    run_dir: Path | None = None,
    base_dir: Path | None = None,
    files: FileService | None = None,
    responses: ResponseStore | None = None,
    background: BackgroundRuns | None = None,
    conversations: ConversationStore | None = None,
    feedback: FeedbackService | None = None,
    **sections: Any,
) -> AsyncIterator[Gateway]:
    """Serve in front of `engines` (their URLs) on a free loopback port."""
    settings = settings_for(engines, **sections)
    if base_dir is not None:
        settings = settings.based_at(base_dir)
    tenants = {"acme": 1, "bolt": 2, "crane": 3}
    keys = {tenant: _key(tenant, seed) for tenant, seed in tenants.items()}
    known = directory((record for _, record in keys.values()), limits, prices, rights)
    policy_set = compiled((PolicyDocument.model_validate(p) for p in policies), registry(*prompts))
    records: list[Record] = []
    defects: list[BaseException] = []
    metrics = Metrics()
    addresses = AddressLimits(AddressBounds(**settings.data.per_address.model_dump()), time.monotonic)

    def observe(record: Record) -> None:
        records.append(record)
        if record.outcome == "key_invalid":
            addresses.invalid_key(record.client)

    tokens = await token_gate_for(settings, metrics.count_token, run_dir)
    answers, close_answers = await answers_for(settings, PEPPER)
    detectors = GuardDetectors()
    deps = deps_for(
        settings,
        policy_set,
        known,
        PEPPER,
        counters=counters,
        tokens=tokens,
        answers=answers,
        detectors=detectors,
        files=files,
        observe=observe,
        count_destination=metrics.count_destination,
        log_defect=lambda error, _: defects.append(error),
        responses=responses,
        background=background,
        conversations=conversations,
        feedback=feedback,
    )
    await detectors.prepare()
    fleet = fleet_for(settings, deps, registered=registered, run_dir=run_dir)
    await fleet.learn()
    data_port = DataPort(deps)
    edge_limits = EdgeLimits(**{**settings.data.limits.model_dump(), **(edge or {})})
    hosts = frozenset(host.lower().encode() for host in settings.data.hosts)
    proxies = TrustedProxies.of(settings.data.trusted_proxies.networks, settings.data.trusted_proxies.header)
    connections = Connections(
        edge_limits,
        deps.clock,
        time.time,
        serve=data_port.start_within(addresses) if addresses.bounds_requests else data_port.start,
        refuse=data_port.refuse,
        log_defect=deps.log_defect,
        hosts=hosts,
        proxies=proxies if proxies.networks else None,
        pickers=proxies if settings.data.trusted_proxies.destination_endpoint else None,
        streams=data_port.streams,
    )
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    server: Closes
    if settings.data.trusted_proxies.proxy_protocol or addresses.bounds_connections:
        server = listener = DataListener(
            connections,
            proxies=proxies,
            proxy_protocol=settings.data.trusted_proxies.proxy_protocol,
            addresses=addresses if addresses.bounds_connections else None,
            tls=None,
            refused=lambda reason, _peer, _why: metrics.count_refused_connection(reason),
        )
        listener.start(sock, 4096)
    else:
        server = await deps.loop.create_server(lambda: EdgeConnection(connections), sock=sock, backlog=4096)
    made = Gateway(
        port,
        deps,
        fleet,
        connections,
        {t: minted.text for t, (minted, _) in keys.items()},
        metrics,
        records,
        defects,
    )
    tasks = [asyncio.create_task(_sweep(deps, connections)), asyncio.create_task(deps.holds.run(deps.counters))]
    if background is not None:
        tasks.append(asyncio.create_task(background.keep()))
    tasks += [asyncio.create_task(loop) for loop in (tokens.loops() if tokens else ())]
    if poll:
        tasks += [asyncio.create_task(loop) for loop in fleet.loops()]
    try:
        yield made
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(connections.open):
            connection.abort()
        await fleet.close()
        await detectors.close()
        await answers.close()
        await close_answers()
        await asyncio.sleep(0.01)
    assert defects == [], defects


async def _sweep(deps: Deps, connections: Connections) -> None:
    while True:
        await asyncio.sleep(SWEEP_S)
        now = deps.clock()
        deps.watch.sweep(now, deps.log_defect)
        deps.queues.sweep(now)
        connections.sweep(now)


def chat(**fields: Any) -> dict[str, Any]:
    """A chat request."""
    return {"model": "sim", "messages": [{"role": "user", "content": "say something about the sea"}], **fields}


@dataclass
class Stream:
    """What a caller saw of a streamed answer, byte by byte."""

    status: int
    raw: bytes
    clean: bool
    """Whether the message ended as its framing says."""
    first_s: float | None
    last_s: float

    @property
    def events(self) -> list[Any]:
        return [msgspec.json.decode(p[6:]) for p in self.raw.split(b"\n\n") if p.startswith(b"data: {")]

    @property
    def done(self) -> bool:
        return b"data: [DONE]" in self.raw

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [event["error"] for event in self.events if "error" in event]

    @property
    def text(self) -> str:
        return "".join(c["delta"].get("content") or "" for e in self.events if "choices" in e for c in e["choices"] if "delta" in c)


async def stream(client: httpx.AsyncClient, *, begun: asyncio.Event | None = None, **fields: Any) -> Stream:
    """Send a streamed chat and read it to its end, good or bad. `begun` is set when its first bytes have come."""
    raw, clean, first = b"", True, None
    since = time.monotonic()
    async with client.stream("POST", "/v1/chat/completions", json=chat(stream=True, **fields)) as reply:
        try:
            async for data in reply.aiter_raw():
                first = first if first is not None else time.monotonic() - since
                raw += data
                if begun is not None:
                    begun.set()
        except httpx.TransportError:
            clean = False
    return Stream(reply.status_code, raw, clean, first, time.monotonic() - since)


@contextlib.asynccontextmanager
async def no_engine() -> AsyncIterator[str]:
    """An address where nobody listens."""
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    yield f"http://127.0.0.1:{port}"


def all_up(fleet: Fleet) -> Fleet:
    """The fleet with every backend up, where nobody polls them."""
    for pool in fleet.pools.values():
        for backend in pool.backends:
            fleet = fleet.with_backend(Backend(backend.id, pool.name, Availability.UP, ""))
    return fleet
