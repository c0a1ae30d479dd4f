"""`python -m bench.cache.embed`: what embedding a question and finding its neighbours costs, and what a graph misses.

Questions are made from a seed out of a few frames and words, so that a partition is crowded as that of a support desk: each has many
near ones.
"""

import argparse
import asyncio
import gc
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack

import numpy as np
import uvloop
from numpy.typing import NDArray

from bench.results_file import Row, machine, refresh, table, write_rows
from cache.embedders.batched import BatchedEmbedder
from cache.embedders.packaged import MAX_CHARACTERS, PackagedModel
from cache.embedders.remembered import RememberedVectors
from cache.semantic.index import MemoryQuestions
from cache.semantic.ports import Question, QuestionIndex
from cache.stores.pgvector import PostgresQuestions
from tests.databases import postgres_server

FRAMES = (
    "How do I {do} my {thing} {where}?",
    "Can you help me {do} the {thing} {where}, please?",
    "I want to {do} a {thing} {where}. What are the steps?",
    "Is it possible to {do} {number} {thing}s {where}?",
    "Why can't I {do} my {thing} {where} since {day}?",
    "{where}, where do I find how to {do} the {thing}?",
)
WORDS = {
    "do": "reset change cancel track return order renew activate block replace update transfer close open verify top-up pay rent lock "
    "print export share delete restore upgrade freeze",
    "thing": "password card account parcel invoice subscription address passport phone loan ticket contract pin limit booking licence "
    "router mortgage statement refund receipt profile device backup insurance",
    "where": "online|in the app|at the branch|abroad|in Germany|in Brazil|at night|by phone|on my laptop|without a login|for my daughter|"
    "at the airport|with my old number|before I travel|in the new version|for a company",
    "number": "two three four five ten twelve twenty",
    "day": "Monday Tuesday Wednesday yesterday Friday January June",
}
CHOICES = {name: words.split("|" if "|" in words else None) for name, words in WORDS.items()}
SHORT = "How do I reset the password of my account?"
LONG = (" ".join(["I tried it on the phone and on the laptop, and the page said that the code had expired."] * 100))[:MAX_CHARACTERS]
PARTITION, OWNER, NOW, ENDS = b"p" * 32, "acme", 1_000.0, 1e12
SIZES = (1_000, 10_000, 20_000, 100_000)
ASKED = 300


def questions(number: int, seed: int) -> Iterator[str]:
    """Different questions."""
    rng, seen = random.Random(seed), set[str]()
    while len(seen) < number:
        text = rng.choice(FRAMES).format(**{name: rng.choice(words) for name, words in CHOICES.items()})
        if rng.random() < 0.7:
            text += f" My number is {rng.randrange(10_000)}."
        if text not in seen:
            seen.add(text)
            yield text


