"""The release before: the code that a rolling upgrade begins with, and whose state today's code has to read.

There is no published release yet. What stands for it is the state of the main branch at the end of 27 November 2026: its schema has
revision 0021, its scripts know seven meters. It runs on the packages of today, from an archive of its commit.
"""

import subprocess
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Final

import pytest

COMMIT: Final = "d40866fcaa4ec3c5bcb1d08d22fd829b301118fa"
REVISION: Final = "0021"
"""Of its schema."""
FOLDER: Final = Path(__file__).parent / "fixtures" / "release-0.1"
"""What it has left: written by `tests/record_release.py`."""


def code_before(folder: Path) -> Path:
    """Its code, unpacked in an empty folder. Skips the test where the history does not reach back so far."""
    done = subprocess.run(["git", "archive", COMMIT], cwd=Path(__file__).parent.parent, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"the history of this clone has no commit {COMMIT[:8]}, the release before: git fetch --unshallow")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder
