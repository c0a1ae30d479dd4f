"""Disaggregated prefill and decode: whether to split a request, so that one backend computes its prompt (prefill) and another generates
(decode) from the transferred KV cache, and which two.

Why: the prefill of a prompt stalls all requests that are decoding on the same backend. With u uncached tokens and b requests running on
the backend that would serve the request whole, the stall of all of them together is

    avoided = b * (a + b_t*u + b_c*u*(n - u/2))     seconds, by that backend's own prefill rates (`routing.load.RATE_COLUMNS`)

and the KV transfer costs this request

    transfer = n' * kv_bytes_token / bandwidth + fixed     seconds, n' prompt tokens that the decoding backend does not hold

Splitting pays when u >= `min_uncached_tokens` (2048), u/n >= `min_uncached_share` (.5) and avoided > transfer. Where no backend serves
requests whole, a request is split whenever it can be.

The decode backend is chosen first, because it keeps the request longest: the least sum of

    memory = .15 * k/(1 - k), k = (KV in use + n + out)/capacity, at most .999
    step   = out * (d + e*(running + 1) + f*(context of all there + n + out/2)), less the same of the fastest

among those with room in the KV cache; then the prefill backend by the least time to first token:

    ttft = a + b_t*(queued + u) + b_c*u*(n - u/2), u = n less what it holds; n - u/2 is the mean context of what is computed.

Only what prefill backends hold counts as prefix: transferred KV is freed with its request, unless the decode engine keeps it for
reuse (`decode_reuses`), which then saves transfer and nothing else. Source: llm-d's and Dynamo's conditional
disaggregation (thresholds 2048 tokens and .7 of the prompt there), with the stall in seconds instead of a second threshold.

`consider` decides, `Reservation` holds both backends' load, `DisaggregationSettings` are the settings of one pool
(docs/explanation/disaggregation.md), which the gateway and the simulator read. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from pydantic import Field

from domain.clock import Rng
from domain.explain import Candidate
from domain.strict import Strict
from routing.fleet import Backend
from routing.load import Charge, LoadTable
from routing.ports import RoutingRequest
from routing.room import FULL
from routing.schedule import Route

MEMORY_S: Final = 0.15
"""Cost in seconds of a half-full KV cache; the term has the form of the one in `predicted_latency`."""


class HandoverTerms(msgspec.Struct, frozen=True):
    """The cost of a KV transfer in one pool, and the bounds of requests that are considered for it."""

    kv_bytes_token: int
    """Bytes of one token in the KV cache, all layers."""
    bandwidth_bytes_s: float
    fixed_s: float = 0.01
    """Seconds of every transfer, however short the prompt."""
    min_uncached_tokens: int = 2048
    min_uncached_share: float = 0.5
    decode_reuses: bool = False
    """Whether decode engines keep transferred KV for later prompts."""
    pairs_whole: bool = False
    """Whether an engine that serves requests whole can also be the prefill or decode backend of a pair (`Handover.pairs_whole`)."""


class Split(msgspec.Struct, frozen=True):
    """The decision whether to split one request, with its candidates."""

    decodes: tuple[Candidate, ...]
    """Decode backends, best first, with terms in seconds; then the excluded ones, with the reason."""
    prefills: tuple[Candidate, ...]
    """Prefill backends for the first of `decodes`, likewise."""
    why: str
    """Why the request is split or not, for an operator."""
    uncached_tokens: int = 0
    """Uncached tokens of the prompt on the first of `prefills`."""
    decode: Backend | None = None
    """The first of `decodes`; None when the request is not split."""
    prefill: tuple[Backend, ...] = ()
    """The eligible backends of `prefills`, best first; empty when the request is not split."""

    def sentence(self) -> str:
        """The decision and both rankings in words, for an operator."""
        return f"{self.why}; decode {_words(self.decodes)}; prefill {_words(self.prefills)}"

    def prefills_for(self, backend: Backend) -> tuple[Backend, ...]:
        """The prefill backends for this decode backend, best first; empty when `backend` serves the request whole."""
        if self.decode is None or not (backend.id == self.decode.id or backend.role == "decode"):
            return ()
        return tuple([prefill for prefill in self.prefill if prefill.id != backend.id])


class Shared(NamedTuple):
    """The decision's data for the two upstream calls of a split request."""

    split: Split
    request: RoutingRequest
    load_table: LoadTable


