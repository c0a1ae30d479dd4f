import asyncio
import json
import re
import sqlite3
import time
from datetime import datetime

import msgspec
import pytest

from domain.priority import Class
from gateway.cli import app
from tenancy.rights import Rights
from tests.command_line import Commands
from tests.databases import migrated_file

SETTINGS = 'admin: {bind: "127.0.0.1:1"}\npools: [{name: chat, model: m, backends: [{id: a, url: "http://10.0.0.1:8000"}]}]\n'
KEY = re.compile(r"gw_live_[0-9A-Za-z]{10}_[0-9A-Za-z]{49}")


@pytest.fixture
def site(tmp_path, monkeypatch):
    (tmp_path / "policies").mkdir()
    (tmp_path / "tidegate.yaml").write_text(SETTINGS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    asyncio.run(migrated_file(tmp_path / "tidegate.db"))
    return tmp_path


def run(*arguments):
    return Commands().invoke(app, list(arguments))


def listed():
    return json.loads(run("key", "list", "--json").stdout)


def test_a_key_is_made_shown_once_and_stored_nowhere(site):
    assert run("tenant", "create", "acme").exit_code == 0
    made = run("key", "create", "--tenant", "acme", "--label", "ci")
    assert made.exit_code == 0
    assert KEY.fullmatch(made.stdout.strip())
    assert "the only time it is shown" in made.stderr
    secret = made.stdout.strip().rsplit("_", 1)[1]
    for file in site.rglob("*"):
        assert not file.is_file() or secret.encode() not in file.read_bytes()
    (row,) = listed()
    assert (row.pop("created_unix") > 1e9, row.pop("expires_unix")) == (True, None)
    assert row == {"id": made.stdout.split("_")[2], "tenant": "acme", "project": "default", "label": "ci", "state": "active"}
    assert secret not in run("key", "list").stdout


def test_tenant_and_key_in_one_go_for_scripts(site):
    made = run("key", "create", "--tenant", "acme", "--create-tenant", "--json")
    assert KEY.fullmatch(json.loads(made.stdout)["key"])
    assert [row["name"] for row in json.loads(run("tenant", "list", "--json").stdout)] == ["acme"]
    assert run("key", "create", "--tenant", "acme", "--create-tenant").exit_code == 0


def test_a_key_may_be_made_for_a_lower_class_and_for_no_other_word(site):
    assert run("key", "create", "--tenant", "acme", "--create-tenant", "--class", "batch").exit_code == 0
    [file] = site.rglob("*.db")
    with sqlite3.connect(file) as store:
        [(rights,)] = store.execute("SELECT rights FROM api_key")
    assert msgspec.json.decode(rights, type=Rights) == Rights(priority_class=Class.BATCH)
    wrong = run("key", "create", "--tenant", "acme", "--class", "urgent")
    assert wrong.exit_code == 2 and "interactive" in wrong.stderr


def test_a_key_may_be_tagged_for_the_rules_of_policies(site):
    assert run("key", "create", "--tenant", "acme", "--create-tenant", "--tag", "team=search", "--tag", "tier=gold").exit_code == 0
    [file] = site.rglob("*.db")
    with sqlite3.connect(file) as store:
        [(tags,)] = store.execute("SELECT tags FROM api_key")
    assert json.loads(tags) == {"team": "search", "tier": "gold"}
    wrong = run("key", "create", "--tenant", "acme", "--tag", "search")
    assert wrong.exit_code == 2 and "write name=value" in wrong.stderr


def test_a_revoked_and_an_expired_key_are_listed_as_such(site):
    key_id = json.loads(run("key", "create", "--tenant", "acme", "--create-tenant", "--json").stdout)["id"]
    run("key", "create", "--tenant", "acme", "--expires", "1ms", "--label", "old")
    assert run("key", "revoke", key_id, "--yes").exit_code == 0
    rotated = run("key", "rotate", key_id)
    assert (rotated.exit_code, "is revoked; make a new one" in rotated.stderr) == (1, True)
    time.sleep(0.1)
    assert {row["label"]: row["state"] for row in listed()} == {"": "revoked", "old": "expired"}


def test_a_key_is_revoked_when_somebody_says_yes(site):
    key_id = json.loads(run("key", "create", "--tenant", "acme", "--create-tenant", "--json").stdout)["id"]
    for answer in ("", "n\n"):
        asked = Commands().invoke(app, ["key", "revoke", key_id], input=answer)
        assert (asked.exit_code, f"Revoke key {key_id} for good?" in asked.output) == (1, True)
        assert [row["state"] for row in listed()] == ["active"]
    assert Commands().invoke(app, ["key", "revoke", key_id], input="y\n").exit_code == 0
    assert [row["state"] for row in listed()] == ["revoked"]


def test_the_keys_of_one_tenant_are_listed_alone(site):
    for tenant in ("acme", "bolt"):
        run("key", "create", "--tenant", tenant, "--create-tenant")
    assert [row["tenant"] for row in listed()] == ["acme", "bolt"]
    assert [row["tenant"] for row in json.loads(run("key", "list", "--tenant", "bolt", "--json").stdout)] == ["bolt"]


def test_the_store_has_the_bounds_of_the_settings(site):
    (site / "tidegate.yaml").write_text(SETTINGS + "tenants: {max_keys: 1}\n")
    assert run("key", "create", "--tenant", "acme", "--create-tenant").exit_code == 0
    refused = run("key", "create", "--tenant", "acme")
    assert (refused.exit_code, "tenants.max_keys" in refused.stderr) == (1, True)


@pytest.mark.req("R35")
def test_a_rotated_key_keeps_its_id_and_says_how_long_the_old_secret_works(site):
    first = json.loads(run("key", "create", "--tenant", "acme", "--create-tenant", "--json").stdout)
    second = json.loads(run("key", "rotate", first["id"], "--json").stdout)
    assert second["id"] == first["id"] == second["key"].split("_")[2]
    assert second["key"] != first["key"]
    assert KEY.fullmatch(second["key"])
    assert datetime.fromisoformat(second["old_until"]).timestamp() == pytest.approx(time.time() + 86_400, abs=60)
    third = run("key", "rotate", first["id"], "--overlap", "0")
    assert KEY.fullmatch(third.stdout.strip())
    assert "refused within 5 s" in third.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("key", "create", "--tenant", "nobody"), 1, "tidegate tenant create nobody"),
        (("key", "create", "--tenant", "Not A Name"), 2, "lower-case letters"),
        (("key", "create", "--tenant", "acme", "--project", "nope", "--create-tenant"), 1, "has no 'nope'"),
        (("key", "create", "--tenant", "acme", "--expires", "-1d"), 2, "--expires"),
        (("key", "create", "--tenant", "acme", "--expires", "0d"), 2, "--expires"),
        (("key", "create", "--tenant", "acme", "--expires", "90"), 2, "90s, 30m, 12h or 7d"),
        (("key", "create", "--tenant", "acme", "--label", "x" * 201), 2, "--label"),
        (("key", "create"), 2, "--tenant"),
        (("key", "revoke", "0000000000", "--yes"), 1, "no key '0000000000'"),
        (("key", "rotate", "0000000000"), 1, "no key '0000000000'"),
        (("key", "rotate", "0000000000", "--overlap", "-1h"), 2, "--overlap"),
        (("key", "rotate", "0000000000", "--overlap", "9999d"), 2, "at most"),
        (("tenant", "create", "../etc"), 2, "lower-case letters"),
        (("tenant", "create", "a" * 64), 2, "1 to 63"),
        (("key", "list", "-c", "elsewhere.yaml"), 2, "elsewhere.yaml"),
    ],
)
def test_mistakes_are_named_with_what_to_do(site, arguments, code, says):
    result = run(*arguments)
    assert result.exit_code == code
    assert says in result.stderr
    assert "Traceback" not in result.output


