"""One request on two backends: one computes its prompt (prefill), the other generates (decode) from the KV cache it is handed.

Why: a prompt computed where others generate holds all of them up. With u uncached tokens and b requests running on the backend
that would serve the request whole, they lose together

    avoided = b * (a + b_t*u + b_c*u*(n - u/2))     seconds, by that backend's own prefill rates (`routing.board.RATES`)

and handing the cache over costs this request

    transfer = n' * kv_bytes_token / bandwidth + fixed     seconds, n' prompt tokens that the decoding backend does not hold

It pays when u >= `min_uncached_tokens` (2048), u/n >= `min_uncached_share` (.5) and avoided > transfer. Where no backend serves
requests whole there is nothing to weigh: it is split whenever it can be.

The decoding backend is chosen first, because it keeps the request longest: the least of

    memory = .15 * k/(1 - k), k = (KV in use + n + out)/capacity, at most .999
    step   = out * (d + e*(running + 1) + f*(context of all there + n + out/2)), less the same of the fastest

with who has no room left out; then the other one by time to first token:

    ttft = a + b_t*(queued + u) + b_c*u*(n - u/2), u = n less what it holds; n - u/2 is the mean context of what is computed.

Only what `prefill` backends hold counts as prefix: KV that was handed over is gone with its request, unless the decoding engine
keeps it for reuse (`decode_reuses`), which then saves transfer and nothing else. Source: llm-d's and Dynamo's conditional
disaggregation (thresholds 2048 tokens and .7 of the prompt there), with the stall in seconds instead of a second threshold.
Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from domain.clock import Rng
from domain.explain import Candidate
from routing.board import Board, Charge
from routing.demand import Demand
from routing.fleet import Backend
from routing.room import FULL
from routing.schedule import Route

MEMORY_S: Final = 0.15
"""Seconds that a half-full cache counts for; the same as in `predicted_latency`."""


class Terms(msgspec.Struct, frozen=True):
    """What handing over costs in one pool, and from when it is thought about."""

    kv_bytes_token: int
    """Of one token in the cache, all layers."""
    bandwidth_bytes_s: float
    fixed_s: float = 0.01
    """Of every hand-over, however short."""
    min_uncached_tokens: int = 2048
    min_uncached_share: float = 0.5
    decode_reuses: bool = False
    """Whether decoding engines keep what they were handed for later prompts."""
    pairs_whole: bool = False
    """Whether an engine that serves requests whole can be half of a pair (`Handover.pairs_whole`)."""


class Split(msgspec.Struct, frozen=True):
    """What was thought of splitting one request."""

    decodes: tuple[Candidate, ...]
    """Who could generate, best first, with terms in seconds; then who could not, with the reason."""
    prefills: tuple[Candidate, ...]
    """Who could compute the prompt, beside the first of `decodes`, likewise."""
    why: str
    """Why it is split or not, in words."""
    uncached_tokens: int = 0
    """Of the prompt, on the first of `prefills`."""
    decode: Backend | None = None
    """The first of `decodes`; None when it is not split."""
    prefill: tuple[Backend, ...] = ()
    """Those of `prefills` that could take it, best first; empty when it is not split."""

    def sentence(self) -> str:
        """Both halves in words, for a person."""
        return f"{self.why}; decode {_words(self.decodes)}; prefill {_words(self.prefills)}"

    def prefills_for(self, backend: Backend) -> tuple[Backend, ...]:
        """Who could compute the prompt for this backend, best first; empty for one that serves the request whole."""
        if self.decode is None or not (backend.id == self.decode.id or backend.role == "decode"):
            return ()
        return tuple([one for one in self.prefill if one.id != backend.id])


class Shared(NamedTuple):
    """What a request takes with it from the decision to its two calls."""

    split: Split
    demand: Demand
    board: Board


class Sides(NamedTuple):
    """A pool's backends by what they can be for a request; the same one may be on several sides."""

    whole: tuple[Backend, ...]
    decode: tuple[Backend, ...]
    prefill: tuple[Backend, ...]


