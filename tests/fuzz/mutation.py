"""Damaged inputs, and a law that must hold of each: what the fuzz targets share.

By default a target takes a fixed number of inputs that are the same in every run. With TIDEGATE_FUZZ_S set (`make fuzz`) it takes new ones
for that many seconds. An input whose outcome was not seen before is damaged further, so that targets walk into what they read. One that
breaks the law is written to the target's corpus, where it is an ordinary test from then on.
"""

import hashlib
import os
import random
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

SECONDS = float(os.environ.get("TIDEGATE_FUZZ_S", "0"))
CORPUS = Path(__file__).parent / "corpus"
SLOWEST_S = 1.0
"""CPU time that one input of a few KB may take; the slowest in ordinary runs take a hundredth of it."""
MAX_POOL = 2_000
"""Inputs with outcomes of their own that are kept to be damaged further."""
MAX_BYTES = 64 * 1024
ONE_BY_ONE_BYTES = 2_048

NUMBERS = [
    b"0",
    b"-1",
    b"1e999",
    b"-0",
    b"9" * 30,
    b"18446744073709551615",
    b"18446744073709551616",
    b"-9223372036854775808",
    b"0.1e-400",
    b"NaN",
]

Law = Callable[[bytes], str]
"""Takes an input and says how it was judged; raises when it was judged wrongly."""


class Target:
    """One reader of foreign bytes.

    Args:
        name: its folder in the corpus.
        pieces: bytes that mean something to it.
        seeds: inputs to begin from, beside the corpus.
    """

    def __init__(self, name: str, pieces: Sequence[bytes], seeds: Sequence[bytes] = ()) -> None:
        self.folder = CORPUS / name
        self.corpus = sorted(path for path in self.folder.iterdir() if not path.name.startswith("."))
        self._pieces = [*pieces, *NUMBERS]
        self._pool = [*(path.read_bytes() for path in self.corpus), *seeds]

    def run(self, law: Law, short: int, make: Callable[[random.Random], bytes] | None = None, *, damage: bool = True) -> str:
        """Hold the law of many inputs; returns the figure. `make` makes every other input anew, or every one without `damage`."""
        seed = f"{time.time_ns()}" if SECONDS else "54"
        for path in self.corpus if damage else ():
            law(path.read_bytes())  # what is imported late would count as slow
        ends, number, slowest_s = time.monotonic() + SECONDS, 0, 0.0
        seen: dict[str, int] = {}
        while time.monotonic() < ends if SECONDS else number < short:
            rng = random.Random(f"{seed} {number}")
            data = make(rng) if make is not None and (number % 2 or not damage) else damaged(rng, self._pool, self._pieces)
            number += 1
            began = time.thread_time()
            try:
                outcome = law(data)
                took_s = time.thread_time() - began
                assert took_s < SLOWEST_S, f"took {took_s:.2f} s of CPU"
            except BaseException as error:
                error.add_note(f"seed {seed!r}, input {number - 1}: {self._kept(data)}")
                raise
            slowest_s = max(slowest_s, took_s)
            if seen.setdefault(outcome, 0) == 0 and len(self._pool) < MAX_POOL and len(data) < MAX_BYTES:
                self._pool.append(data)
            seen[outcome] += 1
        taken = sum(count for outcome, count in seen.items() if outcome.startswith("ok"))
        assert taken > 0, "nothing was ever taken, so nothing was tried"
        figure = f"{self.folder.name}: {number:,} inputs, {taken:,} taken, {len(seen)} outcomes, slowest {1000 * slowest_s:.1f} ms"
        print(figure)  # `make fuzz` shows what tests say
        return figure

    def _kept(self, data: bytes) -> str:
        if not SECONDS:
            return repr(data[:2000])
        path = self.folder / f"found-{hashlib.sha256(data).hexdigest()[:12]}.bin"
        path.write_bytes(data)
        return f"kept as {path.relative_to(CORPUS)}"


def damaged(rng: random.Random, pool: Sequence[bytes], pieces: Sequence[bytes]) -> bytes:
    """One of the pool with a few things done to it; sometimes none."""
    data = bytearray(rng.choice(pool))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 5, 8))):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((1, 1, 2, 4, 16, 64)))
        match rng.randrange(8):
            case 0:
                data[at:end] = bytes([rng.randrange(256)])
            case 1:
                del data[at:end]
            case 2 | 3:
                data[at:at] = rng.choice(pieces)
            case 4:
                data[at:end] = rng.choice(pieces)
            case 5:
                data[at:at] = data[at:end] * rng.choice((1, 2, 10, 100))
            case 6:
                other = rng.choice(pool)
                since = rng.randrange(len(other) + 1)
                data[at:end] = other[since : since + rng.randrange(1, 200)]
            case _:
                if rng.randrange(4) == 0:
                    del data[at:]
    return bytes(data[:MAX_BYTES])


def cut(data: bytes) -> list[list[bytes]]:
    """The same bytes in a few pieces, and one by one where they are not too many for that."""
    rng = random.Random(len(data))
    places = [0, *sorted(rng.randrange(len(data) + 1) for _ in range(4)), len(data)]
    ways = [[data[a:b] for a, b in pairwise(places) if a < b]]
    return [*ways, [data[at : at + 1] for at in range(len(data))]] if len(data) <= ONE_BY_ONE_BYTES else ways