class Sides(NamedTuple):
    """A pool's backends by the roles they can take for a request; one backend may have several roles."""

    whole: tuple[Backend, ...]
    decode: tuple[Backend, ...]
    prefill: tuple[Backend, ...]


def sides(backends: Sequence[Backend], terms: HandoverTerms) -> Sides:
    """The backends that can serve a request whole, decode it, or prefill it; each in the order of `backends`."""
    whole = tuple(b for b in backends if b.role == "both")
    paired = ("both",) if terms.pairs_whole else ()
    return Sides(
        whole,
        tuple(b for b in backends if b.role in ("decode", *paired)),
        tuple(b for b in backends if b.role in ("prefill", *paired)),
    )


def consider(
    request: RoutingRequest, ranked: Sequence[Backend], load_table: LoadTable, held: Mapping[str, float], terms: HandoverTerms, rng: Rng
) -> Split:
    """Decide whether to split this request, and onto which backends.

    Args:
        ranked: the pool's eligible backends, best first by the policy; a pair is compared with the first that serves requests whole.
        held: tokens of the prompt that each backend holds, multiplied by trust, at most the prompt less one token; 0 for missing ids.
    """
    by_role = sides(ranked, terms)
    decodes, no_room = _decodes(request, by_role.decode, load_table, rng)
    if not decodes:
        return Split(no_room, (), "no backend that generates for another has room" if no_room else "no backend generates for another")
    decode = decodes[0][1]
    prefills = _prefills(request, [b for b in by_role.prefill if b.id != decode.id], load_table, held, rng)
    decode_candidates = tuple(_candidate(judged) for judged in decodes) + no_room
    prefill_candidates = tuple(_candidate(judged) for judged in prefills)
    if not prefills:
        return Split(decode_candidates, (), "no backend computes prompts for another")
    pays, why = _pays(request, by_role.whole[0] if by_role.whole else None, decode, load_table, held, terms)
    uncached = request.prompt_tokens - int(held.get(prefills[0][1].id, 0.0))
    if not pays:
        return Split(decode_candidates, prefill_candidates, why, uncached)
    return Split(decode_candidates, prefill_candidates, why, uncached, decode, tuple([judged[1] for judged in prefills]))


_Judged = tuple[tuple[float, float], Backend, tuple[tuple[str, float], ...]]
"""((cost, random tie-break), backend, terms)"""


def _decodes(
    request: RoutingRequest, among: Sequence[Backend], load_table: LoadTable, rng: Rng
) -> tuple[list[_Judged], tuple[Candidate, ...]]:
    tokens = request.prompt_tokens + request.output_tokens
    out = request.output_tokens
    fits: list[tuple[Backend, float, float]] = []
    full: list[Candidate] = []
    for backend in among:
        row = load_table.row_of[backend.id]
        capacity = load_table.kv_capacity[row]
        used = load_table.kv_tokens[row]
        if capacity and used + tokens > capacity:
            full.append(Candidate(backend.id, excluded=f"has no room for {tokens:,} tokens"))
            continue
        share = min(0.999, (used + tokens) / capacity) if capacity else 0.0
        context = used + request.prompt_tokens + out / 2
        step = load_table.step_s[row] + load_table.step_s_seq[row] * (load_table.running[row] + 1) + load_table.step_s_token[row] * context
        fits.append((backend, MEMORY_S * share / (1 - share), out * step))
    fastest = min([fit[2] for fit in fits], default=0.0)
    judged: list[_Judged] = [
        ((memory + steps - fastest, rng.random()), backend, (("memory_s", memory), ("step_s", steps - fastest)))
        for backend, memory, steps in fits
    ]
    judged.sort(key=lambda entry: entry[0])
    return judged, tuple(full)


