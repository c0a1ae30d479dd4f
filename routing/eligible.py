"""Stage A of a routing decision (filtering): which backends may take this request, and why the others may not.

A backend is excluded only for what is certain: its health, what this process itself has in flight there, and what is configured. An
engine's report excludes a backend for a full KV cache only while the report is fresh and another backend has room; when all are full,
engines queue (unless the policy says otherwise). So a stale report neither admits more than the caps allow nor excludes a backend.

A reason that begins with `routing.room.FULL` goes away once a request ends: a request that no backend takes for such a reason can wait
in the queue (`Route.full`).
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from routing.fleet import Backend
from routing.load import NO_FACTS, LoadTable
from routing.policy_instance import Choice
from routing.ports import UNMATCHED, Candidates, Circumstances, Column, RoutingRequest
from routing.room import FULL, has_no_room
from routing.warmth import share

CONTEXT: Final = "its context is"
"""How a reason begins that excludes a backend because the prompt is too long for it."""

Eligible = tuple[tuple[Backend, ...], Sequence[int], Column, list[Backend]]
"""The eligible backends, their rows, the tokens of the prompt that each holds; and the excluded backends, each with its reason."""


def eligible(
    request: RoutingRequest,
    up: tuple[Backend, ...],
    rows: Sequence[int],
    load_table: LoadTable,
    circumstances: Circumstances,
    choice: Choice,
    *,
    whole: bool = True,
) -> Eligible:
    """Split backends that are up into eligible and excluded ones.

    Args:
        rows: their rows in the load table.
        whole: whether they are all of the pool's that are up. Otherwise what excludes a backend only while another one is eligible
            (ejection, a full KV cache, an estimated prompt that is too long) excludes each of them: who finds none eligible has to ask
            again with the whole pool.

    One walk over the backends collects what each holds of the prompt and what speaks against each, by position: too small for the
    prompt, busy, or a full KV cache.
    """
    match, adapters, shut, part = circumstances.match, circumstances.adapters, circumstances.shut, circumstances.part
    held = match.blocks
    prompt, block_tokens = float(request.prompt_tokens), request.block_tokens
    longest_match = prompt - 1.0 if prompt > 1.0 else 0.0  # at least one token is always computed
    alone_fits = prompt if request.one_prompt else 0.0
    need = prompt + request.output_tokens
    kv_fill = choice.kv_fill
    used, capacity = load_table.kv_tokens, load_table.kv_capacity
    limit_tokens = load_table.limit_tokens
    matched: list[float] = []
    barred: dict[int, str] = {}
    busy: dict[int, str] = {}
    full: dict[int, str] = {}
    for at, row in enumerate(rows):
        tokens = 0.0
        if held and (blocks := held.get(up[at].id)):
            tokens = float(blocks * block_tokens)
            tokens = (tokens if tokens < longest_match else longest_match) * load_table.trust[row]
        matched.append(tokens)
        size, fact = capacity[row], load_table.facts[row]
        if 0.0 < size <= alone_fits:
            barred[at] = f"its KV cache holds {size:.0f} tokens, the prompt has {alone_fits:.0f}"
        if fact is not NO_FACTS and 0 < fact.context_tokens <= alone_fits:
            barred[at] = f"{CONTEXT} {fact.context_tokens} tokens, the prompt has {alone_fits:.0f}"
        if load_table.limited:
            load = load_table.loads[row]
            may_lack_room = len(load.charges) >= load_table.bound[row] * part
            # the exact check and its words are only needed where this one, which never finds room that is not there, finds none
            may_lack_room = may_lack_room or load.unbegun_tokens + prompt - tokens > limit_tokens[row] * part
            if may_lack_room and (why := has_no_room(load_table, row, prompt - tokens, part, holds=False)):
                busy[at] = why
        if size and used[row] + need - tokens > size * kv_fill and load_table.reporting(row):
            ever = FULL if need - tokens <= size * kv_fill else ""
            full[at] = f"{ever}{used[row]:.0f} of {size:.0f} tokens of its KV cache are promised, it needs {need - tokens:.0f}"
    if adapters is not None and adapters.unable:
        barred.update({at: adapters.unable[backend.id] for at, backend in enumerate(up) if backend.id in adapters.unable})
    if barred and whole and not request.exact and len(barred) == len(up):
        barred = _doubted(request, rows, load_table, barred)
    if shut:
        _eject(up, shut, barred, whole=whole)
    if busy:
        barred = {**busy, **barred}
    if full and (choice.refuse_full or not whole or len(barred.keys() | full.keys()) < len(up)):
        barred = {**full, **barred}
    if not barred:
        return up, rows, matched, []
    stay = [at for at in range(len(up)) if at not in barred]
    out = [msgspec.structs.replace(up[at], reason=reason) for at, reason in sorted(barred.items())]
    return tuple([up[at] for at in stay]), [rows[at] for at in stay], [matched[at] for at in stay], out


def candidates_of(
    request: RoutingRequest,
    circumstances: Circumstances,
    backends: tuple[Backend, ...],
    rows: Sequence[int],
    matched: Column,
) -> Candidates:
    """The candidates of a policy, from eligible backends.

    Args:
        rows, matched: theirs, as `eligible` returns them.
    """
    now, match, holder, adapters = circumstances[:4]
    common = 0.0
    if match is not UNMATCHED and (common := match.common * request.block_tokens) > request.prompt_tokens - 1.0:
        common = request.prompt_tokens - 1.0
    return Candidates(
        rows,
        matched,
        common,
        () if adapters is None else [0.0 if backend.id in adapters.there else adapters.load_s for backend in backends],
        _position(holder, backends) if holder else -1,
        _shares(backends, now),
        now,
    )


def _position(holder: str, backends: tuple[Backend, ...]) -> int:
    for at, backend in enumerate(backends):
        if backend.id == holder:
            return at
    return -1


def _shares(backends: tuple[Backend, ...], now: float) -> Column:
    for backend in backends:
        if backend.warming_since is not None:
            return [share(one.warming_since, now) for one in backends]
    return ()


def _doubted(request: RoutingRequest, rows: Sequence[int], load_table: LoadTable, barred: dict[int, str]) -> dict[int, str]:
    """The estimated prompt is too long for every backend. The estimate may be wrong by half, so the backends with the longest context are
    not excluded: the engine checks the exact length."""
    contexts = [load_table.facts[row].context_tokens for row in rows]
    longest = max(contexts)
    if longest * 2 <= request.prompt_tokens:
        return barred
    return {at: why for at, why in barred.items() if contexts[at] < longest or not why.startswith(CONTEXT)}


def _eject(up: tuple[Backend, ...], shut: Mapping[str, str], barred: dict[int, str], *, whole: bool) -> None:
    """Exclude the backends in `shut` (outlier ejection), as long as one backend stays eligible. Where all fail, none is excluded: half of
    the answers are better than none, health polls take dead backends out, and the retry budget bounds what the failures cost."""
    failing = {at: shut[backend.id] for at, backend in enumerate(up) if at not in barred and backend.id in shut}
    if not whole or len(barred) + len(failing) < len(up):
        barred.update(failing)
