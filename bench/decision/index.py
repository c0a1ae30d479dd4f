"""The prefix index: hashing and matching a prompt of 16 KB, what it weighs, and that a bound is one."""

import gc
import multiprocessing
import os
import random
import timeit
from collections.abc import Callable
from pathlib import Path

from backends.kv.events import Stored
from bench.results_file import Row, table
from routing.prefix.chain import of_text, of_tokens, root
from routing.prefix.engine_blocks import EngineBlocks
from routing.prefix.index import PrefixIndex

SECRET = os.urandom(32)
ROOT = root("model@1", "", "tenant", SECRET)
BYTES = 16 * 1024
TOKENS = BYTES // 4
BOUND = 1_000_000
FLEETS = (16, 1_000)
COSTS = ("hash_text_us", "hash_tokens_us", "hash_turn_us", "match_us", "predict_us", "touch_us", "event_us_per_block")
WEIGHTS = ("blocks", "holders", "bytes_per_holder")
BOUNDS = ("prompts", "blocks_most", "rss_mib_most", "us_per_prompt")


def measure(rounds: int, prompts: int) -> tuple[list[Row], str]:
    """The rows, and what to show of them."""
    costs = [*hashing(rounds), *events(rounds), *(row for backends in FLEETS for row in matching(backends, rounds))]
    weights = [*apart(weigh_index, 1), *apart(weigh_index, 4), *apart(weigh_events, 16), *apart(weigh_events, 64)]
    bound = apart(fill, prompts)
    shown = "\n\n".join((table(costs, COSTS, ""), table(weights, WEIGHTS, ""), table(bound, BOUNDS, "")))
    return [*costs, *weights, *bound], f"A prompt of 16 KB, {TOKENS:,} tokens, in 64 blocks.\n\n{shown}"


def best_us(call: Callable[[], object], rounds: int, number: int = 200) -> float:
    return min(timeit.repeat(call, number=number, repeat=rounds)) / number * 1e6


def row(metric: str, subject: str, value: float, unit: str, n: int) -> Row:
    return Row(metric=metric, subject=subject, value=round(value, 2), unit=unit, n=n)


def a_prompt() -> list[int]:
    rng = random.Random(1)
    return [rng.randrange(128_000) for _ in range(TOKENS)]


