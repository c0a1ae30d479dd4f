"""A workload: the requests of a trace or a generator, with their prompts as chains of block hashes."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from domain.clock import Rng

Dice = Callable[[str], Rng]
"""Dice for a purpose: the same name gives the same throws (for one seed)."""

BLOCK_TOKENS: Final = 512
"""Tokens per block where a source does not say: Mooncake's. Blocks are what caches and indexes are made of here; with the 16 of
vLLM a 100,000-token prompt had 6,250 of them, and nothing would come out differently but the rounding."""


class Turn(msgspec.Struct, gc=False):
    """One request."""

    at_s: float
    """When it comes, seconds from the start; for one with `after`, `think_s` after that answer instead."""
    prompt_tokens: int
    output_tokens: int
    chain: Sequence[int] = ()
    """One hash per whole block, each standing for the prompt up to its end."""
    tenant: str = ""
    session: int = 0
    """0: none."""
    after: int = -1
    """Position of the turn whose answer it waits for; it stands before this one."""
    think_s: float = 0.0
    lora: str = ""
    priority: float = 0.0
    """-1 to 1."""


class Workload(msgspec.Struct):
    """What arrives; `turns` in no particular order, but each after the one it waits for."""

    name: str
    turns: list[Turn]
    block_tokens: int = BLOCK_TOKENS
    notes: list[str] = []
    """What was assumed or left out, for the report."""

    def scaled(self, speed: float) -> "Workload":
        """The same with arrivals `speed` times as dense; think times stay."""
        if speed == 1.0:
            return self
        turns = [msgspec.structs.replace(turn, at_s=turn.at_s / speed) for turn in self.turns]
        return Workload(self.name, turns, self.block_tokens, [*self.notes, f"arrivals {speed:g} times as dense"])

    def first(self, count: int) -> "Workload":
        """The `count` earliest turns, with those that wait for one of them."""
        if count >= len(self.turns):
            return self
        starts = _starts(self.turns)
        chosen = sorted(sorted(range(len(self.turns)), key=lambda i: (starts[i], i))[:count])
        place = {old: new for new, old in enumerate(chosen)}
        turns = [msgspec.structs.replace(self.turns[i], after=place.get(self.turns[i].after, -1)) for i in chosen]
        return Workload(self.name, turns, self.block_tokens, [*self.notes, f"the first {count} of {len(self.turns)} requests"])


def _starts(turns: Sequence[Turn]) -> list[float]:
    """When each would come if answers took no time."""
    starts: list[float] = []
    for turn in turns:
        starts.append(turn.at_s if turn.after < 0 else starts[turn.after] + turn.think_s)
    return starts


def chained(parent: int, content: object) -> int:
    """The hash of a prefix that ends with this content. Numbers and tuples of numbers only: their hashes are the same in every process."""
    return hash((parent, content))


def fresh_chain(tokens: int, block_tokens: int, *identity: int) -> list[int]:
    """The chain of a prompt, or of the rest of one, that nobody shares."""
    parent = hash(identity)
    return [chained(parent, i) for i in range(tokens // block_tokens)]
