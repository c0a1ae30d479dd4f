"""Exploit, or explore:

    longest match > tokens left to compute  ->  among those with the longest match the least load, unless the balance is lost
    otherwise                               ->  the least load + eviction + prefill, in seconds of the backend's own rates

    load     = prefill seconds sent there within the last 3 minutes + requests there now * output tokens * seconds per decode step
    eviction = prefill seconds of what must leave the KV cache for the request, times the backend's hit rate in that time
    balance  = lost when the heaviest load is `imbalance` times the lightest, once `busy` requests per backend were sent in that time:
               then nobody exploits the heaviest

Source: Preble's E2 (ICLR'25) and its published scheduler (`global_scheduler_with_time.py`), whose are the window of 3 minutes for
prefill, decode counted for active requests only, exploiting when the new part of a prompt is shorter than the cached one, 1.5 between
the heaviest and the lightest, and 50 requests for each GPU before that is looked at. That code attributes load to prefixes, moves a
prefix from the heaviest to the lightest GPU, and copies it to a second one when its time to the first token doubles within the window;
here load is measured per backend, and moving and copying is what exploring does. Its eviction cost (off by default there, in the paper
a part of the cost) walks the tree's least recent nodes; here what leaves is taken to be hit as often as the backend's cache is on average.
"""

from collections import deque
from typing import Final

from pydantic import Field

from domain.clock import Rng
from domain.strict import Strict
from routing.load import LoadTable
from routing.ports import Candidates, Policy, RoutingRequest, Scores, by_backend
from routing.warmth import spare

TERMS: Final = ("load_s", "evict_s", "prefill_s", "exploits")

MAX_PLACEMENTS: Final = 65_536
"""Decisions remembered at most."""
ELSEWHERE: Final = 1e9
"""Seconds added to backends without the longest match, so that they rank behind those with it."""


class Params(Strict):
    """Preble's constants."""

    window_s: float = Field(default=180.0, gt=0, le=3600, description="Seconds for which a request counts as load.")
    imbalance: float = Field(
        default=1.5, ge=1, description="Ratio of the heaviest to the lightest load above which the fleet counts as imbalanced."
    )
    busy: int = Field(default=50, ge=0, description="Requests per backend within the window from which on the ratio is checked.")


class RecentWork:
    """The requests sent within the window; `sums` are computed tokens, cached tokens and requests of each backend."""

    def __init__(self, params: Params) -> None:
        self._length_s = params.window_s
        self._sent: deque[tuple[float, str, float, float]] = deque()
        self.sums: dict[str, list[float]] = {}

    @property
    def sent(self) -> int:
        """Requests sent within the window."""
        return len(self._sent)

    def placed(self, request: RoutingRequest, backend_id: str, uncached_tokens: float, now: float) -> None:
        placement = (now, backend_id, uncached_tokens, request.prompt_tokens - uncached_tokens)
        self._sent.append(placement)
        sums = self.sums.setdefault(backend_id, [0.0, 0.0, 0.0])
        for at, amount in enumerate((*placement[2:], 1.0)):
            sums[at] += amount
        self.forget_old(now)

    def forget_old(self, now: float) -> None:
        """Forget requests that left the window."""
        sent = self._sent
        while sent and (sent[0][0] <= now - self._length_s or len(sent) > MAX_PLACEMENTS):
            placement = sent.popleft()
            sums = self.sums[placement[1]]
            for at, amount in enumerate((*placement[2:], 1.0)):
                sums[at] -= amount
            if sums[2] < 0.5:
                del self.sums[placement[1]]


NO_SUMS: Final = [0.0, 0.0, 0.0]


def score(request: RoutingRequest, candidates: Candidates, load_table: LoadTable, params: Params, memory: RecentWork, rng: Rng) -> Scores:
    """The cost by the module's rules."""
    memory.forget_old(candidates.now)
    rows = candidates.rows
    ids = load_table.ids
    sums = memory.sums
    tokens = float(request.prompt_tokens)
    need = float(request.prompt_tokens + request.output_tokens)
    load = []
    evict = []
    prefill = []
    for row, held in zip(rows, candidates.matched, strict=True):
        computed, cached, _ = sums.get(ids[row], NO_SUMS)
        token_s = load_table.prefill_s_token[row]
        active = load_table.requests[row]
        step_s = load_table.step_s[row] + load_table.step_s_seq[row] * active + load_table.step_s_token[row] * load_table.kv_tokens[row]
        load.append(computed * token_s + active * request.output_tokens * step_s)
        size = load_table.kv_capacity[row]
        leaves = max(0.0, load_table.kv_tokens[row] + computed + need - held - size) if size else 0.0
        hit = cached / (cached + computed) if cached else 0.0
        evict.append(min(leaves, need - held) * token_s * hit)
        prefill.append((tokens - held) * token_s)
    longest = max(candidates.matched)
    heaviest = max(load)
    exploits = [longest > tokens - longest and held == longest for held in candidates.matched]
    if memory.sent >= params.busy * len(rows) and heaviest > params.imbalance * min(load):
        exploits = [exploit and seconds < heaviest for exploit, seconds in zip(exploits, load, strict=True)]
    if any(exploits):
        cost = [seconds if exploit else ELSEWHERE + seconds for exploit, seconds in zip(exploits, load, strict=True)]
    else:
        cost = [sum(parts) for parts in zip(load, evict, prefill, strict=True)]
    return Scores(spare(cost, candidates.shares, rng), by_backend(load, evict, prefill, [float(exploit) for exploit in exploits]))


POLICY: Final = Policy(score, Params, TERMS, RecentWork, unit="s")
