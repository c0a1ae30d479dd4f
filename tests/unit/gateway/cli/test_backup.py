"""`tidegate backup …`: what it says, and what it refuses."""

import json
from pathlib import Path

import pytest

from gateway.cli import app
from tenancy.stores.wal import claim_new
from tests.command_line import Commands, Result

SETTINGS = 'pools:\n  - {name: chat, model: sim, backends: [{id: e0, url: "http://127.0.0.1:9"}]}\n'


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "default.yaml").write_text('tenant: "*"\nmodels:\n  - {name: sim, pool: chat}\n')
    (tmp_path / "tidegate.yaml").write_text(SETTINGS)
    made = Commands().invoke(app, ["key", "create", "-c", str(tmp_path / "tidegate.yaml"), "--tenant", "acme", "--create-tenant"])
    assert made.exit_code == 0, made.output
    return tmp_path


def backup(home: Path, *arguments: str) -> Result:
    return Commands().invoke(app, ["backup", *arguments], env={"COLUMNS": "300"})


def settings(home: Path) -> list[str]:
    return ["-c", str(home / "tidegate.yaml")]


def test_a_backup_is_made_verified_and_restored(home: Path) -> None:
    file = home / "b"
    made = backup(home, "create", str(file), *settings(home))
    assert made.exit_code == 0, made.output
    assert "The pepper" in made.stderr
    assert file.stat().st_mode & 0o777 == 0o600
    verified = json.loads(backup(home, "verify", str(file), "--json").stdout)
    assert (verified["rows"]["api_key"], verified["ledger_files"]) == (1, 0)
    assert "is whole: " in backup(home, "verify", str(file)).stdout
    refused = backup(home, "restore", str(file), *settings(home))
    assert refused.exit_code == 1
    assert "1 rows of api_key; nothing was changed" in refused.stderr
    (home / "tidegate.db").unlink()
    assert backup(home, "restore", str(file), *settings(home)).exit_code == 0
    listed = Commands().invoke(app, ["key", "list", "--offline", "--json", *settings(home)])
    assert [key["tenant"] for key in json.loads(listed.stdout)] == ["acme"]


def test_a_ledger_in_use_is_refused_and_one_that_was_left_needs_force(home: Path) -> None:
    file, folder = home / "b", home / "tidegate-ledger"
    claim = claim_new(folder, "12-ab")
    (claim.path / "00000001.open").write_bytes(b"")
    assert backup(home, "create", str(file), *settings(home)).exit_code == 0
    running = backup(home, "restore", str(file), "--force", *settings(home))
    assert (running.exit_code, "a gateway writes to" in running.stderr) == (1, True)
    claim.release()
    (claim.path / "00000002.wal").write_bytes(b"")
    (home / "tidegate.db").unlink()
    left = backup(home, "restore", str(file), *settings(home))
    assert (left.exit_code, "usage that is in no database yet" in left.stderr) == (1, True)
    assert not (home / "tidegate.db").exists()
    assert backup(home, "restore", str(file), "--force", *settings(home)).exit_code == 0
    assert [path.name for path in (folder / "12-ab").iterdir()] == ["00000001.open"]


def test_what_cannot_be_backed_up_or_read_is_said(home: Path) -> None:
    none = backup(home, "create", str(home / "b"), "-c", str(home / "none.yaml"))
    assert (none.exit_code, "run in the folder of tidegate.yaml" in none.stderr) == (1, True)
    (home / "tidegate.db").unlink()
    missing = backup(home, "create", str(home / "b"), *settings(home))
    assert (missing.exit_code, "tidegate.db does not exist" in missing.stderr) == (1, True)
    assert not list(home.glob("*b")), "no half backup"
    damaged = backup(home, "verify", str(home / "tidegate.yaml"))
    assert (damaged.exit_code, "is no whole backup" in damaged.stderr) == (1, True)
