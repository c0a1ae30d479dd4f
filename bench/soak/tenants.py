"""`python -m bench.soak.tenants`: many requests of ten thousand tenants, some of them wrong, some given up; what memory does meanwhile.

Every map by tenant, key, label or request must be bounded: after the warm-up memory grows by less than 1 MB in 100,000 requests. Needs wrk.

Requests come at one rate all the time, as long as the machine keeps up: a settled request is remembered for two minutes
(docs/reference/limits.md), so that memory follows the rate, and a rate that changes would look like growth or hide it.
"""

import argparse
import asyncio
import contextlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

from bench.overhead.processes import LOAD_CPU, SUBJECT_CPU, running, start, wait_for
from bench.overhead.subjects import MODEL
from bench.results_file import Row, machine, refresh, write_rows
from bench.soak.callers import leaves
from bench.soak.readings import rss_mib, slope
from bench.stored_tenants import store
from tenancy.limits import Level, Limit, Meter, Scope, Window

PORT = 19100
CONNECTIONS = 64
RATE = 500
"""Requests a second."""
WARM = 0.4
"""Share of the requests before memory counts: until then most tenants come for the first time."""
WARM_S = 180.0
"""Seconds before it counts, at least: settled requests are remembered for two minutes."""
LEAVING_PER_S = 20.0
SETTINGS = """
data: {{bind: "127.0.0.1:{port}"}}
admin: {{bind: "127.0.0.1:{admin}"}}
drain: {{accept_s: 0.0, grace_s: 1.0}}
log: {{access: false}}
pools:
  - {{name: chat, model: {model}, backends: [{{id: e0, url: "http://127.0.0.1:{engine}"}}]}}
"""
SCRIPT = """
local keys, n = {{}}, 0
function setup(thread) n = n + 1; thread:set("seed", n) end
function init(args)
  math.randomseed(seed)
  for line in io.lines("{keys}") do keys[#keys + 1] = line end
end
local function body(model, user)
  local said = '[{{"role":"user","content":"say ' .. math.random(1e9) .. '"}}]'
  return '{{"model":"' .. model .. '","messages":' .. said .. ',"max_tokens":8' .. user .. '}}'
end
local ffi = require("ffi")
ffi.cdef[[ typedef struct {{ long s; long ns; }} moment; int clock_gettime(int clock, moment *now); ]]
local now_at, due_ms = ffi.new("moment"), 0
function delay()
  ffi.C.clock_gettime(1, now_at)
  local now_ms = tonumber(now_at.s) * 1000 + tonumber(now_at.ns) / 1e6
  due_ms = math.max(due_ms, now_ms - 1000) + 1000 / {rate}
  return math.max(math.floor(due_ms - now_ms), 0)
end
function request()
  local key, what = keys[math.random(#keys)], math.random(100)
  local text = body("{model}", what <= 20 and ',"user":"u' .. math.random(1e7) .. '"' or "")
  if what > 97 then key = "gw_live_" .. math.random(1e9) .. "000000000000000000000000000000000000000000000000"
  elseif what > 94 then text = body("model-" .. math.random(1e9), "")
  elseif what > 91 then text = text:sub(1, -3) end
  return wrk.format("POST", "/v1/chat/completions", {{["authorization"] = "Bearer " .. key, ["content-type"] = "application/json"}}, text)
end
"""
"""Sends when it is time, and makes up for a second's lag at most.

Of 100 requests 3 have a key that does not exist, 3 a model that does not exist, 3 are no JSON, and 20 name an end user."""


class Point(NamedTuple):
    """Where a run is."""

    at_s: float
    requests: float
    mib: float


def served(admin: str) -> float:
    """Requests so far."""
    with urllib.request.urlopen(f"{admin}/metrics", timeout=10) as reply:
        return sum(float(found) for found in re.findall(r"^tidegate_requests_total\{.*\} (\S+)$", reply.read().decode(), re.MULTILINE))


async def leaving(keys: list[str], until: float) -> int:
    """Callers that go away; returns how many."""
    dice, tasks, count = random.Random(2), set(), 0
    while time.monotonic() < until:
        tasks.add(task := asyncio.create_task(_one(dice.choice(keys), dice)))
        task.add_done_callback(tasks.discard)
        count += 1
        await asyncio.sleep(1 / LEAVING_PER_S)
    await asyncio.gather(*tasks)
    return count


async def _one(key: str, dice: random.Random) -> None:
    with contextlib.suppress(OSError):
        await leaves(PORT, key, dice)


