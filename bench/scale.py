"""`python -m bench.scale`: what fleets of 10, 100 and 1,000 GPUs ask of gateways, counter store, ledger and network.

What is measured is measured here and now: processor time of a real Valkey for a request's scripts, bytes of a ledger row with its indexes
in SQLite and Postgres, bytes of a batch of KV events, resident bytes of the index for a block. What a request and an event of a stream cost
comes from the kept results of `bench.seen` and `bench.overhead`, readings of an engine from `bench.rest`. The rest is multiplication, with
the traffic of `TRAFFIC`; `docs/explanation/scale.md` reads the table.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from bench.booking.__main__ import booked_alone
from bench.decision.index import apart, weigh_events
from bench.instructions.setup import PRODUCTION
from bench.kv.engine import batch
from bench.quota.__main__ import load
from bench.quota.subjects import SUBJECTS
from bench.results_file import Row, machine, read_rows, refresh, write_rows
from tenancy.stores.sql import open_engine
from tests.databases import postgres_server
from tests.valkey_server import open_client, valkey_server

ROWS: Final = 50_000
"""Rows of the ledger whose bytes are looked at."""
REQUESTS: Final = 20_000
"""Admissions with their settlements that Valkey is asked for."""
CALLERS: Final = 64
GPUS: Final = (10, 100, 1_000)
DAY_S: Final = 86_400


class Traffic(msgspec.Struct, frozen=True):
    """What a GPU answers when it is busy; `share` of it on the average of a day."""

    name: str
    gpus: int
    """How many GPUs an engine has."""
    requests_s: float
    """Requests a second that one GPU answers."""
    output_tokens: int
    steps_s: float
    """Steps of an engine a second, each of which makes a batch of KV events."""
    blocks_per_step: int
    kv_blocks: int
    """Blocks of 16 tokens in an engine's memory."""
    share: float = 0.4


TRAFFIC: Final = (
    Traffic("8B, one GPU an engine", 1, 26.0, 150, 60.0, 24, 27_500),
    Traffic("70B, four GPUs an engine", 4, 2.0, 250, 30.0, 6, 60_000),
)
"""Requests a second for each GPU are assumptions; of the first as many as `bench.batch_slack` gives its simulated H100s."""


async def _of_valkey() -> dict[str, float]:
    """Scripts that one request with 16 limits takes, and microseconds of Valkey's own processor time."""
    with tempfile.TemporaryDirectory() as folder, valkey_server(Path(folder)) as socket:
        async with SUBJECTS["tidegate"](socket, CALLERS) as counters:
            await load(counters, CALLERS, REQUESTS // 10, "warm")
            client = open_client(socket, 1)
            await client.config_resetstat()
            before = await client.info("cpu")
            await load(counters, CALLERS, REQUESTS, "counted")
            after, stats = await client.info("cpu"), await client.info("commandstats")
            await client.aclose()
    used_s = sum(after[kind] - before[kind] for kind in ("used_cpu_user", "used_cpu_sys"))
    calls = sum(one["calls"] for name, one in stats.items() if name.startswith("cmdstat_evalsha"))
    return {"valkey_us_request": used_s / REQUESTS * 1e6, "valkey_scripts_request": calls / REQUESTS}


async def _of_ledger() -> dict[str, float]:
    """Bytes of a row of usage with its indexes, and its part of the totals."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "truth.db"
        await booked_alone(f"sqlite:///{file}", 16, 16)
        empty = file.stat().st_size
        file.unlink()
        await booked_alone(f"sqlite:///{file}", ROWS, 16)
        found = {"sqlite_bytes_row": (file.stat().st_size - empty) / ROWS}
    with postgres_server() as server:
        url = server.get_uri().replace("postgres://", "postgresql://")
        await booked_alone(url, ROWS, 16)
        engine = open_engine(url)
        async with engine.connect() as connection:
            size = await connection.exec_driver_sql("SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('usage_event')")
            found["postgres_bytes_row"] = float(size.scalar_one()) / ROWS
        await engine.dispose()
    return found


def measured() -> dict[str, float]:
    """Everything that is measured, by name."""
    overhead = {row["metric"]: row["value"] for row in read_rows("overhead") if row["subject"] == "tidegate"}
    rest = {row["metric"]: row["value"] for row in read_rows("rest") if row["subject"] == "1 worker, 4 backends"}
    weights = {row["metric"]: row["value"] for row in apart(weigh_events, 16)}
    seen = {row["metric"]: row["value"] for row in read_rows("seen") if row["subject"] == PRODUCTION}
    return {
        "request_us": seen["cpu_us_request"],
        "event_us": overhead["cpu_us_event_256"],
        "reads_s_engine": rest["reads_s_engine_asked"],
        "index_bytes_block": weights["bytes_per_holder"],
        **{f"kv_batch_bytes_{traffic.blocks_per_step}": float(len(batch(7, traffic.blocks_per_step))) for traffic in TRAFFIC},
        **uvloop.run(_of_valkey()),
        **uvloop.run(_of_ledger()),
    }


def fleet(traffic: Traffic, gpus: int, of: dict[str, float]) -> dict[str, str]:
    """What so many busy GPUs ask for."""
    engines = gpus / traffic.gpus
    requests_s = gpus * traffic.requests_s
    events_s = requests_s * traffic.output_tokens
    rows_day = requests_s * traffic.share * DAY_S
    kv = engines * traffic.steps_s * of[f"kv_batch_bytes_{traffic.blocks_per_step}"]
    return {
        "requests a second": f"{requests_s:,.0f}",
        "cores of gateways": f"{(requests_s * of['request_us'] + events_s * of['event_us']) / 1e6:,.1f}",
        "of them for events of streams": f"{events_s * of['event_us'] / 1e6:,.1f}",
        "Valkey, cores": f"{requests_s * of['valkey_us_request'] / 1e6:,.2f}",
        "scripts a second": f"{requests_s * of['valkey_scripts_request']:,.0f}",
        "ledger rows a day, millions": f"{rows_day / 1e6:,.1f}",
        "ledger in Postgres, GB a day": f"{rows_day * of['postgres_bytes_row'] / 1e9:,.1f}",
        "KV events, MB/s into each worker": f"{kv / 1e6:,.1f}",
        "index, MB in each worker": f"{engines * traffic.kv_blocks * of['index_bytes_block'] / 1e6:,.0f}",
        "readings a second of engines, each host": f"{engines * of['reads_s_engine']:,.0f}",
    }


def main() -> None:
    """Measure, multiply, and write the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    of = measured()
    write_rows("scale", [Row(metric=name, subject="tidegate", value=round(value, 3), unit="", n=1) for name, value in of.items()])
    lines = ["| measured | |", "|---|---|", *(f"| `{name}` | {value:,.4g} |" for name, value in of.items())]
    for traffic in TRAFFIC:
        each = [fleet(traffic, gpus, of) for gpus in GPUS]
        lines += ["", f"| {traffic.name} | " + " | ".join(f"{gpus:,} GPUs" for gpus in GPUS) + " |", "|---|" + "---|" * len(GPUS)]
        lines += [f"| {name} | " + " | ".join(one[name] for one in each) + " |" for name in each[0]]
    refresh("scale", f"`python -m bench.scale`, {machine()}.\n\n" + "\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
