"""Starting, pinning, measuring and stopping the processes of a run. Only what was started here is ever stopped."""

import contextlib
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

SUBJECT_CPU, LOAD_CPU = 0, 1


def start(command: Sequence[str], cpu: int, log: Path, env: dict[str, str] | None = None) -> "subprocess.Popen[bytes]":
    """Start a process on one core; its children stay there."""
    with log.open("ab") as out:
        return subprocess.Popen(["taskset", "-c", str(cpu), *command], stdout=out, stderr=out, env={**os.environ, **(env or {})})


@contextlib.contextmanager
def running(process: "subprocess.Popen[bytes]") -> Iterator["subprocess.Popen[bytes]"]:
    """Stop it in the end."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for(url: str, within_s: float = 60.0, headers: dict[str, str] | None = None) -> None:
    """Until it answers with anything below 500. Raises TimeoutError."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers or {}), timeout=2):
                return
        except urllib.error.HTTPError as error:
            if error.code < 500:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise TimeoutError(f"{url} did not answer within {within_s:g} s")


def tree(pid: int) -> list[int]:
    """A process and its descendants."""
    found, queue = [], [pid]
    while queue:
        one = queue.pop()
        found.append(one)
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                queue += [int(child) for child in (task / "children").read_text().split()]
    return found


def cpu_s(pids: Sequence[int]) -> float:
    """CPU seconds these processes have used, all threads, from the scheduler's own clock (ns)."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(OSError):
                    total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def pss_mb(pids: Sequence[int]) -> float:
    """Proportional set size, MB."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
    return total / 1024
