"""Keeps the memory of a test process bounded, and its garbage collections short.

A pytest plugin, registered by `tests/conftest.py`. What collecting the tests makes (modules, test items) lives as long as the process:
the garbage collector is off while it is made, and is told not to look at it any more. What a file of tests leaves behind in circles, such
as large request bodies in the traceback of an expected exception, is collected when the file is over; by itself the collector would come
when gigabytes are there, because it counts objects and not bytes. What is alive then (modules that the file imported, caches of libraries)
mostly stays alive as well, and the collector does not look at it again: that took up to half a second after each file of
`tests/unit/gateway`, where it was two thirds of the CPU time. The C library keeps freed memory for itself until it is told to give it back.

Hypothesis keeps a table of the characters of UTF-8 in its folder. Whoever finds none there makes it, which takes 200 MB for a moment: a
process of its own makes it for all workers, before there are any. So do processes of their own with pytest's byte code of the test files.
"""

import contextlib
import ctypes
import gc
import subprocess
import sys

import pytest

from tests import byte_code

TABLE_OF_CHARACTERS = "from hypothesis import strategies; strategies.text().validate()"


class Memory:
    """Collects garbage once for each file of tests."""

    def pytest_configure(self, config: pytest.Config) -> None:
        """A run begins, perhaps with workers."""
        if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
            subprocess.run([sys.executable, "-c", TABLE_OF_CHARACTERS], check=True)
            byte_code.make_all()
        else:  # this process collects the tests
            gc.disable()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        """All tests are known; none has run."""
        gc.collect()
        gc.freeze()
        gc.enable()

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """One test is over; was it the last of its file?"""
        if nextitem is None or nextitem.path != item.path:
            gc.collect()
            gc.freeze()
            give_back()


def give_back() -> None:
    """Have the C library return freed memory to the operating system; only glibc can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
