"""The supervisor in a process of its own, with tiny children that serve their pid; what its tests share."""

import contextlib
import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

WITHIN_S = 60.0
"""How long a call into a process may block, so that a test ends that would hang; it takes milliseconds on an idle machine."""

PROGRAM = """
import os, sys, time
from pathlib import Path

if sys.argv[-1] == "--rehearse":
    home = Path(sys.argv[1])
    while (home / "slow").exists():
        time.sleep(0.01)
    sys.exit(4 if (home / "broken").exists() else 0)

import asyncio, random, signal
from gateway.process.hot_restart import this_program
from gateway.process.supervisor import CannotStart, ProcessPlan, run

home, workers, grace_s, ready_within_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
with (home / "starts").open("a") as starts:
    starts.write("x")
if (home / "more").exists():
    workers += 1

def worker(seat):
    asyncio.run(serve(seat))

async def serve(seat):
    stop = asyncio.Event()
    if not (home / "stubborn").exists():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    else:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while (home / f"hold-{seat.index}").exists() and not stop.is_set():
        await asyncio.sleep(0.005)
    if (home / "fail").exists():
        sys.exit(3)
    async def answer(reader, writer):
        writer.write(f"{seat.index} {os.getpid()}".encode())
        writer.close()
    server = await asyncio.start_server(answer, sock=seat.sock)
    seat.ready()
    await stop.wait()
    server.close()
    await asyncio.sleep(0.05)  # what was accepted is answered

def admin(seat):
    signal.signal(signal.SIGTERM, lambda *_: (home / "draining").touch())
    seat.sock.listen()
    seat.ready()
    os.read(seat.lifeline, 1)

plan = ProcessPlan(data_host="127.0.0.1", data_port=0, admin_host="127.0.0.1", admin_port=0, workers=workers,
            accept_s=0.0, grace_s=grace_s, ready_within_s=ready_within_s)
sys.exit(run(plan, worker, admin, clock=time.monotonic, rng=random.Random(1), run_dir=home / "run", again=this_program()))
"""

T = TypeVar("T")


def until(find: Callable[[], T | None], what: str) -> T:
    """Waits for `find` to return something; polling because the other side is a process. A wait in vain ends at the test's own time limit,
    which is longer on a busy machine."""
    try:
        while (found := find()) is None:
            time.sleep(0.005)
    except BaseException:
        print(f"waited for: {what}")
        raise
    return found


@dataclass
class Running:
    process: subprocess.Popen[bytes]
    home: Path

    def read(self, name: str) -> dict[str, Any] | None:
        with contextlib.suppress(FileNotFoundError):
            document: dict[str, Any] = json.loads((self.home / "run" / name).read_bytes())
            return document
        return None

    @property
    def data_port(self) -> int:
        state = until(lambda: self.read("supervisor.json"), "supervisor.json")
        return int(state["data_port"])

    def slots(self) -> dict[str, dict[str, Any]]:
        return {slot["name"]: slot for slot in (self.read("supervisor.json") or {}).get("slots", [])}

    def ready(self) -> "Running":
        until(lambda: self.read("ready.json"), "ready.json")
        return self

    def ask(self) -> tuple[int, int] | None:
        """(index, pid) of the worker that answered, or None when the connection was refused or not answered."""
        try:
            with socket.create_connection(("127.0.0.1", self.data_port), timeout=WITHIN_S) as sock:
                index, pid = sock.recv(64).split()
                return int(index), int(pid)
        except (ConnectionError, ValueError):
            return None

    def pids(self, asks: int = 40) -> set[int]:
        return {answer[1] for answer in (self.ask() for _ in range(asks)) if answer}

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(WITHIN_S)


Start = Callable[..., Running]


def wait_until_gone(pid: int) -> None:
    until(lambda: gone(pid), f"process {pid} ends")


def gone(pid: int) -> bool | None:
    """Whether a process has ended; None when not, for `until`. One that its parent has not noticed has ended too: there
    is no init in small containers."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return True if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z" else None
    return True
