"""Disaggregated prefill and decode: whether to split a request, so that one backend computes its prompt (prefill) and another generates
(decode) from the transferred KV cache, and which two.

Why: the prefill of a prompt stalls all requests that are decoding on the same backend. With u uncached tokens and b requests running on
the backend that would serve the request whole, the stall of all of them together is

    avoided = b * (a + b_t*u + b_c*u*(n - u/2))     seconds, by that backend's own prefill rates (`routing.load.RATES`)

and the KV transfer costs this request

    transfer = n' * kv_bytes_token / bandwidth + fixed     seconds, n' prompt tokens that the decoding backend does not hold

Splitting pays when u >= `min_uncached_tokens` (2048), u/n >= `min_uncached_share` (.5) and avoided > transfer. Where no backend serves
requests whole, a request is split whenever it can be.

The decode backend is chosen first, because it keeps the request longest: the least sum of

    memory = .15 * k/(1 - k), k = (KV in use + n + out)/capacity, at most .999
    step   = out * (d + e*(running + 1) + f*(context of all there + n + out/2)), less the same of the fastest

among those with room in the KV cache; then the prefill backend by the least time to first token:

    ttft = a + b_t*(queued + u) + b_c*u*(n - u/2), u = n less what it holds; n - u/2 is the mean context of what is computed.

Only what prefill backends hold counts as prefix: transferred KV is freed with its request, unless the decoding engine keeps it for
reuse (`decode_reuses`), which then saves transfer and nothing else. Source: llm-d's and Dynamo's conditional
disaggregation (thresholds 2048 tokens and .7 of the prompt there), with the stall in seconds instead of a second threshold.
Pure.

Settings of disaggregated prefill and decode in one pool (docs/disaggregation.md); the gateway and the simulator read them.
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
    """What a KV transfer costs in one pool, and which requests are considered for it."""

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
    """What the two upstream calls of a split request need from the decision."""

    split: Split
    demand: RoutingRequest
    board: LoadTable


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
    demand: RoutingRequest, ranked: Sequence[Backend], board: LoadTable, held: Mapping[str, float], terms: HandoverTerms, rng: Rng
) -> Split:
    """Decide whether to split this request, and onto which backends.

    Args:
        ranked: the pool's eligible backends, best first by the policy; a pair is compared with the first that serves requests whole.
        held: tokens of the prompt that each backend holds, multiplied by trust, at most the prompt less one token; 0 for missing ids.
    """
    by_role = sides(ranked, terms)
    decodes, no_room = _decodes(demand, by_role.decode, board, rng)
    if not decodes:
        return Split(no_room, (), "no backend that generates for another has room" if no_room else "no backend generates for another")
    decode = decodes[0][1]
    prefills = _prefills(demand, [b for b in by_role.prefill if b.id != decode.id], board, held, rng)
    decode_candidates = tuple(_candidate(judged) for judged in decodes) + no_room
    prefill_candidates = tuple(_candidate(judged) for judged in prefills)
    if not prefills:
        return Split(decode_candidates, (), "no backend computes prompts for another")
    pays, why = _pays(demand, by_role.whole[0] if by_role.whole else None, decode, board, held, terms)
    uncached = demand.prompt_tokens - int(held.get(prefills[0][1].id, 0.0))
    if not pays:
        return Split(decode_candidates, prefill_candidates, why, uncached)
    return Split(decode_candidates, prefill_candidates, why, uncached, decode, tuple([judged[1] for judged in prefills]))


_Judged = tuple[tuple[float, float], Backend, tuple[tuple[str, float], ...]]
"""((cost, random tie-break), backend, terms)"""


def _decodes(demand: RoutingRequest, among: Sequence[Backend], board: LoadTable, rng: Rng) -> tuple[list[_Judged], tuple[Candidate, ...]]:
    tokens = demand.prompt_tokens + demand.output_tokens
    out = demand.output_tokens
    fits: list[tuple[Backend, float, float]] = []
    full: list[Candidate] = []
    for backend in among:
        row = board.row_of[backend.id]
        capacity = board.kv_capacity[row]
        used = board.kv_tokens[row]
        if capacity and used + tokens > capacity:
            full.append(Candidate(backend.id, excluded=f"has no room for {tokens:,} tokens"))
            continue
        share = min(0.999, (used + tokens) / capacity) if capacity else 0.0
        context = used + demand.prompt_tokens + out / 2
        step = board.step_s[row] + board.step_s_seq[row] * (board.running[row] + 1) + board.step_s_token[row] * context
        fits.append((backend, MEMORY_S * share / (1 - share), out * step))
    fastest = min([fit[2] for fit in fits], default=0.0)
    judged: list[_Judged] = [
        ((memory + steps - fastest, rng.random()), backend, (("memory_s", memory), ("step_s", steps - fastest)))
        for backend, memory, steps in fits
    ]
    judged.sort(key=lambda entry: entry[0])
    return judged, tuple(full)


def _prefills(demand: RoutingRequest, among: Sequence[Backend], board: LoadTable, held: Mapping[str, float], rng: Rng) -> list[_Judged]:
    judged: list[_Judged] = []
    for backend in among:
        row = board.row_of[backend.id]
        uncached = demand.prompt_tokens - held.get(backend.id, 0.0)
        queued = board.queue_tokens[row] * board.prefill_s_token[row] + board.queue_ctx[row] * board.prefill_s_token_ctx[row]
        computing = _prefill_s(board, row, uncached, demand.prompt_tokens)
        judged.append(((queued + computing, rng.random()), backend, (("queued_s", queued), ("prefill_s", computing))))
    judged.sort(key=lambda entry: entry[0])
    return judged


def _prefill_s(board: LoadTable, row: int, uncached: float, prompt_tokens: int) -> float:
    mean_ctx = prompt_tokens - uncached / 2
    return board.prefill_s[row] + uncached * (board.prefill_s_token[row] + board.prefill_s_token_ctx[row] * mean_ctx)


def _pays(
    demand: RoutingRequest, whole: Backend | None, decode: Backend, board: LoadTable, held: Mapping[str, float], terms: HandoverTerms
) -> tuple[bool, str]:
    if whole is None:
        return True, "split: no backend serves requests whole"
    tokens = demand.prompt_tokens
    uncached = tokens - held.get(whole.id, 0.0)
    if uncached < terms.min_uncached_tokens:
        return False, f"whole: {uncached:,.0f} uncached tokens are fewer than {terms.min_uncached_tokens:,}"
    if uncached < terms.min_uncached_share * tokens:
        return False, f"whole: {uncached / tokens:.2f} of the prompt is uncached, less than {terms.min_uncached_share:g}"
    row = board.row_of[whole.id]
    avoided = board.running[row] * _prefill_s(board, row, uncached, tokens)
    moved = tokens - (held.get(decode.id, 0.0) if terms.decode_reuses else 0.0)
    transfer = moved * terms.kv_bytes_token / terms.bandwidth_bytes_s + terms.fixed_s
    words = f"a stall of {avoided:.3g} s for {board.running[row]:g} requests on {whole.id}, {transfer:.3g} s of handing over"
    return avoided > transfer, f"{'split' if avoided > transfer else 'whole'}: {words}"


def _candidate(judged: _Judged) -> Candidate:
    return Candidate(judged[1].id, judged[2])


def _words(candidates: Sequence[Candidate]) -> str:
    able = [f"{c.backend} ({', '.join(f'{name}={value:.3g}' for name, value in c.terms)})" for c in candidates if c.excluded is None]
    out = [f"{c.backend}: {c.excluded}" for c in candidates if c.excluded is not None]
    return (" < ".join(able) or "nobody") + (f" ({', '.join(out)})" if out else "")


def halved(route: Route, split: Split | None) -> Route:
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
    full = not ranked and any([backend.reason.startswith(FULL) for backend in route.excluded])
    excluded = (*route.excluded, *out)
    return msgspec.structs.replace(route, ranked=tuple(ranked), excluded=excluded, costs=costs, matched=matched, full=full)


def _reordered(ranked: Sequence[tuple[Backend, tuple[float, ...]]], route: Route, column: tuple[float, ...]) -> tuple[float, ...]:
    values = dict(zip([backend.id for backend in route.backends], column, strict=False))
    return tuple([values.get(backend.id, 0.0) for backend, _ in ranked]) if values else ()


class Reservation:
    """In-flight load of a split request on its prefill and its decode backend; both are charged together, and both are released.

    The prompt is charged to the prefill backend, KV tokens to both; the decode backend computes no prompt.
    """

    __slots__ = ("_board", "_decode", "_prefill")

    def __init__(self, board: LoadTable, prefill: Charge, decode: Charge) -> None:
        self._board = board
        self._prefill = prefill
        self._decode = decode

    def prefilled(self) -> None:
        """Record that the prompt is computed; its KV tokens stay charged to both backends."""
        self._board.begun(self._prefill)

    def handed_over(self) -> None:
        """Record that the decode backend has the KV, and release the prefill backend."""
        self._board.begun(self._decode)
        self._board.release(self._prefill)

    def release(self) -> None:
        """Release both backends: the request is over, or was given up."""
        self._board.release(self._prefill)
        self._board.release(self._decode)


def reserve(board: LoadTable, prefill: str, decode: str, uncached_tokens: int, demand: RoutingRequest, now: float) -> Reservation:
    """Charge both backends for one request, or neither.

    Raises:
        KeyError: one of the backends has left the pool; nothing is charged then.
    """
    first = board.charge(prefill, uncached_tokens, demand.prompt_tokens, now)
    try:
        second = board.charge(decode, 0, demand.prompt_tokens + demand.output_tokens, now)
    except BaseException:
        board.release(first)
        raise
    return Reservation(board, first, second)


class DisaggregationSettings(Strict):
    """What a KV transfer between two engines costs, and which requests are considered for disaggregation."""

    kv_bytes_token: int = Field(
        ge=1,
        le=100_000_000,
        description="Bytes that one token takes in the KV cache, all layers together; docs/disaggregation.md has the formula.",
    )
    bandwidth_gb_s: float = Field(gt=0, le=100_000, description="Gigabytes a second between two engines, as measured.")
    fixed_s: float = Field(default=0.01, ge=0, le=60, description="Seconds that every hand-over takes besides, however short the prompt.")
    min_uncached_tokens: int = Field(
        default=2048, ge=0, le=100_000_000, description="Requests with fewer tokens to compute are served whole."
    )
    min_uncached_share: float = Field(
        default=0.5, ge=0, le=1, description="So are those of whose prompt less than this share has to be computed."
    )
    decode_reuses: bool = Field(
        default=False,
        description="Whether decoding engines keep what they were handed for later prompts, so that it need not be moved again.",
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