def hashing(rounds: int) -> list[Row]:
    tokens, text = a_prompt(), random.Random(1).randbytes(BYTES)
    before = of_tokens(ROOT, tokens[: TOKENS * 9 // 10])
    calls = {
        "hash_text_us": lambda: of_text(ROOT, text),
        "hash_tokens_us": lambda: of_tokens(ROOT, tokens),
        "hash_turn_us": lambda: of_tokens(ROOT, tokens, before=before),
    }
    return [row(metric, "hashing (a turn: nine tenths are known)", best_us(call, rounds), "us", rounds) for metric, call in calls.items()]


def matching(backends: int, rounds: int) -> list[Row]:
    """Backends that hold more and more of the prompt, the last one all, with one prediction under way."""
    index, chain, ids = PrefixIndex(BOUND), of_tokens(ROOT, a_prompt()), [f"gpu-{n}" for n in range(backends)]
    for n, one in enumerate(ids):
        index.stored(one, chain[: (n + 1) * len(chain) // backends])
    index.predict(ids[0], chain, 0.0)
    out = [row("match_us", f"{backends:,} backends", best_us(lambda: index.match(chain, 1.0, ids), rounds), "us", rounds)]
    clock = iter(range(1, 10_000_000))
    out.append(
        row("predict_us", f"{backends:,} backends", best_us(lambda: index.predict(ids[1], chain, next(clock) / 100), rounds), "us", rounds)
    )
    for one in ids:
        index.size(one, 440_000 // 64)
    chains = iter([of_tokens(n, a_prompt()) for n in range(rounds * 200)])
    out.append(row("touch_us", f"{backends:,} backends", best_us(lambda: index.touch(ids[2], next(chains), 0.0), rounds), "us", rounds))
    return out


def an_event(number: int, size: int) -> Stored:
    blocks = TOKENS // size
    return Stored(list(range(number * blocks + 1, (number + 1) * blocks + 1)), None, [number, *range(TOKENS - 1)], size)


def events(rounds: int) -> list[Row]:
    out = []
    for size in (16, 64):
        told = [an_event(number, size) for number in range(50)]

        def take(told: list[Stored] = told) -> None:
            blocks = EngineBlocks(PrefixIndex(BOUND), "gpu-0", lambda lora, salt: ROOT)
            for event in told:
                blocks.stored(event)

        per_block = best_us(take, rounds, 1) / len(told) / (TOKENS // size)
        out.append(row("event_us_per_block", f"events of an engine with blocks of {size}", per_block, "us", rounds))
    return out


def apart(work: Callable[[int], list[Row]], given: int) -> list[Row]:
    """In a process of its own, so that its memory is nobody else's."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, (given,))


def rss_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def weigh_index(holders: int) -> list[Row]:
    """Resident bytes for one holder of one block, at its worst while an index fills up."""
    index = PrefixIndex(BOUND)
    before, worst, blocks = rss_bytes(), 0.0, 0
    while blocks < BOUND * 9 // 10:
        for _ in range(100):
            chain = of_tokens(blocks, range(TOKENS))
            blocks += len(chain)
            for holder in range(holders):
                index.stored(f"gpu-{(blocks // 64 + holder) % 16}", chain)
        if blocks >= 200_000 and blocks // 6_400 % 4 == 0:
            worst = max(worst, (rss_bytes() - before) / index.blocks / holders)
    subject = f"index, {holders} of 16 backends hold a block"
    return [
        row("blocks", subject, index.blocks, "blocks", 1),
        row("holders", subject, index.blocks * holders, "holders", 1),
        row("bytes_per_holder", subject, worst, "B", 1),
    ]


def weigh_events(size: int) -> list[Row]:
    """The same with what one engine's blocks are known by beside it, for a block of the engine's."""
    index = PrefixIndex(BOUND)
    before, number = rss_bytes(), 0
    blocks = EngineBlocks(index, "gpu-0", lambda lora, salt: number)
    while blocks.count < 400_000:
        blocks.stored(an_event(number, size))
        number += 1
    subject = f"one engine's blocks of {size} and the index"
    return [
        row("blocks", subject, blocks.count, "blocks", 1),
        row("holders", subject, blocks.count, "holders", 1),
        row("bytes_per_holder", subject, (rss_bytes() - before) / blocks.count, "B", 1),
    ]


def fill(prompts: int) -> list[Row]:
    """Distinct prompts of two blocks without end, half of them from events, half from dispatches to engines that tell none."""
    index = PrefixIndex(BOUND)
    ids = [f"gpu-{n}" for n in range(16)]
    for one in ids[8:]:
        index.size(one, 440_000 // 64)
    most_blocks = most_rss = 0
    began = timeit.default_timer()
    for number in range(prompts):
        chain = of_tokens(ROOT, (number, 1, 2, 3, 4, 5, 6, 7), 4)
        one, now = ids[number & 15], number / 1_000
        if number & 8:
            index.confirm(index.predict(one, chain, now), now)
        else:
            index.stored(one, chain)
        if number % 1_000 == 0:
            most_blocks = max(most_blocks, index.blocks)
        if number % 250_000 == 0:
            most_rss = max(most_rss, rss_bytes())
    took = timeit.default_timer() - began
    if most_blocks > BOUND:
        raise SystemExit(f"{most_blocks:,} blocks in an index of {BOUND:,}")
    subject = f"an index of {BOUND:,} blocks"
    return [
        row("prompts", subject, prompts, "prompts", 1),
        row("blocks_most", subject, most_blocks, "blocks", 1),
        row("rss_mib_most", subject, most_rss / 2**20, "MiB", 1),
        row("us_per_prompt", subject, took / prompts * 1e6, "us", 1),
    ]
