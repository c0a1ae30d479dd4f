"""Synthetic workloads for cases that no public trace has, by name (routers research, 5.3). Arrivals are Poisson, lengths lognormal around a
median.

Each function takes the random generators and returns a Workload for about eight H100 engines with an 8B model; `Workload.scaled` makes it
denser.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from domain.clock import Rng
from routing.simulation.draws import exponential, lognormal, zipf, zipf_weights
from routing.simulation.turns import Dice, TraceRequest, Workload, chained, fresh_chain

BLOCK_TOKENS: Final = 64
SECONDS: Final = 300.0
"""Length of a workload."""


def _arrivals(rng: Rng, per_s: float, seconds: float = SECONDS) -> list[float]:
    out = []
    at = exponential(rng, 1.0 / per_s)
    while at < seconds:
        out.append(at)
        at += exponential(rng, 1.0 / per_s)
    return out


def _about(rng: Rng, median: float, sigma: float = 0.6, most: int = 100_000) -> int:
    return min(most, max(1, round(lognormal(rng, median, sigma))))


def _prefix(tokens: int, *identity: int) -> list[int]:
    """The chain of a prompt prefix that all requests with this identity share."""
    parent = hash(identity)
    chain = []
    for at in range(tokens // BLOCK_TOKENS):
        parent = chained(parent, at)
        chain.append(parent)
    return chain


def shared_prefix(dice: Dice) -> Workload:
    """150 groups with a system prompt of 6,000 tokens each, questions of 1,200, answers of 1,000: llm-d's benchmark, the rate rising."""
    steps = enumerate((4.0, 8.0, 12.0, 16.0, 20.0))
    rng = dice("shared-prefix")
    return _in_groups("shared-prefix", rng, [step * 60.0 + at for step, rate in steps for at in _arrivals(rng, rate, 60.0)])


def shared_prefix_steady(dice: Dice) -> Workload:
    """`shared-prefix` at its mean rate for 15 minutes."""
    rng = dice("shared-prefix")
    return _in_groups("shared-prefix-steady", rng, _arrivals(rng, 12.0, 900.0))


def _in_groups(name: str, rng: Rng, times: Sequence[float]) -> Workload:
    heads = [_prefix(6016, 21, group) for group in range(150)]
    turns: list[TraceRequest] = []
    for at in times:
        head = heads[rng.randrange(len(heads))]
        question = _about(rng, 1200, 0.3)
        chain = head + fresh_chain(question, BLOCK_TOKENS, 22, len(turns))
        turns.append(TraceRequest(at, 6016 + question, _about(rng, 1000, 0.3, 4000), chain))
    return Workload(name, turns, BLOCK_TOKENS)


def no_sharing(dice: Dice) -> Workload:
    """Prompts of 2,000 tokens that share nothing."""
    rng = dice("no-sharing")
    turns = []
    for number, at in enumerate(_arrivals(rng, 60.0)):
        prompt = _about(rng, 2000, 0.8)
        turns.append(TraceRequest(at, prompt, _about(rng, 200), fresh_chain(prompt, BLOCK_TOKENS, 23, number)))
    return Workload("no-sharing", turns, BLOCK_TOKENS)


def hot_prefix(dice: Dice) -> Workload:
    """Half of all requests begin with the same 8,000 tokens, three times what one engine can serve; the others share nothing."""
    rng = dice("hot-prefix")
    hot = _prefix(8000, 24)
    turns = []
    for number, at in enumerate(_arrivals(rng, 60.0)):
        own = _about(rng, 500)
        if rng.random() < 0.5:
            turns.append(TraceRequest(at, 8000 + own, _about(rng, 300), hot + fresh_chain(own, BLOCK_TOKENS, 25, number)))
        else:
            turns.append(TraceRequest(at, own + 1000, _about(rng, 300), fresh_chain(own + 1000, BLOCK_TOKENS, 26, number)))
    return Workload("hot-prefix", turns, BLOCK_TOKENS)


