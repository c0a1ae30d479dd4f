"""`python -m bench.tenants`: what grows with the number of tenants, each with a project, a key, a limit and a policy of its own.

- A worker's directory, from a SQLite file: time and processor time of reading it anew, which every change of a key or limit asks of every
  worker, with the longest stall of the event loop; its memory, and that while the next one is read; the file it is kept in.
- Counters in a Valkey of this script's own: bytes of a tenant that has sent a request, and the processor time of an admission with its
  settlement when tenants come in a random order.
- Policies: time to read the folder, memory. Above `POLICIES_AT_MOST` files they are not read.
- Metrics: series after requests of every tenant.
- Budget alerts: how long a round over all limits takes, and its processor time.

Each part runs in a process of its own, whose garbage is collected as in a worker.
"""

import argparse
import asyncio
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import sqlalchemy as sa
import uvloop

from bench.policies import load as load_folder
from bench.reconcile import timed
from bench.results_file import Row, machine, refresh, write_rows
from bench.scrape import RECORD
from domain.identity import KeyId, TenantId
from gateway.alerts.watch import AlertWatch
from gateway.process.children import settle_memory
from gateway.sync.directory import POLL_S
from gateway.telemetry.metrics import Metrics
from tenancy.accounts import DEFAULT_PROJECT, Contents
from tenancy.counter_url import Address, CounterUrl, StoreKind
from tenancy.directory import Directory
from tenancy.hold import Admitted, Hold
from tenancy.keys import Pepper
from tenancy.limits import Amounts, Group, Level, Limit, Meter, Scope, Window, line_of, state_key
from tenancy.sealed import SealedDirectory, seal
from tenancy.stores.sql import SqlAlerts, SqlDirectory, migrate, open_engine
from tenancy.stores.sql.schema import api_key, project, tenant, usage_limit
from tenancy.stores.valkey import ValkeyCounters
from tenancy.stores.valkey.client import ValkeyScripts
from tests.valkey_server import open_client, valkey_server

SIZES: Final = (1_000, 10_000, 100_000)
POLICIES_AT_MOST: Final = 10_000
ADMISSIONS: Final = 10_000
"""Requests whose processor time is taken, after every tenant has sent one."""
CALLERS: Final = 64
RULES: Final = 3
PEPPER: Final = Pepper("p", b"p" * 32)
WANTS, USED = Amounts(600, 400, 1_000_000, 15_000), Amounts(600, 120, 720_000, 9_000)
LINES: Final = ((Meter.REQUESTS, Window.MINUTE), (Meter.TOKENS, Window.DAY), (Meter.COST_NANOUSD, Window.MONTH))
"""Limits of a tenant whose counters are weighed."""

Figures = dict[str, float]


def name(number: int) -> str:
    """A tenant's."""
    return f"t{number:06}"


def rss_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def limit_of(number: int, meter: Meter = Meter.COST_NANOUSD, window: Window = Window.MONTH) -> Limit:
    """A limit of a tenant, high above what is used here."""
    return Limit(Scope(Level.TENANT, name(number)), meter, window, 10**8 if window is Window.MINUTE else 10**15)


async def fill(file: Path, tenants: int) -> None:
    """Write tenants with a project, a key and a limit each straight into a new database."""
    engine = open_engine(f"sqlite:///{file}")
    await migrate(engine)
    numbers = range(tenants)
    homes = [{"name": name(n), "created_unix": 1.0} for n in numbers]
    projects = [{"tenant": name(n), "name": DEFAULT_PROJECT, "created_unix": 1.0} for n in numbers]
    keys = [
        {"id": f"k{n:09}", "tenant": name(n), "project": DEFAULT_PROJECT, "label": "", "kid": PEPPER.kid, "created_unix": 1.0}
        | {"digest": os.urandom(32)}
        for n in numbers
    ]
    limits = [
        {
            "id": state_key(limit.scope, limit.meter, limit.window),
            "tenant": name(n),
            "level": "tenant",
            "name": name(n),
            "meter": "cost_nanousd",
            "counted_per": "month",
        }
        | {"amount": limit.amount, "version": 1}
        for n in numbers
        for limit in (limit_of(n),)
    ]
    async with engine.begin() as connection:
        for table, rows in ((tenant, homes), (project, projects), (api_key, keys), (usage_limit, limits)):
            await connection.execute(sa.insert(table), rows)
    await engine.dispose()


