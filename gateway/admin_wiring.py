"""Builds the collaborators of the admin API; called in the admin process, inside its event loop."""

import asyncio
import secrets
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import structlog

from backends.clients.endpoint import endpoint
from backends.clients.http1 import RelayUpstream
from backends.fetch import fetch
from domain.membership import Owner
from gateway.admin_books import Books, id_of, text_of
from gateway.admin_holders import Holders
from gateway.counter_wiring import CounterView
from gateway.fleet.seen import fleet_seen
from gateway.fleet.wiring import registry_for
from gateway.http.admin_api import Parts
from gateway.http.admin_api.call import DatabasePolicies
from gateway.http.admin_api.principal import Authenticator
from gateway.placing.explaining import WorkersExplain
from gateway.policy_copy import PolicyCopy, compiled_from
from gateway.policy_watch import WorkersReload
from gateway.rollouts.hook import HookCounts, RolloutHook
from gateway.rollouts.keeper import RolloutKeeper
from gateway.settings import Settings
from gateway.store_wiring import directory_watch_for, stores_on
from gateway.supervisor import Seat
from gateway.telemetry.rollout_gauges import RolloutFigures
from gateway.token_wiring import token_gate_for
from gateway.worker_link import collect
from policies.prompts.folder import names_in
from tenancy.accounts import Contents
from tenancy.directory import Directory
from tenancy.jwt import JwtOutcome
from tenancy.keys import Pepper
from tenancy.stores.sql import SqlJournal, SqlPolicyVersions, SqlRolloutStore, SqlUsageQueries, open_engine

SEEN_WITHIN_S: Final = 0.5
"""Longest wait for a worker's list of backends."""

HOOK_WITHIN_S: Final = 5.0
"""Longest wait for the answer of a webhook's receiver."""
MAX_HOOK_ANSWER_BYTES: Final = 65_536
HOOK_ID: Final = "tidegate-rollout"
"""The request id that receivers of a webhook see."""

log = structlog.get_logger("tidegate.admin")


class ApiRun:
    """The admin API's collaborators and their background loops; keys and tokens are as fresh as on the data port."""

    def __init__(self, settings: Settings, seat: Seat, pepper: Pepper, token: str | None, hook_secret: bytes | None) -> None:
        engine = open_engine(settings.sql_url)
        journal = SqlJournal(engine, time.time)
        books = Books(journal)
        self._watch = directory_watch_for(settings, stores_on(engine), pepper)
        self._counters = CounterView(settings, Path(seat.run_dir))
        self._run_dir = Path(seat.run_dir)
        self._settings = settings
        self._copy = PolicyCopy(settings.policies_copy, SqlPolicyVersions(engine)) if settings.policies_from == "database" else None
        self._holders = Holders(Directory(Contents(), pepper), lambda: self._watch.believes_admins)
        self._hook = _hook_for(settings, hook_secret)
        announce = self._hook.tell if self._hook is not None else _no_hook
        self._keeper = RolloutKeeper(SqlRolloutStore(engine), books.change, time.time, time.monotonic, announce)
        self.parts = Parts(
            authenticator=Authenticator(token, self._holders, time.monotonic, time.time),
            change=books.change,
            reading=books.reading,
            audit=journal,
            pepper=pepper,
            id_of=id_of,
            text_of=text_of,
            entropy=secrets.token_bytes,
            wall=time.time,
            registry=registry_for(settings, seat),
            seen=self._seen,
            limit_states=self._counters.look,
            usage=SqlUsageQueries(engine),
            adapters=[{"pool": p.name, "name": lora.name, "digest": lora.digest} for p in settings.pools for lora in p.loras],
            bounds=settings.tenants.bounds(),
            explaining=WorkersExplain(Path(seat.run_dir)),
            reloading=WorkersReload(Path(seat.run_dir)),
            rollouts=books.rollouts,
            prompts=lambda: names_in(settings.prompts_dir),
            pools={pool.name: [lora.name for lora in pool.loras] for pool in settings.pools},
            announce=announce,
            policies=self._database_policies(books),
        )

    async def run(self) -> None:
        """Run the background loops until cancelled; keys with roles are known after the first refresh of the directory."""
        await self._counters.start()
        await self._watch.refresh(self._holders)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch.run(self._holders))
            group.create_task(self._keeper.run())
            if self._hook is not None:
                group.create_task(self._hook.run())
            if self._copy is not None:
                group.create_task(self._copy.run())
            # started after the loops above, which keep keys current while issuers are slow to answer
            self._holders.tokens = await token_gate_for(self._settings, _log_token, self._run_dir)
            for loop in self._holders.tokens.loops() if self._holders.tokens is not None else ():
                group.create_task(loop)

    def rollouts(self) -> RolloutFigures:
        """The state of rollouts and of the webhook, for metrics."""
        return RolloutFigures(self._keeper.state, HookCounts() if self._hook is None else self._hook.counts)

    async def close(self) -> None:
        """Close the connections to the database and the counters."""
        await self._counters.close()
        await self._watch.close()

    def _database_policies(self, books: Books) -> DatabasePolicies | None:
        if self._copy is None:
            return None
        targets = (*self._settings.policy_targets, self._settings.prompts_dir)
        return DatabasePolicies(books.policies, lambda files: compiled_from(files, *targets), self._copy.look)

    async def _seen(self) -> Mapping[str, Owner]:
        snapshots = await collect(self._run_dir, SEEN_WITHIN_S, with_metrics=False)
        return {b.backend: b.source for b in fleet_seen(snapshots) if b.source}


def _no_hook(_message: Mapping[str, object]) -> None:
    """Drop the message: no webhook is configured."""


def _hook_for(settings: Settings, secret: bytes | None) -> RolloutHook | None:
    webhook = settings.rollouts.webhook
    return None if webhook is None or secret is None else RolloutHook(partial(post_message, webhook.url), secret, time.time)


async def post_message(url: str, body: bytes, headers: Mapping[str, str]) -> int:
    """Post a message to the webhook of the settings, on a connection of its own because it is needed a few times a day.

    Returns:
        The HTTP status of the answer.

    Raises:
        FetchError: no answer came within `HOOK_WITHIN_S`.
    """
    parts = urlsplit(url)
    target = endpoint(f"{parts.scheme}://{parts.netloc}", headers=tuple(headers.items()))
    upstream = RelayUpstream(target, time.monotonic, asyncio.get_running_loop())
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        answered = await fetch(upstream, path, timeout_s=HOOK_WITHIN_S, max_bytes=MAX_HOOK_ANSWER_BYTES, body=body, request_id=HOOK_ID)
    finally:
        await upstream.close()
    return answered.status


def _log_token(issuer: str, outcome: JwtOutcome) -> None:
    log.debug("token", issuer=issuer, outcome=outcome.value)


def api_run_for(settings: Settings, seat: Seat, pepper: Pepper, token: str | None, hook_secret: bytes | None) -> ApiRun:
    """The admin API of this process."""
    return ApiRun(settings, seat, pepper, token, hook_secret)
