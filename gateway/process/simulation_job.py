"""One what-if simulation in a process of its own: `python -P -m gateway.process.simulation_job FOLDER`, started by
`gateway.admin.simulations`.

The folder holds `asked.json` (`SimulationAsked`); `result.json` is written there at the end. Standard output gets one `JobLine` as JSON per
step. The process has the lowest priority and bounds on its memory and processor time, and ends when nobody
reads its output any more.
"""

import contextlib
import os
import random
import resource
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Self

import msgspec
from pydantic import AfterValidator, Field, model_validator

from domain.strict import Strict
from policies.routing_choice import RoutingField, routing_of
from routing.policy_instance import PolicyInstance
from routing.simulation.comparison import Result, compare
from routing.simulation.fleet_file import FleetFile
from routing.simulation.traces import TraceError, load
from routing.simulation.turns import Dice, Workload
from routing.simulation.workloads import WORKLOADS

ASKED: Final = "asked.json"
TRACE: Final = "trace"
RESULT: Final = "result.json"

MAX_TRACE_CHARS: Final = 8 * 1024 * 1024
"""The longest trace that is uploaded: thousands of lines of the access log."""
MAX_POLICIES: Final = 6
MAX_SEEDS: Final = 5
MAX_REQUESTS: Final = 20_000
MAX_SIMULATED: Final = 120_000
"""Requests of all policies and seeds together: minutes of one core."""
MAX_CPU_S: Final = 900
MAX_MEMORY_BYTES: Final = 2 * 1024**3
"""Address space; 20,000 requests with long prompts take a quarter of it."""
DATABASE: Final = ".db"
"""Ending of the SQLite file of a gateway's request log."""
NICEST: Final = 19

Contenders = Mapping[str, Callable[[], PolicyInstance]]
"""The policies to compare, by the names under which they are shown."""


def _made_up(name: str) -> str:
    if name not in WORKLOADS:
        raise ValueError(f"there is no made-up workload {name!a:.60}; there are: {', '.join(WORKLOADS)}")
    return name


class SimulationAsked(Strict):
    """A comparison of routing policies on one workload and one modelled fleet."""

    workload: Annotated[str, Field(max_length=64), AfterValidator(_made_up)] | None = Field(
        default=None, description="A made-up workload, unless the requests are a `trace` or `recent` ones."
    )
    trace: str | None = Field(
        default=None, min_length=1, max_length=MAX_TRACE_CHARS, description="The text of a trace: lines of the access log, or another kind."
    )
    recent: bool = Field(default=False, description="The last requests of the request log.")
    fleet: FleetFile = Field(description="The modelled fleet.")
    policies: list[RoutingField] = Field(
        min_length=1, max_length=MAX_POLICIES, description="Routing policies to compare: names, or mappings with parameters."
    )
    seeds: int = Field(default=1, ge=1, le=MAX_SEEDS, description="Runs per policy, each with other dice; two or more give intervals.")
    seed: int = Field(default=0, ge=0, le=2**31, description="The first of the seeds.")
    speed: float = Field(default=1.0, ge=0.001, le=1000, description="Requests come this many times as dense.")
    limit: int = Field(default=2000, ge=1, le=MAX_REQUESTS, description="Only the first so many requests.")

    @model_validator(mode="after")
    def _is_bounded(self) -> Self:
        if (self.workload is not None) + (self.trace is not None) + self.recent != 1:
            raise ValueError("needs one of workload, trace and recent")
        if (simulated := self.limit * self.seeds * len(self.policies)) > MAX_SIMULATED:
            raise ValueError(
                f"limit times seeds times policies is {simulated:,} requests; at most {MAX_SIMULATED:,}; take a smaller limit or seeds"
            )
        return self


class JobLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the process: how far it is, or why it ends."""

    words: str = ""
    """What is simulated now."""
    done: int = 0
    """Requests that have ended, of all policies and seeds."""
    of: int = 0
    """Requests of all policies and seeds; 0 while the workload is read."""
    error: str = ""
    """Why there is no result."""


def contenders(choices: Sequence[Any]) -> Contenders:
    """The policies by their shown names: the policy's own name, followed by its parameters as written."""
    found = {}
    for choice in choices:
        routing = routing_of(choice)
        parameters = (
            {} if isinstance(choice, str) else {name: getattr(choice, name) for name in sorted(choice.model_fields_set - {"policy"})}
        )
        name = " ".join((routing.policy, *(f"{key}={value}" for key, value in parameters.items())))
        found[name] = routing.policy_instance
    return found