class Measured:
    """Rows of medians and bests."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def add(self, subject: str, metric: str, value: float, unit: str, n: int = 1) -> None:
        self.rows.append(Row(metric=metric, subject=subject, value=round(value, 4), unit=unit, n=n))
        print(f"{value:12.3f} {unit:8} {metric:14} {subject}", flush=True)

    async def timed(self, subject: str, calls: list[Callable[[], Awaitable[object]]], share: int = 1) -> None:
        """Median, 99th percentile and best of calls, one after another; `share` is what one call does of a thing."""
        for call in calls[:20]:
            await call()
        took = []
        for call in calls:
            begin = time.perf_counter()
            await call()
            took.append((time.perf_counter() - begin) * 1e6 / share)
        took.sort()
        self.add(subject, "median_us", took[len(took) // 2], "us", len(took))
        self.add(subject, "p99_us", took[int(len(took) * 0.99)], "us", len(took))
        self.add(subject, "best_us", took[0], "us", len(took))


async def embedding(model: PackagedModel, measured: Measured, repeat: int) -> None:
    """Take the times of vectors: a question on the loop and by the thread, a long text, a batch, a question that is remembered."""
    on_loop, in_thread = BatchedEmbedder(model, 60.0, on_loop_characters=10**9), BatchedEmbedder(model, 60.0, on_loop_characters=-1)
    remembered = RememberedVectors(BatchedEmbedder(model, 60.0))
    batch = list(questions(64, 1))
    few = max(20, repeat // 10)
    await measured.timed(f"embed {len(SHORT)} characters on the loop", [lambda: on_loop.vectors(OWNER, [SHORT])] * repeat)
    await measured.timed(f"embed {len(SHORT)} characters in the thread", [lambda: in_thread.vectors(OWNER, [SHORT])] * repeat)
    await measured.timed("embed 400 characters on the loop", [lambda: on_loop.vectors(OWNER, [LONG[:400]])] * repeat)
    await measured.timed(f"embed {len(LONG):,} characters in the thread", [lambda: in_thread.vectors(OWNER, [LONG])] * few)
    await measured.timed("embed 64 questions in the thread, each", [lambda: in_thread.vectors(OWNER, batch)] * few, share=64)
    await measured.timed(f"embed {len(SHORT)} characters, remembered", [lambda: remembered.vectors(OWNER, [SHORT])] * repeat)
    for one in (on_loop, in_thread, remembered):
        await one.close()


def _kept(text: str, number: int, vector: NDArray[np.float32]) -> Question:
    numbers = vector.astype("<f4").tobytes()
    return Question(
        partition=PARTITION, owner=OWNER, key=number.to_bytes(8), text=text, vector=numbers, kept_at=NOW, expires_at=ENDS, model="m"
    )


async def _nearest(index: QuestionIndex, subject: str, asked: NDArray[np.float32], measured: Measured) -> list[float]:
    """Times the nearest eight; returns the similarity of the nearest one of each."""

    def call(vector: NDArray[np.float32]) -> Callable[[], Awaitable[object]]:
        return lambda: index.nearest(PARTITION, OWNER, vector, 8, NOW)

    await measured.timed(subject, [call(vector) for vector in asked])
    found = [await index.nearest(PARTITION, OWNER, vector, 8, NOW) for vector in asked]
    return [one[0].similarity if one else -2.0 for one in found]


async def neighbours(model: PackagedModel, measured: Measured, sizes: list[int], graph_to: int) -> None:
    """Take the times of nearest questions in partitions of several sizes: scanned, by the graph, and in Postgres."""
    texts = list(questions(sizes[-1] + ASKED, 2))
    random.Random(3).shuffle(texts)
    vectors = model.embed(texts)
    asked = vectors[-ASKED:]
    with ExitStack() as stack:
        url = stack.enter_context(postgres_server()).get_uri()
        for size in sizes:
            kept = [_kept(text, number, vectors[number]) for number, text in enumerate(texts[:size])]
            exact = MemoryQuestions(2**40, size, exact_most=size)
            for question in kept:
                await exact.add(question)
            best = await _nearest(exact, f"nearest 8 of {size:,}, scan", asked, measured)
            measured.add(f"nearest 8 of {size:,}, scan", "bytes_each", exact.size / size, "bytes")
            await exact.close()
            if size <= graph_to:
                await _graph(kept, asked, best, measured)
            if size <= 20_000:
                stored = PostgresQuestions(url, time.monotonic, size, patience_s=60.0)
                await stored.start()
                for question in kept:
                    await stored.add(question)
                similar = await _nearest(stored, f"nearest 8 of {size:,}, Postgres", asked, measured)
                measured.add(f"nearest 8 of {size:,}, Postgres", "recall_at_1", _recall(similar, best), "share", ASKED)
                await stored.close()


async def _graph(kept: list[Question], asked: NDArray[np.float32], best: list[float], measured: Measured) -> None:
    subject = f"nearest 8 of {len(kept):,}, graph"
    searched = MemoryQuestions(2**40, len(kept), exact_most=1)
    begin = time.perf_counter()
    for question in kept:
        await searched.add(question)
    (part,) = searched._with_graph
    assert part.graph is not None
    while part.graph.behind:
        await asyncio.sleep(0.01)
    measured.add(subject, "build_s", time.perf_counter() - begin, "s")
    similar = await _nearest(searched, subject, asked, measured)
    measured.add(subject, "recall_at_1", _recall(similar, best), "share", ASKED)
    measured.add(subject, "bytes_each", searched.size / len(kept), "bytes")
    await searched.close()


def _recall(found: list[float], best: list[float]) -> float:
    """The share of questions whose nearest one was found, or another one just as near."""
    return sum(one >= other - 1e-5 for one, other in zip(found, best, strict=True)) / len(best)


async def measure(given: argparse.Namespace) -> None:
    """Measure everything and refresh the table."""
    measured = Measured()
    begin = time.perf_counter()
    model = PackagedModel()
    measured.add("load the packaged model", "build_s", time.perf_counter() - begin, "s")
    gc.collect()
    gc.freeze()
    await embedding(model, measured, given.repeat)
    await neighbours(model, measured, [size for size in SIZES if size <= given.most], given.graph_to)
    write_rows("embed", measured.rows)
    shown = ["median_us", "p99_us", "best_us", "recall_at_1", "build_s", "bytes_each"]
    words = (
        f"`python -m bench.cache.embed --repeat {given.repeat} --most {given.most} --graph-to {given.graph_to}`, {machine()}; vectors of "
        f"{model.dimensions} numbers, {ASKED} questions asked, one at a time."
    )
    refresh("embed", f"{words}\n\n{table(measured.rows, shown, '')}")


def main() -> None:
    """Read the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=2_000, help="embeddings of a question")
    parser.add_argument("--most", type=int, default=100_000, help="the largest partition")
    parser.add_argument("--graph-to", type=int, default=100_000, help="the largest partition of which a graph is built")
    uvloop.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
