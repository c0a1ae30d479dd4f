"""The prompt as the router sees it: a chain of prefix hashes and a number of tokens.

With the served model's tokenizer the chain is over the token ids that the engine will make, block for block; without the tokenizer, or
where a prompt holds media, over the prompt's bytes (`gateway.prompt.text`). Nothing here blocks the event loop for over a millisecond.
"""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Final

import msgspec

from domain.ask import Ask
from gateway.prompt.chat_template import NotText
from gateway.prompt.count import BUDGET_S
from gateway.prompt.text import PromptBytes, prompt_bytes
from gateway.prompt.vocabulary import ModelVocabulary, TokenReading, Vocabulary
from routing.prefix.chain import BLOCK_BYTES, BLOCK_TOKENS, STRIDE, TOKEN_BYTES, LazyChain, hash_after, of_text

SLOW_BYTES: Final = 512 * 1024
"""From this size on, to cut the prompt out of a request takes half a millisecond, and a few milliseconds with media."""
SLOW_IDS_BYTES: Final = 128 * 1024
"""The bound of `SLOW_BYTES` for prompts outside of chats, which may be token ids, one number after the other."""
MAX_UNDER_WAY: Final = 256
"""Most prompts that are tokenised beside the loop or wait for it; the router recognises a further one by its bytes."""
MIN_PARTIAL_TOKENS: Final = 1024
"""Least tokens made in time for a chain over them; the router recognises a shorter beginning by its bytes, so that one prompt sent many
times at once is found."""
SHORT_BYTES: Final = (STRIDE + 1) * BLOCK_BYTES - 1
"""Longest text whose chain is made at once: `LazyChain` would hash `STRIDE` blocks together as soon as it is looked at."""
PRIOR: Final = (4000.0, 1000.0)
"""Bytes and their tokens that count as seen before an engine has reported any: usual for English and code."""
REMEMBERED: Final = 0.99
"""Weight of the bytes and tokens of earlier prompts, at each further prompt."""


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """A prompt as the router sees it."""

    tokens: int
    """Tokens of all prompts in the request; an estimate where `counted` is False."""
    chain: Sequence[int]
    """A hash for each whole block of the first prompt, as far as it was tokenised in time; made only as far as it is looked at."""
    block_tokens: int
    """Tokens of one element of `chain`."""
    template: int
    """Keyed hash of the text in front of the messages (the opening system message, tools), which is the same for all requests of one
    program; 0 where there is none."""
    counted: bool = False
    """Whether the tokens were counted with the model's own tokenizer."""
    late: bool = False
    """Whether the tokenizer took too long. It goes on, so that the same prompt is ready sooner the next time."""
    text_bytes: int = 0
    """The bytes of text from which `tokens` was estimated."""
    by_tokens: bool = True
    """Whether `chain` is over token ids; otherwise it is over bytes, and no engine's events tell of its blocks."""


