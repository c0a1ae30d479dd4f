"""Assembles `tidegate serve`: the supervisor's plan from the settings, and the entries of its children.

`launch` does so and serves until SIGTERM. `store_main` is the entry of the process that keeps an embedded counter store: it starts the
server, reports ready, and stops the server when its lifeline closes. A process between supervisor and server makes the store a slot like
any other: restarted with the same back-off, counted in the same metric, and never blocking the supervisor.
"""

import asyncio
import contextlib
import gc
import importlib
import os
import random
import selectors
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import structlog

from gateway.admin.app import PoolShown, admin_main, made_before_forking
from gateway.config.load import ConfigError, Settings, load_settings, load_settings_again
from gateway.config.read_secrets import read_admin_token, read_every_secret, read_hook_secrets, read_pepper
from gateway.config.secrets import SecretError
from gateway.process.children import run_apart
from gateway.process.file_descriptors import bounded_connections, kept_descriptors
from gateway.process.hot_restart import this_program
from gateway.process.supervisor import CannotStart, ProcessPlan, WorkerSlot, run
from gateway.process.worker import worker_main
from gateway.telemetry.logs import configure_logs
from gateway.wiring.admin import AdminApiRun, api_run_for
from gateway.wiring.guessed_tokenizers import guessed_vocabularies_for
from gateway.wiring.limits import CannotStartStore, embedded_server
from gateway.wiring.requests import VocabularyError, vocabularies_for
from gateway.wiring.stores import StoreError, bookkeeper_for, import_driver, prepare_store
from gateway.wiring.traces import installed_version
from tenancy.counter_url import StoreKind

store_log = structlog.get_logger("tidegate.store")


class Server(Protocol):
    """The server process that the keeper controls (`tenancy.stores.valkey.embedded`)."""

    def start(self) -> int:
        """Start the server; returns its pid once it answers. Raises an Exception whose message is for the operator."""
        ...

    def ended(self) -> int | None:
        """The server's exit code; None while it runs."""
        ...

    def stop(self) -> None:
        """Stop the server, in order if possible."""
        ...


def store_main(slot: WorkerSlot, open_server: Callable[[Path], Server], refusal: type[Exception]) -> None:
    """Keep one server until the lifeline closes.

    Exits with 1 when the server cannot start (`refusal`) or ends by itself: the supervisor then starts another keeper.
    """
    # workers drain for minutes after SIGTERM and need the store to the end; the supervisor closes its lifeline after them
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server = open_server(Path(slot.run_dir))
    try:
        pid = server.start()
    except refusal as error:
        store_log.error("the counter store cannot be started", reason=str(error))
        raise SystemExit(1) from None
    slot.ready()
    store_log.info("counter store started", pid=pid)
    with contextlib.closing(selectors.DefaultSelector()) as waiting:
        watched = os.pidfd_open(pid)
        waiting.register(slot.lifeline, selectors.EVENT_READ)
        waiting.register(watched, selectors.EVENT_READ)
        waiting.select()
        os.close(watched)
    code = server.ended()
    if code is not None:
        store_log.error("the counter store ended by itself", exit_code=code)
        raise SystemExit(1)
    server.stop()


log = structlog.get_logger("tidegate.launch")