def sides(backends: Sequence[Backend], terms: Terms) -> Sides:
    """Who can serve whole, who can generate for another, and who can compute a prompt for another; orders are kept."""
    whole = tuple(b for b in backends if b.role == "both")
    paired = ("both",) if terms.pairs_whole else ()
    return Sides(
        whole,
        tuple(b for b in backends if b.role in ("decode", *paired)),
        tuple(b for b in backends if b.role in ("prefill", *paired)),
    )


def consider(demand: Demand, ranked: Sequence[Backend], board: Board, held: Mapping[str, float], terms: Terms, rng: Rng) -> Split:
    """Whether to split this request, and onto whom.

    Args:
        ranked: the pool's eligible backends, best first by the routing policy; its first that serves whole is what a pair is
            weighed against.
        held: tokens of the prompt that each holds, trusted, at most the prompt less one token; missing ones hold nothing.
    """
    found = sides(ranked, terms)
    decodes, no_room = _decodes(demand, found.decode, board, rng)
    if not decodes:
        return Split(no_room, (), "no backend that generates for another has room" if no_room else "no backend generates for another")
    decode = decodes[0][1]
    prefills = _prefills(demand, [b for b in found.prefill if b.id != decode.id], board, held, rng)
    told = tuple(_told(one) for one in decodes) + no_room
    told_prefills = tuple(_told(one) for one in prefills)
    if not prefills:
        return Split(told, (), "no backend computes prompts for another")
    pays, why = _pays(demand, found.whole[0] if found.whole else None, decode, board, held, terms)
    uncached = demand.prompt_tokens - int(held.get(prefills[0][1].id, 0.0))
    if not pays:
        return Split(told, told_prefills, why, uncached)
    return Split(told, told_prefills, why, uncached, decode, tuple([one[1] for one in prefills]))


_Judged = tuple[tuple[float, float], Backend, tuple[tuple[str, float], ...]]
"""(cost and dice, who, terms)"""


def _decodes(demand: Demand, among: Sequence[Backend], board: Board, rng: Rng) -> tuple[list[_Judged], tuple[Candidate, ...]]:
    tokens, out = demand.prompt_tokens + demand.output_tokens, demand.output_tokens
    fits: list[tuple[Backend, float, float]] = []
    full: list[Candidate] = []
    for backend in among:
        row = board.row_of[backend.id]
        capacity, used = board.kv_capacity[row], board.kv_tokens[row]
        if capacity and used + tokens > capacity:
            full.append(Candidate(backend.id, excluded=f"has no room for {tokens:,} tokens"))
            continue
        share = min(0.999, (used + tokens) / capacity) if capacity else 0.0
        context = used + demand.prompt_tokens + out / 2
        step = board.step_s[row] + board.step_s_seq[row] * (board.running[row] + 1) + board.step_s_token[row] * context
        fits.append((backend, MEMORY_S * share / (1 - share), out * step))
    fastest = min([one[2] for one in fits], default=0.0)
    judged: list[_Judged] = [
        ((memory + steps - fastest, rng.random()), backend, (("memory_s", memory), ("step_s", steps - fastest)))
        for backend, memory, steps in fits
    ]
    judged.sort(key=lambda one: one[0])
    return judged, tuple(full)


def _prefills(demand: Demand, among: Sequence[Backend], board: Board, held: Mapping[str, float], rng: Rng) -> list[_Judged]:
    judged: list[_Judged] = []
    for backend in among:
        row = board.row_of[backend.id]
        uncached = demand.prompt_tokens - held.get(backend.id, 0.0)
        queued = board.queue_tokens[row] * board.prefill_s_token[row] + board.queue_ctx[row] * board.prefill_s_token_ctx[row]
        computing = _prefill_s(board, row, uncached, demand.prompt_tokens)
        judged.append(((queued + computing, rng.random()), backend, (("queued_s", queued), ("prefill_s", computing))))
    judged.sort(key=lambda one: one[0])
    return judged


