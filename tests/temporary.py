"""Where the temporary files of a test run are: in memory, if there is room for them.

A pytest plugin, registered by `tests/conftest.py`. Some disks take milliseconds for each new file and each `fsync`: a database of Postgres
is three hundred files, and there are hundreds of databases. What a test does with its files is the same on any file system; tests of a full
disk mount one of their own (`tests/small_disk.py`). A run without room in memory, or with a folder of its own (`--basetemp`, `TMPDIR`),
goes on as usual, and so do the long forms, which write more.

A run that fails keeps its folder for whoever looks into it, until the next run begins.
"""

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Final

import pytest

from tests.scale import LONG

MEMORY: Final = Path("/dev/shm")  # a file system of the kernel that is held in memory
ROOM_BYTES: Final = 2 << 30
"""Free space below which the files go to the disk: at most some hundred megabytes stand at once."""
KEPT: Final = re.compile(r"tg([0-9]+)")
"""The folder of a run, with the number of its process. Names are short because the path of a socket has 108 bytes at most."""


class Temporary:
    """Gives a run a folder in memory, and takes it away."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """A run begins; its workers take what is set here."""
        if hasattr(config, "workerinput") or config.option.basetemp or "TMPDIR" in os.environ or LONG or not has_room(MEMORY):
            return
        remove_left_over(MEMORY)
        self._folder = MEMORY / f"tg{os.getpid()}"
        self._folder.mkdir(mode=0o755)  # the package of Postgres runs its server as a user of its own
        os.environ["TMPDIR"] = tempfile.tempdir = str(self._folder)
        config.option.basetemp = str(self._folder / "t")  # instead of pytest-of-USER/pytest-0, which makes sockets' paths too long

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """The run is over."""
        if self._folder is not None and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            shutil.rmtree(self._folder, ignore_errors=True)


def has_room(memory: Path) -> bool:
    """Whether the files of a run can be there, programs among them."""
    try:
        found = os.statvfs(memory)
    except OSError:  # a system without it
        return False
    return os.access(memory, os.W_OK) and found.f_bavail * found.f_frsize >= ROOM_BYTES and not found.f_flag & os.ST_NOEXEC


def remove_left_over(memory: Path) -> None:
    """Remove the folders of runs whose process is gone."""
    for folder in memory.iterdir():
        if (named := KEPT.fullmatch(folder.name)) and not Path(f"/proc/{named[1]}").exists():
            shutil.rmtree(folder, ignore_errors=True)
