"""Three workloads for six engines of a quarter of an H100's speed, as turns for the simulator and as bodies with text for HTTP.

A block of the simulator's is 64 words of four bytes here, each of them one token of the simulated engine; blocks of one hash have the same
words. So what the simulator counts as shared is what routers and engines find to be shared.
"""

import functools
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from domain.clock import Rng
from routing.simulation.draws import exponential, lognormal
from routing.simulation.turns import Dice, TraceRequest, Workload, fresh_chain

BLOCK = 64
ENGINES = 6
SLOWER = 4.0
KV_TOKENS = 48_000
FLEET: dict[str, Any] = {
    "engines": [{"machine": "h100-8b", "count": ENGINES, "slower": SLOWER, "kv_tokens": KV_TOKENS}],
    "signals": {"kv_events": False},
    "known_output": True,
}
"""The same fleet for `routing.simulation`; outputs are known because every request says its `max_tokens` and uses them."""


def dice(seed: int) -> Dice:
    def one(name: str) -> Rng:
        return random.Random(f"{seed} {name}")

    return one


def _arrivals(rng: Rng, per_s: float, seconds: float) -> list[float]:
    out, at = [], exponential(rng, 1.0 / per_s)
    while at < seconds:
        out.append(at)
        at += exponential(rng, 1.0 / per_s)
    return out


def _blocks(rng: Rng, median: float, sigma: float, most: int) -> int:
    """Tokens, whole blocks of them."""
    return BLOCK * min(most // BLOCK, max(1, round(lognormal(rng, median, sigma) / BLOCK)))


def _output(rng: Rng) -> int:
    return max(4, min(120, round(lognormal(rng, 30, 0.5))))


def _head(tokens: int, seed: Any, group: int) -> list[int]:
    return fresh_chain(tokens, BLOCK, seed, group)


def shared_prefix(dice: Dice, seconds: float) -> Workload:
    """60 groups with a system prompt of 1,536 tokens each, questions of 512: 40 requests a second."""
    rng = dice("shared-prefix")
    run = rng.randrange(1 << 30)
    heads = [_head(1536, run, group) for group in range(60)]
    turns = []
    for number, at in enumerate(_arrivals(rng, 40.0, seconds)):
        question = _blocks(rng, 512, 0.3, 2048)
        chain = heads[rng.randrange(len(heads))] + fresh_chain(question, BLOCK, run, -1, number)
        turns.append(TraceRequest(at, 1536 + question, _output(rng), chain))
    return Workload("shared-prefix", turns, BLOCK)


def agents(dice: Dice, seconds: float) -> Workload:
    """Conversations of up to 8 turns with tools of 3,072 tokens that all share, and 640 more a turn; a tool takes about a second."""
    rng = dice("agents")
    run = rng.randrange(1 << 30)
    head = _head(3072, run, 0)
    turns: list[TraceRequest] = []
    for session, at in enumerate(_arrivals(rng, 3.0, seconds), 1):
        after, chain, begins, output = -1, list(head), at, 0
        for turn in range(8):
            think = lognormal(rng, 1.0, 0.6)
            begins += think if turn else 0.0
            if begins > seconds:
                break
            answered = -(-output // BLOCK) * BLOCK
            chain = chain + fresh_chain(answered + _blocks(rng, 640, 0.6, 4096), BLOCK, run, session, turn)
            output = _output(rng)
            turns.append(TraceRequest(at, len(chain) * BLOCK, output, chain, session=session, after=after, think_s=think))
            after = len(turns) - 1
    return Workload("agents", turns, BLOCK)


def no_sharing(dice: Dice, seconds: float) -> Workload:
    """Prompts of about 1,000 tokens that share nothing: 25 a second."""
    rng = dice("no-sharing")
    run = rng.randrange(1 << 30)
    turns = []
    for number, at in enumerate(_arrivals(rng, 25.0, seconds)):
        prompt = _blocks(rng, 1024, 0.7, 8192)
        turns.append(TraceRequest(at, prompt, _output(rng), fresh_chain(prompt, BLOCK, run, -2, number)))
    return Workload("no-sharing", turns, BLOCK)


WORKLOADS: dict[str, Callable[[Dice, float], Workload]] = {"shared-prefix": shared_prefix, "agents": agents, "no-sharing": no_sharing}


@functools.lru_cache(50_000)
def _block_words(block: int) -> str:
    """256 bytes, 64 words."""
    letters = random.Random(block).choices("abcdefghijklmnopqrstuvwxyz", k=3 * BLOCK)
    return "".join("".join(letters[at : at + 3]) + " " for at in range(0, 3 * BLOCK, 3))


def _words(chain: Sequence[int]) -> str:
    return "".join(map(_block_words, chain))


def bodies(workload: Workload, model: str) -> list[bytes]:
    """Chat requests, streamed: the shared beginning as system prompt, then one user message a turn with a caller's answer before it."""
    heads = {"shared-prefix": 1536, "agents": 3072}.get(workload.name, 0) // BLOCK
    before: list[list[dict[str, str]]] = []
    rendered: list[bytes] = []
    for turn in workload.turns:
        if turn.after < 0:
            messages = [{"role": "system", "content": _words(turn.chain[:heads])}] if heads else []
            messages.append({"role": "user", "content": _words(turn.chain[heads:])})
        else:
            last = workload.turns[turn.after]
            new = turn.chain[len(last.chain) :]
            answered = -(-last.output_tokens // BLOCK)
            messages = [*before[turn.after], {"role": "assistant", "content": _words(new[:answered])}]
            messages.append({"role": "user", "content": _words(new[answered:])})
        before.append(messages)
        asked = {"model": model, "messages": messages, "max_tokens": turn.output_tokens, "ignore_eos": True, "stream": True}
        rendered.append(json.dumps({**asked, "stream_options": {"include_usage": True}}, separators=(",", ":")).encode())
    return rendered
