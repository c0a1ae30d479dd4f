"""From a request to what the router needs of its prompt: a chain of prefix hashes and a number of tokens.

With the served model's tokenizer the chain is over the token ids that the engine will make, block for block; without it, or where a prompt
holds more than text, over the prompt's bytes (`gateway.prompt_bytes`). Nothing here holds up the loop for more than a millisecond.
"""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Final

import msgspec

from domain.ask import Ask
from gateway.prompt_bytes import PromptBytes, prompt_bytes
from gateway.tokenizers.chat_form import Unreadable
from gateway.tokenizers.prompt_counts import BUDGET_S, PromptCounts
from gateway.tokenizers.reading import Reading
from gateway.tokenizers.vocabulary import ModelVocabulary, Vocabulary
from routing.chain import BLOCK_BYTES, BLOCK_TOKENS, TOKEN_BYTES
from routing.lazy_chain import LazyChain

SLOW_BYTES: Final = 512 * 1024
"""From this size on cutting a request's prompt out of it takes half a millisecond, with media in it a few."""
SLOW_IDS_BYTES: Final = 128 * 1024
"""The same for prompts outside of chats, which may be token ids, one number after the other."""
MAX_UNDER_WAY: Final = 256
"""Prompts being tokenised beside the loop or waiting for it; another one is told by its bytes."""
MIN_PARTIAL_TOKENS: Final = 1024
"""A prompt of which less was tokenised in time is told by its bytes: the same prompt sent often at once is found by them."""
PRIOR: Final = (4000.0, 1000.0)
"""Bytes and their tokens, taken as seen before an engine has told of any: usual for English and code."""
REMEMBERED: Final = 0.99
"""Of earlier prompts' bytes and tokens, at each further one."""


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """What the router knows of a prompt."""

    tokens: int
    """Of all prompts in the request; an estimate where `counted` is False."""
    chain: Sequence[int]
    """A hash for each whole block of the first prompt, or as far as it was tokenised in time; hashed as far as it is looked at."""
    block_tokens: int
    """Tokens for one element of `chain`."""
    template: int
    """Keyed hash of what is written in front of the messages (the opening system message, tools): the same for requests that one program
    makes. 0 where there is nothing."""
    counted: bool = False
    """Whether the tokens were counted with the model's own tokenizer."""
    late: bool = False
    """Whether the tokenizer took too long; it goes on, and the same prompt is there sooner when it comes again."""
    text_bytes: int = 0
    """What `tokens` was estimated from."""


