"""A workload: the requests of a trace or a generator, with their prompts as chains of block hashes."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from domain.clock import Rng

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

    def first(self, count: int) -> "Workload":
        """The `count` earliest turns, by when each would arrive if answers took no time."""
        if count >= len(self.turns):
            return self
        starts = _starts(self.turns)
        chosen = sorted(sorted(range(len(self.turns)), key=lambda i: (starts[i], i))[:count])
        place = {old: new for new, old in enumerate(chosen)}
        turns = [msgspec.structs.replace(self.turns[i], after=place.get(self.turns[i].after, -1)) for i in chosen]
        return Workload(self.name, turns, self.block_tokens, [*self.notes, f"the first {count} of {len(self.turns)} requests"])


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
