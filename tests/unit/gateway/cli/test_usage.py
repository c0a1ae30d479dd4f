"""`tidegate usage`: tables and files from a SQLite ledger."""

import asyncio
import csv
import json

import pytest

from domain.usage import Usage
from gateway.cli import app
from tenancy.stores.sql import SqlUsageStore, open_engine
from tests.command_line import Commands
from tests.databases import migrated_file
from tests.usage_events import event

SETTINGS = 'admin: {bind: "127.0.0.1:1"}\npools: [{name: chat, model: m, backends: [{id: a, url: "http://10.0.0.1:8000"}]}]\n'
DAYS = ("--from", "2026-01-01", "--to", "2026-01-31")


@pytest.fixture
def site(tmp_path, monkeypatch):
    (tmp_path / "policies").mkdir()
    (tmp_path / "tidegate.yaml").write_text(SETTINGS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    async def fill():
        await migrated_file(tmp_path / "tidegate.db")
        engine = open_engine(f"sqlite:///{tmp_path / 'tidegate.db'}")
        rows = [
            event(n, day=n % 3, tenant=("acme", "bolt")[n % 2], user="=1+1", usage=Usage(1000, 10), cost_nanousd=1_500) for n in range(12)
        ]
        await SqlUsageStore(engine).write(rows)
        await engine.dispose()

    asyncio.run(fill())
    return tmp_path


def run(*arguments):
    return Commands().invoke(app, ["usage", *arguments])


def test_a_table_for_people_and_json_for_scripts(site):
    shown = run("show", *DAYS)
    assert shown.exit_code == 0, shown.output
    assert "acme" in shown.stdout
    assert "6,000" in shown.stdout
    assert "$0.000009" in shown.stdout
    rows = json.loads(run("show", *DAYS, "--by", "day,tenant", "--tenant", "bolt", "--json").stdout)
    assert [(row["day"], row["tenant"], row["requests"], row["cost_nanousd"]) for row in rows] == [
        ("2026-01-01", "bolt", 2, 3000),
        ("2026-01-02", "bolt", 2, 3000),
        ("2026-01-03", "bolt", 2, 3000),
    ]
    assert "more than 1 rows" in run("show", *DAYS, "--limit", "1").stderr
    assert json.loads(run("show", "--from", "2026-02-01", "--to", "2026-02-01", "--json").stdout) == []


def test_a_file_is_whole_and_its_owners(site):
    done = run("export", *DAYS, "--by", "user,day", "-o", "usage.csv")
    assert done.exit_code == 0, done.output
    assert "6 rows" in done.stderr
    rows = list(csv.DictReader((site / "usage.csv").open(newline="")))
    assert {row["user"] for row in rows} == {"'=1+1"}
    assert sum(int(row["prompt_tokens"]) for row in rows) == 12_000
    assert (site / "usage.csv").stat().st_mode & 0o777 == 0o600
    assert run("export", *DAYS, "--format", "parquet", "-o", "usage.parquet").exit_code == 0
    assert (site / "usage.parquet").read_bytes()[:4] == b"PAR1"
    assert not list(site.glob(".*.partial"))


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("show", "--by", "colour"), 2, "colour"),
        (("show", "--from", "yesterday"), 2, "2026-01-31"),
        (("show", "--from", "2026-02-01", "--to", "2026-01-01"), 2, "after"),
        (("export", "--format", "xls", "-o", "x"), 2, "xls"),
        (("export", "-o", "no/such/folder/x.csv"), 1, "cannot be written"),
        (("show", "-c", "nowhere.yaml"), 2, "nowhere.yaml"),
    ],
)
def test_what_is_wrong_is_said(site, arguments, code, says):
    done = run(*arguments)
    assert done.exit_code == code
    assert says in done.output


def test_a_failed_export_leaves_the_last_file_alone(site, monkeypatch):
    (site / "usage.parquet").write_text("the last one")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    done = run("export", "--format", "parquet", "-o", "usage.parquet")
    assert done.exit_code == 1
    assert "tidegate[parquet]" in done.stderr
    assert (site / "usage.parquet").read_text() == "the last one"
    assert not list(site.glob(".*.partial"))


def test_an_export_without_a_file_goes_to_stdout_and_to_no_file_called_minus(site):
    written = run("export", *DAYS, "--by", "day", "-o", "usage.csv")
    assert written.exit_code == 0
    for target in (("-o", "-"), ()):
        done = run("export", *DAYS, "--by", "day", *target)
        assert (done.exit_code, done.stdout_bytes) == (0, (site / "usage.csv").read_bytes())
    assert not (site / "-").exists()
    table = run("show", *DAYS, "--csv")
    assert (
        table.stdout.splitlines()[0]
        == "tenant,model,requests,prompt_tokens,cached_tokens,completion_tokens,units,cost_usd,audio_seconds,audio_bytes"
    )
    assert table.stdout.splitlines()[1].split(",")[:4] == ["acme", "m", "6", "6000"]
