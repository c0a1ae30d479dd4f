"""Continuous batching with chunked prefill, as vLLM V1 does it: pure, one step at a time, on the caller's time.

A step takes one token of every decoding sequence, then fills the token budget with prefill chunks, of running sequences first, then of
waiting ones in order of arrival. A sequence is admitted when its prompt's blocks fit; a prefix hit skips its tokens. The first token comes
at the end of the step that ends the prefill. When a decoding sequence finds no free block, the running sequence admitted last is preempted
and computed again.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from backends.simengine.kv import Holding, KvCache, block_hashes
from backends.simengine.presets import Timing


@dataclass(slots=True, eq=False)
class Sequence:
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
    """Whether its KV stays after its end, for another engine to fetch, until `let_go`."""
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
class Step:
    """The work of one step, and its duration."""

    duration_ms: float
    prefill: list[tuple[Sequence, int]]
    decoding: list[Sequence]


@dataclass(slots=True)
class Counters:
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
        self.kv = KvCache(max(1, timing.kv_tokens // block_size))
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.counters = Counters()
        self.stored: Callable[[bytes | None, list[bytes], list[int], str], None] | None = None
        """Called with blocks that the prefix cache has from now on: the block before them, their hashes, their tokens, and the salt."""

    def sequence(self, prompt: list[int], max_output: int, *salts: str) -> Sequence:
        """A new sequence; not scheduled before `add`."""
        return Sequence(prompt, max_output, block_hashes(prompt, self.block_size, *salts), salts[-1] if len(salts) > 1 else "")

    def fits(self, sequence: Sequence) -> bool:
        """Whether the sequence fits into the KV cache at all."""
        return self._blocks(len(sequence.prompt) + sequence.max_output) <= self.kv.blocks

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self.counters.prompt_tokens += len(sequence.prompt)
        self.waiting.append(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Stop a sequence and free its blocks at once. Does nothing for a sequence that is finished."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        else:
            return
        self._release(sequence)
        self.counters.aborted += 1

    def let_go(self, sequence: Sequence) -> None:
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

    def begin(self) -> Step | None:
        """Compose the next step; None when no sequence has work."""
        decoding = self._decoding()
        budget = self.token_budget - len(decoding)
        prefill: list[tuple[Sequence, int]] = []
        for sequence in self.running:
            left = sequence.to_compute - sequence.computed
            if left > 0 and budget > 0:
                chunk = min(left, budget)
                prefill.append((sequence, chunk))
                budget -= chunk
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            sequence = self.waiting[0]
            if not self._admit(sequence):
                break
            self.waiting.popleft()
            self.running.append(sequence)
            chunk = min(sequence.to_compute - sequence.computed, budget)
            prefill.append((sequence, chunk))
            budget -= chunk
        if not prefill and not decoding:
            return None
        chunks = [(chunk, s.computed) for s, chunk in prefill]
        duration = self.timing.step_ms(chunks, len(decoding), sum(s.computed for s in decoding))
        if prefill:
            self.counters.prefill_ms += duration
        return Step(duration, prefill, decoding)

    def end(self, step: Step) -> list[Sequence]:
        """Finish a step; returns the sequences that produced a token in it, in order."""
        produced = []
        for sequence, chunk in step.prefill:
            if sequence.holding is None:
                continue  # aborted meanwhile
            sequence.computed += chunk
            if sequence.computed >= sequence.to_compute:
                self._publish(sequence, sequence.holding)
                produced.append(sequence)
        produced += [s for s in step.decoding if s.holding is not None]
        for sequence in produced:
            sequence.produced += 1
            self.counters.generated_tokens += 1
            if sequence.finished:
                self.running.remove(sequence)
                if not sequence.keep:
                    self._release(sequence)
                self.counters.finished += 1
        return produced

    def _publish(self, sequence: Sequence, holding: Holding) -> None:
        before = len(holding.shared)
        self.kv.publish(holding, sequence.hashes)
        after = len(holding.shared)
        if after > before and self.stored is not None:
            tokens = sequence.prompt[before * self.block_size : after * self.block_size]
            self.stored(holding.shared[before - 1] if before else None, holding.shared[before:after], tokens, sequence.salt)

    def _decoding(self) -> list[Sequence]:
        """The sequences that decode in the next step, each with a block for its token; may preempt others."""
        decoding: list[Sequence] = []
        for sequence in list(self.running):
            if sequence.holding is None or not sequence.produced or sequence.computed != sequence.to_compute - 1:
                continue  # not admitted, or still (or again) in its prefill
            while sequence.holding is not None and not self._grow(sequence):
                self._preempt(self.running[-1])
            if sequence.holding is not None:
                sequence.computed = sequence.to_compute
                decoding.append(sequence)
        return [s for s in decoding if s.holding is not None]

    def _grow(self, sequence: Sequence) -> bool:
        assert sequence.holding is not None
        needed = self._blocks(sequence.to_compute + 1) - sequence.holding.blocks
        return needed <= 0 or self.kv.grow(sequence.holding, needed)

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release(sequence)
        self.waiting.appendleft(sequence)
        self.counters.preemptions += 1

    def _admit(self, sequence: Sequence) -> bool:
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

    def _release(self, sequence: Sequence) -> None:
        if sequence.holding is not None:
            self.kv.release(sequence.holding)
            sequence.holding = None
        sequence.computed = 0

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)
