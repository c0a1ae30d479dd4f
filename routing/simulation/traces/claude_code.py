"""Sessions of a coding agent: JSON lines, one session each, with 64-token block ids, think times and nested sessions of subagents.

    {"id": "trace_0003", "block_size": 64, "models": [...], "tool_tokens": 12974, "system_tokens": 2771,
     "requests": [{"t": 0.0, "type": "n", "model": "...", "in": 16564, "out": 244, "hash_ranges": [[1, 258]], "think_time": 0.0}, ...]}

A turn waits for the answer before it and its think time. Sessions start one every `SESSION_GAP_S` on average; the trace does not say
when. Ids are comparable within a session only; tools and system prompt are shared by sessions with equal model and lengths of both. A
subagent is a session of its own that begins when its parent's turn before it is answered. Ids are gathered by eight, to blocks of 512.
Source: callanjfox/kv-cache-tester, traces/*.json.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final
from zlib import crc32

import msgspec

from routing.simulation.draws import exponential
from routing.simulation.traces.lines import rows, wrong
from routing.simulation.turns import Dice, TraceRequest, Workload, chained

GATHERED: Final = 8
"""Ids of the trace in one block of the simulation."""
SESSION_GAP_S: Final = 30.0
"""Mean seconds between two session starts: 120 an hour, with 113,000-token prompts a load for four engines."""


class Request(msgspec.Struct, rename={"prompt": "in", "output": "out"}):
    """One request, or a subagent with requests of its own."""

    type: str
    prompt: Annotated[int, msgspec.Meta(ge=0)] = 0
    output: Annotated[int, msgspec.Meta(ge=0)] = 0
    model: str = ""
    hash_ranges: list[tuple[int, int]] = []
    think_time: float = 0.0
    requests: list["Request"] = []
    tool_tokens: int = 0
    system_tokens: int = 0


class Session(msgspec.Struct):
    """One line of the trace: a session."""

    id: str
    block_size: Annotated[int, msgspec.Meta(ge=1)]
    requests: list[Request]
    models: list[str] = []
    tool_tokens: int = 0
    system_tokens: int = 0


def knows(head: bytes) -> bool:
    """Whether a first line is of this kind."""
    return b'"hash_ranges"' in head and b'"block_size"' in head


def read(files: list[Path], dice: Dice) -> Workload:
    """All sessions. Raises TraceError."""
    turns: list[TraceRequest] = []
    rng = dice("claude-code sessions")
    start = 0.0
    block_tokens = 0
    for file in files:
        for number, session in rows(file, Session):
            if block_tokens not in (0, session.block_size * GATHERED):
                raise wrong(file, number, f"has blocks of {session.block_size} tokens, sessions before it had {block_tokens // GATHERED}")
            block_tokens = session.block_size * GATHERED
            start += exponential(rng, SESSION_GAP_S)
            key = crc32(session.id.encode()) + 1
            _add(turns, session.requests, key, -1, start, _Chains(key, session, block_tokens))
    notes = [f"one session starts every {SESSION_GAP_S:g} s on average", "blocks of 64 tokens gathered to 512"]
    return Workload("claude-code", turns, block_tokens or 512, notes)


def _add(turns: list[TraceRequest], requests: list[Request], key: int, after: int, start: float, chains: "_Chains") -> None:
    """Append one session's turns; each waits for the turn before it."""
    nested = 0
    for request in requests:
        if request.type == "subagent":
            nested += 1
            _add(turns, request.requests, hash((key, nested)) & 0x7FFFFFFF, after, start, chains.of_subagent(request))
        elif request.prompt:
            turn = TraceRequest(
                start, request.prompt, max(1, request.output), chains.of(request), session=key, after=after, think_s=request.think_time
            )
            after = len(turns)
            turns.append(turn)


class _Chains:
    """Makes the chains of one session's prompts; equal hashes are one int object."""

    def __init__(self, key: int, session: Session | Request, block_tokens: int) -> None:
        self._key = key
        self._block_tokens = block_tokens
        self._shared = (session.tool_tokens + session.system_tokens) // block_tokens
        self._head = (session.tool_tokens, session.system_tokens)
        self._seen: dict[int, int] = {}

    def of_subagent(self, request: Request) -> "_Chains":
        return _Chains(self._key, request, self._block_tokens)

    def of(self, request: Request) -> list[int]:
        """The chain of a request's prompt. Blocks of tools and system prompt are common to all sessions, the others are this session's."""
        parent = hash((crc32(request.model.encode()), *self._head))
        chain = []
        whole = request.prompt // self._block_tokens
        for at, ids in enumerate(_gathered(request.hash_ranges)):
            if at >= whole:
                break
            parent = chained(parent, at if at < self._shared else (self._key, ids))
            chain.append(self._seen.setdefault(parent, parent))
        return chain


def _gathered(ranges: list[tuple[int, int]]) -> Iterator[tuple[int, ...]]:
    """The ids in groups of `GATHERED`; a group of consecutive ids is shortened to its first and last."""
    pending: list[int] = []
    for first, count in ranges:
        at = first
        end = first + count
        while at < end:
            if not pending and end - at >= GATHERED:
                yield (at, at + GATHERED - 1)
                at += GATHERED
                continue
            pending.append(at)
            at += 1
            if len(pending) == GATHERED:
                straight = pending == list(range(pending[0], pending[0] + GATHERED))
                yield (pending[0], pending[-1]) if straight else tuple(pending)
                pending = []
