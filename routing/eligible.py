"""Stage A of a decision: who may take this request at all, and why the others may not.

Hard are only what is certain: health, what this process itself has in flight, and what is configured. A report decides alone that a
KV cache is full only while it is fresh and another backend has room; when all are full, engines queue (unless the policy says
otherwise). So a stale report neither admits more than the caps allow nor takes a backend out.

Reasons that begin with `routing.room.FULL` go away once something ends: who is barred by them alone waits (`Route.full`).
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from routing.board import NO_FACTS, Board
from routing.choosing import Choice
from routing.demand import Demand
from routing.fleet import Backend, Pool
from routing.ports import UNMATCHED, Adapters, Column, Match
from routing.room import FULL
from routing.room import full as _no_room

CONTEXT: Final = "its context is"
"""How reasons begin that a prompt is too long for a backend."""

Eligible = tuple[tuple[Backend, ...], Sequence[int], Column, list[Backend]]
"""Those who may, their rows, the tokens each holds of the prompt; and those who may not, each with its reason."""


def eligible(
    demand: Demand,
    pool: Pool,
    board: Board,
    match: Match,
    choice: Choice,
    adapters: Adapters | None,
    shut: Mapping[str, str] = MappingProxyType({}),
    part: float = 1.0,
) -> Eligible:
    """Sort out the pool's backends that are up. `shut` and `part`: see `routing.schedule.place`."""
    up, rows = pool.up, board.rows(pool.up)
    matched = _matched(demand, up, rows, board, match)
    barred = _barred(demand, up, rows, board, adapters)
    if barred and not demand.exact and len(barred) == len(up):
        barred = _doubted(demand, rows, board, barred)
    if shut:
        _shut_out(up, shut, barred)
    if board.limited:
        _occupied(demand, rows, matched, board, barred, part)
    full = _full(demand, rows, matched, board, choice)
    if full and (choice.refuse_full or len(barred.keys() | full.keys()) < len(up)):
        barred = {**full, **barred}
    if not barred:
        return up, rows, matched, []
    stay = [at for at in range(len(up)) if at not in barred]
    out = [msgspec.structs.replace(up[at], reason=reason) for at, reason in sorted(barred.items())]
    return tuple([up[at] for at in stay]), [rows[at] for at in stay], [matched[at] for at in stay], out


def _matched(demand: Demand, up: tuple[Backend, ...], rows: Sequence[int], board: Board, match: Match) -> Column:
    """At least one token is always computed, whatever the cache holds."""
    if match is UNMATCHED:
        return [0.0] * len(rows)
    most, tokens, held, trust = max(0.0, demand.prompt_tokens - 1.0), demand.block_tokens, match.held, board.trust
    return [min(held(one.id) * tokens, most) * trust[row] for one, row in zip(up, rows, strict=True)]


def _barred(demand: Demand, up: tuple[Backend, ...], rows: Sequence[int], board: Board, adapters: Adapters | None) -> dict[int, str]:
    facts, barred = board.facts, {}
    tokens = demand.prompt_tokens if demand.one_prompt else 0
    capacity = board.kv_capacity
    for at, row in enumerate(rows):
        fact = facts[row]
        if 0 < capacity[row] <= tokens:
            barred[at] = f"its KV cache holds {capacity[row]:.0f} tokens, the prompt has {tokens}"
        if fact is NO_FACTS:
            continue
        if 0 < fact.context_tokens <= tokens:
            barred[at] = f"{CONTEXT} {fact.context_tokens} tokens, the prompt has {tokens}"
    if adapters is not None and adapters.unable:
        barred.update({at: adapters.unable[one.id] for at, one in enumerate(up) if one.id in adapters.unable})
    return barred


def _doubted(demand: Demand, rows: Sequence[int], board: Board, barred: dict[int, str]) -> dict[int, str]:
    """An estimate is too long for everyone: it may be wrong by half, so those with the longest context are left to see for themselves."""
    contexts = [board.facts[row].context_tokens for row in rows]
    longest = max(contexts)
    if longest * 2 <= demand.prompt_tokens:
        return barred
    return {at: why for at, why in barred.items() if contexts[at] < longest or not why.startswith(CONTEXT)}


def _occupied(demand: Demand, rows: Sequence[int], matched: Column, board: Board, barred: dict[int, str], part: float) -> None:
    """Who has no room is barred, unless something worse bars it."""
    for at, row in enumerate(rows):
        if at not in barred and (why := _no_room(board, row, demand.prompt_tokens - matched[at], part)):
            barred[at] = why


def _shut_out(up: tuple[Backend, ...], shut: Mapping[str, str], barred: dict[int, str]) -> None:
    """Who fails others' requests is left out while somebody is left. Where all fail, none of them is: half of the answers are better
    than none, dead ones are down by their polls, and the retry budget bounds what the rest costs."""
    found = {at: shut[one.id] for at, one in enumerate(up) if at not in barred and one.id in shut}
    if len(barred) + len(found) < len(up):
        barred.update(found)


def _full(demand: Demand, rows: Sequence[int], matched: Column, board: Board, choice: Choice) -> dict[int, str]:
    used, capacity, fill, full = board.kv_tokens, board.kv_capacity, choice.kv_fill, {}
    need = demand.prompt_tokens + demand.output_tokens
    for at, row in enumerate(rows):
        if used[row] + need - matched[at] > capacity[row] * fill and capacity[row] and board.told(row):
            ever = FULL if need - matched[at] <= capacity[row] * fill else ""
            full[at] = (
                f"{ever}{used[row]:.0f} of {capacity[row]:.0f} tokens of its KV cache are promised, it needs {need - matched[at]:.0f}"
            )
    return full
