"""The release before: the code that a rolling upgrade begins with, and whose state today's code has to read.

There is no published release yet. What stands for it is the state of the main branch at the end of 27 November 2026: its schema has
revision 0021, its scripts know seven meters. It runs on the packages of today, from an archive of its commit.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Final

import pytest

COMMIT: Final = "d40866fcaa4ec3c5bcb1d08d22fd829b301118fa"
REVISION: Final = "0021"
"""Of its schema."""
FOLDER: Final = Path(__file__).parent / "fixtures" / "release-0.1"
"""What it has left: written by `make release-fixtures`."""
MESSAGES: Final = FOLDER / "messages"
"""What its processes tell each other."""


def record() -> None:
    """Let its code write what it leaves, with the recorder of today in the place of its own."""
    with tempfile.TemporaryDirectory() as folder:
        code = code_before(Path(folder))
        run_before(code, "record_release.py", str(FOLDER))
        run_before(code, "record_messages.py", "tell", str(MESSAGES))


def run_before(code: Path, script: str, *arguments: str) -> str:
    """Let its code, unpacked in that folder, run one of today's recorders; returns what it prints."""
    shutil.copy(Path(__file__).parent / script, code / "tests")
    environment = {**os.environ, "PYTHONPATH": str(code)}
    command = [sys.executable, f"tests/{script}", *arguments]
    return subprocess.run(command, cwd=code, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def code_before(folder: Path) -> Path:
    """Its code, unpacked in an empty folder. Skips the test where the history does not reach back so far."""
    done = subprocess.run(["git", "archive", COMMIT], cwd=Path(__file__).parent.parent, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"the history of this clone has no commit {COMMIT[:8]}, the release before: git fetch --unshallow")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


if __name__ == "__main__":
    record()
