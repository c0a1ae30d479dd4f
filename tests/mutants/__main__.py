"""Runs mutants and prints a table: `python -m tests.mutants` for all, `--since COMMIT --sample 12` for what a change has to pass."""

import argparse
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.mutant import PLANTED, BadMutant, Mutant, git, mutated, read_mutants
from tests.mutants.running import MutantResult, run_mutants

ROOT = Path(__file__).parents[2]
SAMPLE = 12
"""Mutants that run besides those of changed files."""


def changed_files(root: Path, since: str) -> set[str]:
    """Files that differ from the commit at which this branch left `since`, new files included."""
    left_at = git(root, "merge-base", since, "HEAD")
    return {*git(root, "diff", "--name-only", left_at).splitlines(), *git(root, "ls-files", "-o", "--exclude-standard").splitlines()}


def touched(mutant: Mutant, files: set[str]) -> bool:
    """Whether the product file, a test file or the data file of a mutant is among the files."""
    return not files.isdisjoint({mutant.file, *mutant.tests, f"tests/mutants/planted/{mutant.name}.toml"})


def chosen(mutants: Sequence[Mutant], files: set[str], sample: int, seed: str) -> list[Mutant]:
    """The mutants of these files, and a sample of the others: the same one for the same seed."""
    others = [mutant for mutant in mutants if not touched(mutant, files)]
    sampled = random.Random(seed).sample(others, min(sample, len(others)))
    return [mutant for mutant in mutants if mutant in sampled or touched(mutant, files)]


def table(results: Sequence[MutantResult], struck_out: Sequence[Mutant]) -> str:
    """The summary: a line for each mutant, and the totals."""
    width = max((len(result.mutant.name) for result in results), default=0)
    lines = [f"{'mutant':<{width}}  seconds  killed by"]
    for result in results:
        by = result.how if result.killed else f"NOT KILLED: {result.how}"
        lines.append(f"{result.mutant.name:<{width}}  {result.seconds:7.1f}  {by}")
    lines += [f"{mutant.name}: struck out, equivalent: {mutant.equivalent}" for mutant in struck_out]
    killed = sum(result.killed for result in results)
    lines.append(f"{len(results)} mutants: {killed} killed, {len(results) - killed} not killed; {len(struck_out)} struck out")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None, *, root: Path = ROOT, folder: Path = PLANTED) -> int:
    """Run what the arguments ask for; 0 when every mutant was killed, 1 when one was not, 2 when one cannot be run."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="run these mutants only")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument("--since", metavar="COMMIT", help="run the mutants whose files changed since COMMIT, and a sample of the others")
    parser.add_argument("--sample", type=int, metavar="N", help=f"run N mutants chosen by the seed ({SAMPLE} with --since)")
    parser.add_argument("--seed", help="of the sample; the commit's id unless given")
    told = parser.parse_args(arguments)
    began = time.monotonic()
    try:
        mutants = read_mutants(folder)
        for mutant in mutants:
            mutated(mutant, root)
        running = _asked_for([mutant for mutant in mutants if not mutant.equivalent], told, root)
        results = run_mutants(root, running, jobs=max(told.jobs, 1), tell=lambda line: print(line, flush=True))
    except BadMutant as error:
        print(error, file=sys.stderr)
        return 2
    print("\n" + table(results, [mutant for mutant in mutants if mutant.equivalent]))
    print(f"{time.monotonic() - began:.0f} s, {told.jobs} at a time")
    return int(not all(result.killed for result in results))


def _asked_for(mutants: list[Mutant], told: argparse.Namespace, root: Path) -> list[Mutant]:
    if unknown := set(told.names) - {mutant.name for mutant in mutants}:
        raise BadMutant(f"there is no mutant {sorted(unknown)[0]!r} to run; tests/mutants/planted has one file for each")
    if told.names:
        return [mutant for mutant in mutants if mutant.name in told.names]
    if told.since is None and told.sample is None:
        return mutants
    seed = told.seed or git(root, "rev-parse", "HEAD")
    files = changed_files(root, told.since) if told.since is not None else set()
    running = chosen(mutants, files, SAMPLE if told.sample is None else told.sample, seed)
    print(f"{len(running)} of {len(mutants)} mutants, seed {seed}")
    return running


if __name__ == "__main__":
    sys.exit(main())
