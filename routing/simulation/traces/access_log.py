"""Tidegate's own Records, as its access log writes them, replayed: JSON lines.

    {"at": "2026-09-21T14:13:20.100000Z", "outcome": "ok", "tenant": "acme", "model": "chat", "prompt_tokens": 812, "completion_tokens": 96,
     "duration_us": 1903000, "chain": "q83vEg…", "chain_key": "5d1f09aa", "block_tokens": 64, "known_tokens": 768, "session": "0f3c…", ...}

A line holds no prompt. Which prompts share a beginning is read from the keyed hashes of their beginnings (`chain`, see
`routing.prefix.sampled`), to an eighth of its length, and exactly as far as the gateway itself found the prompt held by some backend
(`known_tokens`). Lines of a gateway that wrote no chains (`log.prompt_chain: false`, one backend in the pool, a policy that ignores caches)
share as much as was cached, as one beginning common to the tenant and model: sharing that the recorded policy missed stays missed there, so
that policies cannot be compared by it, and a note says so.

A conversation's next turn waits for the answer before it, for as long as its caller did (`session`). What was refused for want of capacity
or failed is replayed with the usual lengths of its tenant; what a limit refused, only where the fleet gives its tenant a limit.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Final
from zlib import crc32

import msgspec

from domain.faults import Kind
from domain.priority import CLASSES, Class
from routing.prefix.sampled import PLACES, marks_of
from routing.simulation.traces.lines import lines, wrong
from routing.simulation.turns import Dice, TraceRequest, Workload, chained, fresh_chain

BLOCK_TOKENS: Final = 64
"""Tokens per block of the replay: the gateway's own."""
CAPACITY: Final = frozenset(
    kind.value
    for kind in (
        Kind.OVERLOADED,
        Kind.DEADLINE_PASSED,
        Kind.NO_BACKEND,
        Kind.ENGINE_BUSY,
        Kind.CONNECT_FAILED,
        Kind.RESET_BEFORE_REPLY,
        Kind.ENGINE_ERROR,
        Kind.FIRST_TOKEN_TIMEOUT,
        Kind.TOKEN_GAP_TIMEOUT,
        Kind.BROKEN_STREAM,
        Kind.ENGINE_ABORTED,
        Kind.BACKEND_LOST,
        Kind.CLIENT_GONE,
    )
)
"""Outcomes of requests that an engine would have served in another fleet, or in time."""
LIMITS: Final = frozenset(kind.value for kind in (Kind.REQUEST_LIMIT, Kind.TOKEN_LIMIT, Kind.CONCURRENCY_LIMIT, Kind.QUOTA_SPENT))
"""Outcomes of requests that a limit of their tenant refused."""
BYTES_PER_TOKEN: Final = 4.0
"""Bytes of a request per prompt token, where no answered request of its tenant says better."""
USUAL_OUTPUT: Final = 256
"""Output tokens of a request without an answer, where its tenant had none."""


class AccessLogLine(msgspec.Struct):
    """The fields of one line that a replay needs."""

    at: datetime | float | None = None
    """Seconds since the epoch in logs of earlier versions."""
    outcome: str = ""
    tenant: str = ""
    model: str = ""
    lora: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    request_bytes: int = 0
    duration_us: int = 0
    priority_class: str = ""
    chain: str = ""
    chain_key: str = ""
    block_tokens: int = BLOCK_TOKENS
    known_tokens: int = 0
    session: str = ""
    cache: str = ""

    @property
    def at_unix(self) -> float:
        """Seconds since the epoch."""
        return self.at.timestamp() if isinstance(self.at, datetime) else self.at or 0.0


class _Told(msgspec.Struct):
    """What the log tells of all requests together."""

    lines: list[AccessLogLine]
    """Requests to replay, by arrival."""
    left_out: Counter[str]
    """Lines that are not replayed, by why."""


def knows(head: bytes) -> bool:
    """Whether a first line is of this kind."""
    return b'"request_id"' in head and b'"outcome"' in head


