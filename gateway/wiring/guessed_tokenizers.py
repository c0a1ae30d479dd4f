"""Finds tokenizers for pools that name none and whose engines publish KV events, which mean nothing without token ids.

An engine's own word comes first: the folder from which it says that it took its model, where this machine has that folder. Else the pool's
model name is looked for (`gateway/prompt/find_tokenizer.py`). Both are guesses: the files may have changed since the engine read them, or
be others under the same name. So a guessed tokenizer gives blocks for the prefix index and never a count, and no hold becomes lower.

Engines are asked before the gateway forks its workers, which then share the memory of the tokenizers, and by each worker before it serves:
an engine that was away at the start is asked again by the workers of the next reload. A tokenizer is not loaded while a worker serves,
because that would hold up its requests for half a second.
"""

import asyncio
import os
import time
from pathlib import Path
from typing import Final

import structlog

from backends.clients.endpoint import endpoint
from backends.clients.http1 import RelayUpstream
from backends.fetch import FetchError, fetch
from backends.launch.engine_facts import MODEL_PATH, model_paths
from backends.ports import EngineTls
from gateway.config.load import Settings
from gateway.config.pools import BackendSettings, PoolSettings
from gateway.config.secrets import read_reference
from gateway.config.trust import TlsFiles, engine_context
from gateway.prompt.find_tokenizer import found_tokenizer
from gateway.prompt.vocabulary import Vocabulary, VocabularyError, load_vocabulary

ASK_WITHIN_S: Final = 2.0
"""Time for the engines of a pool to answer, as for a poll. Engines that are away refuse at once, so that a start rarely takes so long."""
MAX_REPLY_BYTES: Final = 1024 * 1024
"""Largest reply read; vLLM's model list has 1 KB, SGLang's `/server_info` 60 KB."""

log = structlog.get_logger("tidegate.prompts")


async def guessed_vocabularies_for(settings: Settings) -> dict[str, Vocabulary]:
    """The tokenizers by pool name. One that cannot be loaded is left out; `tidegate check` names it."""
    pools = [pool for pool in settings.pools if pool.tokenizer is None and any(backend.kv_events for backend in pool.backends)]
    folders = await asyncio.gather(*(_folder_of(pool, settings) for pool in pools))
    vocabularies: dict[str, Vocabulary] = {}
    for pool, folder in zip(pools, folders, strict=True):
        if folder is not None:
            try:
                vocabularies[pool.name] = load_vocabulary(str(folder), settings.base_dir, time.strftime, pool.efforts)
            except VocabularyError as error:
                log.warning("a tokenizer that was found cannot be loaded", pool=pool.name, reason=str(error))
    return vocabularies


async def _folder_of(pool: PoolSettings, settings: Settings) -> Path | None:
    """The folder on this machine with the tokenizer of a pool, as its engines say or by the name of its model; None for none."""
    try:
        async with asyncio.timeout(ASK_WITHIN_S):
            for backend in pool.backends:
                for told in await _told(pool, backend, settings):
                    folder = found_tokenizer(told, pool.revision, os.environ, Path.home())
                    if folder is not None:
                        return folder
    except TimeoutError:
        pass
    return found_tokenizer(pool.model, pool.revision, os.environ, Path.home())


async def _told(pool: PoolSettings, backend: BackendSettings, settings: Settings) -> tuple[str, ...]:
    """Where an engine says that its model is; nothing for an engine that is away, or of a kind that does not say it."""
    path = MODEL_PATH.get(pool.dialect)
    if path is None:
        return ()
    key = None if pool.api_key is None else f"Bearer {read_reference(pool.api_key, settings.base_dir, os.environ)}"
    tls = None if pool.tls is None else EngineTls(engine_context(TlsFiles.of(pool.tls, settings.base_dir)))
    target = endpoint(backend.url, authorization=key, connect_timeout_s=settings.engines.connect_timeout_s, tls=tls)
    upstream = RelayUpstream(target, time.monotonic, asyncio.get_running_loop())
    try:
        reply = await fetch(upstream, path, timeout_s=ASK_WITHIN_S, max_bytes=MAX_REPLY_BYTES)
    except FetchError:
        return ()
    finally:
        await upstream.close()
    return model_paths(pool.dialect, {path: reply.body}) if reply.status == 200 else ()