def filled(file: Path, tenants: int) -> Figures:
    """Fill, in a process of its own, since what it needs is nobody's memory."""
    asyncio.run(fill(file, tenants))
    return {}


def of_directory(file: Path, tenants: int) -> Figures:
    """What the directory of a worker takes."""
    return uvloop.run(_of_directory(file, tenants))


async def _of_directory(file: Path, tenants: int) -> Figures:
    engine = open_engine(f"sqlite:///{file}")
    source, found = SqlDirectory(engine), Figures()
    await source.version()
    settle_memory()
    empty = rss_bytes()
    contents, directory = Contents(), Directory(Contents(), PEPPER)

    async def change() -> None:
        nonlocal contents, directory
        contents = await source.load()
        directory = await asyncio.to_thread(Directory, contents, PEPPER)

    await change()
    found["directory_kib_tenant"] = (rss_bytes() - empty) / tenants / 1024
    cpu = time.process_time()
    took, stall = await timed(change)
    found["change_cpu_s"] = time.process_time() - cpu
    found["change_s"] = took
    found["change_stall_ms"] = stall * 1000
    found["change_seen_s"] = took + POLL_S
    begun = time.perf_counter()
    await source.revocations()
    await asyncio.to_thread(Directory, contents, PEPPER)
    found["revocation_seen_s"] = time.perf_counter() - begun + POLL_S
    await change()
    found["directory_kib_tenant_changing"] = (rss_bytes() - empty) / tenants / 1024
    begun = time.perf_counter()
    directory.grant(KeyId(f"k{0:09}"), time.time())
    found["first_request_ms"] = (time.perf_counter() - begun) * 1000
    before = rss_bytes()
    for n in range(tenants):
        directory.grant(KeyId(f"k{n:09}"), time.time())
    found["grants_kib_tenant"] = (rss_bytes() - before) / tenants / 1024
    found["kept_file_bytes_tenant"] = len(seal(SealedDirectory(1.0, contents), PEPPER)) / tenants
    await engine.dispose()
    return found


def of_counters(socket: Path, tenants: int) -> Figures:
    """What counters of active tenants take in a Valkey, and this process for a request."""
    return uvloop.run(_of_counters(socket, tenants))


async def _of_counters(socket: Path, tenants: int) -> Figures:
    client = open_client(socket, 1)
    scripts = ValkeyScripts(CounterUrl(StoreKind.SINGLE, (Address(str(socket), 0),)))
    if not await scripts.start():
        raise RuntimeError(scripts.why)
    counters = ValkeyCounters(scripts)
    groups = [Group(name(n), tuple(line_of(limit_of(n, *line), 0.0) for line in LINES)) for n in range(tenants)]

    async def ask(numbers: Sequence[int], called: str) -> None:
        for at, number in enumerate(numbers):
            hold = Hold(f"{called}-{at}", TenantId(name(number)), WANTS, (groups[number],))
            if not isinstance(await counters.admit(hold), Admitted):
                raise RuntimeError("a request was refused: the figures would be of refusals")
            await counters.settle(hold, USED)

    async def all_ask(numbers: Sequence[int], called: str) -> None:
        await asyncio.gather(*(ask(numbers[caller::CALLERS], f"{called}{caller}") for caller in range(CALLERS)))

    before = (await client.info("memory"))["used_memory"]
    await all_ask(range(tenants), "first")
    weight = ((await client.info("memory"))["used_memory"] - before) / tenants
    dice = random.Random(3)
    numbers = [dice.randrange(tenants) for _ in range(ADMISSIONS)]
    settle_memory()
    cpu = time.process_time()
    await all_ask(numbers, "then")
    used = time.process_time() - cpu
    await client.aclose()
    await scripts.close()
    return {"valkey_bytes_tenant": weight, "admission_cpu_us": used / ADMISSIONS * 1e6}


def of_policies(folder: Path, tenants: int) -> Figures:
    """What a worker takes to read a policy of each tenant."""
    if tenants > POLICIES_AT_MOST:
        return {}
    files = folder / "policies"
    files.mkdir()
    settle_memory()
    before = rss_bytes()
    took, made = load_folder(files, tenants, RULES, distinct=False)
    settle_memory()
    assert made is not None
    return {"policies_read_s": took, "policies_kib_tenant": (rss_bytes() - before) / tenants / 1024}