def launch(config: Path, settings: Settings, run_dir: Path | None, *, rehearse: bool = False, new_pepper: bool = False) -> int:
    """Serve until SIGTERM; returns the exit code. With `rehearse`, do everything that can fail before addresses are claimed, and end.

    Children read the settings file themselves, so that a rolling restart (SIGHUP) takes up a changed file; with a broken file
    the replacement does not get ready, and the old process stays. New code needs SIGUSR2 (`gateway.process.hot_restart`): children are
    forked from the modules that this process has imported, which saves each of them 30 MB.
    """
    configure_logs(settings.log.level, role="supervisor")

    def worker(slot: WorkerSlot) -> None:
        try:
            worker_main(slot, load_settings_again(config, os.environ, settings))
        except (ConfigError, SecretError, StoreError, VocabularyError) as error:
            # a changed file is wrong (after SIGHUP): one line, as at the start
            log.error("cannot serve with this configuration", worker=slot.index, reason=str(error))
            raise SystemExit(1) from None

    def admin(slot: WorkerSlot) -> None:
        configure_logs(settings.log.level, role="admin")
        try:
            # read again as workers do, so that SIGHUP takes up pools and the token here too
            current = load_settings_again(config, os.environ, settings)
            token = read_admin_token(current)
            pepper = read_pepper(current)
            hook_secrets = read_hook_secrets(current)
        except (ConfigError, SecretError) as error:
            log.error("cannot serve with this configuration", reason=str(error))
            raise SystemExit(1) from None

        def api(slot: WorkerSlot) -> AdminApiRun:
            run_of_api = api_run_for(current, slot, pepper, token, hook_secrets, check_again)
            run_of_api.routes = routes
            return run_of_api

        admin_main(
            slot,
            version=installed_version(),
            workers=settings.workers,
            pools=[PoolShown(pool.name, pool.model, pool.dialect, pool.usd_per_hour) for pool in current.pools],
            bookkeeper=lambda: bookkeeper_for(current),
            api=api,
        )

    def check_again(*, new_start: bool) -> None:
        # SIGUSR2 rehearses a start with new settings; only SIGHUP is bound to what the first process has read
        read_every_secret(load_settings(config, os.environ) if new_start else load_settings_again(config, os.environ, settings))

    def store(slot: WorkerSlot) -> None:
        configure_logs(settings.log.level, role="store")
        store_main(slot, lambda run_dir: embedded_server(settings, run_dir), CannotStartStore)

    if code := _prepare(settings, new_pepper=new_pepper):
        return code
    if rehearse:
        return 0
    routes = made_before_forking(installed_version())
    bounded_connections(settings.data.limits.max_connections, log, kept=kept_descriptors(settings))
    # everything is imported by now and exempt from collection, so that children share these pages with the parent
    gc.collect()
    gc.freeze()
    data = settings.data.bind_address
    administration = settings.admin.bind_address
    plan = ProcessPlan(
        data_host=data[0],
        data_port=data[1],
        admin_host=administration[0],
        admin_port=administration[1],
        workers=settings.workers,
        accept_s=settings.drain.accept_s,
        grace_s=settings.drain.grace_s,
        data_scheme="https" if settings.data.tls else "http",
    )
    try:
        embedded = store if settings.counter_url.kind is StoreKind.EMBEDDED else None
        return run(plan, worker, admin, embedded, clock=time.monotonic, rng=random.Random(), run_dir=run_dir, again=this_program())
    except CannotStart as error:
        print(f"tidegate: {error}", file=sys.stderr)
        return 1


def _prepare(settings: Settings, *, new_pepper: bool) -> int:
    """Load what children share, and bring the database's schema to this version.

    Returns:
        The exit code: 0, or 1 with the reason on stderr.
    """

    def migrated() -> int:
        try:
            asyncio.run(prepare_store(settings, new_pepper=new_pepper))
        except (ConfigError, SecretError, StoreError) as error:
            print(f"tidegate: {error}", file=sys.stderr)
            return 1
        return 0

    try:
        read_every_secret(settings, new_pepper=new_pepper)
        # loaded here, so that workers share the memory
        if settings.auth.jwt:
            importlib.import_module("jwt")
        vocabularies_for(settings)
        asyncio.run(guessed_vocabularies_for(settings))
        import_driver(settings)
    except (ConfigError, SecretError, StoreError, VocabularyError) as error:
        print(f"tidegate: {error}", file=sys.stderr)
        return 1
    # without garbage and frozen, so that the collector of the child does not write to what both have
    gc.collect()
    gc.freeze()
    # once, before the workers start, which only read the store; and apart, because what migrates is 8 MB that no process needs afterwards
    if code := run_apart(migrated):
        if code > 1:  # ended by a signal, so it has said nothing
            print(f"tidegate: the database was not prepared (exit {code})", file=sys.stderr)
        return 1
    return 0