def chat(dice: Dice) -> Workload:
    """Conversations of six turns: a system prompt of one of ten kinds, then a history that grows; people think 20 s."""
    rng = dice("chat")
    turns: list[TraceRequest] = []
    heads = [_prefix(1536, 27, kind) for kind in range(10)]
    for session, at in enumerate(_arrivals(rng, 8.0), 1):
        after = -1
        prompt = 1536
        chain = list(heads[rng.randrange(len(heads))])
        for turn in range(6):
            own = _about(rng, 300)
            output = _about(rng, 250)
            prompt += own
            chain = chain + fresh_chain((prompt // BLOCK_TOKENS - len(chain)) * BLOCK_TOKENS, BLOCK_TOKENS, 28, session, turn)
            turns.append(TraceRequest(at, prompt, output, chain, session=session, after=after, think_s=exponential(rng, 20.0)))
            after = len(turns) - 1
            prompt = prompt + output
    return Workload("chat", turns, BLOCK_TOKENS)


def agents(dice: Dice) -> Workload:
    """Coding agents: 20 turns each, beginning with 16,000 tokens of tools and system prompt, 2,500 more a turn; tools take 5 s."""
    rng = dice("agents")
    turns: list[TraceRequest] = []
    head = _prefix(16_000, 29)
    for session, at in enumerate(_arrivals(rng, 0.35), 1):
        after = -1
        prompt = 16_000
        chain = list(head)
        for turn in range(20):
            own = _about(rng, 2500, 0.9, 40_000)
            output = _about(rng, 220, 0.9)
            prompt += own
            chain = chain + fresh_chain((prompt // BLOCK_TOKENS - len(chain)) * BLOCK_TOKENS, BLOCK_TOKENS, 30, session, turn)
            turns.append(TraceRequest(at, prompt, output, chain, session=session, after=after, think_s=lognormal(rng, 5.0, 1.0)))
            after = len(turns) - 1
            prompt = prompt + output
    return Workload("agents", turns, BLOCK_TOKENS)


def noisy_tenant(dice: Dice) -> Workload:
    """Ten tenants with a prompt prefix of 2,000 tokens each, of which one sends ten times as much from the first minute on."""
    rng = dice("noisy-tenant")
    turns: list[TraceRequest] = []
    for tenant in range(10):
        head = _prefix(2048, 31, tenant)
        times = _arrivals(rng, 4.0)
        if tenant == 0:
            times = sorted([*times, *(60.0 + at for at in _arrivals(rng, 36.0, SECONDS - 60.0))])
        for at in times:
            own = _about(rng, 800)
            chain = head + fresh_chain(own, BLOCK_TOKENS, 32, tenant, len(turns))
            turns.append(TraceRequest(at, 2048 + own, _about(rng, 200), chain, "noisy" if tenant == 0 else f"quiet-{tenant}"))
    return Workload("noisy-tenant", turns, BLOCK_TOKENS)


def lora(dice: Dice) -> Workload:
    """128 adapters by Zipf, four times what eight engines with four slots each can hold; prompts of 1,000 tokens."""
    rng = dice("lora")
    turns = []
    weights = zipf_weights(128)
    for number, at in enumerate(_arrivals(rng, 40.0)):
        adapter = zipf(rng, weights)
        own = _about(rng, 500)
        chain = _prefix(512, 33, adapter) + fresh_chain(own, BLOCK_TOKENS, 34, number)
        turns.append(TraceRequest(at, 512 + own, _about(rng, 150), chain, f"tenant-{adapter % 16}", lora=f"adapter-{adapter}"))
    return Workload("lora", turns, BLOCK_TOKENS)


def mixed_lengths(dice: Dice) -> Workload:
    """One in ten prompts has 20,000 tokens and a short answer, the others 500 and a long one: what disaggregation is for."""
    rng = dice("mixed-lengths")
    turns = []
    for number, at in enumerate(_arrivals(rng, 30.0)):
        long = rng.random() < 0.1
        prompt = _about(rng, 20_000, 0.5) if long else _about(rng, 500)
        turns.append(TraceRequest(at, prompt, _about(rng, 60 if long else 400), fresh_chain(prompt, BLOCK_TOKENS, 35, number)))
    return Workload("mixed-lengths", turns, BLOCK_TOKENS)


WORKLOADS: Final[Mapping[str, Callable[[Dice], Workload]]] = {
    "shared-prefix": shared_prefix,
    "shared-prefix-steady": shared_prefix_steady,
    "no-sharing": no_sharing,
    "hot-prefix": hot_prefix,
    "chat": chat,
    "agents": agents,
    "noisy-tenant": noisy_tenant,
    "lora": lora,
    "mixed-lengths": mixed_lengths,
}
"""The names that `--trace` accepts beside files."""
