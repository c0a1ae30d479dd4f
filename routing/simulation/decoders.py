"""The sequences of one engine that decode: how many, how long their contexts are, when the first ends, when pages run short.

All of them move with one step counter, so nothing is touched per token.
"""

import heapq
from collections.abc import Sequence

from routing.simulation.kv_cache import PAGE_TOKENS


class Run:
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
        """Output tokens so far; while it decodes, `base` plus the engine's step counter."""
        self.base = 0
        self.computed = 0
        self.cached = 0
        """Prompt tokens that it found when it was first admitted."""
        self.handed = 0
        """Prompt tokens whose KV comes with it from another engine; gone when it is preempted."""
        self.hoped = 0
        """Prompt tokens that were in the cache when it came: what it need not compute if they stay until it is admitted."""
        self.shared = 0
        self.decoding = False


class Decoders:
    """Bounded by the engine's `max_num_seqs` (and as many again in `_ends`, until their turn comes)."""

    __slots__ = ("_ends", "_phases", "context", "count", "steps")

    def __init__(self) -> None:
        self.steps = 0
        self.count = 0
        self.context = 0
        """Tokens in their contexts, as the next step reads them."""
        self._phases = [0] * PAGE_TOKENS
        """How many start a page in a step whose counter plus their phase divides by a page."""
        self._ends: list[tuple[int, int, Run]] = []

    def join(self, run: Run) -> None:
        """It has its first token (or has it again, after a preemption)."""
        run.decoding = True
        run.base = run.produced - self.steps
        self.count += 1
        self.context += run.prompt + run.produced
        self._phases[(run.prompt + run.base) % PAGE_TOKENS] += 1
        heapq.heappush(self._ends, (run.output - run.base, run.order, run))

    def leave(self, run: Run) -> None:
        """It is over or put back."""
        run.decoding = False
        run.produced = run.base + self.steps
        self.count -= 1
        self.context -= run.prompt + run.produced
        self._phases[(run.prompt + run.base) % PAGE_TOKENS] -= 1

    def advance(self, steps: int) -> None:
        """So many steps are over."""
        self.steps += steps
        self.context += self.count * steps

    def over(self) -> list[Run]:
        """Those that have their last token; they have left."""
        ends = self._ends
        over = []
        while ends and ends[0][0] <= self.steps:
            run = heapq.heappop(ends)[2]
            if run.decoding and run.output - run.base <= self.steps:
                self.leave(run)
                over.append(run)
        return over

    def until_an_end(self) -> int:
        """Steps until the first has its last token; there must be one."""
        ends = self._ends
        while True:
            step, _, run = ends[0]
            if run.decoding and run.output - run.base == step:
                return step - self.steps
            heapq.heappop(ends)  # it was put back meanwhile

    def starts_page(self, run: Run) -> bool:
        """Whether the next step's token of this one begins a page."""
        return run.decoding and (run.prompt + run.base + self.steps) % PAGE_TOKENS == 0

    def growth(self, after: int, count: int) -> int:
        """Pages that `count` steps take, the first of them `after` steps from now."""
        whole, rest = divmod(count, PAGE_TOKENS)
        phases = self._phases
        first = self.steps + after
        return whole * self.count + sum([phases[-(first + j) % PAGE_TOKENS] for j in range(rest)])

    def steps_in(self, room: int, most: int) -> int:
        """At most `most` steps for which `room` pages suffice; the first one has its pages already."""
        if self.growth(1, most - 1) <= room:
            return most
        low = 1
        high = most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.growth(1, middle - 1) <= room else (low, middle)
        return low
