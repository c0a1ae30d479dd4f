"""Builds the parts of the request log: the collector, its store and the Parquet files, and what keeps texts in a worker."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from domain.cache_purges import CachePurgeStore
from gateway.config.addresses import sqlite_file
from gateway.config.load import Settings
from gateway.config.read_secrets import read_former_pepper, read_log_headers
from gateway.config.request_log import MEMORY
from gateway.config.traces import OtlpTarget
from gateway.request_log.capture import Captures
from gateway.request_log.collector import RequestCollector, RequestSink
from gateway.request_log.parquet import ParquetRequests
from gateway.request_log.reader import RequestLog
from gateway.request_log.ring import RequestRing
from gateway.telemetry.otlp import BatchExporter, OtlpSender
from gateway.ticks import next_tick
from gateway.wiring.traces import installed_version, own_resource
from tenancy.keys import Pepper
from tenancy.request_log import RequestStore
from tenancy.responses import ResponseSealer
from tenancy.stores.memory import MemoryRequests
from tenancy.stores.sql import SqlRequests, StoreError, open_engine


@dataclass(frozen=True, slots=True)
class OpenRequestLog:
    """The request log of the admin process, and what closes its connections."""

    log: RequestLog
    close_store: Callable[[], Awaitable[None]]

    async def run(self) -> None:
        """Collect until cancelled."""
        await self.log.collector.run()

    async def close(self) -> None:
        """Keep what the workers have left, and close the connections."""
        await self.log.collector.close()
        await self.close_store()


async def _nothing() -> None:
    return


def check_request_log(settings: Settings) -> None:
    """Refuse settings of the request log with which the admin process could not start. Raises StoreError."""
    written, file = settings.request_log, sqlite_file(settings.request_log_url)
    if written.enabled and file and not Path(file).parent.is_dir():
        raise StoreError(f"request_log.store: the folder of {file!r} does not exist; create it, or name another file")
    if written.enabled and written.parquet is not None and find_spec("pyarrow") is None:
        raise StoreError("request_log.parquet needs pyarrow: pip install 'tidegate[parquet]', or leave it out")


def request_store_for(settings: Settings) -> tuple[RequestStore, Callable[[], Awaitable[None]], Callable[[], Awaitable[None]]]:
    """The store that the settings name, what makes it ready, and what closes it.

    Raises:
        StoreError: the folder of its SQLite file does not exist.
    """
    url = settings.request_log_url
    if url == MEMORY:
        return MemoryRequests(), _nothing, _nothing
    engine = open_engine(url)
    store = SqlRequests(engine)
    return store, store.prepare, engine.dispose


def request_sealer(settings: Settings, pepper: Pepper) -> ResponseSealer:
    """What seals and opens the texts of requests. Raises SecretError: the pepper of before is configured and missing."""
    former = read_former_pepper(settings)
    return ResponseSealer([pepper] if former is None else [pepper, former], secrets.token_bytes)


def request_log_for(settings: Settings, run_dir: Path, pepper: Pepper, purges: CachePurgeStore) -> OpenRequestLog | None:
    """The request log; None where it is off.

    Raises:
        StoreError: its store cannot be used.
    """
    written = settings.request_log
    if not written.enabled:
        return None
    store, prepare, close = request_store_for(settings)
    sinks: list[RequestSink] = []
    if written.parquet is not None:
        sinks.append(ParquetRequests(settings.base_dir / written.parquet, secrets.token_hex(4), written.parquet_days, time.time))
    if written.otlp is not None:
        sinks.append(_log_records(settings, written.otlp))
    collector = RequestCollector(
        run_dir, store, prepare, purges, time.time, hours=written.hours, most=written.max_requests, sinks=sinks, sleep=next_tick
    )
    return OpenRequestLog(RequestLog(collector, request_sealer(settings, pepper)), close)


def _log_records(settings: Settings, target: OtlpTarget) -> RequestSink:
    """The sink of `request_log.otlp`, started. Raises SecretError: a header's secret is missing."""
    # imported only here: the messages of OpenTelemetry are an extra
    from gateway.request_log.otlp import LogRecordMaker, OtlpRequests, rejected_of

    resource = own_resource() | (settings.traces.resource if settings.traces is not None else {})
    sender = OtlpSender(
        target.endpoint,
        read_log_headers(settings),
        timeout_s=target.timeout_s,
        compress=target.compression == "gzip",
        rejected_of=rejected_of,
        clock=time.monotonic,
    )
    maker = LogRecordMaker(resource, installed_version())
    exporter = BatchExporter("request_log", maker.encoded, sender, max_pending=target.max_pending, clock=time.monotonic)
    exporter.start()
    return OtlpRequests(exporter)


def captures_for(
    settings: Settings,
    pepper: Pepper,
    ring: RequestRing | None,
    digest_of_user: Callable[[str], str],
    log_defect: Callable[[BaseException, str], None],
) -> Captures | None:
    """What keeps the texts of a worker's requests; None where no request log is kept. Must be called in the worker's running loop.

    Raises:
        SecretError: the pepper of before is configured and missing.
    """
    if ring is None:
        return None
    soon = asyncio.get_running_loop().call_soon_threadsafe
    executor = ThreadPoolExecutor(1, "request-content")  # its thread starts with the first text
    return Captures(ring, request_sealer(settings, pepper), executor, soon, digest_of_user, log_defect)
