"""Tests of opened databases."""

import asyncio
from pathlib import Path

from tenancy.stores.sql.opening import SqliteConnection


async def test_closing_a_connection_ends_though_it_was_stopped_meanwhile(tmp_path: Path) -> None:
    connection = await SqliteConnection(str(tmp_path / "t.db"))
    closing = asyncio.ensure_future(connection.close())
    await asyncio.sleep(0)  # the closing is asked of the thread
    connection.stop()
    await closing
    await connection.close()
