"""`python -m bench.decision.waiting`: what the queue of waiting requests costs with 10,000 in it, of 1, 100 and 10,000 tenants.

`put_us` is letting one more wait, `next_us` finding whose turn it is, `take_us` serving it, `hold_us` another count of held tokens,
`ahead_us` the estimate of what is served before one, `displace_us` a put into a full queue that a batch request gives way to.
CPU time per call, best of `--repeat` rounds of 2,000 calls; the queue has its 10,000 again after each round.
"""

import argparse
import random
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from math import inf

from bench.results_file import Row, machine, refresh, table, write_rows
from domain.priority import Class
from routing.fair_queue import FairQueue, QueueBounds, QueuedRequest

WAITING = 10_000
CALLS = 2_000
TENANTS = (1, 100, 10_000)
WIDE = QueueBounds(10**6, 10**12, 10**6, 10**12)
FULL = QueueBounds(WAITING, 10**12, WAITING, 10**12)
METRICS = ("put_us", "next_us", "take_us", "hold_us", "ahead_us", "displace_us")


def some(rng: random.Random, tenants: int, tier: int | None = None) -> QueuedRequest:
    """One request, of any class where none is said."""
    chosen = rng.randrange(len(Class)) if tier is None else tier
    tokens, held = rng.randint(50, 4000), 64 * rng.randrange(50)
    return QueuedRequest(f"t{rng.randrange(tenants)}", chosen, rng.random() < 0.1, tokens, rng.choice((inf, 30.0, 60.0)), 0.0, 2000, held)


def filled(rng: random.Random, tenants: int, bounds: QueueBounds) -> tuple[FairQueue, list[QueuedRequest]]:
    """A queue with 10,000 in it, and them."""
    queue, waits = FairQueue(bounds), [some(rng, tenants) for _ in range(WAITING)]
    for one in waits:
        queue.put(one)
    return queue, waits


def us(call: Callable[[QueuedRequest], object], over: Iterable[QueuedRequest]) -> float:
    """CPU time of one call over these."""
    begun = time.process_time()
    for one in over:
        call(one)
    return (time.process_time() - begun) / CALLS * 1e6


def a_round(tenants: int, seed: int) -> tuple[float, ...]:
    """Every metric once."""
    rng = random.Random(seed)
    queue, waits = filled(rng, tenants, WIDE)
    more = [some(rng, tenants) for _ in range(CALLS)]
    put = us(queue.put, more)
    ahead = us(queue.ahead_of, more)
    hold = us(lambda one: queue.hold(one, one.held + 64), more)
    found = us(lambda _: queue.next(lambda _: True), repeat(waits[0], CALLS))
    spent = 0.0
    for _ in range(CALLS):
        one = queue.next(lambda _: True)
        assert one is not None
        begun = time.process_time()
        queue.take(one)
        spent += time.process_time() - begun
    full, _ = filled(rng, tenants, FULL)
    first = [some(rng, tenants, Class.CRITICAL) for _ in range(CALLS)]
    return put, found, spent / CALLS * 1e6, hold, ahead, us(full.put, first)


def measure(rounds: int) -> list[Row]:
    """The rows."""
    rows = []
    for tenants in TENANTS:
        best: Sequence[float] = [min(values) for values in zip(*(a_round(tenants, seed) for seed in range(rounds)), strict=True)]
        subject = f"{tenants:,} tenant{'s' if tenants > 1 else ''}"
        rows += [Row(metric=m, subject=subject, value=round(v, 2), unit="us", n=rounds) for m, v in zip(METRICS, best, strict=True)]
    return rows


def main() -> None:
    """Measure, and refresh the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.decision.waiting", description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--print-only", action="store_true", help="leave docs and results as they are")
    args = parser.parse_args()
    rows = measure(args.repeat)
    shown = table(rows, METRICS, "")
    print(shown)
    if not args.print_only:
        write_rows("waiting", rows)
        head = f"`python -m bench.decision.waiting`, {machine()}: the queue of waiting requests, with 10,000 in it"
        refresh("waiting", f"{head}; CPU time per call in us, the best of {args.repeat} rounds.\n\n{shown}\n")


if __name__ == "__main__":
    main()