def _prefill_s(board: Board, row: int, uncached: float, prompt_tokens: int) -> float:
    mean_ctx = prompt_tokens - uncached / 2
    return board.prefill_s[row] + uncached * (board.prefill_s_token[row] + board.prefill_s_token_ctx[row] * mean_ctx)


def _pays(
    demand: Demand, whole: Backend | None, decode: Backend, board: Board, held: Mapping[str, float], terms: Terms
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


def _told(one: _Judged) -> Candidate:
    return Candidate(one[1].id, one[2])


def _words(candidates: Sequence[Candidate]) -> str:
    able = [f"{c.backend} ({', '.join(f'{name}={value:.3g}' for name, value in c.terms)})" for c in candidates if c.excluded is None]
    out = [f"{c.backend}: {c.excluded}" for c in candidates if c.excluded is not None]
    return (" < ".join(able) or "nobody") + (f" ({', '.join(out)})" if out else "")


def halved(route: Route, split: Split | None) -> Route:
    """The Route without those who serve one half only; where the request is split, the one that generates comes first, then who
    serves whole, then further ones that generate."""
    ranked = [one for one in route.ranked if one[0].role == "both"]
    if split is not None and split.decode is not None:
        order = {one.backend: at for at, one in enumerate(split.decodes)}
        decodes = sorted((one for one in route.ranked if one[0].role == "decode" and one[0].id in order), key=lambda one: order[one[0].id])
        first = [one for one in route.ranked if one[0].id == split.decode.id]
        ranked = first + [one for one in ranked if one not in first] + [one for one in decodes if one not in first]
    kept = {backend.id for backend, _ in ranked}
    out = tuple(
        msgspec.structs.replace(b, reason=f"serves one half of requests only ({b.role})") for b in route.backends if b.id not in kept
    )
    costs, matched = _of(ranked, route, route.costs), _of(ranked, route, route.matched)
    full = not ranked and any([one.reason.startswith(FULL) for one in route.excluded])
    excluded = (*route.excluded, *out)
    return msgspec.structs.replace(route, ranked=tuple(ranked), excluded=excluded, costs=costs, matched=matched, full=full)


def _of(ranked: Sequence[tuple[Backend, tuple[float, ...]]], route: Route, column: tuple[float, ...]) -> tuple[float, ...]:
    values = dict(zip([one.id for one in route.backends], column, strict=False))
    return tuple([values.get(backend.id, 0.0) for backend, _ in ranked]) if values else ()


class Reservation:
    """Both halves of a request on the Board: taken together, and nothing of them left behind.

    The prompt is charged where it is computed, the cache on both sides; the decoding backend computes nothing.
    """

    __slots__ = ("_board", "_decode", "_prefill")

    def __init__(self, board: Board, prefill: Charge, decode: Charge) -> None:
        self._board = board
        self._prefill = prefill
        self._decode = decode

    def prefilled(self) -> None:
        """The prompt is computed; its cache still lies on both sides."""
        self._board.begun(self._prefill)

    def handed_over(self) -> None:
        """The decoding backend has the cache, so the other one is rid of it."""
        self._board.begun(self._decode)
        self._board.release(self._prefill)

    def release(self) -> None:
        """The request is over, or was given up."""
        self._board.release(self._prefill)
        self._board.release(self._decode)


def reserve(board: Board, prefill: str, decode: str, uncached_tokens: int, demand: Demand, now: float) -> Reservation:
    """Charge both backends for one request, or neither.

    Raises:
        KeyError: one of them has left the pool; nothing is charged then.
    """
    first = board.charge(prefill, uncached_tokens, demand.prompt_tokens, now)
    try:
        second = board.charge(decode, 0, demand.prompt_tokens + demand.output_tokens, now)
    except BaseException:
        board.release(first)
        raise
    return Reservation(board, first, second)
