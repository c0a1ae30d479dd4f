"""cost(b) = w_t * ttft + w_d * decode + w_x * others + memory + leaving + late, all in seconds, divided by the share of a warming backend.

    u        = n - trusted match                    uncached tokens of a prompt of n
    ttft     = Q * b + Qc * c                       Q uncached tokens that wait there, Qc the sum of the contexts they attend to
             + a + b * u + c * u * (m + u/2) + adapter             the own prompt, the adapter's load
    decode   = o * (step(b) - least step)           o expected output tokens, each a step; what they take longer than at best
    others   = r * (prefill + o * added step)       seconds taken from the r requests that are there; its first part is LMetric's
                                                    product, in seconds
    memory   = lambda * k / (1 - k)                 k = share of the KV cache in use or promised, with this request, at most .999
    leaving  = w_l * (recomputing what is longest matched elsewhere)      the same tokens, cached a second time, push others' out
    late     = late_s where step(b) is above the time per token that its tenant was promised, and another backend's is not

o is bounded: of an answer of o tokens o * H / (o + H) count, because today's batch does not last for a whole long answer. w_d, w_x and
lambda are what they are said to be where all that is cached is used again; of that stays the share `unshared` where nothing is, and
between it goes by `Board.reuse`: a crowded backend loses cached prompts, which costs nothing if nobody comes back for them.

Source: routers research 4.1, of which is the form (its w_t 1, w_d 1, w_x .1, lambda .15 s, SMG's); `leaving` is what its first fleet
results found to pay on agent sessions (data.md, 5). Qc, H, the reuse and the weights were judged over all workloads in the fleet simulator
(docs/decisions/0005). A match that nearly every backend has counts as nothing in the last term, so that a system prompt pulls nobody.
Rates are the backend's own, calibrated (`routing/calibration.py`).
"""

from collections.abc import Sequence
from typing import Any, Final

from pydantic import Field

from domain.clock import Rng
from domain.strict import Strict
from routing.load import LoadTable
from routing.ports import Candidates, Column, Policy, RoutingRequest, Scores

TERMS: Final = ("queue_s", "prefill_s", "adapter_s", "decode_s", "others_s", "memory_s", "leaving_s", "late_s", "share")

FULL: Final = 0.999
"""Share of the KV cache at most in `k / (1 - k)`, so that a full cache has a finite cost."""


class Params(Strict):
    """Weights of the terms."""

    ttft: float = Field(default=1.0, ge=0, description="Weight of the seconds to the first token.")
    decode: float = Field(default=0.5, ge=0, description="Weight of the seconds that the answer takes longer than on the fastest backend.")
    others: float = Field(default=0.2, ge=0, description="Weight of the seconds taken from requests that run there; 1 is unselfish.")
    memory_s: float = Field(default=0.5, ge=0, description="Seconds charged for a KV cache that is half full.")
    unshared: float = Field(default=0.2, ge=0, le=1, description="Share of the last three that stays where nothing cached is used again.")
    leaving: float = Field(default=0.3, ge=0, description="Weight of the seconds to compute again what another backend holds.")
    late_s: float = Field(
        default=60.0,
        ge=0,
        description="Seconds charged to a backend that would be slower per token than `tpot_slo_s` promises, while another would not.",
    )
    horizon: float = Field(
        default=150.0, gt=0, description="Tokens of an answer for which today's batch is taken to last; of longer ones fewer count."
    )


def score(
    request: RoutingRequest, candidates: Candidates, load_table: LoadTable, params: Params, memory: Any, now: float, rng: Rng
) -> Scores:
    """The cost by the module's formula."""
    rows = candidates.rows
    matched = candidates.matched
    tokens = float(request.prompt_tokens)
    output = float(request.output_tokens)
    fixed_s = load_table.prefill_s
    token_s = load_table.prefill_s_token
    ctx_s = load_table.prefill_s_token_ctx
    step_s = load_table.step_s
    seq_s = load_table.step_s_seq
    kv_s = load_table.step_s_token
    requests = load_table.requests
    queued = load_table.queue_tokens
    used = load_table.kv_tokens
    crowding = params.unshared + (1.0 - params.unshared) * load_table.reuse.share
    w_t = params.ttft
    w_d = params.decode * crowding
    w_x = params.others * crowding
    output_there = output * params.horizon / (output + params.horizon)
    queued_ctx = load_table.queue_ctx
    queue = [w_t * (queued[row] * token_s[row] + queued_ctx[row] * ctx_s[row]) for row in rows]
    own = [
        fixed_s[row] + (tokens - held) * (token_s[row] + 0.5 * ctx_s[row] * (tokens + held))
        for row, held in zip(rows, matched, strict=True)
    ]
    prefill = own if w_t == 1.0 else [w_t * seconds for seconds in own]
    mean_ctx = tokens + 0.5 * output
    added = [seq_s[row] + kv_s[row] * mean_ctx for row in rows]
    steps = [step_s[row] + seq_s[row] * requests[row] + kv_s[row] * used[row] + added_s for row, added_s in zip(rows, added, strict=True)]
    least = min(steps)
    out_w = w_d * output_there
    decode = [out_w * (step - least) for step in steps]
    others = [w_x * requests[row] * (seconds + output_there * added_s) for row, seconds, added_s in zip(rows, own, added, strict=True)]
    crowded = _memory(rows, matched, load_table, tokens + output, params.memory_s * crowding)
    leaving = _leaving(candidates, token_s, ctx_s, params.leaving)
    adapter = [w_t * seconds for seconds in candidates.lora_s] if candidates.lora_s else [0.0] * len(rows)
    cost = [sum(parts) for parts in zip(queue, prefill, adapter, decode, others, crowded, leaving, strict=True)]
    late = [0.0] * len(rows)
    promised = request.tpot_slo_s
    if promised is not None and least <= promised:
        late = [params.late_s if step > promised else 0.0 for step in steps]
        cost = [seconds + late_s for seconds, late_s in zip(cost, late, strict=True)]
    shares = candidates.shares or [1.0] * len(rows)
    if candidates.shares:
        cost = [seconds / share for seconds, share in zip(cost, shares, strict=True)]
    return Scores(cost, (queue, prefill, adapter, decode, others, crowded, leaving, late, shares))


def _memory(rows: Sequence[int], matched: Column, load_table: LoadTable, need: float, weight_s: float) -> Column:
    used = load_table.kv_tokens
    capacity = load_table.kv_capacity
    seconds = [0.0] * len(rows)
    unknown = 0
    for at, row in enumerate(rows):
        size = capacity[row]
        if size:
            k = (used[row] + need - matched[at]) / size
            if k > FULL:
                k = FULL
            seconds[at] = weight_s * k / (1.0 - k)
        else:
            unknown += 1
    if 0 < unknown < len(rows):  # an unknown fill must not look like an empty cache
        mean = sum(seconds) / (len(rows) - unknown)
        seconds = [known_s if capacity[row] else mean for known_s, row in zip(seconds, rows, strict=True)]
    return seconds


def _leaving(candidates: Candidates, token_s: Column, ctx_s: Column, weight: float) -> Column:
    longest = max(candidates.matched)
    common = candidates.common
    if longest <= common or not weight:
        return [0.0] * len(candidates.rows)
    held = [tokens if tokens > common else common for tokens in candidates.matched]
    return [
        weight * (longest - tokens) * (token_s[row] + 0.5 * ctx_s[row] * (longest + tokens))
        for row, tokens in zip(candidates.rows, held, strict=True)
    ]


POLICY: Final = Policy(score, Params, TERMS, in_seconds=True)
