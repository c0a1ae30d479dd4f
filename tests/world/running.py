"""Runs many worlds in several processes."""

import gc
import multiprocessing
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.world.world import World


@dataclass(frozen=True)
class Ran:
    """What became of one world."""

    seed: int
    breaches: list[str]
    digest: str
    asks: int
    troubles: int


def run_one(seed: int) -> Ran:
    """One world, from its seed."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(seed, Path(folder))
        gc.disable()
        try:
            world.run()
        finally:
            gc.enable()
    return Ran(seed, world.breaches, world.digest, len(world.asks), len(world.plan.troubles))


def _settle() -> None:
    """What is imported stays, and is not looked through again and again."""
    gc.collect()
    gc.freeze()


def run_all(seeds: Iterable[int], processes: int) -> Iterator[Ran]:
    """Each in its turn."""
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _settle) as pool:
        yield from pool.map(run_one, seeds, chunksize=4)
