"""`tidegate usage` over the API says what it says straight from the database, whatever the size of pages."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gateway.cli import app
from gateway.cli.usage import MOST
from tenancy.stores.sql import SqlUsageStore
from tests.admin_harness import bearer
from tests.admin_socket import AdminSocket, admin_socket
from tests.command_line import Commands
from tests.usage_events import event, grouped, random_event

DAYS = ("--from", "2026-01-01", "--to", "2026-01-31")
EVENTS = [random_event(n, random.Random(n)) for n in range(600)]


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AdminSocket]:
    monkeypatch.chdir(tmp_path)
    with admin_socket(tmp_path) as made:
        made.within(SqlUsageStore(made.admin.engine).write(EVENTS))
        yield made


def test_rows_are_those_of_the_ledger(port: AdminSocket) -> None:
    rows = port.json("usage", "show", *DAYS, "--by", "tenant,model")
    wanted = grouped(EVENTS, ("tenant", "model"))
    assert {(row["tenant"], row["model"]): row["cost_nanousd"] for row in rows} == {k: s.cost_nanousd for k, s in wanted.items()}
    only = port.json("usage", "show", *DAYS, "--by", "key", "--tenant", "acme", "--model", "large", "--project", "lab")
    here = [e for e in EVENTS if (e.tenant, e.model, e.project) == ("acme", "large", "lab")]
    assert {row["key"]: row["units"] for row in only} == {k[0]: s.units for k, s in grouped(here, ("key",)).items()}
    assert port.json("usage", "show", "--from", "2027-01-01", "--to", "2027-01-31") == []
    assert "more than 2 rows" in port.run("usage", "show", *DAYS, "--limit", "2").stderr


def test_an_export_of_many_pages_is_the_same_file(port: AdminSocket, tmp_path: Path) -> None:
    port.within(SqlUsageStore(port.admin.engine).write([event(f"many-{n}", user=f"user-{n:04}") for n in range(MOST * 2 + 7)]))
    (tmp_path / "policies").mkdir()
    (tmp_path / "tidegate.yaml").write_text(
        'stores: {sql: "sqlite:///admin.db"}\npools: [{name: chat, model: m, backends: [{id: a, url: "http://10.0.0.1:8000"}]}]\n'
    )
    by = (*DAYS, "--by", "day,tenant,user,key")
    done = port.run("usage", "export", *by, "-o", "api.csv")
    assert done.exit_code == 0, done.output
    straight = Commands().invoke(app, ["usage", "export", *by, "-o", "straight.csv", "--offline"])
    assert straight.exit_code == 0, straight.output
    assert (tmp_path / "api.csv").read_bytes() == (tmp_path / "straight.csv").read_bytes()
    assert (tmp_path / "api.csv").read_bytes().count(b"\r\n") > MOST * 2
    assert port.run("usage", "export", *by, "--format", "parquet", "-o", "api.parquet").exit_code == 0
    assert (tmp_path / "api.parquet").read_bytes()[:4] == b"PAR1"


def test_a_tenants_admin_sees_its_own_and_nobody_else_anything(port: AdminSocket, tmp_path: Path) -> None:
    mine = bearer("tenant-admin", "bolt")["authorization"].removeprefix("Bearer ")
    seen = json.loads(port.run("usage", "show", *DAYS, "--by", "tenant", "--json", token=mine).stdout)
    assert [row["tenant"] for row in seen] == ["bolt"]
    refused = port.run("usage", "export", *DAYS, "-o", "x.csv", token="wrong")
    assert (refused.exit_code, list(tmp_path.glob("*x.csv*"))) == (1, [])
    assert "admin token is missing or wrong" in refused.stderr


def test_a_table_by_key_shows_the_keys_labels_and_json_their_ids(port: AdminSocket) -> None:
    port.run("tenant", "create", "shop")
    key_id = port.json("key", "create", "--tenant", "shop", "--label", "website")["id"]
    port.within(SqlUsageStore(port.admin.engine).write([msgspec.structs.replace(event("labelled"), tenant="shop", key_id=key_id)]))
    table = port.run("usage", "show", *DAYS, "--by", "key", "--tenant", "shop").stdout
    assert f"{key_id} (website)" in table
    assert [row["key"] for row in port.json("usage", "show", *DAYS, "--by", "key", "--tenant", "shop")] == [key_id]
