"""A workload: the requests of a trace or a generator, with their prompts as chains of block hashes."""

from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec

from domain.clock import Rng
from domain.priority import Class

Dice = Callable[[str], Rng]
"""A random generator for a purpose: the same name gives the same numbers (for one seed)."""

BLOCK_TOKENS: Final = 512
"""Tokens per block of caches and indexes when a trace does not say: Mooncake's. With vLLM's 16, a 100,000-token prompt would have 6,250
blocks, and only rounding would differ."""


class TraceRequest(msgspec.Struct, gc=False):
    """One request of a workload."""

    at_s: float
    """When the request arrives, seconds from the start; with `after`, it arrives `think_s` after that answer instead."""
    prompt_tokens: int
    output_tokens: int
    chain: Sequence[int] = ()
    """One hash per whole block, each standing for the prompt up to the block's end."""
    tenant: str = ""
    session: int = 0
    """Number of the session; 0: none."""
    after: int = -1
    """Position of the turn whose answer it waits for, which is before this turn; -1: none."""
    think_s: float = 0.0
    lora: str = ""
    priority: float = 0.0
    """-1 to 1."""
    priority_class: Class = Class.DEFAULT
    """The class in the gateway's queue."""
    limited: bool = False
    """Whether a limit of its tenant refused it when it was recorded: it is replayed only where the fleet gives its tenant a limit."""
    answer: Sequence[int] = ()
    """Hashes of the blocks after `chain` that the answer completes, where a later prompt of the workload says what they are: a cache holds
    them once the answer is there."""


class Workload(msgspec.Struct):
    """The requests to replay. `turns` are in no particular order, but each is after the turn it waits for."""

    name: str
    turns: list[TraceRequest]
    block_tokens: int = BLOCK_TOKENS
    notes: list[str] = []
    """Assumptions and omissions, for the report."""

    def scaled(self, speed: float) -> "Workload":
        """The workload with arrivals `speed` times as dense; think times stay."""
        if speed == 1.0:
            return self
        turns = [msgspec.structs.replace(turn, at_s=turn.at_s / speed) for turn in self.turns]
        return Workload(self.name, turns, self.block_tokens, [*self.notes, f"arrivals {speed:g} times as dense"])

    def without_limited(self, limits: Collection[str]) -> "Workload":
        """The workload without the requests that a limit refused when they were recorded, but for the tenants in `limits`: the fleet
        decides anew about theirs."""
        stays = [not turn.limited or turn.tenant in limits for turn in self.turns]
        if all(stays):
            return self
        notes = [*self.notes, f"{stays.count(False):,} requests that a limit refused are left out: the fleet gives their tenants no limit"]
        return Workload(self.name, _chosen(self.turns, [at for at, stay in enumerate(stays) if stay]), self.block_tokens, notes)

    def with_answers(self) -> "Workload":
        """The workload with the blocks that each answer completes, taken from the prompt that follows it in its session.

        The trace has hashes of prompts only. A next prompt that goes on from this one is taken to contain the answer right after it, token
        by token, as chat templates do that drop nothing (no hidden reasoning). A turn that nobody follows has none.
        """
        turns = list(self.turns)
        for turn in self.turns:
            if turn.after < 0:
                continue
            before = turns[turn.after]
            held = len(before.chain)
            # the last token of an answer is not in the cache
            whole = (before.prompt_tokens + before.output_tokens - 1) // self.block_tokens
            answer = turn.chain[held:whole]
            if answer and held and turn.chain[held - 1] == before.chain[held - 1] and len(answer) > len(before.answer):
                turns[turn.after] = msgspec.structs.replace(before, answer=answer)
        return Workload(self.name, turns, self.block_tokens, self.notes)

    def starts(self) -> list[float]:
        """When each turn would arrive if answers took no time, seconds."""
        return _starts(self.turns)

    def without_oversize(self, tokens: int) -> "Workload":
        """The workload without requests whose prompt and answer have more tokens together. A turn after one waits for the turn before."""
        kept: list[int] = []
        before: list[int] = []
        think: list[float] = []
        for at, turn in enumerate(self.turns):
            after, think_s = turn.after, turn.think_s
            if after >= 0 and self._oversize(after, tokens):
                after, think_s = before[after], think_s + think[after]
            before.append(after)
            think.append(think_s)
            if not self._oversize(at, tokens):
                kept.append(at)
        if len(kept) == len(self.turns):
            return self
        place = {old: new for new, old in enumerate(kept)}
        turns = [msgspec.structs.replace(self.turns[at], after=place.get(before[at], -1), think_s=think[at]) for at in kept]
        notes = [*self.notes, f"{len(self.turns) - len(kept):,} requests of more than {tokens:,} tokens are left out"]
        return Workload(self.name, turns, self.block_tokens, notes)

    def _oversize(self, at: int, tokens: int) -> bool:
        return self.turns[at].prompt_tokens + self.turns[at].output_tokens > tokens

    def first(self, count: int) -> "Workload":
        """The `count` earliest turns, by when each would arrive if answers took no time."""
        if count >= len(self.turns):
            return self
        starts = _starts(self.turns)
        chosen = sorted(sorted(range(len(self.turns)), key=lambda i: (starts[i], i))[:count])
        notes = [*self.notes, f"the first {count} of {len(self.turns)} requests"]
        return Workload(self.name, _chosen(self.turns, chosen), self.block_tokens, notes)


def _chosen(turns: Sequence[TraceRequest], chosen: Sequence[int]) -> list[TraceRequest]:
    """The turns at these positions. One whose turn before is missing arrives by its own time."""
    place = {old: new for new, old in enumerate(chosen)}
    return [msgspec.structs.replace(turns[i], after=place.get(turns[i].after, -1)) for i in chosen]


def _starts(turns: Sequence[TraceRequest]) -> list[float]:
    """When each turn would arrive if answers took no time, seconds."""
    starts: list[float] = []
    for turn in turns:
        starts.append(turn.at_s if turn.after < 0 else starts[turn.after] + turn.think_s)
    return starts


def chained(parent: int, content: object) -> int:
    """The hash of a prefix that ends with this content. Numbers and tuples of numbers only: their hashes are the same in every process."""
    return hash((parent, content))


def fresh_chain(tokens: int, block_tokens: int, *identity: int) -> list[int]:
    """The chain of a prompt, or of the rest of a prompt, that no other request shares."""
    parent = hash(identity)
    return [chained(parent, i) for i in range(tokens // block_tokens)]
