"""Continuous batching with chunked prefill as vLLM V1 does it, advanced by jumps.

The rules are those of the simulated engine (`backends/simengine/batching.py`): a step takes one token of every decoding sequence,
then fills the token budget with prefill chunks, running sequences first, then waiting ones in order; the first token comes at the
end of the step that ends the prefill; when a decoding sequence finds no page, the latest running one is preempted and recomputed.

Between two changes of the batch every step has the same composition, and the j-th lasts a + b*(j-1): contexts grow by one token
per sequence and, while one prompt fills the whole budget, by one chunk. So k steps last a*k + b*k*(k-1)/2, and a jump goes to the next
step that ends a sequence, ends a prefill or finds the cache full; an arrival that can be admitted ends the jump after the current step.
"""

import heapq
from collections.abc import Callable
from math import ceil, inf, sqrt
from typing import Final

from routing.simulation.decoders import Decoders, Decoding
from routing.simulation.kv_cache import PAGE_TOKENS, SimulatedKvCache, pages
from routing.simulation.timing import StepTiming

IDLE: Final = inf


class SimulatedEngine:
    """The scheduler of one simulated engine. Its callbacks get the Run and the virtual time in seconds."""

    def __init__(
        self,
        timing: StepTiming,
        block_tokens: int,
        *,
        max_num_seqs: int,
        token_budget: int,
        by_priority: bool = False,
        begun: Callable[[Decoding, float], None],
        ended: Callable[[Decoding, float], None],
    ) -> None:
        if token_budget <= max_num_seqs:
            raise ValueError(f"a token budget of {token_budget} leaves no room for prefill beside {max_num_seqs} sequences")
        self.cache = SimulatedKvCache(max(1, timing.kv_tokens // PAGE_TOKENS), block_tokens // PAGE_TOKENS)
        self.block_tokens = block_tokens
        self.max_num_seqs = max_num_seqs
        self.token_budget = token_budget
        self.by_priority = by_priority
        self.preemptions = 0
        self.plan_id = 0
        """Number of the current plan; the event loop compares it to recognise events of an old plan."""
        self.until = IDLE
        """When the current plan ends, virtual seconds; `IDLE` for none."""
        self.at = 0.0
        """When the current plan began, virtual seconds."""
        self.queued_tokens = 0
        """Prompt tokens not computed yet, as of `at`."""
        self.waiting: list[tuple[tuple[float, int], Decoding]] = []
        self.running: dict[int, Decoding] = {}
        self._begun = begun
        self._ended = ended
        self._prefilling: list[Decoding] = []
        self._decoders = Decoders()
        self._chunks: list[tuple[Decoding, int]] = []
        self._k = 0
        self._a = self._b = 0.0
        self._stalled_until = 0.0
        self.retime(timing)

    def retime(self, timing: StepTiming) -> None:
        """Use other timing constants from the next plan on; the cache stays as it is."""
        self.timing = timing
        self._c0 = timing.c0 / 1e3
        self._c1 = timing.c1 / 1e3
        self._c1a = timing.c1a / 1e3
        self._c2 = timing.c2 / 1e3
        self._c3 = timing.c3 / 1e3

    @property
    def due_pages(self) -> int:
        """Pages of the KV cache that the plan under way takes when it ends."""
        return self._decoders.growth(1, self._k - 1) if self._k > 1 else 0

    def fits(self, prompt: int, output: int) -> bool:
        """Whether the KV cache could ever hold a request of these lengths."""
        return pages(prompt + output + 1) <= self.cache.total

    def submit(self, run: Decoding, now: float) -> None:
        """Queue a request that arrives at `now`."""
        held = min(self.cache.matched(run.chain) * self.block_tokens, run.prompt + run.produced)
        run.hoped = max(held, min(run.handed, run.prompt + run.produced - 1))
        self.queued_tokens += run.prompt + run.produced - run.hoped
        heapq.heappush(self.waiting, (run.key if self.by_priority else (0.0, run.order), run))
        if self.until == IDLE:
            self.at = self.until = now  # the step is composed after all arrivals of this moment
            self._k = 0
            self._chunks = []
            self.plan_id += 1
        elif self._k > 1 and not self._chunks and self.waiting[0][1] is run and len(self.running) < self.max_num_seqs:
            self.cut(now)

    def cut(self, now: float) -> None:
        """End the plan with the step that is running at `now`."""
        j = self._steps_by(now, ceil)
        if self.until != IDLE and 0 < j < self._k:
            self._k = j
            self.until = self.at + self._lasts(j)
            self.plan_id += 1

    def stall(self, now: float, seconds: float) -> None:
        """Do nothing for so many seconds after the step that is running at `now`."""
        self.cut(now)
        self._stalled_until = now + seconds

    def lose_all(self, now: float) -> list[Decoding]:
        """The engine process dies: forget everything; returns the runs it had, which are lost."""
        lost = [*self.running.values(), *(run for _, run in self.waiting)]
        self.cache.clear()
        self.waiting.clear()
        self.running.clear()
        self._prefilling.clear()
        self._decoders = Decoders()
        self._chunks = []
        self._k = self.queued_tokens = 0
        self.at = now
        self.until = IDLE
        self.plan_id += 1
        return lost

    def look(self, now: float) -> tuple[int, int, int, float]:
        """The engine's load metrics at `now`: running, waiting, queued tokens, share of the cache in use."""
        done = 0 if len(self._chunks) != 1 else min(self._k - 1, self._steps_by(now, int)) * self._chunks[0][1]
        return len(self.running), len(self.waiting), self.queued_tokens - done, self.cache.used / self.cache.total

    def advance(self) -> None:
        """Complete the current plan: deliver its tokens, and make the next plan."""
        k = self._k
        if k > 1:
            self.cache.take(self._decoders.growth(1, k - 1))
        self._decoders.advance(k)
        self.at = self.until
        if self._chunks:
            self._prefilled(self._chunks, k)
        for run in self._decoders.over():
            self._over(run)
        self._plan()

    def _prefilled(self, chunks: list[tuple[Decoding, int]], k: int) -> None:
        now = self.at
        for run, chunk in chunks:
            run.computed += chunk * k
            self.queued_tokens -= chunk * k
            if k > 1:
                self._publish(run, 0)
            if run.computed < run.prompt + run.produced:
                continue
            self._prefilling.remove(run)
            run.produced += 1
            if run.produced == 1:
                self._begun(run, now)
            if run.produced >= run.output:
                self._over(run)
            else:
                self._decoders.join(run)

    def _publish(self, run: Decoding, chunk: int) -> None:
        """Make the full blocks found that are computed, or will be in a chunk that is being scheduled: vLLM caches blocks when it allocates
        them to a step, so a request that is admitted into the same step finds them."""
        blocks = min(len(run.chain), (run.computed + chunk) // self.block_tokens)
        if blocks > run.shared:
            run.shared = self.cache.publish(run.chain[:blocks], run.shared)

    def _over(self, run: Decoding) -> None:
        del self.running[run.order]
        # blocks of the answer are cached as they fill, and nobody asks for them before it has ended; its last token was not computed
        run.computed = run.prompt + run.produced - 1
        self._publish(run, 0)
        self.cache.release(run.chain, run.shared, pages(run.prompt + run.produced))
        self._ended(run, self.at)

    def _plan(self) -> None:
        self.plan_id += 1
        if self.at < self._stalled_until and (self.running or self.waiting):
            self._chunks = []
            self._k = 0
            self.until = self._stalled_until
            return
        self._grow_by_one_step()
        n = self._decoders.count
        chunks = self._chunks = self._compose(self.token_budget - n) if self._prefilling or self.waiting else []
        if not n and not chunks:
            self.until = IDLE
            self._k = 0
            return
        tokens = attention = 0
        for run, chunk in chunks:
            tokens += chunk
            attention += chunk * run.computed
        self._a = self._c0 + self._c1 * tokens + self._c1a * attention + self._c2 * n + self._c3 * self._decoders.context
        self._b = self._c3 * n
        k = 1
        if not chunks:
            k = self._decoders.until_an_end()
        elif len(chunks) == 1 and tokens == self.token_budget - n:
            run, chunk = chunks[0]
            k = (run.prompt + run.produced - run.computed - 1) // chunk
            self._b += self._c1a * chunk * chunk
            if n and k > 1:
                k = min(k, self._decoders.until_an_end())
        self._k = k if k <= 1 else self._decoders.steps_in(self.cache.room, k)
        self._k = max(1, self._k)
        self.until = self.at + self._lasts(self._k)

    def _compose(self, budget: int) -> list[tuple[Decoding, int]]:
        """The prefill chunks of the next step; admits waiting runs."""
        chunks: list[tuple[Decoding, int]] = []
        for run in self._prefilling:
            if budget <= 0:
                return chunks
            chunk = min(run.prompt + run.produced - run.computed, budget)
            chunks.append((run, chunk))
            self._publish(run, chunk)
            budget -= chunk
        waiting = self.waiting
        while waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            run = waiting[0][1]
            total = run.prompt + run.produced
            # the last token is always computed, because its logits are needed
            usable = run.chain if len(run.chain) * self.block_tokens < total else run.chain[: (total - 1) // self.block_tokens]
            reused = self.cache.admit(usable, pages(total + 1))
            if reused < 0:
                break
            heapq.heappop(waiting)
            run.shared = reused
            run.computed = max(reused * self.block_tokens, min(run.handed, total - 1))
            if not run.produced:
                run.cached = run.computed
            self.queued_tokens += run.hoped - run.computed
            self.running[run.order] = run
            self._prefilling.append(run)
            chunk = min(total - run.computed, budget)
            chunks.append((run, chunk))
            self._publish(run, chunk)
            budget -= chunk
        return chunks

    def _grow_by_one_step(self) -> None:
        """Reserve KV pages for the tokens of the next decode step, preempting runs if they do not suffice."""
        for run in [r for r in self._prefilling if r.produced and r.prompt + r.produced - r.computed == 1]:
            # one token is left to compute: a decode step like any other
            self._prefilling.remove(run)
            self.queued_tokens -= 1
            self.cache.free += pages(run.prompt + run.produced + 1) - pages(run.prompt + run.produced)
            self._decoders.join(run)
        need = self._decoders.growth(0, 1)
        if need <= self.cache.room:
            self.cache.take(need)
            return
        grown: set[int] = set()
        for run in list(self.running.values()):
            if not self._decoders.starts_page(run):
                continue
            while run.decoding and self.cache.room < 1:
                last = max(self.running.values(), key=lambda r: r.key) if self.by_priority else self.running[next(reversed(self.running))]
                self._preempt(last, last.order in grown)
            if run.decoding:
                self.cache.take(1)
                grown.add(run.order)

    def _preempt(self, run: Decoding, grown: bool) -> None:
        self.preemptions += 1
        if run.decoding:
            self._decoders.leave(run)
            held = pages(run.prompt + run.produced) + grown
        else:
            self._prefilling.remove(run)
            self.queued_tokens -= run.prompt + run.produced - run.computed
            held = pages(run.prompt + run.produced + 1)
        del self.running[run.order]
        self.cache.release(run.chain, run.shared, held)
        run.shared = run.computed = run.hoped = run.handed = 0
        self.queued_tokens += run.prompt + run.produced
        heapq.heappush(self.waiting, (run.key if self.by_priority else (0.0, run.order), run))

    def _lasts(self, j: int) -> float:
        return j * self._a + self._b * (j * (j - 1) / 2)

    def _steps_by(self, now: float, rounded: Callable[[float], int]) -> int:
        """Steps of the plan that have ended at `now`; with `ceil`, the running step included."""
        elapsed = now - self.at
        if elapsed <= 0.0 or self._k == 0:
            return rounded(0.0) if rounded is int else 1
        a = self._a
        b = self._b
        j = elapsed / a if b < 1e-15 else (sqrt((a - b / 2) ** 2 + 2 * b * elapsed) - (a - b / 2)) / b
        return max(1, rounded(j - 1e-9)) if rounded is ceil else rounded(j + 1e-9)
