"""Which requests come when: Poisson arrivals by phases of load, tenants and classes by their shares. All drawn from one seed.

Capacity is what the simulated engines answer when they are never idle: four of an H100 with an 8B model at an eighth of its speed, of 16
sequences each. They are slow so that ten times their capacity is still nothing to the gateway, the engines and the generator on two cores.
"""

import json
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from bench.overhead.subjects import MODEL

ENGINES = 4
SLOWER = 8.0
SEQUENCES = 16
KV_TOKENS = 48_000
SLO_TTFT_S = 2.0
"""An answer is good when its first token came so soon after the request was due, and all of it came. Unloaded engines take 0.1 to 0.3 s."""
PATIENCE_S = 10.0
"""A caller that has seen no token so long after it sent leaves."""
CLASSES: Mapping[str, float] = {"critical": 0.05, "interactive": 0.15, "default": 0.40, "batch": 0.40}
"""Shares of all requests: at ten times the capacity, critical and interactive ones together are twice of it."""
TENANTS = 20
PREFIXES = 4
PREFIX_WORDS, QUESTION_WORDS = 384, 128
WORD = 4
"""Bytes of a word, which is one token of a simulated engine."""


class Phase(NamedTuple):
    """So many seconds at so many requests a second."""

    seconds: float
    per_s: float


class Planned(msgspec.Struct, array_like=True):
    """One request as it will be sent."""

    at_s: float
    tenant: int
    tier: str
    prefix: int
    question: int
    output: int


def arrivals(rng: random.Random, phases: Sequence[Phase]) -> list[float]:
    """Seconds from the beginning."""
    out, begin = [], 0.0
    for phase in phases:
        at = begin
        while phase.per_s > 0 and (at := at + rng.expovariate(phase.per_s)) < begin + phase.seconds:
            out.append(at)
        begin += phase.seconds
    return out


def planned(seed: str, phases: Sequence[Phase], tenants: Sequence[int], tiers: Mapping[str, float] = CLASSES) -> list[Planned]:
    """Every request of these tenants, who ask equally often."""
    rng = random.Random(seed)
    names, shares = list(tiers), list(tiers.values())
    return [
        Planned(
            at,
            rng.choice(tenants),
            rng.choices(names, shares)[0],
            rng.randrange(PREFIXES),
            rng.randrange(1 << 30),
            max(8, min(96, round(rng.lognormvariate(3.3, 0.5)))),
        )
        for at in arrivals(rng, phases)
    ]


def words(seed: str, count: int) -> str:
    """Text of so many tokens."""
    letters = random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz", k=(WORD - 1) * count)
    return "".join("".join(letters[at : at + 3]) + " " for at in range(0, (WORD - 1) * count, 3))


def body(one: Planned) -> bytes:
    """The chat request: one of the tenant's system prompts, and a question that is asked once."""
    system = _prefix(one.tenant, one.prefix)
    messages = [{"role": "system", "content": system}, {"role": "user", "content": words(str(one.question), QUESTION_WORDS)}]
    asked = {"model": MODEL, "messages": messages, "max_tokens": one.output, "ignore_eos": True, "stream": True}
    return json.dumps({**asked, "stream_options": {"include_usage": True}}, separators=(",", ":")).encode()


_prefixes: dict[tuple[int, int], str] = {}


def _prefix(tenant: int, number: int) -> str:
    key = (tenant, number)
    if key not in _prefixes:
        _prefixes[key] = words(f"prefix {tenant} {number}", PREFIX_WORDS)
    return _prefixes[key]
