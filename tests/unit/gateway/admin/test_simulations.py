"""One simulation at a time in a process of its own: its steps, its end, its cancellation, and that nothing of it is left."""

import asyncio
import itertools
import os
import sys
from pathlib import Path

import pytest

from gateway.admin.problem import AdminProblem
from gateway.admin.simulations import Simulations
from gateway.process.simulation_job import SimulationAsked
from tests.timing import until

ASKED = SimulationAsked.model_validate({"workload": "chat", "fleet": {"engines": [{"machine": "h100-8b"}]}, "policies": ["least_load"]})
STEP = 'print(\'{"words":"least_load","done":200,"of":2000}\', flush=True);'
FOREVER = STEP + "import time; time.sleep(3600)"
ENDS = "import sys, pathlib; pathlib.Path(sys.argv[1], 'result.json').write_text('{\"requests\":7}')"


def desk(folder: Path, script: str) -> Simulations:
    numbers = itertools.count(1)
    return Simulations(folder, lambda: 1_800_000_000.0, lambda: f"sim_{next(numbers)}", (sys.executable, "-c", script))


async def ended(simulations: Simulations) -> None:
    await until(lambda: simulations.last is not None and simulations.last.state != "running")
    # its folder is deleted after the state is known
    await simulations.close()


async def test_a_result_is_kept_until_the_next_start(tmp_path: Path) -> None:
    simulations = desk(tmp_path, STEP + ENDS)
    started = simulations.start(ASKED, "key op")
    assert (started.state, started.by, started.of) == ("running", "key op", 0)
    await ended(simulations)
    last = simulations.last
    assert last is not None
    assert last.result is not None
    assert (last.state, last.done, last.of, bytes(last.result)) == ("done", 200, 2000, b'{"requests":7}')
    assert not list(tmp_path.iterdir()), "its folder is gone"
    assert simulations.start(ASKED, "key op").result is None
    await simulations.close()


async def test_one_runs_at_a_time_and_a_cancelled_one_ends_its_process(tmp_path: Path) -> None:
    simulations = desk(tmp_path, f"import os, pathlib, sys; pathlib.Path(sys.argv[1], '../pid').write_text(str(os.getpid())); {FOREVER}")
    simulations.start(ASKED, "key op")
    await until(lambda: simulations.last is not None and simulations.last.done == 200)
    with pytest.raises(AdminProblem, match="one runs at a time") as refused:
        simulations.start(ASKED, "key other")
    assert (refused.value.status, refused.value.code) == (409, "simulation_runs")
    last = await simulations.cancel()
    assert (last.state, last.ended_unix, last.result) == ("cancelled", 1_800_000_000.0, None)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert [file.name for file in tmp_path.iterdir()] == ["pid"]
    with pytest.raises(AdminProblem, match="No simulation is running"):
        await simulations.cancel()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ('print(\'{"error":"trace:1: is no trace"}\')', "trace:1: is no trace"),
        ("raise SystemExit('out of luck')", "ended with code 1: out of luck"),
        ("raise MemoryError", "more memory than it may have"),
        ("import os; os.kill(os.getpid(), 24)", "s of processor time"),
        ("pass", "could not run"),
    ],
)
async def test_why_there_is_no_result_is_told(tmp_path: Path, script: str, words: str) -> None:
    simulations = desk(tmp_path, script)
    simulations.start(ASKED, "key op")
    await ended(simulations)
    assert simulations.last is not None
    assert (simulations.last.state, words in simulations.last.error) == ("failed", True), simulations.last.error
    assert not list(tmp_path.iterdir())


async def test_a_process_that_says_much_on_its_error_stream_is_not_held_up(tmp_path: Path) -> None:
    simulations = desk(tmp_path, "import sys; sys.stderr.write('x' * 1_000_000);" + ENDS)
    simulations.start(ASKED, "key op")
    await asyncio.wait_for(ended(simulations), 30)
    assert simulations.last is not None
    assert simulations.last.state == "done"


async def test_one_that_is_cancelled_before_it_has_begun_is_over(tmp_path: Path) -> None:
    simulations = desk(tmp_path, FOREVER)
    simulations.start(ASKED, "key op")
    assert (await simulations.cancel()).state == "cancelled"
    assert simulations.start(ASKED, "key op").state == "running"
    await simulations.close()
    assert not list(tmp_path.iterdir())


async def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    simulations = desk(tmp_path / "nowhere", FOREVER)
    simulations.start(ASKED, "key op")
    await ended(simulations)
    assert simulations.last is not None
    assert (simulations.last.state, "could not run" in simulations.last.error) == ("failed", True)
