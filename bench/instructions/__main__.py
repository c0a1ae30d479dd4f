"""`python -m bench.instructions`: thousands of instructions that a request of the production set-up costs, by thread.

A worker runs under callgrind (`worker.py`), once for each case (`setup.Case`). What is counted is the difference between a stretch of time
with requests and one as long without, by the number of requests: polls of engines and sweeps are in both and cancel out; batches, their
writing and collections of garbage stay. What the bench itself does for a request, instead of sockets, is counted: some 10 kIr of the
serving thread's.

`--steps N` prints the N dearest functions of the serving thread, each with all that it calls, and needs a C compiler; nothing is written to
docs/numbers.md then. `--long` counts fleets of 16, 64 and 256 backends, 10,000 tenants and the other subjects, too.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench.instructions.counts import by_thread, per_request, read_dump
from bench.instructions.frames import FunctionCost, build, read_frames
from bench.instructions.setup import (
    APIS,
    BARE,
    CACHES,
    CHAT,
    EVENTS,
    EXPORTING,
    MINIMAL,
    PRODUCTION,
    SIZES,
    STORED,
    SUBJECTS,
    VALKEY,
    Case,
    made,
)
from bench.results_file import Row, machine, refresh, table, write_rows
from tests.otlp_receiver import otlp_receiver
from tests.valkey_server import valkey_server

VALGRIND = ("valgrind", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes")
SERVING = 1
"""The main thread, to callgrind."""
FLEETS = (16, 64, 256)
TENANTS = (10, 10_000)


class Counted(msgspec.Struct):
    """What one case costs."""

    case: Case
    requests: int
    by_thread: dict[str, float]
    """Thousands of instructions by number and name of the thread."""
    serving: float
    functions: dict[str, FunctionCost]
    """What the functions of the serving thread took for all requests, and for the polls meanwhile; empty unless they were asked for."""

    @property
    def rows(self) -> list[Row]:
        """The figures: all threads, and the one that serves."""
        figures = {self.case.metric: sum(self.by_thread.values()), f"{self.case.metric}_serving_thread": self.serving}
        return [
            Row(metric=metric, subject=self.case.subject, value=round(value, 1), unit="kinstr", n=self.requests)
            for metric, value in figures.items()
        ]


@contextmanager
def counters(case: Case, home: Path) -> Iterator[str]:
    """The address of the case's counter store, while it is there."""
    if case.subject != VALKEY:
        yield "memory://"
        return
    with valkey_server(home) as socket:
        yield f"unix://{socket}"


@contextmanager
def receiver_of(case: Case) -> Iterator[str]:
    """The endpoint that gets the case's traces, while it is there; empty for a case without traces."""
    if case.subject not in EXPORTING:
        yield ""
        return
    with otlp_receiver() as receiver:
        yield receiver.url
        print(f"{len({span.trace_id for span in receiver.spans}):10}  traces received, of {case.subject}")


def count(case: Case, warm: int, requests: int, *, steps: bool = False) -> Counted:
    """Run one case.

    Args:
        warm: requests before those that are counted; at least one for each tenant.
        steps: whether to count by function, too.
    """
    warm = max(warm, case.tenants)
    with tempfile.TemporaryDirectory() as folder:
        home, dumps = Path(folder), Path(folder) / "dumps"
        dumps.mkdir()
        with counters(case, home) as address, receiver_of(case) as receiver:
            keys = ["sk"] * case.tenants if case.subject == BARE else made(home, case, address, receiver)
            (home / "keys").write_text("\n".join(keys))
            (home / "case").write_bytes(msgspec.json.encode(case))
            if steps:
                build(home)
            out = _under_callgrind(home, ["bench.instructions.worker", folder, str(warm), str(requests)])
        names = f"\n{out}".rpartition("\nthreads ")[2].split()
        texts = [file.read_text() for file in sorted(dumps.glob("out.*-*"))]
        functions: dict[str, FunctionCost] = {}
        if steps:
            busy_text = next(text for text in texts if (dump := read_dump(text)).trigger == "busy" and dump.thread == SERVING)
            functions = read_frames(busy_text, (home / "frames").read_text().split("\n"))
    found = [read_dump(text) for text in texts]
    busy, idle = by_thread(found, "busy"), by_thread(found, "idle")
    if case.api == STORED:  # connections to SQLite come and go, each with a thread
        names += ["ended"] * (max(*busy, *idle) - len(names))
    if len(names) < max(*busy, *idle):  # one that did nothing meanwhile has no count
        raise RuntimeError(f"callgrind counted a thread {max(*busy, *idle)}, and there were {names}: one ended meanwhile")
    each = per_request(busy, idle, requests)
    by_name = {f"{thread} {names[thread - 1]}": value for thread, value in each.items() if abs(value) >= 0.05}
    return Counted(case, requests, by_name, each[SERVING], functions)


