"""How a command finds its gateway: address, token, and the way without a gateway."""

import json
import socket
from pathlib import Path

import pytest
import typer
from click.testing import Result

from gateway.cli import app
from gateway.cli.admin_client import ADMIN, AdminClient, segment
from gateway.cli.connection import TOKEN_VARIABLE, URL_VARIABLE, AdminAddress, GatewayOptions, LocalSettings, token_for
from tests.admin_harness import TOKEN
from tests.admin_socket import admin_socket
from tests.command_line import Commands

NOBODY = "http://127.0.0.1:1"
POOLS = 'pools: [{name: chat, model: m, backends: [{id: a, url: "http://10.0.0.1:8000"}]}]\n'


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "policies").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in (TOKEN_VARIABLE, URL_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def settings(site: Path, address: str, more: str = "", name: str = "tidegate.yaml") -> None:
    (site / name).write_text(f'admin: {{bind: "{address.removeprefix("http://")}"}}\n{more}{POOLS}')


def run(*arguments: str, **environ: str) -> Result:
    return Commands().invoke(app, list(arguments), env=environ)


def test_the_address_is_the_options_then_the_variables_then_that_of_the_settings_at_hand(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert GatewayOptions().place().url == ADMIN
    settings(site, "0.0.0.0:9001")
    settings(site, "[::]:9002", name="other.yaml")
    assert GatewayOptions().place().url == "http://127.0.0.1:9001"
    assert GatewayOptions(config=Path("other.yaml")).place().url == "http://[::1]:9002"
    monkeypatch.setenv(URL_VARIABLE, "https://gateway.example:9003")
    assert GatewayOptions().place()[:2] == ("https://gateway.example:9003", URL_VARIABLE)
    assert GatewayOptions(admin="http://127.0.0.1:9004").place().url == "http://127.0.0.1:9004"


def test_the_token_is_the_files_then_the_variables_then_that_of_the_settings(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (site / "token").write_text("from-file\n")
    (site / "own").write_text("from-settings\n")
    local = AdminAddress(NOBODY, "", LocalSettings(Path("tidegate.yaml"), "", {"file": "own"}))
    assert token_for(None, local) == "from-settings"
    monkeypatch.setenv(TOKEN_VARIABLE, "from-environment")
    assert token_for(None, local) == "from-environment"
    assert token_for(Path("token"), local) == "from-file"


def test_the_token_of_the_settings_goes_to_their_own_address_only(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site / "own").write_text("from-settings\n")
    settings(site, NOBODY, "secrets: {admin_token: {file: own}}\n")
    with socket.create_server(("127.0.0.1", 0)) as elsewhere, pytest.raises(typer.Exit):
        GatewayOptions(admin=f"http://127.0.0.1:{elsewhere.getsockname()[1]}").api()
    assert f"set {TOKEN_VARIABLE}" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, b"\xff", b"a\nb", "t\u00f6k\u00e9n".encode()])
def test_a_token_that_cannot_be_used_ends_the_command(site: Path, content: bytes | None) -> None:
    if content is not None:
        (site / "token").write_bytes(content)
    with pytest.raises(typer.Exit) as ended:
        token_for(Path("token"), AdminAddress(NOBODY, "--admin"))
    assert ended.value.exit_code == 2


def test_a_gateway_that_runs_is_asked_by_what_its_settings_say(site: Path) -> None:
    with admin_socket(site) as port:
        (site / "own").write_text(TOKEN)
        settings(site, port.url, "secrets: {admin_token: {file: own}}\n")
        assert run("tenant", "create", "acme").exit_code == 0
        assert [row["name"] for row in port.json("tenant", "list")] == ["acme"]
        assert not (site / "tidegate.db").exists(), "the store of the settings was left alone"


def test_where_a_gateway_runs_and_no_token_exists_it_is_said_what_to_do(site: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gateway:
        settings(site, f"127.0.0.1:{gateway.getsockname()[1]}")
        refused = run("key", "list")
        needs_one = run("rollout", "list")
    assert (refused.exit_code, needs_one.exit_code) == (2, 2)
    for said in (f"set {TOKEN_VARIABLE}", "--token-file", "secrets: {admin_token: {file: admin-token}}", "SIGHUP", "--offline"):
        assert said in refused.stderr
    assert "--offline" not in needs_one.stderr, "that command has no such option"


def test_before_the_first_serve_commands_work_on_the_database_of_the_settings_and_say_so(site: Path) -> None:
    settings(site, NOBODY)
    first = run("tenant", "create", "acme", "--label", "Acme Ltd", "--models", "chat")
    assert first.exit_code == 0, first.output
    assert "no gateway answers at http://127.0.0.1:1; working on the database of tidegate.yaml" in first.stderr
    quiet = run("tenant", "show", "acme", "--json", "--offline")
    assert quiet.stderr == ""
    assert (json.loads(quiet.stdout)["label"], json.loads(quiet.stdout)["rights"]["models"]) == ("Acme Ltd", ["chat"])
    assert run("limit", "set", "tenant:acme:requests:minute", "60").exit_code == 0
    assert [row["action"] for row in json.loads(run("audit", "list", "--json").stdout)] == ["limit.set", "tenant.create"]
    assert [row["action"] for row in json.loads(run("audit", "list", "--action", "tenant", "--json").stdout)] == ["tenant.create"]
    verified = run("audit", "verify")
    assert (verified.exit_code, "2 rows, unbroken" in verified.stdout) == (0, True)


def test_a_port_that_the_system_chooses_is_no_address(site: Path) -> None:
    settings(site, "127.0.0.1:0")
    assert run("tenant", "create", "acme").exit_code == 0
    refused = run("rollout", "list")
    assert (refused.exit_code, "has port 0" in refused.stderr) == (2, True)


def test_a_named_gateway_that_is_away_is_not_replaced_by_a_local_database(site: Path) -> None:
    settings(site, NOBODY)
    for arguments, environ in ((("--admin", NOBODY), {}), ((), {URL_VARIABLE: NOBODY})):
        refused = run("tenant", "create", "acme", *arguments, **{TOKEN_VARIABLE: TOKEN}, **environ)
        assert (refused.exit_code, "no gateway answers" in refused.stderr, "--offline" in refused.stderr) == (1, True, True)
    assert not (site / "tidegate.db").exists()
    both = run("tenant", "list", "--offline", "--admin", NOBODY)
    assert (both.exit_code, "leave one of them out" in both.stderr) == (2, True)


def test_settings_that_are_missing_or_broken_are_named(site: Path) -> None:
    missing = run("tenant", "list", "--offline")
    assert (missing.exit_code, "tidegate.yaml" in missing.stderr, "-c" in missing.stderr) == (1, True, True)
    (site / "tidegate.yaml").write_text("admin: [")
    broken = run("tenant", "list")
    assert (broken.exit_code, "tidegate.yaml:" in broken.stderr) == (2, True)


def test_an_id_stays_one_segment() -> None:
    assert segment("a/../b?c#d") == "a%2F..%2Fb%3Fc%23d"


@pytest.mark.parametrize("address", ["localhost:8081", "http://", "http://host:notaport", "ftp://host"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(typer.Exit) as ended:
        AdminClient(address)
    assert ended.value.exit_code == 2
