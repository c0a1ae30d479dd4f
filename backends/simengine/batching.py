"""Continuous batching with chunked prefill on a paged KV cache, as vLLM V1 does it: pure, one step at a time, on the caller's time.

`Batcher` is the scheduler. A step takes one token of every decoding sequence, then fills the token budget with prefill chunks, of running
sequences first, then of waiting ones in order of arrival. A sequence is admitted when its prompt's blocks fit; a prefix hit skips its
tokens. The first token comes at the end of the step that ends the prefill. When a decoding sequence finds no free block, the running
sequence admitted last is preempted and computed again.

`PagedKvCache` keeps account of the blocks. Every block is in exactly one of four states: free, private to a sequence, shared (full, found
by its hash, in use), or evictable (full, found by its hash, not in use; the least recently used is evicted first). Hashes chain, so a hit
is always a whole prefix.
"""

import hashlib
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backends.simengine.settings import Timing


def block_hashes(tokens: Sequence[int], block_size: int, *salts: str) -> list[bytes]:
    """One hash per full block; each covers all tokens before it, and the salts (model, adapter, cache salt)."""
    parent = hashlib.blake2b("\0".join(salts).encode(), digest_size=16).digest()
    hashes = []
    for end in range(block_size, len(tokens) + 1, block_size):
        block = b"".join(token.to_bytes(4, "little") for token in tokens[end - block_size : end])
        parent = hashlib.blake2b(parent + block, digest_size=16).digest()
        hashes.append(parent)
    return hashes


class Holding:
    """The blocks of one sequence."""

    __slots__ = ("private", "shared")

    def __init__(self) -> None:
        self.shared: list[bytes] = []
        self.private = 0

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return len(self.shared) + self.private


class PagedKvCache:
    """A cache of `blocks` blocks. Methods that fail change nothing."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.free = blocks
        self.private = 0
        self._users: dict[bytes, int] = {}
        self._evictable: OrderedDict[bytes, None] = OrderedDict()
        self.evicted: Callable[[bytes], None] | None = None
        """Called with each block that is evicted."""

    @property
    def used(self) -> int:
        """Blocks in use by sequences."""
        return self.private + len(self._users)

    @property
    def evictable(self) -> int:
        """Blocks kept only for reuse."""
        return len(self._evictable)

    def matched(self, hashes: Sequence[bytes]) -> int:
        """The number of leading blocks that are in the cache."""
        for i, block in enumerate(hashes):
            if block not in self._users and block not in self._evictable:
                return i
        return len(hashes)

    def admit(self, hashes: Sequence[bytes], blocks: int) -> tuple[Holding, int] | None:
        """Hold `blocks` blocks for a new sequence, reusing the matching ones; None when not enough are free or evictable.

        Returns:
            The holding, and the number of leading blocks that were reused.
        """
        reused = self.matched(hashes)
        from_evictable = sum(1 for block in hashes[:reused] if block in self._evictable)
        if blocks - reused > self.free + len(self._evictable) - from_evictable:
            return None
        holding = Holding()
        for block in hashes[:reused]:
            self._evictable.pop(block, None)
            self._users[block] = self._users.get(block, 0) + 1
        holding.shared = list(hashes[:reused])
        self._take(holding, blocks - reused)
        return holding, reused

    def grow(self, holding: Holding, blocks: int) -> bool:
        """Add private blocks; False when not enough are free or evictable."""
        if blocks > self.free + len(self._evictable):
            return False
        self._take(holding, blocks)
        return True

    def _take(self, holding: Holding, blocks: int) -> None:
        while self.free < blocks:
            block, _ = self._evictable.popitem(last=False)
            self.free += 1
            if self.evicted is not None:
                self.evicted(block)
        self.free -= blocks
        self.private += blocks
        holding.private += blocks

    def publish(self, holding: Holding, hashes: Sequence[bytes]) -> None:
        """Share the full blocks of a prompt's beginning, so that they can be found from now on. Blocks that another sequence has published
        meanwhile stay private."""
        for block in hashes[len(holding.shared) :]:
            if block in self._users or block in self._evictable:
                return
            holding.private -= 1
            self.private -= 1
            self._users[block] = 1
            holding.shared.append(block)

    def release(self, holding: Holding) -> None:
        """Give all blocks back; shared blocks can be found until they are evicted."""
        self.free += holding.private
        self.private -= holding.private
        holding.private = 0
        # the end of a prefix is evicted before its beginning, which other prompts are more likely to share
        for block in reversed(holding.shared):
            self._users[block] -= 1
            if not self._users[block]:
                del self._users[block]
                self._evictable[block] = None
        holding.shared = []

    def clear(self) -> None:
        """Drop all blocks that are not in use."""
        self.free += len(self._evictable)
        self._evictable.clear()


@dataclass(slots=True, eq=False)
class SimSequence:
    """One choice of one request."""

    prompt: list[int]
    max_output: int
    hashes: list[bytes]
    salt: str = ""
    holding: Holding | None = None
    cached_tokens: int = 0
    computed: int = 0
    """Tokens whose KV is computed."""
    produced: int = 0
    """Output tokens so far."""
    keep: bool = False
    """Whether its KV stays after its end, for another engine to fetch, until `free_kept`."""
    handed: bool = False
    """Whether its prompt's KV came from another engine."""

    @property
    def to_compute(self) -> int:
        """Tokens to prefill: the prompt, and after a preemption the produced tokens."""
        return len(self.prompt) + self.produced

    @property
    def finished(self) -> bool:
        """Whether its last token is produced."""
        return self.produced >= self.max_output


