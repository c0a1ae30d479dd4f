"""Stored Responses and those in the background in a SQLite file, as one worker of a gateway opens them."""

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gateway.background.runs import BackgroundRuns, BackgroundTimes
from tenancy.responses import ResponseSealer
from tenancy.stores.sql import SqlBackgroundResponses, SqlResponses, open_engine
from tests.gateway_harness import PEPPER

QUICK = BackgroundTimes(flush_s=0.02, look_s=0.05, lease_s=30.0)


@asynccontextmanager
async def response_stores(file: Path, times: BackgroundTimes = QUICK) -> AsyncIterator[tuple[SqlResponses, BackgroundRuns]]:
    """The stores of one worker. The file has the schema already (`tests.databases.migrated_file`)."""
    engine = open_engine(f"sqlite:///{file}")
    sealer = ResponseSealer([PEPPER], os.urandom)
    runs = BackgroundRuns(SqlBackgroundResponses(engine, sealer, time.time), f"worker-{os.urandom(8).hex()}", time.time, times)
    try:
        yield SqlResponses(engine, sealer, time.time), runs
    finally:
        await engine.dispose()
