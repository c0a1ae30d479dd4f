"""Tenants with a key each, written straight into a new gateway's store: the command line takes a second for each of them."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from domain.identity import TenantId
from gateway.config.load import load_settings
from gateway.config.read_secrets import read_pepper
from tenancy.accounts import DEFAULT_PROJECT, Tenant
from tenancy.directory_ports import EVERYWHERE
from tenancy.keys import ENTROPY_BYTES, KeyRecord, digest_of, mint
from tenancy.limits import Limit
from tenancy.stores.sql import SqlDirectory, migrate, open_engine


def store(settings_file: Path, tenants: Sequence[str], limits: Sequence[Limit] = ()) -> list[str]:
    """Make the store of these settings, with these tenants and limits; returns a key for each tenant."""
    return asyncio.run(_store(settings_file, tenants, limits))


async def _store(settings_file: Path, tenants: Sequence[str], limits: Sequence[Limit]) -> list[str]:
    settings = load_settings(settings_file)
    pepper, keys = read_pepper(settings), []
    engine = open_engine(settings.sql_url)
    try:
        await migrate(engine)
        async with SqlDirectory(engine).transaction() as change:
            for name in tenants:
                await change.tenants.create(Tenant(TenantId(name)))
                minted = mint("live", os.urandom(ENTROPY_BYTES))
                digests = (digest_of(pepper.secret, minted.secret),)
                await change.keys.create(EVERYWHERE, KeyRecord(minted.id, TenantId(name), DEFAULT_PROJECT, pepper.kid, digests))
                keys.append(minted.text)
            for limit in limits:
                await change.limits.put(EVERYWHERE, limit, 0)
    finally:
        await engine.dispose()
    return keys
