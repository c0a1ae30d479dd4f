"""Runs mutants: each in a copy of the tree, so that the checkout is never written to.

Every worker has a copy of its own. A mutant is written into the copy, its test files run there, and the file is restored. Before the
first mutant each test file runs without one: a test file that is red anyway kills nothing.
"""

import contextlib
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import cache_from_source
from pathlib import Path

import msgspec

from tests.mutants.mutant import Mutant, git, mutated

CLEAN_TIMEOUT_S = 600.0
"""For a test file without a mutant."""
LEAST_TIMEOUT_S = 60.0
SLOWER = 10
"""A test file may run `SLOWER` times as long with a mutant as without one, and at least `LEAST_TIMEOUT_S`."""
PASSED, FAILED = 0, 1
"""Exit codes of pytest; every other one says that no test decided."""

PYTEST_OPTIONS = ("-x", "-rfE", "--tb=line", "-p", "no:xdist")
"""Stop at the first failure and name it; without a plugin that is not used."""

_FAILURE = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


class TestRun(msgspec.Struct, frozen=True):
    """The result of one run of one test file."""

    __test__ = False

    code: int | None
    """pytest's exit code; None for a run that was ended at its time-out."""
    seconds: float
    failure: str
    """The first test that failed, empty for none."""
    output: str


class MutantResult(msgspec.Struct, frozen=True):
    """The verdict on one mutant."""

    mutant: Mutant
    killed: bool
    how: str
    """The test that failed, or the reason why the mutant is not killed."""
    seconds: float


def tree_files(root: Path) -> list[str]:
    """The files of the checkout that git tracks or would track, relative to the root.

    Raises:
        BadMutant: the root is no checkout.
    """
    listed = git(root, "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    return [name for name in listed.split("\0") if name and (root / name).is_file()]


def copy_tree(root: Path, target: Path) -> None:
    """Copy the tree's files with their times, so that the copy's byte code stays valid."""
    for name in tree_files(root):
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, path)


@contextlib.contextmanager
def planted(mutant: Mutant, copy: Path) -> Iterator[None]:
    """The copy with the bug in it. Byte code is valid by the second and the size of its source, so it is removed both times."""
    path = copy / mutant.file
    before = path.read_bytes()
    path.write_text(mutated(mutant, copy))
    _drop_byte_code(path)
    try:
        yield
    finally:
        path.write_bytes(before)
        _drop_byte_code(path)


def _drop_byte_code(path: Path) -> None:
    if path.suffix == ".py":
        Path(cache_from_source(str(path))).unlink(missing_ok=True)


def run_test(copy: Path, test: str, timeout_s: float) -> TestRun:
    """Run one test file in a copy, up to its first failure. Processes that it leaves behind are ended."""
    command = [sys.executable, "-m", "pytest", test, *PYTEST_OPTIONS]
    environment = os.environ | {"PYTHONPATH": str(copy), "COLUMNS": "400", "TIDEGATE_HYPOTHESIS": "mutants"}
    began = time.monotonic()
    process = subprocess.Popen(
        command, cwd=copy, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
        code: int | None = process.returncode
    except subprocess.TimeoutExpired:
        code, output = None, ""
    finally:
        with contextlib.suppress(ProcessLookupError):  # usually nothing is left
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    found = _FAILURE.search(output)
    return TestRun(code, time.monotonic() - began, found[1] if found else "", output)


def run_mutants(root: Path, mutants: Sequence[Mutant], *, jobs: int, tell: Callable[[str], None]) -> list[MutantResult]:
    """Run every mutant, `jobs` at a time, and say each result to `tell` when it is there. Results come in the order of the mutants.

    Raises:
        BadMutant: a mutant no longer applies to the tree.
    """
    for mutant in mutants:
        mutated(mutant, root)
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        for number in range(jobs):
            copy_tree(root, Path(folder, str(number)))
            copies.put(Path(folder, str(number)))

        def without(test: str) -> TestRun:
            copy = copies.get()
            try:
                return run_test(copy, test, CLEAN_TIMEOUT_S)
            finally:
                copies.put(copy)

        tell(f"{len(tests)} test files without a mutant …")
        clean = dict(zip(tests, pool.map(without, tests), strict=True))
        for test, ran in clean.items():
            if ran.code != PASSED:
                tell(f"{test} is red without a mutant:\n{ran.output}")

        def with_mutant(mutant: Mutant) -> MutantResult:
            copy = copies.get()
            try:
                result = _judge(mutant, copy, clean)
            finally:
                copies.put(copy)
            tell(f"{'killed' if result.killed else 'NOT KILLED':<10} {mutant.name} ({result.seconds:.1f} s): {result.how}")
            return result

        return list(pool.map(with_mutant, mutants))


def _judge(mutant: Mutant, copy: Path, clean: dict[str, TestRun]) -> MutantResult:
    """Run the test files of one mutant: each of them must fail."""
    seconds, kills = 0.0, []
    for test in mutant.tests:
        if clean[test].code != PASSED:
            return MutantResult(mutant, False, f"{test} fails without the mutant; mend the test first", seconds)
        with planted(mutant, copy):
            ran = run_test(copy, test, max(LEAST_TIMEOUT_S, SLOWER * clean[test].seconds))
        seconds += ran.seconds
        if ran.code is None and mutant.hangs:
            kills.append(f"{test} (time-out)")
        elif ran.code == FAILED and ran.failure:
            kills.append(ran.failure)
        else:
            return MutantResult(mutant, False, _why_not(test, ran), seconds)
    return MutantResult(mutant, True, ", ".join(kills), seconds)


def _why_not(test: str, ran: TestRun) -> str:
    if ran.code is None:
        return f"{test} ran into its time-out; say `hangs = true` if that is what the bug does, else choose another bug"
    if ran.code == PASSED:
        return f"it survives {test}: write the test that notices it, or say in `equivalent` why none can"
    lines = ran.output.strip().splitlines()
    return f"{test} decided nothing (pytest's exit code {ran.code}: {lines[-1] if lines else 'no output'}); plant a bug that still imports"