async def measured(admin: str, pid: int, requests: int, keys: list[str], load: "subprocess.Popen[bytes]") -> list[Point]:
    """Until there were so many requests."""
    points: list[Point] = []
    began = time.monotonic()
    goes = asyncio.create_task(leaving(keys, time.monotonic() + 86_400))
    try:
        while load.poll() is None and (not points or points[-1].requests < requests):
            await asyncio.sleep(2.0)
            points.append(Point(time.monotonic() - began, await asyncio.to_thread(served, admin), rss_mib(pid)))
            if len(points) % 15 == 0:
                print(f"{points[-1].requests:,.0f} requests, {points[-1].mib:.1f} MiB", flush=True)
    finally:
        goes.cancel()
        await asyncio.gather(goes, return_exceptions=True)
    if load.poll() is not None:
        raise RuntimeError(f"wrk ended with {load.returncode} after {points[-1].requests:,.0f} requests")
    return points


def run(home: Path, tenants: int, requests: int, rate: int) -> list[Point]:
    (home / "policies").mkdir()
    (home / "policies" / "default.yaml").write_text(f'tenant: "*"\nmodels:\n  - {{name: {MODEL}, pool: chat}}\n')
    (home / "tidegate.yaml").write_text(SETTINGS.format(port=PORT, admin=PORT + 1, engine=PORT + 10, model=MODEL))
    names = [f"t{number}" for number in range(tenants)]
    keys = store(home / "tidegate.yaml", names, [Limit(Scope(Level.TENANT, name), Meter.REQUESTS, Window.MINUTE, 10**7) for name in names])
    (home / "keys.txt").write_text("\n".join(keys) + "\n")
    (home / "load.lua").write_text(SCRIPT.format(keys=home / "keys.txt", model=MODEL, rate=rate))
    engine = [sys.executable, "-m", "backends.simengine", "--model", MODEL, "--port", str(PORT + 10), "--instant"]
    gateway = [sys.executable, "-m", "gateway", "serve", "-c", str(home / "tidegate.yaml"), "--run-dir", str(home / "run")]
    wrk = ["wrk", "-t", "1", "-c", str(CONNECTIONS), "-d", "24h", "-s", str(home / "load.lua"), f"http://127.0.0.1:{PORT}"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(running(start(engine, LOAD_CPU, home / "engine.log")))
        wait_for(f"http://127.0.0.1:{PORT + 10}/health")
        stack.enter_context(running(start(gateway, SUBJECT_CPU, home / "tidegate.log")))
        deadline = time.monotonic() + 60
        while not (home / "run" / "ready.json").exists():
            if time.monotonic() > deadline:
                raise TimeoutError((home / "tidegate.log").read_text()[-2000:])
            time.sleep(0.1)
        pid = int(next((home / "run").glob("worker-0-*.sock")).stem.rpartition("-")[2])
        load = stack.enter_context(running(start(wrk, LOAD_CPU, home / "wrk.log")))
        return asyncio.run(measured(f"http://127.0.0.1:{PORT + 1}", pid, requests, keys, load))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak.tenants", description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--tenants", type=int, default=10_000)
    parser.add_argument("--rate", type=int, default=RATE, help="requests a second")
    parser.add_argument("--dry", action="store_true", help="print only, write no rows and no table")
    arguments = parser.parse_args()
    for tool in ("wrk", "taskset"):
        if shutil.which(tool) is None:
            parser.error(f"{tool} is missing; on Debian: apt-get install wrk util-linux")
    with tempfile.TemporaryDirectory() as folder:
        points = run(Path(folder), arguments.tenants, arguments.requests, arguments.rate)
    last = points[-1]
    warm = [one for one in points if one.requests >= WARM * last.requests and one.at_s >= WARM_S]
    if not warm:
        parser.error(f"it was over within {WARM_S:g} s: ask for more requests")
    figures = {
        "requests": (last.requests, "requests"),
        "tenants": (arguments.tenants, "tenants"),
        "requests_per_s": (last.requests / last.at_s, "1/s"),
        "requests_per_s_warm": ((last.requests - warm[0].requests) / max(last.at_s - warm[0].at_s, 1.0), "1/s"),
        "rss_begin_mib": (points[0].mib, "MiB"),
        "rss_warm_mib": (warm[0].mib, "MiB"),
        "rss_end_mib": (last.mib, "MiB"),
        "rss_mib_per_100k": (slope([(one.requests / 100_000, one.mib) for one in warm]), "MiB"),
    }
    rows = [Row(metric=name, subject="tidegate", value=round(value, 3), unit=unit, n=1) for name, (value, unit) in figures.items()]
    text = (
        "\n".join(["| | |", "|---|---|", *(f"| `{row['metric']}` | {row['value']:,g} {row['unit']} |" for row in rows)])
        + f"\n\n{machine()}."
    )
    print(text)
    if not arguments.dry:
        print(f"wrote {write_rows('soak_tenants', rows)}")
        refresh("soak-tenants", text)
    return int(figures["rss_mib_per_100k"][0] > 1.0)


if __name__ == "__main__":
    sys.exit(main())
