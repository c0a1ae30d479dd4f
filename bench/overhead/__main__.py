"""`python -m bench.overhead`: the table of docs/numbers.md. Interleaved rounds, medians, ratios to nginx."""

import argparse
import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from functools import partial
from pathlib import Path

from bench.overhead.goals import goals_table
from bench.overhead.peers import installed
from bench.overhead.processes import LOAD_CPU, cpu_s, pss_mb, running, start, wait_for
from bench.overhead.subjects import MODEL, Subject, bare, litellm, nginx, sglang_router, tidegate, vllm_router
from bench.results_file import machine, refresh, rows_of, table, write_rows

EVENTS_PER_S = 30
IDLE_S = 3.0
STREAMS = (64, 256, 1000)
CONNECTIONS = (1, 16, 64)
SIZES = {"1k": 950, "16k": 16_000}
SATURATED_AT = {"litellm": 64}
"""Streams beyond which a subject cannot keep up at all, so that more would only measure its backlog."""

SUBJECTS: Mapping[str, Callable[[Path, list[str], int], contextlib.AbstractContextManager[Subject]]] = {
    "tidegate": tidegate,
    "tidegate-observed": partial(tidegate, name="tidegate-observed", access=True),
    "tidegate-aiohttp": partial(tidegate, name="tidegate-aiohttp", client="aiohttp"),
    "tidegate-bare": bare,
    "nginx": nginx,
    "sglang-router": sglang_router,
    "vllm-router": vllm_router,
    "litellm": litellm,
}
PLAIN = ["cpu_us_plain_1k", "cpu_us_plain_16k", "added_p50_ms_c1", "added_p99_ms_c1", "rps_plain_1k_c64", "idle_cpu_ms_s"]
STREAMED = [
    "cpu_us_event_64",
    "cpu_us_event_256",
    "cpu_us_event_1000",
    "added_first_event_ms_1000",
    "delay_p99_ms_1000",
    "rss_mb_1000_streams",
]

Figures = dict[tuple[str, str, str], list[float]]

LUA = """
wrk.method = "POST"
wrk.headers["Authorization"] = "Bearer {key}"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{{"model":"{model}","messages":[{{"role":"user","content":"' .. string.rep("a", {size}) .. '"}}]}}'
"""


@contextlib.contextmanager
def engines(home: Path, first_port: int) -> Iterator[list[str]]:
    """Two simulated engines in instant mode, on the load's core."""
    with contextlib.ExitStack() as stack:
        urls = []
        for port in (first_port, first_port + 1):
            command = [
                sys.executable,
                "-m",
                "backends.simengine",
                "--instant",
                "--stamp",
                "--event-rate",
                str(EVENTS_PER_S),
                "--model",
                MODEL,
            ]
            stack.enter_context(running(start([*command, "--port", str(port)], LOAD_CPU, home / "engine.log")))
            urls.append(f"http://127.0.0.1:{port}")
        for url in urls:
            wait_for(url + "/health")
        yield urls


def plain(home: Path, subject: Subject, seconds: float, figures: Figures) -> None:
    """wrk over sizes and connection counts; CPU per request, rate, latency at one connection."""
    for size, count in SIZES.items():
        script = home / f"{subject.name}-{size}.lua"
        script.write_text(LUA.format(key=subject.key, model=MODEL, size=count))
        for connections in CONNECTIONS:
            before = cpu_s(subject.pids)
            command = ["taskset", "-c", str(LOAD_CPU), "wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--latency", "-s", str(script)]
            said = subprocess.run([*command, subject.url + "/v1/chat/completions"], capture_output=True, text=True, check=True).stdout
            used = cpu_s(subject.pids) - before
            done = int(re.search(r"(\d+) requests in", said)[1])  # type: ignore[index]  # wrk always says so
            if "Non-2xx" in said or not done:
                raise RuntimeError(f"{subject.name} refused requests:\n{said}")
            figures[f"rps_plain_{size}_c{connections}", subject.name, "1/s"].append(done / seconds)
            if connections == 64 and subject.name != "direct":
                metric = f"cpu_us_plain_{size}_observed" if subject.name == "tidegate-observed" else f"cpu_us_plain_{size}"
                figures[metric, subject.name.removesuffix("-observed"), "us"].append(used / done * 1e6)
            if connections == 1 and size == "1k":
                for share in ("50", "99"):
                    figures[f"p{share}_ms_c1", subject.name, "ms"].append(_latency(said, share))


def _latency(said: str, share: str) -> float:
    number, unit = re.search(rf"\s{share}%\s+([\d.]+)(us|ms|s)", said).groups()  # type: ignore[union-attr]  # asked for with --latency
    return float(number) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[unit]


