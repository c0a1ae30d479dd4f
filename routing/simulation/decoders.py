"""The decoding sequences of one simulated engine: how many, how long their contexts are, when the first ends, when KV pages run short.

All sequences advance with one step counter, so no work is done per token.
"""

import heapq
from collections.abc import Sequence

from routing.simulation.kv_cache import PAGE_TOKENS


class Decoding:
    """One request on one engine."""

    __slots__ = (
        "base",
        "cached",
        "chain",
        "computed",
        "decoding",
        "handed",
        "hoped",
        "key",
        "order",
        "output",
        "produced",
        "prompt",
        "shared",
        "turn",
    )

    def __init__(self, turn: object, prompt: int, output: int, chain: Sequence[int], order: int, priority: float = 0.0) -> None:
        self.turn = turn
        self.prompt = prompt
        self.output = output
        self.chain = chain
        self.order = order
        self.key = (-priority, order)
        self.produced = 0
        """Output tokens so far; while the run decodes, they are `base` plus the engine's step counter instead."""
        self.base = 0
        self.computed = 0
        self.cached = 0
        """Prompt tokens found in the cache when the run was first admitted."""
        self.handed = 0
        """Prompt tokens whose KV was transferred from another engine; 0 after a preemption."""
        self.hoped = 0
        """Prompt tokens in the cache when the run was submitted: they need no computing if they stay until it is admitted."""
        self.shared = 0
        """Leading blocks of its chain that it shares in the cache."""
        self.decoding = False


class Decoders:
    """The decoding sequences. Bounded by the engine's `max_num_seqs`; `_ends` may also hold as many preempted ones."""

    __slots__ = ("_ends", "_joined", "_phases", "context", "count", "steps")

    def __init__(self) -> None:
        self.steps = 0
        self.count = 0
        self.context = 0
        """Tokens in the contexts of all sequences, as the next step reads them."""
        self._phases = [0] * PAGE_TOKENS
        """Number of sequences by phase; a sequence starts a page in a step whose counter plus its phase is a multiple of the page size."""
        self._ends: list[tuple[int, int, Decoding]] = []
        """By step; those of one step in the order in which they were admitted, which a preemption changes."""
        self._joined = 0

    def join(self, run: Decoding) -> None:
        """Add a run whose prefill has ended (again, after a preemption)."""
        run.decoding = True
        run.base = run.produced - self.steps
        self.count += 1
        self.context += run.prompt + run.produced
        self._phases[(run.prompt + run.base) % PAGE_TOKENS] += 1
        self._joined += 1
        heapq.heappush(self._ends, (run.output - run.base, self._joined, run))

    def leave(self, run: Decoding) -> None:
        """Remove a run that has ended or is preempted."""
        run.decoding = False
        run.produced = run.base + self.steps
        self.count -= 1
        self.context -= run.prompt + run.produced
        self._phases[(run.prompt + run.base) % PAGE_TOKENS] -= 1

    def advance(self, steps: int) -> None:
        """Advance by so many steps."""
        self.steps += steps
        self.context += self.count * steps

    def over(self) -> list[Decoding]:
        """Remove and return the runs that have their last token."""
        ends = self._ends
        over = []
        while ends and ends[0][0] <= self.steps:
            run = heapq.heappop(ends)[2]
            if run.decoding and run.output - run.base <= self.steps:
                self.leave(run)
                over.append(run)
        return over

    def until_an_end(self) -> int:
        """Steps until the first run has its last token; there must be a run."""
        ends = self._ends
        while True:
            step, _, run = ends[0]
            if run.decoding and run.output - run.base == step:
                return step - self.steps
            heapq.heappop(ends)  # it was preempted meanwhile

    def starts_page(self, run: Decoding) -> bool:
        """Whether the run's token of the next step begins a page."""
        return run.decoding and (run.prompt + run.base + self.steps) % PAGE_TOKENS == 0

    def growth(self, after: int, count: int) -> int:
        """KV pages that `count` steps need, the first of them `after` steps from now."""
        whole, rest = divmod(count, PAGE_TOKENS)
        phases = self._phases
        first = self.steps + after
        return whole * self.count + sum([phases[-(first + j) % PAGE_TOKENS] for j in range(rest)])

    def steps_in(self, room: int, most: int) -> int:
        """The largest number of steps, at most `most`, for which `room` pages suffice; the first step has its pages already."""
        if self.growth(1, most - 1) <= room:
            return most
        low = 1
        high = most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.growth(1, middle - 1) <= room else (low, middle)
        return low