@dataclass(slots=True)
class EngineStep:
    """The work of one step, and its duration."""

    duration_ms: float
    prefill: list[tuple[SimSequence, int]]
    decoding: list[SimSequence]


@dataclass(slots=True)
class EngineCounters:
    """The engine's counters since its start."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    finished: int = 0
    aborted: int = 0
    prefill_ms: float = 0.0
    handed_tokens: int = 0
    """Prompt tokens whose KV came from another engine."""


class Batcher:
    """The engine's scheduler."""

    def __init__(self, timing: Timing, *, block_size: int = 16, max_num_seqs: int = 256, token_budget: int = 2048) -> None:
        self.timing = timing
        self.block_size = block_size
        self.max_num_seqs = max_num_seqs
        self.token_budget = token_budget
        self.kv = PagedKvCache(max(1, timing.kv_tokens // block_size))
        self.waiting: deque[SimSequence] = deque()
        self.running: list[SimSequence] = []
        self.counters = EngineCounters()
        self.stored: Callable[[bytes | None, list[bytes], list[int], str], None] | None = None
        """Called with blocks that the prefix cache has from now on: the block before them, their hashes, their tokens, and the salt."""

    def sequence(self, prompt: list[int], max_output: int, *salts: str) -> SimSequence:
        """A new sequence; not scheduled before `add`."""
        return SimSequence(prompt, max_output, block_hashes(prompt, self.block_size, *salts), salts[-1] if len(salts) > 1 else "")

    def fits(self, sequence: SimSequence) -> bool:
        """Whether the sequence fits into the KV cache at all."""
        return self._blocks(len(sequence.prompt) + sequence.max_output) <= self.kv.blocks

    def add(self, sequence: SimSequence) -> None:
        """Queue a sequence."""
        self.counters.prompt_tokens += len(sequence.prompt)
        self.waiting.append(sequence)

    def abort(self, sequence: SimSequence) -> None:
        """Stop a sequence and free its blocks at once. Does nothing for a sequence that is finished."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        else:
            return
        self._release(sequence)
        self.counters.aborted += 1

    def free_kept(self, sequence: SimSequence) -> None:
        """Free the KV that a finished sequence has kept; does nothing for any other."""
        if sequence.keep and sequence.finished:
            self._release(sequence)

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens that are not computed yet."""
        return sum(s.to_compute - s.computed for s in (*self.waiting, *self.running) if s.computed < s.to_compute)

    @property
    def kv_usage(self) -> float:
        """Share of the blocks in use, 0 to 1."""
        return self.kv.used / self.kv.blocks

    def begin(self) -> EngineStep | None:
        """Compose the next step; None when no sequence has work."""
        decoding = self._decoding()
        budget = self.token_budget - len(decoding)
        prefill: list[tuple[SimSequence, int]] = []
        for sequence in self.running:
            left = sequence.to_compute - sequence.computed
            if left > 0 and budget > 0:
                chunk = min(left, budget)
                prefill.append((sequence, chunk))
                self._publish(sequence, chunk)
                budget -= chunk
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            sequence = self.waiting[0]
            if not self._admit(sequence):
                break
            self.waiting.popleft()
            self.running.append(sequence)
            chunk = min(sequence.to_compute - sequence.computed, budget)
            prefill.append((sequence, chunk))
            self._publish(sequence, chunk)
            budget -= chunk
        if not prefill and not decoding:
            return None
        chunks = [(chunk, s.computed) for s, chunk in prefill]
        duration = self.timing.step_ms(chunks, len(decoding), sum(s.computed for s in decoding))
        if prefill:
            self.counters.prefill_ms += duration
        return EngineStep(duration, prefill, decoding)

    def end(self, step: EngineStep) -> list[SimSequence]:
        """Finish a step; returns the sequences that produced a token in it, in order."""
        produced = []
        for sequence, chunk in step.prefill:
            if sequence.holding is None:
                continue  # aborted meanwhile
            sequence.computed += chunk
            if sequence.computed >= sequence.to_compute:
                produced.append(sequence)
        produced += [s for s in step.decoding if s.holding is not None]
        for sequence in produced:
            sequence.produced += 1
            self.counters.generated_tokens += 1
            if sequence.finished:
                self.running.remove(sequence)
                self._publish(sequence, 0)  # a block of another sequence with the same tokens may be gone meanwhile
                if not sequence.keep:
                    self._release(sequence)
                self.counters.finished += 1
        return produced

    def _publish(self, sequence: SimSequence, chunk: int) -> None:
        """Make the full blocks found that are computed when the step ends which is being scheduled: vLLM caches blocks when it allocates
        them to a step, so a request that is admitted into the same step finds them."""
        holding = sequence.holding
        assert holding is not None
        before = len(holding.shared)
        self.kv.publish(holding, sequence.hashes[: (sequence.computed + chunk) // self.block_size])
        after = len(holding.shared)
        if after > before and self.stored is not None:
            tokens = sequence.prompt[before * self.block_size : after * self.block_size]
            self.stored(holding.shared[before - 1] if before else None, holding.shared[before:after], tokens, sequence.salt)

    def _decoding(self) -> list[SimSequence]:
        """The sequences that decode in the next step, each with a block for its token; may preempt others."""
        decoding: list[SimSequence] = []
        for sequence in list(self.running):
            if sequence.holding is None or not sequence.produced or sequence.computed != sequence.to_compute - 1:
                continue  # not admitted, or still (or again) in its prefill
            while sequence.holding is not None and not self._grow(sequence):
                self._preempt(self.running[-1])
            if sequence.holding is not None:
                sequence.computed = sequence.to_compute
                decoding.append(sequence)
        return [s for s in decoding if s.holding is not None]

    def _grow(self, sequence: SimSequence) -> bool:
        assert sequence.holding is not None
        needed = self._blocks(sequence.to_compute + 1) - sequence.holding.blocks
        return needed <= 0 or self.kv.grow(sequence.holding, needed)

    def _preempt(self, sequence: SimSequence) -> None:
        self.running.remove(sequence)
        self._release(sequence)
        self.waiting.appendleft(sequence)
        self.counters.preemptions += 1

    def _admit(self, sequence: SimSequence) -> bool:
        # the last token is always computed, because its logits are needed
        usable = sequence.hashes[: (sequence.to_compute - 1) // self.block_size]
        admitted = self.kv.admit(usable, self._blocks(sequence.to_compute + 1))
        if admitted is None:
            return False
        sequence.holding, reused = admitted
        sequence.computed = reused * self.block_size
        self.counters.prefix_queries += len(sequence.prompt)
        self.counters.prefix_hits += sequence.computed
        if not sequence.produced:
            if sequence.handed:
                self.counters.handed_tokens += max(0, sequence.to_compute - 1 - sequence.computed)
                sequence.computed = max(sequence.computed, sequence.to_compute - 1)
            sequence.cached_tokens = sequence.computed
        return True

    def _release(self, sequence: SimSequence) -> None:
        if sequence.holding is not None:
            self.kv.release(sequence.holding)
            sequence.holding = None
        sequence.computed = 0

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)
