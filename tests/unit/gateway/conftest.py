"""What tests of processes share."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.supervised import PROGRAM, WITHIN_S, Running, Start


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Running] = []

    def go(*marks: str, workers: int = 1, grace_s: float = 5.0, ready_within_s: float = 30.0) -> Running:
        for mark in marks:
            (tmp_path / mark).touch()
        arguments = [str(tmp_path), str(workers), str(grace_s), str(ready_within_s)]
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], stderr=subprocess.PIPE)
        started.append(Running(process, tmp_path))
        return started[-1]

    yield go
    for one in started:
        if one.process.poll() is None:
            one.process.send_signal(signal.SIGINT)
            one.process.send_signal(signal.SIGTERM)
            try:
                one.process.wait(WITHIN_S)
            except subprocess.TimeoutExpired:
                one.process.kill()
                one.process.wait()
        assert one.process.stderr
        one.process.stderr.close()
