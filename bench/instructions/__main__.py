"""`python -m bench.instructions`: thousands of instructions that a request of the production set-up costs, by thread.

A worker runs under callgrind (`worker.py`), once for each size of prompt and state of the answer cache. What is counted is the difference
between a stretch of time with requests and one as long without, by the number of requests: polls of engines and sweeps are in both and
cancel out; batches, their writing and collections of garbage stay. What the bench itself does for a request, instead of sockets, is
counted: some 10 kIr of the serving thread's.
"""

import argparse
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.instructions.counts import by_thread, per_request, read_dump
from bench.instructions.setup import BACKENDS, CACHES, SIZES, TENANTS, made
from bench.results_file import Row, machine, refresh, table, write_rows
from tests.valkey_server import valkey_server

VALGRIND = ("valgrind", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes")
SERVING = 1
"""The main thread, to callgrind."""


def counted(size: str, cache: str, warm: int, requests: int) -> tuple[list[Row], dict[str, float]]:
    """Rows of one size and state of the answer cache, and thousands of instructions by thread."""
    with tempfile.TemporaryDirectory() as folder:
        home, dumps = Path(folder), Path(folder) / "dumps"
        _, keys = made(home, cache)
        (home / "keys").write_text("\n".join(keys))
        dumps.mkdir()
        command = [*VALGRIND, f"--callgrind-out-file={dumps}/out", sys.executable, "-m", "bench.instructions.worker"]
        environ = {**os.environ, "PYTHONHASHSEED": "0", "BENCH_CALLGRIND": "1"}
        with (home / "log").open("wb") as log, (home / "out").open("wb") as out:
            ended = subprocess.run(
                [*command, folder, size, str(warm), str(requests), cache], env=environ, stdout=out, stderr=log, check=False
            )
        if ended.returncode:
            raise RuntimeError((home / "log").read_text()[-2000:])
        names = (home / "out").read_text().rpartition("\nthreads ")[2].split()
        found = [read_dump(file.read_text()) for file in sorted(dumps.glob("out.*-*"))]
    busy, idle = by_thread(found, "busy"), by_thread(found, "idle")
    if len(names) < max(*busy, *idle):  # one that did nothing meanwhile has no count
        raise RuntimeError(f"callgrind counted a thread {max(*busy, *idle)}, and there were {names}: one ended meanwhile")
    each = per_request(busy, idle, requests)
    by_name = {f"{thread} {names[thread - 1]}": value for thread, value in each.items() if abs(value) >= 0.05}
    name = f"kinstr_plain_{size}" if cache == "off" else f"kinstr_cache_{cache}_{size}"
    figures = {name: sum(by_name.values()), f"{name}_serving_thread": each[SERVING]}
    return [
        Row(metric=metric, subject="tidegate", value=round(value, 1), unit="kinstr", n=requests) for metric, value in figures.items()
    ], by_name


def in_shared_store(size: str, warm: int, requests: int) -> list[Row]:
    """What a look-up that finds an answer costs in Valkey, and in memory; the thread that serves."""
    with tempfile.TemporaryDirectory() as folder:
        home, dumps = Path(folder), Path(folder) / "dumps"
        dumps.mkdir()
        with valkey_server(home) as socket, (home / "log").open("wb") as log:
            command = [*VALGRIND, f"--callgrind-out-file={dumps}/out", sys.executable, "-m", "bench.instructions.shared_store"]
            environ = {**os.environ, "PYTHONHASHSEED": "0", "BENCH_CALLGRIND": "1"}
            ended = subprocess.run(
                [*command, str(socket), size, str(warm), str(requests)], env=environ, stdout=log, stderr=log, check=False
            )
        if ended.returncode:
            raise RuntimeError((home / "log").read_text()[-2000:])
        found = [read_dump(file.read_text()) for file in sorted(dumps.glob("out.*-*"))]
    each = {store: by_thread(found, store)[SERVING] / requests / 1000 for store in ("shared", "memory")}
    return [
        Row(metric=f"kinstr_look_up_{store}_{size}", subject="tidegate", value=round(value, 1), unit="kinstr", n=requests)
        for store, value in each.items()
    ]


def main() -> None:
    """Count every size and refresh the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=500, help="that are counted")
    parser.add_argument("--warm", type=int, default=1000, help="before them")
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--caches", default=",".join(CACHES), help="states of the answer cache")
    parser.add_argument("--dry", action="store_true", help="print only")
    given = parser.parse_args()
    for needed in ("valgrind", "callgrind_control"):
        if shutil.which(needed) is None:
            print(f"skipped: {needed} is not installed, and instructions are counted by valgrind's callgrind (apt install valgrind)")
            return
    rows: list[Row] = []
    for size, cache in itertools.product(given.sizes.split(","), given.caches.split(",")):
        more, by_name = counted(size, cache, given.warm, given.requests)
        rows += more
        for row in more:
            print(f"{row['value']:10.1f}  {row['metric']}")
        for name, value in by_name.items():
            print(f"{value:10.1f}      thread {name}")
        sys.stdout.flush()
    looked_up = in_shared_store("1k", given.warm, given.requests)
    rows += looked_up
    for row in looked_up:
        print(f"{row['value']:10.1f}  {row['metric']}")
    if given.dry:
        return
    write_rows("instructions", rows)
    how = f"`python -m bench.instructions --requests {given.requests} --warm {given.warm}`, {machine()}"
    what = (
        f"{BACKENDS} backends, {TENANTS} tenants in turn, thousands of instructions a request: mean of {given.requests} after {given.warm}"
    )
    refresh("instructions", f"{how}; {what}.\n\n{table(rows, [row['metric'] for row in rows], '')}")


if __name__ == "__main__":
    main()
