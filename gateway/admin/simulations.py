"""What-if simulations for the admin API: one at a time, in a process of its own with the lowest priority, and the last result is kept.

The process is `gateway.process.simulation_job`. It is started for one simulation and ends with it, with its cancellation, or with this
process.
"""

import asyncio
import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import structlog

from domain.clock import WallClock
from gateway.admin.problem import AdminProblem
from gateway.process.simulation_job import ASKED, MAX_CPU_S, RESULT, JobLine, SimulationAsked

log = structlog.get_logger("tidegate.simulations")

State = Literal["running", "done", "failed", "cancelled"]

COMMAND: Final = (sys.executable, "-P", "-m", "gateway.process.simulation_job")
FOLDER: Final = "simulation-"
"""The beginning of the name of a job's folder; it is deleted with the job."""
ENDS_WITHIN_S: Final = 5.0
"""The longest wait for a process that was killed."""
MAX_ERROR_CHARS: Final = 2000


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation, running or ended."""

    id: str
    state: State
    by: str
    """The actor who started it."""
    started_unix: float
    ended_unix: float | None = None
    words: str = "starting"
    """What is simulated now."""
    done: int = 0
    """Requests that have ended, of all policies and seeds."""
    of: int = 0
    """Requests of all policies and seeds; 0 while the workload is read."""
    error: str = ""
    """Why it failed."""
    result: msgspec.Raw | None = None
    """The comparison, when it is done."""


class Simulations:
    """Starts simulations and knows the last one.

    Args:
        run_dir: holds the folder of the running job.
        wall: seconds since the epoch.
        new_id: the id of a new simulation.
        command: starts the job's process; the folder is its last argument.
    """

    def __init__(self, run_dir: Path, wall: WallClock, new_id: Callable[[], str], command: tuple[str, ...] = COMMAND) -> None:
        self._run_dir = run_dir
        self._wall = wall
        self._new_id = new_id
        self._command = command
        self._task: asyncio.Task[None] | None = None
        self.last: Simulation | None = None

    def start(self, asked: SimulationAsked, by: str) -> Simulation:
        """Begin a simulation, which takes the place of the last one's result.

        Raises:
            AdminProblem: one is running.
        """
        if self.last is not None and self.last.state == "running":
            message = f"A simulation of {self.last.by} runs ({self.last.words}). Wait for it, or cancel it: one runs at a time."
            raise AdminProblem(409, "simulation_runs", message)
        self.last = Simulation(id=self._new_id(), state="running", by=by, started_unix=self._wall())
        self._task = asyncio.create_task(self._run(asked))
        return self.last

    async def cancel(self) -> Simulation:
        """End the running simulation.

        Raises:
            AdminProblem: none is running.
        """
        if self.last is None or self.last.state != "running" or self._task is None:
            raise AdminProblem(409, "no_simulation", "No simulation is running.")
        await self.close()
        return self.last

    async def close(self) -> None:
        """End what is running."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            if self.last is not None and self.last.state == "running":
                self._end(state="cancelled")  # its task had not begun

    async def _run(self, asked: SimulationAsked) -> None:
        folder: Path | None = None
        try:
            folder = Path(tempfile.mkdtemp(prefix=FOLDER, dir=self._run_dir))
            await asyncio.to_thread(_write, folder, asked)
            result = await self._result_of(folder)
        except asyncio.CancelledError:
            self._end(state="cancelled")
            raise
        except _JobFailed as failed:
            self._end(state="failed", error=str(failed)[:MAX_ERROR_CHARS])
        except Exception as error:  # noqa: BLE001 - a full disk, no process to be had: whatever it is, the caller is told
            log.warning("a simulation could not run", reason=f"{type(error).__name__}: {error}"[:200])
            self._end(state="failed", error=f"The simulation could not run: {error}"[:MAX_ERROR_CHARS])
        else:
            self._end(state="done", result=msgspec.Raw(result))
        finally:
            if folder is not None:  # three files at most; in a thread, a second cancellation would leave them there
                shutil.rmtree(folder, ignore_errors=True)

    async def _result_of(self, folder: Path) -> bytes:
        process = await asyncio.create_subprocess_exec(
            *self._command, str(folder), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stderr is not None
        said = asyncio.create_task(_tail(process.stderr))
        try:
            async for line in process.stdout:
                step = msgspec.json.decode(line, type=JobLine)
                if step.error:
                    raise _JobFailed(step.error)
                self._change(words=step.words, done=step.done, of=step.of)
            code = await process.wait()
            if code:
                raise _JobFailed(_why(code, await said))
            return await asyncio.to_thread((folder / RESULT).read_bytes)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ENDS_WITHIN_S):
                    await process.wait()
            said.cancel()

    def _end(self, **ended: Any) -> None:
        self._change(ended_unix=self._wall(), **ended)

    def _change(self, **changed: Any) -> None:
        assert self.last is not None
        self.last = msgspec.structs.replace(self.last, **changed)


def _write(folder: Path, asked: SimulationAsked) -> None:
    (folder / ASKED).write_text(asked.model_dump_json(exclude_unset=True), encoding="utf-8")


class _JobFailed(Exception):
    """The job ended without a result; the message says why."""


async def _tail(stream: asyncio.StreamReader) -> str:
    """The last words of a stream, which is read to its end so that its writer never waits."""
    kept = b""
    while part := await stream.read(4096):
        kept = (kept + part)[-MAX_ERROR_CHARS:]
    return kept.decode("utf-8", "replace")


def _why(code: int, said: str) -> str:
    if code in (-24, -9):  # SIGXCPU, and the SIGKILL that follows it; the kernel kills so too when memory is short
        return f"The simulation took over {MAX_CPU_S} s of processor time, or its process was killed. Take a smaller limit or fewer seeds."
    lines = said.strip().splitlines()
    if lines and lines[-1].startswith("MemoryError"):
        return "The simulation needs more memory than it may have. Take a smaller limit."
    return f"The simulation's process ended with code {code}: {lines[-1] if lines else 'it said nothing'}"