class Prompts:
    """Reads prompts for the router.

    Args:
        vocabularies: the vocabularies by pool name; a `ModelVocabulary` gives token ids.
        executor: runs the reading of long prompts.
        image_tokens: most tokens of one image by pool name, where the settings have it.
        guessed: vocabularies that were found and not configured, by pool name. They give blocks, and no count: the bytes stay the bound.
    """

    def __init__(
        self,
        vocabularies: Mapping[str, Vocabulary],
        executor: Executor,
        loop: asyncio.AbstractEventLoop,
        image_tokens: Mapping[str, int] | None = None,
        guessed: Mapping[str, Vocabulary] | None = None,
    ) -> None:
        known = {**(guessed or {}), **vocabularies}
        self._model_vocabularies = {pool: vocabulary for pool, vocabulary in known.items() if isinstance(vocabulary, ModelVocabulary)}
        self._configured = frozenset(vocabularies)
        self._executor = executor
        self._loop = loop
        self._image_tokens = image_tokens or {}
        self._under_way: dict[tuple[str, str, bytes, bytes], tuple[asyncio.Future[None], TokenReading]] = {}
        self._ratios: dict[str, tuple[float, float]] = {}

    def tokens_of(self, pool: str) -> bool:
        """Whether prompts of this pool are read as the engine's own tokens."""
        return pool in self._model_vocabularies

    async def read(self, ask: Ask, pool: str, root: int, scope: str, *, wait_s: float = BUDGET_S) -> Prompt:
        """The prompt of a request. A long prompt is tokenised for as long as `wait_s` lasts.

        Args:
            root: the root of the chain (`routing.prefix.chain.root`).
            scope: the tenant, or its group that shares cached prefixes; cached work of other scopes is not used.
            wait_s: the rest of the request's `BUDGET_S`; the time to extract the text of a long prompt counts, too.
        """
        if len(ask.fields) < (SLOW_BYTES if ask.endpoint.has_messages else SLOW_IDS_BYTES):
            parts = prompt_bytes(ask)
        else:
            begun = self._loop.time()
            parts = await self._loop.run_in_executor(self._executor, prompt_bytes, ask)
            wait_s = max(0.0, wait_s - (self._loop.time() - begun))
        framed = hash_after(root, parts.frame) if parts.frame else root
        template = hash_after(framed, parts.opening) if parts.frame or parts.opening else 0
        vocabulary = self._model_vocabularies.get(pool)
        reading = await self._reading(vocabulary, ask, parts, (pool, scope), wait_s) if vocabulary is not None else None
        seen_bytes, seen_tokens = self._ratios.get(pool, PRIOR)
        estimate = round(parts.size * seen_tokens / seen_bytes)
        chain: Sequence[int] = ()
        if reading is not None and (reading.whole or reading.tokens >= MIN_PARTIAL_TOKENS):
            if parts.shared:
                chain = LazyChain(root, reading.ids().tobytes(), BLOCK_TOKENS * TOKEN_BYTES)
            if reading.whole:
                return Prompt(reading.tokens, chain, BLOCK_TOKENS, template, counted=pool in self._configured)
            return Prompt(max(reading.tokens, estimate), chain, BLOCK_TOKENS, template, late=True, text_bytes=parts.size)
        late = reading is not None
        if parts.ids:  # the caller sent the token ids
            if parts.shared:
                chain = LazyChain(root, parts.ids.tobytes(), BLOCK_TOKENS * TOKEN_BYTES)
            return Prompt(parts.tokens, chain, BLOCK_TOKENS, template, counted=True, late=late)
        if parts.shared:
            # a short text is hashed at once: the index looks at all of its blocks in any case
            chain = LazyChain(framed, parts.text, BLOCK_BYTES) if len(parts.text) > SHORT_BYTES else of_text(framed, parts.text)
        tokens = estimate + parts.media * self._image_tokens.get(pool, 0)
        # the settings say the tokens of media, so nothing about text is learned from a prompt with media
        learned_from = 0 if parts.media else parts.size
        block_tokens = max(1, round(BLOCK_BYTES * seen_tokens / seen_bytes))
        return Prompt(tokens, chain, block_tokens, template, late=late, text_bytes=learned_from, by_tokens=False)

    def learn(self, prompt: Prompt, pool: str, tokens: int) -> None:
        """Learn the bytes per token of a pool from the number of tokens that an engine reports for a prompt."""
        if prompt.text_bytes and tokens:
            seen_bytes, seen_tokens = self._ratios.get(pool, PRIOR)
            self._ratios[pool] = (REMEMBERED * seen_bytes + prompt.text_bytes, REMEMBERED * seen_tokens + tokens)

    async def _reading(
        self, vocabulary: ModelVocabulary, ask: Ask, parts: PromptBytes, where: tuple[str, str], wait_s: float
    ) -> TokenReading | None:
        """The token ids of the prompt, as many as are made in time; None where it holds media."""
        try:
            if ask.prompt_bytes < vocabulary.slow_bytes:
                reading = TokenReading()
                vocabulary.read(ask, where[1], reading)
                return reading
            key = (*where, parts.frame, ask.prompt)
            under_way = self._under_way.get(key)
            if under_way is None:
                if len(self._under_way) >= MAX_UNDER_WAY:
                    return TokenReading()
                reading = TokenReading()
                job = self._loop.run_in_executor(self._executor, vocabulary.read, ask, where[1], reading)
                under_way = self._under_way[key] = (job, reading)
                job.add_done_callback(lambda done: self._done(key, done))
            job, reading = under_way
            await asyncio.wait((job,), timeout=wait_s)
            if job.done():
                job.result()
            return reading
        except NotText:
            return None

    def _done(self, key: tuple[str, str, bytes, bytes], job: "asyncio.Future[None]") -> None:
        self._under_way.pop(key, None)
        if not job.cancelled():
            job.exception()  # `_reading` raises it where it still waits; without this line asyncio complains where nothing waits