def test_a_tenant_is_made_once(site):
    run("tenant", "create", "acme")
    again = run("tenant", "create", "acme")
    assert (again.exit_code, "exists already" in again.stderr) == (1, True)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda site: (site / "tidegate.db").write_bytes(b"this is no database" * 100), "not a database"),
        (lambda site: (site / "tidegate.pepper").write_bytes(b""), "tidegate.pepper is damaged"),
    ],
)
def test_a_broken_store_is_said_and_nothing_is_overwritten(site, spoil, says):
    run("tenant", "create", "acme")
    for file in site.glob("tidegate.db*"):
        file.unlink()
    run("tenant", "create", "acme")
    spoil(site)
    before = {file.name: file.read_bytes() for file in site.iterdir() if file.is_file() and file.suffix in (".pepper", ".yaml")}
    result = run("key", "create", "--tenant", "acme")
    assert result.exit_code == 1
    assert says in result.stderr
    assert {name: (site / name).read_bytes() for name in before} == before


def test_a_key_without_a_label_has_none(site):
    run("key", "create", "--tenant", "acme", "--create-tenant")
    (row,) = [line.split("│") for line in run("key", "list").stdout.splitlines() if "acme" in line]
    assert [part.strip() for part in row[4:8]] == ["", "active", row[6].strip(), "never"]
    assert run("key", "list", "--csv").stdout.splitlines()[1].endswith(",never")
