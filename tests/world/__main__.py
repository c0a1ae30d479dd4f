"""Runs worlds: `python -m tests.world --seeds 0:2000`, or `--seed N` for one with its event log."""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.world.rolling import SLOWER, rolled
from tests.world.running import run_all
from tests.world.world import World


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", default="0:2000")
    parser.add_argument("--rollouts", action="store_true", help="two rollouts from beginning to end, and nothing else that goes wrong")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    told = parser.parse_args()
    if told.rollouts:
        return _roll()
    if told.seed is not None:
        return _show(told.seed)
    first, last = map(int, told.seeds.split(":"))
    began, bad, done, asks, troubles = time.perf_counter(), 0, 0, 0, 0
    for ran in run_all(range(first, last), told.processes):
        done, bad, asks, troubles = done + 1, bad + bool(ran.breaches), asks + ran.asks, troubles + ran.troubles
        if ran.breaches:
            print(f"SEED={ran.seed}", *ran.breaches, sep="\n  ", flush=True)
    took = time.perf_counter() - began
    print(f"{done} worlds with {asks} requests and {troubles} troubles: {bad} with breaches")
    print(f"{took:.1f} s, {done / took:.1f} worlds a second in {told.processes} processes")
    return bool(bad)


def _roll() -> int:
    for what, preset in (("is as good", "h100-8b"), ("decodes 1.3 times as long", SLOWER)):
        with tempfile.TemporaryDirectory() as folder:
            world = rolled(Path(folder), preset)
        print(f"a canary that {what}: {world.told_in_short}")
        print(f"  {world.last.reason}")
    return 0


def _show(seed: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        world = World(seed, Path(folder))
        world.run()
    print("\n".join(world.lines))
    print(f"SEED={seed}: log {world.digest}, {len(world.breaches)} breaches", *world.breaches, sep="\n  ", file=sys.stderr)
    return bool(world.breaches)


if __name__ == "__main__":
    sys.exit(main())
