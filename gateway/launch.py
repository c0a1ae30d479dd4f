"""Assembles `tidegate serve`: the supervisor's plan from the settings, and the entries of its children."""

import asyncio
import gc
import os
import random
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import structlog

from gateway.admin_wiring import api_run_for
from gateway.counter_wiring import CannotStartStore, embedded_server
from gateway.embedded_store import store_main
from gateway.http.admin import PoolShown, admin_main
from gateway.renewal import this_program
from gateway.secrets import SecretError, read_admin_token, read_hook_secret, read_pepper, read_reference
from gateway.settings import ConfigError, Settings, load_settings_again
from gateway.store_wiring import StoreError, bookkeeper_for, prepare_store
from gateway.supervisor import CannotStart, Plan, Seat, run
from gateway.telemetry.logs import configure_logs
from gateway.wiring import VocabularyError, vocabularies_for
from gateway.worker import worker_main
from tenancy.counter_url import StoreKind

log = structlog.get_logger("tidegate.launch")


def installed_version() -> str:
    """Tidegate's version, or "unknown" when it runs from a checkout that was never installed."""
    try:
        return version("tidegate")
    except PackageNotFoundError:
        return "unknown"


def launch(config: Path, settings: Settings, run_dir: Path | None, *, rehearse: bool = False) -> int:
    """Serve until SIGTERM; returns the exit code. With `rehearse`, do everything that can fail before addresses are claimed, and end.

    Children read the settings file themselves, so that a rolling restart (SIGHUP) takes up a changed file; with a broken file
    the replacement does not get ready, and the old process stays. New code needs SIGUSR2 (`gateway.renewal`): children are
    forked from the modules that this process has imported, which saves each of them 30 MB.
    """
    configure_logs(settings.log.level, role="supervisor")

    def worker(seat: Seat) -> None:
        try:
            worker_main(seat, load_settings_again(config, os.environ, settings))
        except (ConfigError, SecretError, StoreError, VocabularyError) as error:
            # a changed file is wrong (after SIGHUP): one line, as at the start
            log.error("cannot serve with this configuration", worker=seat.index, reason=str(error))
            raise SystemExit(1) from None

    def admin(seat: Seat) -> None:
        configure_logs(settings.log.level, role="admin")
        try:
            # read again as workers do, so that SIGHUP takes up pools and the token here too
            current = load_settings_again(config, os.environ, settings)
            token = read_admin_token(current)
            pepper = read_pepper(current)
            hook_secret = read_hook_secret(current)
        except (ConfigError, SecretError) as error:
            log.error("cannot serve with this configuration", reason=str(error))
            raise SystemExit(1) from None
        admin_main(
            seat,
            version=installed_version(),
            workers=settings.workers,
            pools=[PoolShown(pool.name, pool.model, pool.dialect) for pool in current.pools],
            bookkeeper=lambda: bookkeeper_for(current),
            api=lambda seat: api_run_for(current, seat, pepper, token, hook_secret),
        )

    def store(seat: Seat) -> None:
        configure_logs(settings.log.level, role="store")
        store_main(seat, lambda run_dir: embedded_server(settings, run_dir), CannotStartStore)

    try:
        # once, before the workers start: they only read the store, and migrating would cost each of them memory for good
        read_pepper(settings)
        read_admin_token(settings)
        read_hook_secret(settings)
        for pool in settings.pools:
            if pool.api_key is not None:
                read_reference(pool.api_key, settings.base_dir, os.environ)
        vocabularies_for(settings)  # loaded here, so that workers share the memory
        asyncio.run(prepare_store(settings))
    except (ConfigError, SecretError, StoreError, VocabularyError) as error:
        print(f"tidegate: {error}", file=sys.stderr)
        return 1
    if rehearse:
        return 0
    # everything is imported by now and exempt from collection, so that children share these pages with the parent
    gc.collect()
    gc.freeze()
    data = settings.data.bind_address
    administration = settings.admin.bind_address
    plan = Plan(
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