class Prompts:
    """Reads prompts for the router.

    Args:
        vocabularies: by pool name; those that are a served model's own give token ids.
        executor: where long prompts are read.
        counts: where prompts are counted whose ids nobody here can tell.
        image_tokens: most tokens of one image, by pool name, where the settings say it.
    """

    def __init__(
        self,
        vocabularies: Mapping[str, Vocabulary],
        executor: Executor,
        loop: asyncio.AbstractEventLoop,
        counts: PromptCounts,
        image_tokens: Mapping[str, int] | None = None,
    ) -> None:
        self._own = {pool: one for pool, one in vocabularies.items() if isinstance(one, ModelVocabulary)}
        self._executor = executor
        self._loop = loop
        self._counts = counts
        self._image_tokens = image_tokens or {}
        self._under_way: dict[tuple[str, str, bytes, bytes], tuple[asyncio.Future[None], Reading]] = {}
        self._ratios: dict[str, tuple[float, float]] = {}

    def tokens_of(self, pool: str) -> bool:
        """Whether prompts of this pool are read as the engine's own tokens."""
        return pool in self._own

    async def read(self, ask: Ask, pool: str, root: int, scope: str) -> Prompt:
        """What the router needs of this request. Waits at most `prompt_counts.BUDGET_S` for a long prompt to be tokenised.

        Args:
            root: of the chain (`routing.chain.root`).
            scope: whose cached work may be used: the tenant, or the group it shares cached prefixes with.
        """
        if len(ask.fields) < (SLOW_BYTES if ask.endpoint.has_messages else SLOW_IDS_BYTES):
            shape = prompt_bytes(ask)
        else:
            shape = await self._loop.run_in_executor(self._executor, prompt_bytes, ask)
        template = hash((root, shape.frame, shape.opening)) if shape.frame or shape.opening else 0
        own = self._own.get(pool)
        reading = await self._reading(own, ask, shape, pool, scope) if own is not None else None
        if reading is None or not (reading.whole or reading.tokens >= MIN_PARTIAL_TOKENS):
            return self._by_bytes(shape, pool, root, template, late=reading is not None)
        chain = LazyChain(root, reading.ids().tobytes(), BLOCK_TOKENS * TOKEN_BYTES) if shape.shared else ()
        if reading.whole:
            return Prompt(reading.tokens, chain, BLOCK_TOKENS, template, counted=True)
        estimate = max(reading.tokens, self._estimate(pool, shape.size))
        return Prompt(estimate, chain, BLOCK_TOKENS, template, late=True, text_bytes=shape.size)

    async def count(self, prompt: Prompt, ask: Ask, pool: str, scope: str) -> int | None:
        """Tokens of the prompt for a reservation, exact or from above, without tokenising it twice; None when nobody can say in time."""
        if prompt.counted:
            return prompt.tokens
        return None if prompt.late else await self._counts.count(ask, pool, scope)

    def learn(self, prompt: Prompt, pool: str, tokens: int) -> None:
        """The engine says how many tokens a prompt had: what later estimates are made from."""
        if prompt.text_bytes and tokens:
            size, many = self._ratios.get(pool, PRIOR)
            self._ratios[pool] = (REMEMBERED * size + prompt.text_bytes, REMEMBERED * many + tokens)

    def _by_bytes(self, shape: PromptBytes, pool: str, root: int, template: int, *, late: bool) -> Prompt:
        if shape.ids:
            chain = LazyChain(root, shape.ids.tobytes(), BLOCK_TOKENS * TOKEN_BYTES) if shape.shared else ()
            return Prompt(shape.tokens, chain, BLOCK_TOKENS, template, counted=True, late=late)
        chain = LazyChain(hash((root, shape.frame)) if shape.frame else root, shape.text, BLOCK_BYTES) if shape.shared else ()
        tokens = self._estimate(pool, shape.size) + shape.media * self._image_tokens.get(pool, 0)
        # what media come to is the settings' word, so nothing about text is learned from them
        learned_from = 0 if shape.media else shape.size
        block_tokens = max(1, self._estimate(pool, BLOCK_BYTES))
        return Prompt(tokens, chain, block_tokens, template, late=late, text_bytes=learned_from)

    def _estimate(self, pool: str, size: int) -> int:
        seen, tokens = self._ratios.get(pool, PRIOR)
        return round(size * tokens / seen)

    async def _reading(self, own: ModelVocabulary, ask: Ask, shape: PromptBytes, pool: str, scope: str) -> Reading | None:
        """The prompt's ids, as many as are there in time; None where it holds more than text."""
        try:
            if ask.prompt_bytes < own.slow_bytes:
                reading = Reading()
                own.read(ask, scope, reading)
                return reading
            key = (pool, scope, shape.frame, ask.prompt)
            found = self._under_way.get(key)
            if found is None:
                if len(self._under_way) >= MAX_UNDER_WAY:
                    return Reading()
                reading = Reading()
                job = self._loop.run_in_executor(self._executor, own.read, ask, scope, reading)
                found = self._under_way[key] = (job, reading)
                job.add_done_callback(lambda done: self._done(key, done))
            await asyncio.wait((found[0],), timeout=BUDGET_S)
            if found[0].done():
                found[0].result()
            return found[1]
        except Unreadable:
            return None

    def _done(self, key: tuple[str, str, bytes, bytes], job: "asyncio.Future[None]") -> None:
        self._under_way.pop(key, None)
        if not job.cancelled():
            job.exception()  # whoever waits for it gets it; without this line asyncio complains where nobody does
