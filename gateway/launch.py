"""Joins the parts of `tidegate serve`: settings to a plan for the supervisor, and what its children run."""

import asyncio
import gc
import os
import random
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import structlog

from gateway.fleet.wiring import registry_for
from gateway.http.admin import PoolShown, admin_main
from gateway.secrets import SecretError, read_admin_token, read_pepper, read_reference
from gateway.settings import ConfigError, Settings, load_settings
from gateway.supervisor import CannotStart, Plan, Seat, run
from gateway.telemetry.logs import configure_logs
from gateway.wiring import StoreError, prepare_store
from gateway.worker import worker_main

log = structlog.get_logger("tidegate.launch")


def installed_version() -> str:
    """Tidegate's version, or "unknown" when it runs from a checkout that was never installed."""
    try:
        return version("tidegate")
    except PackageNotFoundError:
        return "unknown"


def launch(config: Path, settings: Settings, run_dir: Path | None) -> int:
    """Serve until SIGTERM; returns the exit code.

    Children read the settings file themselves, so that a rolling restart (SIGHUP) takes up a changed one; a broken one
    keeps the replacement from getting ready, and the old process stays. New code needs a new start: children are forked from
    what this process has imported, which saves each of them 30 MB.
    """
    configure_logs(settings.log.level, role="supervisor")

    def worker(seat: Seat) -> None:
        try:
            worker_main(seat, load_settings(config, os.environ))
        except (ConfigError, SecretError, StoreError) as error:
            # after SIGHUP: a changed file is wrong; one line, as at the start
            log.error("cannot serve with this configuration", worker=seat.index, reason=str(error))
            raise SystemExit(1) from None

    def admin(seat: Seat) -> None:
        configure_logs(settings.log.level, role="admin")
        try:
            # read anew as workers do, so that SIGHUP takes up pools and the token here too
            current = load_settings(config, os.environ)
            token = read_admin_token(current)
        except (ConfigError, SecretError) as error:
            log.error("cannot serve with this configuration", reason=str(error))
            raise SystemExit(1) from None
        admin_main(
            seat,
            version=installed_version(),
            workers=settings.workers,
            registry=lambda seat: registry_for(current, seat),
            token=token,
            pools=[PoolShown(pool.name, pool.model, pool.dialect) for pool in current.pools],
        )

    try:
        # once, before there are workers: they only read, and migrating would cost each of them memory for good
        read_pepper(settings)
        read_admin_token(settings)
        for pool in settings.pools:
            if pool.api_key is not None:
                read_reference(pool.api_key, settings.base_dir, os.environ)
        asyncio.run(prepare_store(settings))
    except (SecretError, StoreError) as error:
        print(f"tidegate: {error}", file=sys.stderr)
        return 1
    # everything is imported by now and never collected again, so that children share these pages with the parent
    gc.collect()
    gc.freeze()
    data, administration = settings.data.bind_address, settings.admin.bind_address
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
        return run(plan, worker, admin, clock=time.monotonic, rng=random.Random(), run_dir=run_dir)
    except CannotStart as error:
        print(f"tidegate: {error}", file=sys.stderr)
        return 1