def _under_callgrind(home: Path, command: list[str]) -> str:
    """Run a module under callgrind; returns what it printed. Its dumps are in the folder `dumps`."""
    whole = [*VALGRIND, f"--callgrind-out-file={home}/dumps/out", sys.executable, "-m", *command]
    environ = {**os.environ, "PYTHONHASHSEED": "0", "BENCH_CALLGRIND": "1"}
    with (home / "log").open("wb") as log, (home / "out").open("wb") as out:
        ended = subprocess.run(whole, env=environ, stdout=out, stderr=log, check=False)
    if ended.returncode:
        raise RuntimeError((home / "log").read_text()[-2000:])
    return (home / "out").read_text()


def in_shared_store(size: str, warm: int, requests: int) -> list[Row]:
    """What a look-up that finds an answer costs in Valkey, and in memory; the thread that serves."""
    with tempfile.TemporaryDirectory() as folder:
        home, dumps = Path(folder), Path(folder) / "dumps"
        dumps.mkdir()
        with valkey_server(home) as socket:
            _under_callgrind(home, ["bench.instructions.shared_store", str(socket), size, str(warm), str(requests)])
        found = [read_dump(file.read_text()) for file in sorted(dumps.glob("out.*-*"))]
    each = {store: by_thread(found, store)[SERVING] / requests / 1000 for store in ("shared", "memory")}
    return [
        Row(metric=f"kinstr_look_up_{store}_{size}", subject=PRODUCTION, value=round(value, 1), unit="kinstr", n=requests)
        for store, value in each.items()
    ]


def in_each_api(warm: int, requests: int) -> None:
    """Count the same request in each API of callers, plain and streamed, and refresh their table."""
    counts = {}
    for api in APIS:
        for stream in (False, True):
            counts[api, stream] = counted = count(Case("1k", api=api, stream=stream), warm, requests)
            show(counted, 0)
    rows = [row for counted in counts.values() for row in counted.rows]
    write_rows("instructions_apis", rows)
    lines = [
        "| API | plain | over the chat | streamed | over the chat | serving thread alone, plain | streamed |",
        "|---|---|---|---|---|---|---|",
    ]
    whole = {name: sum(counted.by_thread.values()) for name, counted in counts.items()}
    for api in APIS:
        cells = [f"{whole[api, stream]:,.0f} | {whole[api, stream] / whole[CHAT, stream]:.2f}" for stream in (False, True)]
        cells += [f"{counts[api, stream].serving:,.0f}" for stream in (False, True)]
        lines.append(f"| {api.replace('_', ', ')} | " + " | ".join(cells) + " |")
    how = f"`python -m bench.instructions --apis --requests {requests} --warm {warm}`, {machine()}"
    what = f"thousands of instructions a request of 1 KB; a streamed answer has {EVENTS} events with text"
    refresh("instructions_apis", f"{how}; {what}.\n\n" + "\n".join(lines))