def read(files: list[Path], dice: Dice) -> Workload:
    """The requests of the log. Raises TraceError."""
    told = _told(files)
    start = told.lines[0].at_unix if told.lines else 0.0
    usual = _Usual(told.lines)
    beginnings = _SharedBeginnings()
    turns: list[TraceRequest] = []
    last_of: dict[tuple[str, str], int] = {}
    ended: list[float] = []
    for number, line in enumerate(told.lines):
        prompt, output = usual.lengths(line)
        at = line.at_unix - start
        before = last_of.get((line.tenant, line.session), -1) if line.session else -1
        # subagents of one conversation ask at the same time: only a turn that came after the answer has waited for it
        after = before if before >= 0 and ended[before] <= at else -1
        chain = beginnings.chain(line, prompt // BLOCK_TOKENS, number, before)
        turns.append(
            TraceRequest(
                at,
                prompt,
                output,
                chain,
                line.tenant,
                session=_number(line) if line.session else 0,
                after=after,
                think_s=at - ended[after] if after >= 0 else 0.0,
                lora=line.lora,
                priority_class=CLASSES.get(line.priority_class, Class.DEFAULT),
                limited=line.outcome in LIMITS,
            )
        )
        ended.append(at + line.duration_us / 1e6)
        if line.session:
            last_of[line.tenant, line.session] = number
    return Workload("records", turns, BLOCK_TOKENS, _notes(told, beginnings))


def _told(files: list[Path]) -> _Told:
    decoder = msgspec.json.Decoder(AccessLogLine)
    found: list[AccessLogLine] = []
    left_out: Counter[str] = Counter()
    for file in files:
        for number, text in lines(file):
            try:
                line = decoder.decode(text)
                if line.chain:
                    marks_of(line.chain)
            except (msgspec.MsgspecError, ValueError) as error:
                raise wrong(file, number, str(error)) from None
            if why := _why_not(line):
                left_out[why] += 1
            else:
                found.append(line)
    found.sort(key=lambda line: line.at_unix)
    return _Told(found, left_out)


def _why_not(line: AccessLogLine) -> str:
    """Why a line is not replayed; empty where it is."""
    if line.cache.startswith("hit-"):
        return "answers of the cache, which no engine gave"
    if line.at is None or (line.prompt_tokens < 1 and line.outcome not in CAPACITY and line.outcome not in LIMITS):
        return "lines without a request that an engine would have served"
    if line.block_tokens < 1 or line.prompt_tokens < 0 or line.request_bytes < 0 or line.duration_us < 0:
        return "lines with a length below 0"
    return ""


def _notes(told: _Told, beginnings: "_SharedBeginnings") -> list[str]:
    notes = [f"{count:,} {why} were left out" for why, count in sorted(told.left_out.items())]
    if beginnings.without:
        notes.insert(
            0,
            f"{beginnings.without:,} of {len(told.lines):,} requests have no prompt chain (log.prompt_chain, one backend, or a policy that "
            "ignores caches): what was cached is taken for their tenant's common beginning, so the policies' hit rates cannot be compared",
        )
    unanswered = sum([line.prompt_tokens < 1 for line in told.lines])
    if unanswered:
        notes.append(f"{unanswered:,} requests had no answer: they are replayed with the usual lengths of their tenant")
    return notes


def _number(line: AccessLogLine) -> int:
    """The conversation as a number above 0, in no two tenants the same."""
    return crc32(f"{line.tenant}\0{line.session}".encode()) + 1


class _Usual:
    """The usual lengths of each tenant's requests, for those without an answer."""

    def __init__(self, told: Sequence[AccessLogLine]) -> None:
        outputs: defaultdict[str, list[int]] = defaultdict(list)
        sizes: defaultdict[str, list[float]] = defaultdict(list)
        for line in told:
            if line.prompt_tokens and line.completion_tokens:
                outputs[line.tenant].append(line.completion_tokens)
                if line.request_bytes:
                    sizes[line.tenant].append(line.request_bytes / line.prompt_tokens)
        self._output = {tenant: int(median(found)) for tenant, found in outputs.items()}
        self._bytes_per_token = {tenant: median(found) for tenant, found in sizes.items()}

    def lengths(self, line: AccessLogLine) -> tuple[int, int]:
        """Prompt and output tokens."""
        prompt = line.prompt_tokens or round(line.request_bytes / self._bytes_per_token.get(line.tenant, BYTES_PER_TOKEN))
        answered = line.outcome not in CAPACITY and line.outcome not in LIMITS
        output = line.completion_tokens if answered else max(line.completion_tokens, self._output.get(line.tenant, USUAL_OUTPUT))
        return max(1, prompt), max(1, output)


class _SharedBeginnings:
    """Gives each prompt a chain that shares with earlier ones what the log says."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int, int], int] = {}
        """The last prompt with this hash at this place: (key, place, hash) -> number."""
        self._chains: list[list[int]] = []
        self._marks: list[list[int]] = []
        self.without = 0
        """Prompts whose lines have no chain."""

    def chain(self, line: AccessLogLine, blocks: int, number: int, before: int) -> list[int]:
        """The chain of the next prompt.

        Args:
            blocks: whole blocks of the prompt, in tokens of the replay.
            before: number of the conversation's last turn; -1 for none.
        """
        marks = marks_of(line.chain)
        if not marks:
            self.without += 1
            chain = _common(line, blocks, number)
        else:
            shared, of = self._shared(line, marks, before)
            chain = self._chains[of][: min(shared, blocks)] if of >= 0 else []
            chain = chain + fresh_chain((blocks - len(chain)) * BLOCK_TOKENS, BLOCK_TOKENS, 14, number)
            for place, mark in enumerate(marks):
                self._last[line.chain_key, place, mark] = number
        self._chains.append(chain)
        self._marks.append(marks)
        return chain

    def _shared(self, line: AccessLogLine, marks: list[int], before: int) -> tuple[int, int]:
        """How many blocks of the replay the prompt shares with which earlier one; (0, -1) for none."""
        last = self._last
        key = line.chain_key
        place = next((at for at in range(len(marks) - 1, -1, -1) if (key, at, marks[at]) in last), -1)
        if place < 0:
            return 0, -1
        of = last[key, place, marks[place]]
        if before >= 0 and self._marks[before][place : place + 1] == marks[place : place + 1]:
            of = before  # of those that share the place, a conversation's own last turn shares the most
        # the next place differs, so what the gateway found beyond this one ends before that
        most = (PLACES[place + 1] if place + 1 < len(PLACES) else PLACES[place] + 1) * line.block_tokens - 1
        tokens = max(PLACES[place] * line.block_tokens, min(line.known_tokens, most))
        return tokens // BLOCK_TOKENS, of


def _common(line: AccessLogLine, blocks: int, number: int) -> list[int]:
    """The chain of a prompt of which only the cached tokens are known: a beginning common to tenant and model, and the rest its own."""
    parent = crc32(f"{line.tenant}\0{line.model}\0{line.lora}".encode())
    chain = []
    for at in range(min(line.cached_tokens // BLOCK_TOKENS, blocks)):
        parent = chained(parent, at)
        chain.append(parent)
    return chain + fresh_chain((blocks - len(chain)) * BLOCK_TOKENS, BLOCK_TOKENS, 14, number)
