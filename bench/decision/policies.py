"""`python -m bench.decision.policies`: what one routing decision takes under each policy, at 16 and at 1,000 backends, 16 KB prompts.

`hash_us_16kb` and `match_us_N` are the parts before it (chain of the prompt, look-up in a filled index), `decision_us_N` is the
decision itself with every backend reporting, a third of them holding some of the prompt; `whole_us_N` is all three together under the
default policy. Best of `--repeat` rounds, in CPU time, garbage collection as in production.
"""

import argparse
import random
import time
import timeit
from collections.abc import Callable

from bench.results_file import Row, machine, write_rows
from routing.fleet import Availability, Backend, Fleet, Pool
from routing.load import LoadTable
from routing.policy_instance import policy_instance
from routing.ports import Circumstances, RoutingRequest
from routing.prefix.chain import of_text, root
from routing.prefix.index import PrefixIndex
from routing.registry import POLICIES
from routing.schedule import place

SIZES = (16, 1000)
PROMPT = bytes(random.Random(1).randrange(32, 127) for _ in range(16 * 1024))
ROOT = root("model@1", "", "tenant", b"0" * 32)
DEFAULT = "predicted_latency"


class Scene:
    """A pool of so many backends, each with a load of its own, some holding a part of the prompt."""

    def __init__(self, size: int) -> None:
        rng = random.Random(size)
        ids = [f"gpu-{at}" for at in range(size)]
        self.pool: Pool = Fleet({"p": Pool("p", "m", "1", "vllm", tuple(Backend(one, "p", Availability.UP, "") for one in ids))}).pools["p"]
        self.load_table = LoadTable(ids)
        self.index = PrefixIndex(1_000_000)
        self.chain = of_text(ROOT, PROMPT)
        self.rng = rng
        for at, one in enumerate(ids):
            load = {"running": rng.randrange(80), "waiting": rng.randrange(4), "queued_tokens": rng.randrange(20_000)}
            self.load_table.report(one, **load, kv_usage=rng.random() * 0.9, kv_capacity=440_000, read_at=0.0, asked_at=0.0)
            if at % 3 == 0:
                self.index.stored(one, self.chain[: rng.randrange(1, len(self.chain) + 1)])
        self.request = RoutingRequest(4096, self.chain, session=12345, tenant="t", output_tokens=256)
        self.match = self.index.match(self.chain, 0.0, self.load_table.row_of)

    def decide(self, policy: str) -> Callable[[], object]:
        how = policy_instance(policy)
        return lambda: place(self.request, self.pool, self.load_table, how, Circumstances(1.0, self.match, holder="gpu-3"), self.rng)

    def whole(self, policy: str) -> Callable[[], object]:
        how = policy_instance(policy)

        def decided() -> object:
            chain = of_text(ROOT, PROMPT)
            match = self.index.match(chain, 1.0, self.load_table.row_of)
            request = RoutingRequest(4096, chain, session=12345, tenant="t", output_tokens=256)
            return place(request, self.pool, self.load_table, how, Circumstances(1.0, match, holder="gpu-3"), self.rng)

        return decided


def best_us(what: Callable[[], object], repeat: int) -> float:
    timer = timeit.Timer(what, setup="import gc; gc.enable()", timer=time.process_time)
    number = max(1, int(0.02 / max(1e-6, timer.timeit(3) / 3)))
    return min(timer.repeat(repeat, number)) / number * 1e6


def measure(repeat: int) -> list[Row]:
    found: list[tuple[str, str, float]] = [("hash_us_16kb", "chain", best_us(lambda: of_text(ROOT, PROMPT), repeat))]
    for size in SIZES:
        scene = Scene(size)
        found.append((f"match_us_{size}", "index", best_us(lambda at=scene: at.index.match(at.chain, 1.0, at.load_table.row_of), repeat)))
        found.append((f"whole_us_{size}", DEFAULT, best_us(scene.whole(DEFAULT), repeat)))
        found += [(f"decision_us_{size}", policy, best_us(scene.decide(policy), repeat)) for policy in POLICIES]
    return [Row(metric=metric, subject=subject, value=round(value, 2), unit="us", n=repeat) for metric, subject, value in found]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.decision.policies", description=__doc__)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--write", action="store_true", help="store the figures in bench/results/decision_policies.json")
    args = parser.parse_args()
    rows = measure(args.repeat)
    for row in rows:
        print(f"{row['metric']:<18} {row['subject']:<20} {row['value']:>9.1f}")
    if args.write:
        print(machine(), write_rows("decision_policies", rows))


if __name__ == "__main__":
    main()
