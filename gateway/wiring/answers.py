"""Builds the answer cache of a worker: in memory, or in a Redis or Valkey that workers and gateways share."""

import time
from collections.abc import Awaitable, Callable
from functools import partial

from cache.answers import Sealer
from cache.stores.memory import MemoryAnswers
from cache.stores.valkey import TEXTS, ValkeyAnswers
from gateway.answers.cache import AnswerCache, cache_secret, digest_of_user
from gateway.config.load import Settings
from tenancy.counter_url import parse_counter_url
from tenancy.keys import Pepper
from tenancy.ports import CountersAway
from tenancy.stores.valkey.client import ValkeyScripts

START_S = 2.0
"""How long a worker waits for the shared store before it begins without it."""


def answers_in_memory(settings: Settings, pepper: Pepper) -> AnswerCache:
    """A cache of one worker's own."""
    share = settings.cache.memory_bytes // settings.workers
    return AnswerCache(MemoryAnswers(share), time.time, partial(digest_of_user, cache_secret(pepper)))


async def answers_for(settings: Settings, pepper: Pepper) -> tuple[AnswerCache, Callable[[], Awaitable[None]]]:
    """The cache that the settings name, and what ends its connections."""
    if settings.cache.store is None:
        return answers_in_memory(settings, pepper), _nothing
    scripts = ValkeyScripts(parse_counter_url(settings.cache.store), TEXTS)
    await scripts.start(START_S)
    secret = cache_secret(pepper)
    store = ValkeyAnswers(scripts, CountersAway, Sealer(secret), settings.cache.store_bytes_per_owner, time.monotonic)
    return AnswerCache(store, time.time, partial(digest_of_user, secret)), scripts.close


async def shared_store_answer(settings: Settings) -> str | None:
    """None when the shared store of answers can be used from here or none is named, else the reason."""
    if settings.cache.store is None:
        return None
    scripts = ValkeyScripts(parse_counter_url(settings.cache.store), TEXTS)
    try:
        return None if await scripts.start() else scripts.why
    finally:
        await scripts.close()


async def _nothing() -> None:
    return