def show(counted: Counted, steps: int) -> None:
    """Print one case: its figures, its threads, and its dearest functions."""
    for row in counted.rows:
        print(f"{row['value']:10.1f}  {row['metric']}  {row['subject']}")
    for name, value in counted.by_thread.items():
        print(f"{value:10.1f}      thread {name}")
    for name, cost in sorted(counted.functions.items(), key=lambda item: -item[1].instructions)[:steps]:
        print(f"{cost.instructions / counted.requests / 1000:10.1f} {cost.calls / counted.requests:6.2f}x  {name}")
    sys.stdout.flush()


def main() -> None:
    """Count every case and refresh the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=500, help="that are counted")
    parser.add_argument("--warm", type=int, default=1000, help="before them; at least one for each tenant")
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument(
        "--caches", default=",".join(CACHES), help="states of the answer cache; the look-up in a shared store follows 'hit'"
    )
    parser.add_argument("--backends", default="", help="numbers of backends; 4 without it")
    parser.add_argument("--tenants", default="", help="numbers of tenants; 16 without it")
    parser.add_argument("--subjects", default=PRODUCTION, help=f"of {'; '.join(SUBJECTS)}: joined by ';'")
    parser.add_argument("--apis", action="store_true", help="the same request in each API of callers, plain and streamed, and nothing else")
    parser.add_argument("--long", action="store_true", help="the other subjects, larger fleets and more tenants, too")
    parser.add_argument("--steps", type=int, default=0, help="print so many of the dearest functions of the serving thread")
    parser.add_argument("--dry", action="store_true", help="print only")
    given = parser.parse_args()
    for needed in ("valgrind", "callgrind_control"):
        if shutil.which(needed) is None:
            print(f"skipped: {needed} is not installed, and instructions are counted by valgrind's callgrind (apt install valgrind)")
            return
    if given.apis:
        in_each_api(given.warm, given.requests)
        return
    rows: list[Row] = []
    exports = not EXPORTING.isdisjoint(given.subjects.split(";"))
    for case in _cases(given):
        counted = count(msgspec.structs.replace(case, exports=exports), given.warm, given.requests, steps=given.steps > 0)
        rows += counted.rows
        show(counted, given.steps)
    if "hit" in given.caches.split(",") and not given.steps:
        looked_up = in_shared_store("1k", given.warm, given.requests)
        rows += looked_up
        for row in looked_up:
            print(f"{row['value']:10.1f}  {row['metric']}")
    if given.dry or given.steps:
        return
    write_rows("instructions", rows)
    how = f"`python -m bench.instructions --requests {given.requests} --warm {given.warm}{' --long' if given.long else ''}`, {machine()}"
    usual = Case("1k")
    what = f"{usual.backends} backends, {usual.tenants} tenants in turn where nothing else is said, thousands of instructions a request"
    each = f"mean of {given.requests} after {given.warm}"
    refresh("instructions", f"{how}; {what}: {each}.\n\n{table(rows, list(dict.fromkeys(row['metric'] for row in rows)), '')}")


def _cases(given: argparse.Namespace) -> Iterator[Case]:
    """The cases of a command line."""
    sizes, usual = given.sizes.split(","), Case("1k")
    backends = [int(number) for number in given.backends.split(",") if number] or [usual.backends]
    tenants = [int(number) for number in given.tenants.split(",") if number] or [usual.tenants]
    for size in sizes:
        for subject in given.subjects.split(";"):
            yield from (Case(size, cache, backends[0], tenants[0], subject) for cache in given.caches.split(","))
            yield from (Case(size, backends=number, tenants=tenants[0], subject=subject) for number in backends[1:])
            yield from (Case(size, backends=backends[0], tenants=number, subject=subject) for number in tenants[1:])
        if given.long:
            yield from (Case(size, subject=subject) for subject in (VALKEY, MINIMAL, BARE))
    if given.long:
        yield from (Case("1k", backends=number) for number in FLEETS)
        yield from (Case("1k", tenants=number) for number in TENANTS)


if __name__ == "__main__":
    main()
