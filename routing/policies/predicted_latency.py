"""cost(b) = w_t * ttft + recompute + w_d * decode + memory + late + crossing, all in seconds, divided by the share of a warming backend.

    u         = n - trusted match                   uncached tokens of a prompt of n
    own       = b * u + c * u * (n + m) / 2         computing them; m matched tokens
    ttft      = a + own + Q * b + Qc * c            Q uncached tokens that wait there, Qc the sum of the contexts they attend to
              + steps * step + (step - d) + adapter decode steps it waits for and runs in (`LoadTable.interference_s`), the adapter's load
    recompute = (w_r * reuse * K / (1 - K) + w_b * B / (1 - B)) * own     the same factor for every candidate:
                                                    K = mean fill of the fleet's KV caches, at most .95
                                                    B = share of backends with prompts to compute, at most .8; 0 unless one candidate
                                                        alone holds the most of the prompt
    decode    = o * (step - least step)             o expected output tokens, each a step; what they take longer than at best
    memory    = lambda * reuse * k / (1 - k)        k = share of this KV cache in use or promised, with this request, at most .98
    late      = late_s where the step is above the time per token that its tenant was promised, and another backend's is not
    crossing  = crossing_s where the backend's region is known and another one than the gateway's

A prompt's first token waits for the steps that the engine makes meanwhile, and each of them also decodes every running sequence: a prompt
of one chunk waits half a step and ends with its own. `recompute` is the price of computing cached tokens a second time: the copy evicts
as many tokens of others, which costs the more the shorter memory is in the fleet (K) and the more of what is cached is used again
(`LoadTable.reuse`). It is also the delay of everybody who comes while the copy is computed, which grows with the load as in any queue (B):
otherwise each conversation that leaves a busy backend makes the others busier, and at 60 % of the fleet's capacity conversations follow one
another around. A prefix that a second backend has is worth having there, so copies of popular prefixes do not cost that. Neither depends
on the candidate but by the tokens themselves, so it does not unbalance queues.

o is bounded: of an answer of o tokens o * H / (o + H) count, because today's batch does not last for a whole long answer. Each part is
bounded: own by the prompt, recompute by 19 w_r + 4 w_b times that, memory by 49 lambda, so that near costs are near in time.

Source: the step-aware cost of docs/explanation/decisions/0009, where it was compared with its predecessor (0005) and with variants in the
fleet simulator. Rates are the backend's own, calibrated (`routing/calibration.py`).
"""

from collections.abc import Sequence
from math import ceil, inf
from typing import Any, Final

from pydantic import Field

from domain.clock import Rng
from domain.strict import Strict
from routing.load import LoadTable
from routing.load_order import LoadOrder
from routing.ports import Candidates, Column, Policy, RoutingRequest, Scores

TERMS: Final = ("queue_s", "prefill_s", "adapter_s", "recompute_s", "decode_s", "memory_s", "late_s", "share", "crossing_s")

FULL: Final = 0.98
"""Share of a KV cache at most in `k / (1 - k)`."""
SHORT: Final = 0.95
"""Mean share of the fleet's KV caches at most in `K / (1 - K)`."""

BUSY: Final = 0.8
"""Share of backends with prompts to compute at most in `B / (1 - B)`."""
ALIKE: Final = 0.9
"""Share of the longest match from which on another backend holds as much."""


class Params(Strict):
    """Weights of the terms."""

    ttft: float = Field(default=1.0, ge=0, description="Weight of the seconds to the first token.")
    recompute: float = Field(
        default=2.0,
        ge=0,
        description="Weight of the seconds to compute the uncached tokens where the fleet's KV caches are half full and all that is cached "
        "is used again.",
    )
    work: float = Field(
        default=0.5,
        ge=0,
        description="Weight of the seconds to compute the uncached tokens where half of the backends have prompts to compute and one "
        "backend alone holds the most of this one.",
    )
    decode: float = Field(default=0.1, ge=0, description="Weight of the extra seconds of the answer over those on the fastest backend.")
    memory_s: float = Field(
        default=0.1, ge=0, description="Seconds charged for a KV cache that is half full, where all that is cached is used again."
    )
    late_s: float = Field(
        default=60.0,
        ge=0,
        description="Seconds charged to a backend that would be slower per token than `tpot_slo_s`, while another would not.",
    )
    crossing_s: float = Field(
        default=0.0,
        ge=0,
        le=60,
        description="Seconds charged to a backend whose region is another one than `routing.region`: the own zone is preferred unless its "
        "delay is longer by that.",
    )
    horizon: float = Field(
        default=150.0,
        gt=0,
        description="Output tokens for which the current batch is assumed to last; longer answers count with fewer tokens than they have.",
    )


