"""The admin API inside a command, on the database of a settings file: what `--offline` means.

The routes, checks, transactions and audit rows are those of a gateway (`gateway.admin`). Only the collaborators differ: there are no
workers, and whoever may read the settings, the pepper and the database counts as the owner. Routes that need a running gateway (backends,
policies, explanations, the state of limits) have no offline command.
"""

import asyncio
import contextlib
import dataclasses
import os
import secrets
import sys
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final, Self, TypeVar
from urllib.parse import unquote

import structlog
from fastapi import FastAPI

from backends.reach import Reach
from domain.membership import Owner
from gateway.admin import PREFIX, Parts, create_admin_api
from gateway.admin.access import Authenticator, Principal
from gateway.answers.cache import AuditedHits
from gateway.cli.printing import fail
from gateway.config.load import ConfigError, Settings, load_settings
from gateway.config.pools import pinned_of
from gateway.config.read_secrets import read_pepper
from gateway.config.secrets import SecretError
from gateway.fleet.adapters import AdapterRegistry, adapters_of
from gateway.fleet.registry import Registry
from gateway.process.snapshots import PolicyState
from gateway.wiring.admin import StoreTransactions, id_of, text_of
from tenancy.hold import LimitUsage
from tenancy.keys import Pepper
from tenancy.limits import Group
from tenancy.ports import CountersAway
from tenancy.rights import Role
from tenancy.stores.sql import SqlAlerts, SqlFeedback, SqlJournal, SqlUsageQueries, StoreError, migrate, open_engine

T = TypeVar("T")

ACTOR: Final = "command line"
"""The caller's name in the audit."""
NO_PEPPER: Final = Pepper("", b"")
"""Stands in until something is changed: a reader of tenants or usage needs no secret."""


class OfflineApi:
    """Carries requests to an admin API in this process; a `gateway.cli.admin_client.Transport`, open while the context lasts."""

    def __init__(self, config: Path) -> None:
        self.where = f"the database of {config}"
        self._config = config
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        try:
            self._settings = load_settings(self._config)
        except ConfigError as error:
            fail(f"{error}\n--offline works on the database of a settings file: run in the folder of tidegate.yaml, or name it with -c")
        self._open.enter_context(_quiet_logs())
        self._loop = self._open.enter_context(_running_loop())
        self._engine = open_engine(self._settings.sql_url)
        self._open.callback(lambda: self._run(self._engine.dispose()))
        try:
            self._run(migrate(self._engine))
        except StoreError as error:
            self._open.close()
            fail(str(error))
        self._app = create_admin_api(self._parts(), "")
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def __call__(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes, str]:
        """Answer one request."""
        if method != "GET" and self._app.state.parts.pepper is NO_PEPPER:
            try:
                self._app.state.parts = dataclasses.replace(self._app.state.parts, pepper=read_pepper(self._settings))
            except SecretError as error:
                fail(str(error))
        return self._run(_answered(self._app, method, path, body, headers))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _parts(self) -> Parts:
        journal = SqlJournal(self._engine, time.time)
        books = StoreTransactions(journal)
        return Parts(
            authenticator=_Owner(None, _nobody, time.monotonic, time.time),
            feedback=SqlFeedback(self._engine),
            alerts=SqlAlerts(self._engine),
            change=books.change,
            reading=books.reading,
            audit=journal,
            pepper=NO_PEPPER,
            id_of=id_of,
            text_of=text_of,
            entropy=secrets.token_bytes,
            wall=time.time,
            registry=_registry(self._settings),
            seen=_no_backend,
            limit_states=_no_counters,
            usage=SqlUsageQueries(self._engine),
            adapters=adapters_of(self._settings.pools),
            adapter_registry=AdapterRegistry(self._settings.pools, time.time),
            registered_adapters=books.adapters,
            models=books.models,
            pinned=pinned_of(self._settings.pools),
            bounds=self._settings.tenants.bounds(),
            explaining=_NoWorkers(),
            reloading=_NoWorkers(),
            kept=_NoWorkers(),
            rollouts=books.rollouts,
            pools={pool.name: [lora.name for lora in pool.loras] for pool in self._settings.pools},
            prompts=lambda: (),
            announce=lambda _message: None,
        )


class _Owner(Authenticator):
    """Takes every request for one of the owner: who can open the database needs no token."""

    async def authenticate(self, authorization: str, method: str, path: str, address: str) -> Principal:
        """The command line, as the owner."""
        return Principal(ACTOR, frozenset({Role.OWNER}))


class _NoWorkers:
    """Stands for workers where there are none."""

    async def of(self, request_id: str, tenant: str = "") -> None:
        """No worker remembers a decision."""

    async def would(self, asked: object) -> None:
        """No worker can place a request."""

    async def entries(self, selection: object, most: int) -> None:
        """No worker has answers."""

    async def content(self, owner: str, key: bytes) -> None:
        """No worker has answers."""

    async def audited(self) -> list[AuditedHits]:
        """No worker has audited any."""
        return []

    async def reload(self) -> list[PolicyState]:
        """No worker reads policies."""
        return []

    async def uses_of_baseline(self, document: str) -> None:
        """No worker has policies."""


async def _nobody(_token: str, _now: float) -> None:
    return None


async def _no_backend() -> Mapping[str, Owner]:
    return {}


async def _no_counters(_group: Group) -> list[LimitUsage]:
    raise CountersAway("no gateway runs here that counts")


def _registry(settings: Settings) -> Registry:
    async def unresolved(_host: str, _port: int) -> list[str]:
        raise OSError

    return Registry(
        pools=[pool.name for pool in settings.pools],
        static=[],
        reach=Reach(()),
        resolve=unresolved,
        run_dir=Path(os.devnull),
        grace_s=settings.drain.grace_s,
        wall=time.time,
    )


@contextlib.contextmanager
def _running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop in a thread of its own: a command may have a loop itself while it asks."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextlib.contextmanager
def _quiet_logs() -> Iterator[None]:
    """Warnings of the API to stderr, and nothing else: stdout is the command's."""
    before = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger("warning"), logger_factory=structlog.PrintLoggerFactory(sys.stderr)
    )
    try:
        yield
    finally:
        structlog.configure(**before)


async def _answered(app: FastAPI, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes, str]:
    """One request to an ASGI application."""
    target, _, query = path.removeprefix(PREFIX).partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(target),
        "raw_path": target.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": None,
        "server": None,
    }
    status = 0
    etag = ""
    answer = b""

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Mapping[str, Any]) -> None:
        nonlocal status, etag, answer
        if message["type"] == "http.response.start":
            status = message["status"]
            etag = next((value.decode() for name, value in message["headers"] if name == b"etag"), "")
        else:
            answer += message.get("body", b"")

    await app(scope, receive, send)
    return status, answer, etag
