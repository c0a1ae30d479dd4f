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
between it goes by `LoadTable.reuse`: a crowded backend loses cached prompts, which costs nothing if nobody comes back for them.

Source: routers research 4.1, of which is the form (its w_t 1, w_d 1, w_x .1, lambda .15 s, SMG's); `leaving` is what its first fleet
results found to pay on agent sessions (data.md, 5). Qc, H, the reuse and the weights were judged over all workloads in the fleet simulator
(docs/explanation/decisions/0005). A match that nearly every backend has counts as nothing in the last term, so that a system prompt pulls
nobody. Rates are the backend's own, calibrated (`routing/calibration.py`).
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
    decode: float = Field(default=0.5, ge=0, description="Weight of the extra seconds of the answer over those on the fastest backend.")
    others: float = Field(
        default=0.2,
        ge=0,
        description="Weight of the seconds that the request costs the requests that run on the backend; 1 counts them like its own.",
    )
    memory_s: float = Field(default=0.5, ge=0, description="Seconds charged for a KV cache that is half full.")
    unshared: float = Field(
        default=0.2, ge=0, le=1, description="Share of `decode`, `others` and `memory_s` that counts where no cached tokens are reused."
    )
    leaving: float = Field(default=0.3, ge=0, description="Weight of the seconds to recompute tokens that another backend has cached.")
    late_s: float = Field(
        default=60.0,
        ge=0,
        description="Seconds charged to a backend that would be slower per token than `tpot_slo_s`, while another would not.",
    )
    horizon: float = Field(
        default=150.0,
        gt=0,
        description="Output tokens for which the current batch is assumed to last; longer answers count with fewer tokens than they have.",
    )


def score(request: RoutingRequest, candidates: Candidates, load_table: LoadTable, params: Params, memory: Any, rng: Rng) -> Scores:
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
    queued_ctx = load_table.queue_ctx
    used = load_table.kv_tokens
    crowding = params.unshared + (1.0 - params.unshared) * load_table.reuse.share
    w_t = params.ttft
    w_d = params.decode * crowding
    w_x = params.others * crowding
    output_there = output * params.horizon / (output + params.horizon)
    longest = max(matched)
    common = candidates.common
    leaving_w = params.leaving if longest > common else 0.0
    mean_ctx = tokens + 0.5 * output
    queue: list[float] = []
    prefill: list[float] = []
    steps: list[float] = []
    others: list[float] = []
    leaving: list[float] = []
    for row, held in zip(rows, matched, strict=True):
        a_token_s, a_ctx_s, there = token_s[row], ctx_s[row], requests[row]
        queue.append(w_t * (queued[row] * a_token_s + queued_ctx[row] * a_ctx_s))
        own_s = fixed_s[row] + (tokens - held) * (a_token_s + 0.5 * a_ctx_s * (tokens + held))
        prefill.append(w_t * own_s)
        added_s = seq_s[row] + kv_s[row] * mean_ctx
        steps.append(step_s[row] + seq_s[row] * there + kv_s[row] * used[row] + added_s)
        others.append(w_x * there * (own_s + output_there * added_s))
        if leaving_w:
            kept = held if held > common else common
            leaving.append(leaving_w * (longest - kept) * (a_token_s + 0.5 * a_ctx_s * (longest + kept)))
        else:
            leaving.append(0.0)
    least = min(steps)
    crowded = _memory(rows, matched, load_table, tokens + output, params.memory_s * crowding)
    adapter = [w_t * seconds for seconds in candidates.lora_s] if candidates.lora_s else [0.0] * len(rows)
    out_w = w_d * output_there
    decode: list[float] = []
    cost: list[float] = []
    for at, step in enumerate(steps):
        decode.append(out_w * (step - least))
        cost.append(queue[at] + prefill[at] + adapter[at] + decode[at] + others[at] + crowded[at] + leaving[at])
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


def first_token_s(params: Params, terms: Sequence[float]) -> float | None:
    """The expected seconds to the first token, without their weight: the queue, the own prompt and the adapter's load."""
    queue_s, prefill_s, adapter_s = terms[:3]
    return (queue_s + prefill_s + adapter_s) / params.ttft if params.ttft else None


POLICY: Final = Policy(score, Params, TERMS, in_seconds=True, unit="s", first_token_s=first_token_s)