def score(request: RoutingRequest, candidates: Candidates, load_table: LoadTable, params: Params, memory: Any, rng: Rng) -> Scores:
    """The cost by the module's formula."""
    rows, matched = candidates.rows, candidates.matched
    tokens, output = float(request.prompt_tokens), float(request.output_tokens)
    need, mean_ctx = tokens + output, tokens + 0.5 * output
    fixed_s, token_s, ctx_s = load_table.prefill_s, load_table.prefill_s_token, load_table.prefill_s_token_ctx
    step_s, seq_s, kv_s = load_table.step_s, load_table.step_s_seq, load_table.step_s_token
    requests, decoding, decoding_ctx = load_table.requests, load_table.decoding, load_table.decoding_ctx
    queued, queued_ctx, facts = load_table.queue_tokens, load_table.queue_ctx, load_table.facts
    used, capacity = load_table.kv_tokens, load_table.kv_capacity
    w_t, w_r, w_m = params.ttft, _price(candidates, load_table, params), params.memory_s * load_table.reuse.share
    steps: list[float] = []
    crowded: list[float] = []
    until_first: list[tuple[float, float, float]] = []
    for row, held in zip(rows, matched, strict=True):
        uncached = tokens - held
        a_token_s, a_ctx_s, at_work = token_s[row], ctx_s[row], decoding[row]
        base_s = step_s[row]
        step = base_s + seq_s[row] * at_work + kv_s[row] * decoding_ctx[row]
        budget = facts[row].step_tokens
        chunk = budget - at_work if at_work < 0.875 * budget else 0.125 * budget
        waits = ceil((queued[row] + uncached) / chunk) - 1.0
        if requests[row]:
            waits += 0.5
        if waits < 0.0:
            waits = 0.0
        own_s = uncached * (a_token_s + 0.5 * a_ctx_s * (tokens + held))
        queue_s = w_t * (waits * step + queued[row] * a_token_s + queued_ctx[row] * a_ctx_s)
        until_first.append((queue_s, w_t * (fixed_s[row] + own_s + step - base_s), w_r * own_s))
        steps.append(step + seq_s[row] + kv_s[row] * mean_ctx)
        k = (used[row] + need - held) / size if (size := capacity[row]) else 0.0
        if k > FULL:
            k = FULL
        crowded.append(w_m * k / (1.0 - k))
    if w_m and 0.0 in crowded:  # perhaps of a cache that is not known
        crowded = _without_gaps(crowded, rows, capacity)
    least, out_w = min(steps), params.decode * output * params.horizon / (output + params.horizon)
    lora_s, shares = candidates.lora_s, candidates.shares
    promised = request.tpot_slo_s if request.tpot_slo_s is not None and least <= request.tpot_slo_s else inf
    abroad_s = params.crossing_s if request.region else 0.0
    cost: list[float] = []
    terms: list[tuple[float, ...]] = []
    for at, step in enumerate(steps):
        queue_s, prefill_s, recompute_s = until_first[at]
        adapter_s = w_t * lora_s[at] if lora_s else 0.0
        decode_s, memory_s = out_w * (step - least), crowded[at]
        late_s = params.late_s if step > promised else 0.0
        crossing_s = abroad_s if abroad_s and facts[rows[at]].region not in ("", request.region) else 0.0
        share = shares[at] if shares else 1.0
        cost.append((queue_s + prefill_s + adapter_s + recompute_s + decode_s + memory_s + late_s + crossing_s) / share)
        terms.append((queue_s, prefill_s, adapter_s, recompute_s, decode_s, memory_s, late_s, share, crossing_s))
    return Scores(cost, terms)


