"""The assumed speeds of pools' engines where they were profiled: from the file that the pool names, else from the registry of models."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog

from domain.model_revisions import ModelRevisionStore, RevisionMissing
from gateway.config.load import Settings
from gateway.config.pools import PoolSettings
from routing.profile import EngineProfile, read_profile
from routing.rates import Rates

log = structlog.get_logger("tidegate.fleet")

READ_WITHIN_S: Final = 5.0
"""The longest wait of a starting worker for the registry; without an answer it assumes what it would without a profile."""


async def priors_for(settings: Settings, models: ModelRevisionStore) -> Mapping[str, Rates]:
    """The rates of the pools that were profiled, by pool; read when a worker starts, because engines are measured as they serve."""
    rates: dict[str, Rates] = {}
    for pool in settings.pools:
        if pool.profile is None and pool.pinned is None:
            continue
        profile = await _profile_of(pool, settings.base_dir, models)
        if profile is not None:
            rates[pool.name] = profile.prior
            log.info("profile", pool=pool.name, source=pool.profile or pool.reference, measured_unix=profile.measured_unix)
    return rates


async def _profile_of(pool: PoolSettings, folder: Path, models: ModelRevisionStore) -> EngineProfile | None:
    try:
        if pool.profile is not None:
            return read_profile(await asyncio.to_thread((folder / pool.profile).read_bytes))
        model, _, revision = pool.reference.rpartition("@")
        async with asyncio.timeout(READ_WITHIN_S):
            kept = (await models.get(model, revision)).profile
        return read_profile(kept) if kept else None
    except RevisionMissing:
        log.warning("the registry of models lacks the revision that a pool is pinned to", pool=pool.name, revision=pool.reference)
    except Exception as error:  # noqa: BLE001 - drivers raise their own; whatever it is, the pool serves without a profile
        log.warning("no profile", pool=pool.name, reason=f"{type(error).__name__}: {error}"[:200])
    return None
