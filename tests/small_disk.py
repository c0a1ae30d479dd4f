"""A small disk of its own, so that "full" is the kernel's word, and one that does not sync."""

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest


@contextlib.contextmanager
def small_disk(at: Path, megabytes: int) -> Iterator[Path]:
    """An empty file system of this size, mounted; the test is left out where that is not allowed."""
    at.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(at)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"may not mount a file system: {done.stderr.decode().strip()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)


def fill(disk: Path) -> Path:
    """Take all the room there is; the file that has it."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return ballast


def no_syncs(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> threading.Event:
    """While the event is set, as it is at first, nothing that this module writes can be synced."""
    failing = threading.Event()
    failing.set()
    sync = os.fdatasync

    def broken(file: int) -> None:
        if failing.is_set():
            raise OSError(5, "Input/output error")
        sync(file)

    monkeypatch.setattr(module.os, "fdatasync", broken)
    return failing