def _prefills(
    request: RoutingRequest, among: Sequence[Backend], load_table: LoadTable, held: Mapping[str, float], rng: Rng
) -> list[_Judged]:
    judged: list[_Judged] = []
    for backend in among:
        row = load_table.row_of[backend.id]
        uncached = request.prompt_tokens - held.get(backend.id, 0.0)
        queued = (
            load_table.queue_tokens[row] * load_table.prefill_s_token[row] + load_table.queue_ctx[row] * load_table.prefill_s_token_ctx[row]
        )
        computing = _prefill_s(load_table, row, uncached, request.prompt_tokens)
        judged.append(((queued + computing, rng.random()), backend, (("queued_s", queued), ("prefill_s", computing))))
    judged.sort(key=lambda entry: entry[0])
    return judged


def _prefill_s(load_table: LoadTable, row: int, uncached: float, prompt_tokens: int) -> float:
    mean_ctx = prompt_tokens - uncached / 2
    return load_table.prefill_s[row] + uncached * (load_table.prefill_s_token[row] + load_table.prefill_s_token_ctx[row] * mean_ctx)


def _pays(
    request: RoutingRequest, whole: Backend | None, decode: Backend, load_table: LoadTable, held: Mapping[str, float], terms: HandoverTerms
) -> tuple[bool, str]:
    if whole is None:
        return True, "split: no backend serves requests whole"
    tokens = request.prompt_tokens
    uncached = tokens - held.get(whole.id, 0.0)
    if uncached < terms.min_uncached_tokens:
        return False, f"whole: {uncached:,.0f} uncached tokens are fewer than {terms.min_uncached_tokens:,}"
    if uncached < terms.min_uncached_share * tokens:
        return False, f"whole: {uncached / tokens:.2f} of the prompt is uncached, less than {terms.min_uncached_share:g}"
    row = load_table.row_of[whole.id]
    avoided = load_table.running[row] * _prefill_s(load_table, row, uncached, tokens)
    moved = tokens - (held.get(decode.id, 0.0) if terms.decode_reuses else 0.0)
    transfer = moved * terms.kv_bytes_token / terms.bandwidth_bytes_s + terms.fixed_s
    words = f"a stall of {avoided:.3g} s for {load_table.running[row]:g} requests on {whole.id}, {transfer:.3g} s of handing over"
    return avoided > transfer, f"{'split' if avoided > transfer else 'whole'}: {words}"


def _candidate(judged: _Judged) -> Candidate:
    return Candidate(judged[1].id, judged[2])


def _words(candidates: Sequence[Candidate]) -> str:
    able = [f"{c.backend} ({', '.join(f'{name}={value:.3g}' for name, value in c.terms)})" for c in candidates if c.excluded is None]
    out = [f"{c.backend}: {c.excluded}" for c in candidates if c.excluded is not None]
    return (" < ".join(able) or "nobody") + (f" ({', '.join(out)})" if out else "")


def for_roles(route: Route, split: Split | None) -> Route:
    """The Route to send the request by: without prefill and decode backends when it is served whole; else first the decode backend of
    `split`, then the backends that serve requests whole, then further decode backends."""
    ranked = [entry for entry in route.ranked if entry[0].role == "both"]
    if split is not None and split.decode is not None:
        order = {candidate.backend: at for at, candidate in enumerate(split.decodes)}
        decodes = sorted(
            (entry for entry in route.ranked if entry[0].role == "decode" and entry[0].id in order), key=lambda entry: order[entry[0].id]
        )
        first = [entry for entry in route.ranked if entry[0].id == split.decode.id]
        ranked = first + [entry for entry in ranked if entry not in first] + [entry for entry in decodes if entry not in first]
    ranked_ids = {backend.id for backend, _ in ranked}
    out = tuple(
        msgspec.structs.replace(b, reason=f"serves one half of requests only ({b.role})") for b in route.backends if b.id not in ranked_ids
    )
    costs = _reordered(ranked, route, route.costs)
    matched = _reordered(ranked, route, route.matched)
    waiting = _reordered(ranked, route, route.waiting)
    full = not ranked and any([backend.reason.startswith(FULL) for backend in route.excluded])
    excluded = (*route.excluded, *out)
    return msgspec.structs.replace(route, ranked=tuple(ranked), excluded=excluded, costs=costs, matched=matched, waiting=waiting, full=full)