def _price(candidates: Candidates, load_table: LoadTable, params: Params) -> float:
    """What `recompute` multiplies the own seconds by, the same for all: by how short KV memory is in the fleet (0 while no backend's cache
    is known), and, where one candidate alone holds the most of the prompt, by how busy the fleet is with prompts."""
    rows, matched, price = candidates.rows, candidates.matched, 0.0
    if reuse := load_table.reuse.share:
        fill = candidates.fill
        if fill is None:
            used, capacity = load_table.kv_tokens, load_table.kv_capacity
            fills = [used[row] / capacity[row] if used[row] < capacity[row] else 1.0 for row in rows if capacity[row]]
            fill = sum(fills) / len(fills) if fills else 0.0
        fill = min(SHORT, fill)
        price = params.recompute * reuse * fill / (1.0 - fill)
    longest = max(matched)
    if params.work and longest > 0.0 and sum([held >= ALIKE * longest for held in matched]) == 1:
        busy = candidates.busy
        if busy is None:
            busy = sum([load_table.queue_tokens[row] > 0.0 for row in rows]) / len(rows)
        busy = min(BUSY, busy)
        price += params.work * busy / (1.0 - busy)
    return price


def _without_gaps(crowded: list[float], rows: Sequence[int], capacity: Column) -> list[float]:
    """The seconds of `memory`, with the mean of the others for a backend whose cache is not known: it must not look like an empty one."""
    known = sum([capacity[row] > 0.0 for row in rows])
    mean = sum(crowded) / known if known else 0.0
    return [known_s if capacity[row] else mean for known_s, row in zip(crowded, rows, strict=True)]


def beyond(
    request: RoutingRequest,
    candidates: Candidates,
    load_table: LoadTable,
    order: LoadOrder,
    params: Params,
    rest: tuple[float, float],
) -> tuple[float, float]:
    """A lower bound of what backends cost that are not scored: each part of the formula with the fleet's least rates
    (docs/explanation/decisions/0015 has the argument).

    `decode` counts from the least step of the candidates here, so it may be negative for the others. `crossing` is 0 at least. No
    bound is known where a backend that is not scored decides whether others are late.
    """
    tokens, output = float(request.prompt_tokens), float(request.output_tokens)
    most_tokens, least_lora_s = rest
    uncached = max(1.0, tokens - most_tokens)
    step_s, seq_s, kv_s = load_table.step_s, load_table.step_s_seq, load_table.step_s_token
    decoding, decoding_ctx = load_table.decoding, load_table.decoding_ctx
    mean_ctx = tokens + 0.5 * output
    least = min([step_s[row] + seq_s[row] * (decoding[row] + 1.0) + kv_s[row] * (decoding_ctx[row] + mean_ctx) for row in candidates.rows])
    least_beyond = order.least_decode_s + order.least_kv_s * mean_ctx
    if request.tpot_slo_s is not None and least_beyond <= request.tpot_slo_s < least:
        return params.ttft, -inf
    reuse = load_table.reuse.share
    own_s = (tokens - most_tokens) * (order.least_token_s + 0.5 * order.least_ctx_s * (tokens + most_tokens))
    bound = params.ttft * (own_s + least_lora_s + (uncached - 1.0) // order.most_step_tokens * order.least_step_s)
    bound += _price(candidates, load_table, params) * own_s
    if reuse and order.largest_kv:
        k = min(FULL, order.least_fill + (tokens + output - most_tokens) / order.largest_kv)
        bound += params.memory_s * reuse * k / (1.0 - k)
    out_w = params.decode * output * params.horizon / (output + params.horizon)
    return params.ttft, bound + out_w * min(0.0, least_beyond - least)


def first_token_s(params: Params, terms: Sequence[float]) -> float | None:
    """The expected seconds to the first token, without their weight: the queue, the own prompt and the adapter's load."""
    queue_s, prefill_s, adapter_s = terms[:3]
    return (queue_s + prefill_s + adapter_s) / params.ttft if params.ttft else None


POLICY: Final = Policy(score, Params, TERMS, in_seconds=True, unit="s", first_token_s=first_token_s, beyond=beyond)
