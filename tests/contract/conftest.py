"""Real stores for the contract suites: SQLite in a file, Postgres and Valkey from their packages."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tenancy.stores import valkey
from tenancy.stores.sql import open_engine
from tests.databases import PostgresDatabases, migrated_file, postgres_server
from tests.valkey_servers import Cluster, SentinelSet, Server, ask, cluster_of_three, sentinel_set, single_server

PATIENT_S = 60.0


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer of a counter store that is there comes too late, however busy the machine is: for tests about something else."""
    monkeypatch.setattr(valkey.node, "TIMEOUT_S", PATIENT_S)
    monkeypatch.setattr(valkey.node, "LOCAL_TIMEOUT_S", PATIENT_S)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresDatabases]:
    """Databases of one real Postgres server for the whole session, one for each test; the server is stopped afterwards."""
    with postgres_server() as server:
        yield PostgresDatabases(server.get_uri())


@asynccontextmanager
async def database(kind: str, request: pytest.FixtureRequest, tmp_path: Path, *, migrated: bool) -> AsyncIterator[AsyncEngine]:
    """A new database: a SQLite file, or one of the Postgres server."""
    if kind == "postgres":
        async with request.getfixturevalue("postgres").database(migrated=migrated) as engine:
            yield engine
        return
    file = tmp_path / "store.db"
    if migrated:
        await migrated_file(file)
    engine = open_engine(f"sqlite:///{file}")
    yield engine
    await engine.dispose()


@pytest.fixture(scope="session")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with single_server(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture(scope="session")
def sentinel_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelSet]:
    with sentinel_set(tmp_path_factory.mktemp("sentinels")) as servers:
        yield servers


@pytest.fixture(scope="session")
def cluster_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_of_three(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def valkey_url(valkey_server: Server) -> str:
    """A real Valkey, empty at the start of each test."""
    ask(valkey_server.port, "FLUSHALL")
    return valkey_server.url


@pytest.fixture
def sentinel_url(sentinel_servers: SentinelSet) -> str:
    """A primary and a replica under three Sentinels, empty at the start of each test."""
    ask(sentinel_servers.primary.port, "FLUSHALL")
    return sentinel_servers.url


@pytest.fixture
def cluster_url(cluster_nodes: Cluster) -> str:
    """A cluster of three nodes, empty at the start of each test."""
    for node in cluster_nodes.nodes:
        ask(node.port, "FLUSHALL")
    return cluster_nodes.url


@pytest.fixture(params=["sqlite", "postgres"])
async def empty_engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    """An empty database of either kind, not migrated yet."""
    async with database(request.param, request, tmp_path, migrated=False) as engine:
        yield engine


@pytest.fixture(params=["sqlite", "postgres"])
async def sql_engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    """A migrated database of either kind, without rows."""
    async with database(request.param, request, tmp_path, migrated=True) as engine:
        yield engine


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def kept_in(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AsyncEngine | None]:
    """A migrated database of either kind; None where a suite takes its store in memory."""
    if request.param == "memory":
        yield None
        return
    async with database(request.param, request, tmp_path, migrated=True) as engine:
        yield engine