def of_metrics(_: Path, tenants: int) -> Figures:
    """Series of a worker that has served each tenant."""
    metrics = Metrics(["chat"], providers={"chat": "vllm"})
    for n in range(tenants):
        metrics.observe(msgspec.structs.replace(RECORD, tenant=name(n), model="chat", pool="chat", backend="b"))
    payload = msgspec.msgpack.encode(metrics.snapshot())
    return {"series": float(sum(map(len, metrics.snapshot().families.values()))), "metrics_kb": len(payload) / 1000}


def of_alerts(socket: Path, tenants: int) -> Figures:
    """A round of looks at a limit of each tenant; `sleep` of the round is added up and not slept."""
    return uvloop.run(_of_alerts(socket, tenants))


async def _of_alerts(socket: Path, tenants: int) -> Figures:
    scripts = ValkeyScripts(CounterUrl(StoreKind.SINGLE, (Address(str(socket), 0),)))
    if not await scripts.start():
        raise RuntimeError(scripts.why)
    limits = [(name(n), limit_of(n)) for n in range(tenants)]
    paused_s = 0.0

    async def pause(seconds: float) -> None:
        nonlocal paused_s
        paused_s += seconds

    async def post(body: bytes, headers: object) -> int:
        raise AssertionError("no limit is near its end")

    with tempfile.TemporaryDirectory() as folder:
        engine = open_engine(f"sqlite:///{folder}/t.db")
        watch = AlertWatch(
            SqlAlerts(engine),
            lambda: limits,
            ValkeyCounters(scripts).look,
            post,
            b"secret",
            percents=(50, 80, 100),
            meters=frozenset({Meter.COST_NANOUSD}),
            every_s=15.0,
            wall=time.time,
            sleep=pause,
        )
        begun, cpu = time.perf_counter(), time.process_time()
        await watch.look_round()
        cpu, took = time.process_time() - cpu, time.perf_counter() - begun
        await engine.dispose()
    await scripts.close()
    return {"alerts_round_s": took + paused_s, "alerts_round_cpu_s": cpu}


def apart(work: Callable[[Path, int], Figures], place: Path, tenants: int) -> Figures:
    """The figures of one part, in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, (place, tenants))


def measured(tenants: int) -> Figures:
    """All figures of a number of tenants."""
    with tempfile.TemporaryDirectory() as folder, valkey_server(Path(folder)) as socket:
        file = Path(folder) / "t.db"
        apart(filled, file, tenants)
        return {
            **apart(of_directory, file, tenants),
            **apart(of_counters, socket, tenants),
            **apart(of_policies, Path(folder), tenants),
            **apart(of_metrics, file, tenants),
            **apart(of_alerts, socket, tenants),
        }


def table(found: dict[int, Figures]) -> str:
    """Figures down, numbers of tenants across; each with its ratio to that of the number before."""
    sizes = list(found)
    lines = ["| measured | " + " | ".join(f"{size:,} tenants" for size in sizes) + " |", "|---|" + "---|" * len(sizes)]
    for metric in found[sizes[0]]:
        cells = []
        for at, size in enumerate(sizes):
            value, before = found[size].get(metric), found[sizes[at - 1]].get(metric) if at else None
            cells.append("" if value is None else f"{value:,.4g}" + (f" ({value / before:.2f}x)" if before else ""))
        lines.append(f"| `{metric}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="numbers of tenants, by comma")
    parser.add_argument("--dry", action="store_true", help="print only")
    given = parser.parse_args()
    found = {size: measured(size) for size in map(int, given.sizes.split(","))}
    text = table(found)
    print(text)
    if given.dry:
        return
    write_rows(
        "tenants",
        [
            Row(metric=metric, subject=f"{size} tenants", value=round(value, 3), unit="", n=1)
            for size, figures in found.items()
            for metric, value in figures.items()
        ],
    )
    refresh("tenants", f"`python -m bench.tenants`, {machine()}; ratios to the column before.\n\n{text}")


if __name__ == "__main__":
    main()
