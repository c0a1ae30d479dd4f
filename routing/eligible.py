"""Stage A of a routing decision (filtering): which backends may take this request, and why the others may not.

A backend is excluded only for what is certain: its health, what this process itself has in flight there, and what is configured. An
engine's report excludes a backend for a full KV cache only while the report is fresh and another backend has room; when all are full,
engines queue (unless the policy says otherwise). So a stale report neither admits more than the caps allow nor excludes a backend.

A reason that begins with `routing.room.FULL` goes away once a request ends: a request that no backend takes for such a reason can wait
in the queue (`Route.full`).
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from routing.fleet import Backend, Pool
from routing.load import NO_FACTS, LoadTable
from routing.policy_instance import Choice
from routing.ports import UNMATCHED, Adapters, Column, Match, RoutingRequest
from routing.room import FULL, has_no_room

CONTEXT: Final = "its context is"
"""How a reason begins that excludes a backend because the prompt is too long for it."""

Eligible = tuple[tuple[Backend, ...], Sequence[int], Column, list[Backend]]
"""The eligible backends, their rows, the tokens of the prompt that each holds; and the excluded backends, each with its reason."""


def eligible(
    request: RoutingRequest,
    pool: Pool,
    load_table: LoadTable,
    match: Match,
    choice: Choice,
    adapters: Adapters | None,
    shut: Mapping[str, str] = MappingProxyType({}),
    part: float = 1.0,
) -> Eligible:
    """Split the pool's backends that are up into eligible and excluded ones. `shut` and `part` are those of `routing.schedule.place`."""
    up = pool.up
    rows = load_table.rows(pool.up)
    matched = _matched(request, up, rows, load_table, match)
    barred = _barred(request, up, rows, load_table, adapters)
    if barred and not request.exact and len(barred) == len(up):
        barred = _doubted(request, rows, load_table, barred)
    if shut:
        _eject(up, shut, barred)
    if load_table.limited:
        _occupied(request, rows, matched, load_table, barred, part)
    full = _full(request, rows, matched, load_table, choice)
    if full and (choice.refuse_full or len(barred.keys() | full.keys()) < len(up)):
        barred = {**full, **barred}
    if not barred:
        return up, rows, matched, []
    stay = [at for at in range(len(up)) if at not in barred]
    out = [msgspec.structs.replace(up[at], reason=reason) for at, reason in sorted(barred.items())]
    return tuple([up[at] for at in stay]), [rows[at] for at in stay], [matched[at] for at in stay], out


def _matched(request: RoutingRequest, up: tuple[Backend, ...], rows: Sequence[int], load_table: LoadTable, match: Match) -> Column:
    """Tokens of the prompt that each backend holds, weighed by trust; at most the prompt less one token, which is always computed."""
    if match is UNMATCHED:
        return [0.0] * len(rows)
    most = max(0.0, request.prompt_tokens - 1.0)
    tokens = request.block_tokens
    held = match.held
    trust = load_table.trust
    return [min(held(backend.id) * tokens, most) * trust[row] for backend, row in zip(up, rows, strict=True)]


def _barred(
    request: RoutingRequest, up: tuple[Backend, ...], rows: Sequence[int], load_table: LoadTable, adapters: Adapters | None
) -> dict[int, str]:
    facts = load_table.facts
    barred = {}
    tokens = request.prompt_tokens if request.one_prompt else 0
    capacity = load_table.kv_capacity
    for at, row in enumerate(rows):
        fact = facts[row]
        if 0 < capacity[row] <= tokens:
            barred[at] = f"its KV cache holds {capacity[row]:.0f} tokens, the prompt has {tokens}"
        if fact is NO_FACTS:
            continue
        if 0 < fact.context_tokens <= tokens:
            barred[at] = f"{CONTEXT} {fact.context_tokens} tokens, the prompt has {tokens}"
    if adapters is not None and adapters.unable:
        barred.update({at: adapters.unable[backend.id] for at, backend in enumerate(up) if backend.id in adapters.unable})
    return barred


def _doubted(request: RoutingRequest, rows: Sequence[int], load_table: LoadTable, barred: dict[int, str]) -> dict[int, str]:
    """The estimated prompt is too long for every backend. The estimate may be wrong by half, so the backends with the longest context are
    not excluded: the engine checks the exact length."""
    contexts = [load_table.facts[row].context_tokens for row in rows]
    longest = max(contexts)
    if longest * 2 <= request.prompt_tokens:
        return barred
    return {at: why for at, why in barred.items() if contexts[at] < longest or not why.startswith(CONTEXT)}


def _occupied(
    request: RoutingRequest, rows: Sequence[int], matched: Column, load_table: LoadTable, barred: dict[int, str], part: float
) -> None:
    """Exclude the backends that have no room, except those that are excluded for good already."""
    for at, row in enumerate(rows):
        if at not in barred and (why := has_no_room(load_table, row, request.prompt_tokens - matched[at], part)):
            barred[at] = why


def _eject(up: tuple[Backend, ...], shut: Mapping[str, str], barred: dict[int, str]) -> None:
    """Exclude the backends in `shut` (outlier ejection), as long as one backend stays eligible. Where all fail, none is excluded: half of
    the answers are better than none, health polls take dead backends out, and the retry budget bounds what the failures cost."""
    failing = {at: shut[backend.id] for at, backend in enumerate(up) if at not in barred and backend.id in shut}
    if len(barred) + len(failing) < len(up):
        barred.update(failing)


def _full(request: RoutingRequest, rows: Sequence[int], matched: Column, load_table: LoadTable, choice: Choice) -> dict[int, str]:
    used = load_table.kv_tokens
    capacity = load_table.kv_capacity
    fill = choice.kv_fill
    full = {}
    need = request.prompt_tokens + request.output_tokens
    for at, row in enumerate(rows):
        if used[row] + need - matched[at] > capacity[row] * fill and capacity[row] and load_table.reporting(row):
            ever = FULL if need - matched[at] <= capacity[row] * fill else ""
            full[at] = (
                f"{ever}{used[row]:.0f} of {capacity[row]:.0f} tokens of its KV cache are promised, it needs {need - matched[at]:.0f}"
            )
    return full