def _reordered(ranked: Sequence[tuple[Backend, tuple[float, ...]]], route: Route, column: tuple[float, ...]) -> tuple[float, ...]:
    values = dict(zip([backend.id for backend in route.backends], column, strict=False))
    return tuple([values.get(backend.id, 0.0) for backend, _ in ranked]) if values else ()


class Reservation:
    """In-flight load of a split request on its prefill and its decode backend; both are charged together, and both are released.

    The prompt is charged to the prefill backend, KV tokens to both; the decode backend computes no prompt.
    """

    __slots__ = ("_decode", "_load_table", "_prefill")

    def __init__(self, load_table: LoadTable, prefill: Charge, decode: Charge) -> None:
        self._load_table = load_table
        self._prefill = prefill
        self._decode = decode

    def prefilled(self) -> None:
        """Record that the prompt is computed; its KV tokens stay charged to both backends."""
        self._load_table.begun(self._prefill)

    def handed_over(self) -> None:
        """Record that the decode backend has the KV, and release the prefill backend."""
        self._load_table.begun(self._decode)
        self._load_table.release(self._prefill)

    def release(self) -> None:
        """Release both backends: the request is over, or was given up."""
        self._load_table.release(self._prefill)
        self._load_table.release(self._decode)


def reserve(load_table: LoadTable, prefill: str, decode: str, uncached_tokens: int, request: RoutingRequest, now: float) -> Reservation:
    """Charge both backends for one request, or neither.

    Raises:
        KeyError: one of the backends has left the pool; nothing is charged then.
    """
    first = load_table.charge(prefill, uncached_tokens, request.prompt_tokens, now)
    try:
        second = load_table.charge(decode, 0, request.prompt_tokens + request.output_tokens, now)
    except BaseException:
        load_table.release(first)
        raise
    return Reservation(load_table, first, second)


class DisaggregationSettings(Strict):
    """The cost of a KV transfer between two engines, and the bounds of requests that are considered for disaggregation."""

    kv_bytes_token: int = Field(
        ge=1,
        le=100_000_000,
        description="Bytes of one token in the KV cache, all layers together; docs/explanation/disaggregation.md has the formula.",
    )
    bandwidth_gb_s: float = Field(gt=0, le=100_000, description="Measured bandwidth between two engines, in gigabytes a second.")
    fixed_s: float = Field(default=0.01, ge=0, le=60, description="Fixed seconds of every KV transfer, however short the prompt.")
    min_uncached_tokens: int = Field(
        default=2048, ge=0, le=100_000_000, description="Requests with fewer uncached prompt tokens are served whole, by one engine."
    )
    min_uncached_share: float = Field(
        default=0.5, ge=0, le=1, description="Requests with a smaller uncached share of the prompt are served whole, too."
    )
    decode_reuses: bool = Field(
        default=False,
        description="Whether decode engines keep received KV in their prefix cache for later prompts, so that it need not be "
        "transferred again.",
    )

    def terms(self, *, pairs_whole: bool) -> HandoverTerms:
        """The settings as the value that deciders take; `pairs_whole` comes from the engine's dialect."""
        return HandoverTerms(
            kv_bytes_token=self.kv_bytes_token,
            bandwidth_bytes_s=self.bandwidth_gb_s * 1e9,
            fixed_s=self.fixed_s,
            min_uncached_tokens=self.min_uncached_tokens,
            min_uncached_share=self.min_uncached_share,
            decode_reuses=self.decode_reuses,
            pairs_whole=pairs_whole,
        )