def streamed(home: Path, subject: Subject, seconds: float, figures: Figures) -> None:
    """Streams of 30 events a second; CPU per event, time to the first one, how late events are, memory."""
    for streams in STREAMS:
        if streams > SATURATED_AT.get(subject.name, streams):
            continue
        port = subject.url.rpartition(":")[2]
        command = ["taskset", "-c", str(LOAD_CPU), sys.executable, "-m", "bench.overhead.stream_load", port, subject.key, MODEL]
        with subprocess.Popen([*command, str(streams), "5", str(seconds)], stdout=subprocess.PIPE, text=True) as load:
            assert load.stdout is not None
            load.stdout.readline()  # "counting"
            before = cpu_s(subject.pids)
            line = load.stdout.readline()
            used = cpu_s(subject.pids) - before
            if streams == 1000:
                figures["rss_mb_1000_streams", subject.name, "MB"].append(pss_mb(subject.pids))
        said = json.loads(line)
        if not said["events"]:
            print(f"   {subject.name} delivered no event at {streams} streams")
            continue
        if subject.name != "direct":
            figures[f"cpu_us_event_{streams}", subject.name, "us"].append(used / said["events"] * 1e6)
        figures[f"events_per_s_{streams}", subject.name, "1/s"].append(said["events"] / seconds)
        figures[f"first_event_ms_{streams}", subject.name, "ms"].append(said["first_ms"])
        if said["delay_p99_ms"] is not None:
            figures[f"delay_p99_ms_{streams}", subject.name, "ms"].append(said["delay_p99_ms"])


def added(figures: Figures) -> None:
    """Turn absolute latencies into what each subject adds to `direct`, round by round."""
    pairs = [(f"p{s}_ms_c1", f"added_p{s}_ms_c1") for s in ("50", "99")] + [
        (f"first_event_ms_{n}", f"added_first_event_ms_{n}") for n in STREAMS
    ]
    for absolute, relative in pairs:
        base = figures.get((absolute, "direct", "ms"), [])
        for (metric, subject, unit), values in list(figures.items()):
            if metric == absolute and subject != "direct":
                figures[relative, subject, unit] = [value - direct for value, direct in zip(values, base, strict=False)]


def main() -> int:
    """Run, write rows, refresh the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.overhead")
    parser.add_argument("--subjects", default=",".join(SUBJECTS), help="comma-separated; missing ones are left out with a reason")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--no-streams", action="store_true")
    parser.add_argument("--port", type=int, default=21_000, help="first of about 40 loopback ports")
    given = parser.parse_args()
    for tool in ("wrk", "nginx", "taskset"):
        if shutil.which(tool) is None and not Path("/usr/sbin", tool).exists():
            print(f"{tool} is missing; on Debian: apt-get install wrk nginx util-linux", file=sys.stderr)
            return 1
    wanted = [name for name in given.subjects.split(",") if installed(name)]
    figures: Figures = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder, engines(Path(folder), given.port) as urls:
        for turn in range(given.rounds):
            order = wanted[turn % len(wanted) :] + wanted[: turn % len(wanted)]
            _measure(Path(folder), Subject("direct", urls[0], [], "none"), given, figures)
            for n, name in enumerate(order):
                home = Path(folder, f"{turn}-{name}")
                home.mkdir()
                print(f"round {turn + 1} of {given.rounds}: {name}", flush=True)
                try:
                    with SUBJECTS[name](home, urls, given.port + 4 + 2 * n) as subject:
                        _measure(home, subject, given, figures)
                except (OSError, RuntimeError, TimeoutError, subprocess.SubprocessError) as error:
                    print(f"   {name} left out of this round: {error}", flush=True)
    added(figures)
    rows = rows_of(figures)
    write_rows("overhead", rows)
    command = " ".join(["python -m bench.overhead", *sys.argv[1:]])
    note = f"`{command}`, {date.today()}, {machine()}; medians of {given.rounds} rounds, ratios to nginx."
    refresh("overhead", f"{note}\n\n{goals_table(rows)}\n\n{table(rows, PLAIN, 'nginx')}\n\n{table(rows, STREAMED, 'nginx')}")
    for row in rows:
        print(f"{row['metric']:<28} {row['subject']:<18} {row['value']:>12g} {row['unit']}")
    return 0


def idle(subject: Subject, figures: Figures) -> None:
    """CPU time while nobody asks: polls, timers, housekeeping."""
    time.sleep(1.0)
    before = cpu_s(subject.pids)
    time.sleep(IDLE_S)
    figures["idle_cpu_ms_s", subject.name, "ms/s"].append((cpu_s(subject.pids) - before) / IDLE_S * 1e3)


def _measure(home: Path, subject: Subject, given: argparse.Namespace, figures: Figures) -> None:
    if subject.pids:
        idle(subject, figures)
    plain(home, subject, given.seconds, figures)
    if not given.no_streams and subject.name != "tidegate-observed":
        streamed(home, subject, given.seconds, figures)


if __name__ == "__main__":
    sys.exit(main())
