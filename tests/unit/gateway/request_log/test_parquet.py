"""Parquet files of the request log: whole files, a folder a day, and the simulator makes the same of every form that is kept."""

import datetime as dt
import json
import random
from pathlib import Path
from typing import Any

import pytest

from domain.clock import Rng
from domain.usage import Usage
from gateway.cli import app
from gateway.record import Record
from gateway.request_log.collector import logged_request
from gateway.request_log.parquet import FILE_ROWS, FILE_S, ParquetRequests
from gateway.request_log.ring import RingLine
from gateway.telemetry.access_log import line_of
from routing.simulation.traces import load
from tenancy.request_log import LoggedRequest
from tenancy.stores.sql import SqlRequests, open_engine
from tests.command_line import Commands

AT = dt.datetime(2026, 9, 21, 23, 59, 58, tzinfo=dt.UTC).timestamp()


class Wall:
    def __init__(self) -> None:
        self.now = AT

    def __call__(self) -> float:
        return self.now


def request(number: int) -> LoggedRequest:
    usage = Usage(prompt_tokens=100 * number + 1, completion_tokens=number + 1, cached_tokens=64)
    record = Record(f"req-{int(AT):08x}-{number}", AT + number, "ok", 200, 0.5, 0.001, "acme", model="sim", usage=usage)
    return logged_request(RingLine(line_of(record)), 72)


def simulated(folder: Path, trace: str) -> dict[str, Any]:
    """The whole report on a trace, but for when it was made."""
    arguments = ["--trace", str(folder / trace), "--fleet", str(folder / "fleet.yaml"), "--policy", "random,predicted_latency", "--json"]
    done = Commands().invoke(app, ["simulate", *arguments])
    assert done.exit_code == 0, done.output
    return {**json.loads(done.stdout), "made_unix": 0}


async def test_a_file_is_written_when_it_is_worth_it_or_its_time_has_come(tmp_path: Path) -> None:
    wall = Wall()
    sink = ParquetRequests(tmp_path, "a", 30, wall)
    await sink.add([request(0), request(1)])
    await sink.add([])
    assert list(tmp_path.rglob("*.parquet")) == []
    wall.now += FILE_S
    await sink.add([])
    assert [path.parent.name for path in tmp_path.rglob("*.parquet")] == ["day=2026-09-21"]
    await sink.add([request(5)] * FILE_ROWS)
    assert sorted(path.parent.name for path in tmp_path.rglob("*.parquet")) == ["day=2026-09-21", "day=2026-09-22"]
    assert [path for path in tmp_path.rglob("*") if path.name.startswith(".")] == []
    await sink.close()


async def test_what_was_written_and_what_could_not_be_is_counted(tmp_path: Path) -> None:
    sink = ParquetRequests(tmp_path / "requests", "a", 30, Wall())
    await sink.add([request(0), request(5)])
    await sink.close()
    assert sink.figures() == (2, 0, 0, 0)
    (tmp_path / "requests" / "day=2026-09-22").rename(tmp_path / "elsewhere")
    (tmp_path / "requests" / "day=2026-09-22").write_text("no folder")
    await sink.add([request(0), request(5), request(6)])
    with pytest.raises(OSError):
        await sink.close()
    assert sink.figures() == (3, 0, 0, 2), "the first day's file is there"


async def test_folders_go_when_their_days_are_over(tmp_path: Path) -> None:
    wall = Wall()
    sink = ParquetRequests(tmp_path, "a", 2, wall)
    await sink.add([request(0)])
    await sink.close()
    wall.now += 3 * 86_400
    await sink.add([request(3 * 86_400)])
    await sink.close()
    assert [path.name for path in tmp_path.iterdir()] == ["day=2026-09-24"]


async def test_every_form_is_replayed_as_the_access_log_is(tmp_path: Path) -> None:
    requests = [request(number) for number in range(8)]
    log = tmp_path / "access.log"
    log.write_bytes(b"".join(one.line + b"\n" for one in requests))
    engine = open_engine(f"sqlite:///{tmp_path / 'requests.db'}")
    store = SqlRequests(engine)
    await store.prepare()
    await store.add(requests, [])
    sink = ParquetRequests(tmp_path / "parquet", "a", 30, Wall())
    await sink.add(requests[:2])
    await sink.close()

    def dice(name: str) -> Rng:
        return random.Random(f"0 {name}")

    wanted = load(log, dice)
    assert [turn.prompt_tokens for turn in wanted.turns] == [100 * number + 1 for number in range(8)]
    (tmp_path / "fleet.yaml").write_text("engines:\n  - {machine: h100-8b, count: 2}\n")
    reports = [simulated(tmp_path, trace) for trace in ("access.log", "requests.db")]  # also while the gateway has it open
    assert reports[0]["requests"] == 8
    assert reports[0] == reports[1]
    (of_a_day,) = (tmp_path / "parquet").iterdir()
    assert [turn.prompt_tokens for turn in load(of_a_day, dice).turns] == [1, 101]
    await engine.dispose()


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text("engines:\n  - {machine: h100-8b, count: 2}\n")
    for name in ("a.db", "a.parquet"):
        (tmp_path / name).write_bytes(b"no such file" * 100)
        arguments = ["--trace", str(tmp_path / name), "--fleet", str(tmp_path / "fleet.yaml"), "--policy", "random"]
        done = Commands().invoke(app, ["simulate", *arguments])
        assert done.exit_code == 2
        assert f"{name}:1: is no" in done.output.replace("\n", "")
