"""Counts the tokens of prompts for reservations, without blocking the event loop for more than a millisecond."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Final

from domain.ask import Ask
from gateway.prompt.chat_template import NotText, without_images
from gateway.prompt.vocabulary import ModelVocabulary, Vocabulary
from tenancy.estimate import MEDIA_TOKENS, prompt_bound

BUDGET_S: Final = 0.02
"""Longest wait of a request for everything that is made of its prompt beside the loop: its count for limits and its reading for placement
share it. After it the bytes bound the prompt."""
SLOW_BYTES: Final = 128 * 1024
"""From this size on, to take images out takes more than a millisecond."""
MAX_REMEMBERED: Final = 4096
"""Most counts kept: a request that is refused often comes again."""

_Key = tuple[str, str, bytes]
"""Pool, scope, and a digest of the request."""


class PromptCounts:
    """Counts the prompts of pools that have a tokenizer, and remembers the counts by scope, so that no tenant learns from the time of a
    request what another tenant has sent.

    Args:
        vocabularies: the vocabularies by pool name.
        executor: runs the counting of long prompts.
        image_tokens: most tokens of one image by pool name, where the settings have it.
    """

    def __init__(
        self,
        vocabularies: Mapping[str, Vocabulary],
        executor: Executor,
        loop: asyncio.AbstractEventLoop,
        image_tokens: Mapping[str, int] | None = None,
    ) -> None:
        self.pools = frozenset((*vocabularies, *(image_tokens or ())))
        """The pools whose prompts are counted; in any other one only token ids are."""
        self._exact = frozenset([pool for pool, known in vocabularies.items() if isinstance(known, ModelVocabulary)])
        self._vocabularies = vocabularies
        self._image_tokens = image_tokens or {}
        self._executor = executor
        self._loop = loop
        self._known: OrderedDict[_Key, int | None] = OrderedDict()

    def exact(self, ask: Ask, pool: str) -> bool:
        """Whether a count of this prompt is the engine's own number, and not from above."""
        return pool in self._exact and not ask.media and ask.token_ids is None and "suffix" not in ask.names

    async def count(self, ask: Ask, pool: str, scope: str = "", *, wait_s: float = BUDGET_S) -> int | None:
        """Tokens of the prompt, exact or from above; None where no count is made in time.

        Args:
            scope: as in Vocabulary.
            wait_s: the rest of the request's `BUDGET_S`.
        """
        if ask.token_ids is not None:
            return ask.token_ids
        if pool not in self.pools:
            return None
        vocabulary, image_tokens = self._vocabularies.get(pool), self._image_tokens.get(pool)
        key = (pool, scope, hashlib.blake2b(ask.fields, digest_size=16).digest())
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        if ask.prompt_bytes < (vocabulary.slow_bytes if vocabulary is not None else SLOW_BYTES):
            return self._remember(key, _counted(vocabulary, image_tokens, ask, scope))
        counting = self._loop.run_in_executor(self._executor, _counted, vocabulary, image_tokens, ask, scope)
        try:
            return self._remember(key, await asyncio.wait_for(asyncio.shield(counting), wait_s))
        except TimeoutError:
            # the count goes on, so that the same request finds it the next time
            counting.add_done_callback(lambda done: self._late(key, done))
            return None

    def _late(self, key: _Key, done: "asyncio.Future[int | None]") -> None:
        if not done.cancelled() and done.exception() is None:
            self._remember(key, done.result())

    def _remember(self, key: _Key, count: int | None) -> int | None:
        self._known[key] = count
        if len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
        return count


def _counted(vocabulary: Vocabulary | None, image_tokens: int | None, ask: Ask, scope: str) -> int | None:
    images = 0
    if image_tokens is not None:
        ask, image_count = without_images(ask)
        images = image_count * image_tokens
    try:
        if vocabulary is not None:
            return vocabulary.count(ask, scope) + images + ask.media * MEDIA_TOKENS
    except NotText:
        pass
    return prompt_bound(ask) + images if images else None
