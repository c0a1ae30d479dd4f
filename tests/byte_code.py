"""Makes pytest's byte code of every test file, once for all processes of a run.

pytest puts more into assertions than the compiler knows, so that a failure says what was compared, and keeps the result beside the file.
That takes ten times as long as compiling: on a new checkout every worker would do it for every file, all of them at the same time.

A process of its own for each core: `python -m tests.byte_code SHARE OF`.
"""

import gc
import os
import subprocess
import sys
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from _pytest.assertion import rewrite
from _pytest.config import get_config

TESTS: Final = Path(__file__).parent


def missing(share: int = 0, of: int = 1) -> list[Path]:
    """Of every `of`-th test file from `share` on, those without byte code of pytest's, or with that of another text."""
    files = sorted(path for path in TESTS.rglob("*.py") if path.name.startswith("test_") or path.name == "conftest.py")
    return [path for path in files[share::of] if not is_made(path)]


def is_made(path: Path) -> bool:
    """Whether the byte code is there and of this text. Its head is a number of the interpreter, one of the kind, and the text's hash."""
    try:
        with byte_code_of(path).open("rb") as made:
            head = made.read(16)
    except OSError:
        return False
    return head[:4] == MAGIC_NUMBER and head[8:] == source_hash(path.read_bytes())


def byte_code_of(path: Path) -> Path:
    """Where pytest keeps its byte code of a file."""
    return rewrite.get_cache_dir(path) / f"{path.stem}{rewrite.PYC_TAIL}"


def make(files: list[Path]) -> None:
    """Write the byte code of test files; one that cannot be read is left to the run, which says why."""
    config = get_config()
    state: Any = SimpleNamespace(trace=lambda _: None)
    for path in files:
        try:
            stat, code = rewrite._rewrite_test(path, config)
        except (SyntaxError, ValueError):
            continue
        target = byte_code_of(path)
        target.parent.mkdir(exist_ok=True)
        rewrite._write_pyc(state, code, stat, target)


def make_all() -> None:
    """Make what is missing, on all cores."""
    if len(missing()) < 2:
        return
    cores = os.cpu_count() or 1
    command = [sys.executable, "-m", "tests.byte_code"]
    for process in [subprocess.Popen([*command, str(share), str(cores)], cwd=TESTS.parent) for share in range(cores)]:
        process.wait()  # what one of them did not make, the workers make


if __name__ == "__main__":
    gc.disable()
    make(missing(*map(int, sys.argv[1:])))