def seeded(seed: int) -> Dice:
    """The dice of one run: equal seeds throw alike."""
    return lambda name: random.Random(f"{seed} {name}")


def loaded(trace: Path, dice: Dice) -> Workload:
    """The workload of a trace; of the database of a request log, that of its lines. Raises TraceError."""
    if trace.suffix != DATABASE:
        return load(trace, dice)
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "requests.jsonl"
        try:
            connection = sqlite3.connect(f"{trace.resolve().as_uri()}?mode=ro", uri=True)
            with contextlib.closing(connection), lines.open("w") as file:
                file.writelines(f"{line}\n" for (line,) in connection.execute("SELECT line FROM request_log ORDER BY at_us, id"))
        except sqlite3.Error as error:
            raise TraceError(f"{trace}:1: is no database of a request log: {error}") from None
        return load(lines, dice)


def workload_of(trace: str | Path, fleet: FleetFile, dice: Dice, speed: float, limit: int | None) -> Workload:
    """The workload of a trace or of a made-up workload's name, as dense and as long as asked. Raises TraceError."""
    if isinstance(trace, str) and trace not in WORKLOADS and not Path(trace).exists():
        raise TraceError(f"{trace}: there is no such file, and no such made-up workload; those are {', '.join(WORKLOADS)}")
    workload = WORKLOADS[trace](dice) if isinstance(trace, str) and trace in WORKLOADS else loaded(Path(trace), dice)
    workload = workload.without_limited([name for name, tenant in fleet.tenants.items() if tenant.tokens_per_s]).scaled(speed)
    return workload if limit is None else workload.first(limit)


def run_job(folder: Path, tell: Callable[[JobLine], None]) -> None:
    """Run what the folder asks for, and write its result there."""
    asked = SimulationAsked.model_validate_json((folder / ASKED).read_bytes())
    trace: str | Path = asked.workload or folder / TRACE
    if asked.trace is not None:
        (folder / TRACE).write_text(asked.trace, encoding="utf-8")
    policies = contenders(asked.policies)
    names = list(policies)
    count = 0

    def make(dice: Dice) -> Workload:
        nonlocal count
        workload = workload_of(trace, asked.fleet, dice, asked.speed, asked.limit)
        count = len(workload.turns)
        return workload

    def progress(policy: str, number: int, done: int) -> None:
        before = (number * len(names) + names.index(policy)) * count
        seed = f", seed {number + 1} of {asked.seeds}" if asked.seeds > 1 else ""
        tell(JobLine(policy + seed, before + done, count * len(names) * asked.seeds))

    tell(JobLine("reading the workload"))
    try:
        result = compare(make, asked.fleet, policies, [seeded(asked.seed + number) for number in range(asked.seeds)], progress)
    except TraceError as error:
        tell(JobLine(error=str(error).replace(f"{folder}{os.sep}", "")))
        return
    except MemoryError:
        tell(JobLine(error=f"The simulation needs more than {MAX_MEMORY_BYTES >> 20} MiB; take a smaller limit."))
        return
    (folder / RESULT).write_bytes(msgspec.json.encode(shown_result(result)))


def shown_result(result: Result) -> dict[str, Any]:
    """A result without the figures of single runs: their means and intervals are kept."""
    shown: dict[str, Any] = msgspec.to_builtins(result)
    for policy in shown["policies"]:
        del policy["runs"]
    return shown


def main(folder: str) -> None:
    """Bound this process, and run the job of a folder."""
    os.nice(NICEST)
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    encoder = msgspec.json.Encoder()

    def tell(line: JobLine) -> None:
        try:
            sys.stdout.buffer.write(encoder.encode(line) + b"\n")
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            os._exit(1)  # nobody waits for the result any more

    run_job(Path(folder), tell)


if __name__ == "__main__":
    main(sys.argv[1])
