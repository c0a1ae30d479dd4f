"""Ids of limits: what is mistyped is told with what could have been meant, and before anybody is asked."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from tenancy.limits import Level, Meter, Scope, Window, state_key
from tests.admin_socket import admin_socket


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        ("tenant:acme:tokens:dya", "day"),
        ("tenant:acme:token:day", "input_tokens"),
        ("tennant:acme:tokens:day", "tenant"),
        ("tenant:acme:tokens", "level:name:meter:window"),
    ],
)
def test_a_mistyped_id_is_told_with_what_there_is(limit: str, says: str) -> None:
    for command in (["set", limit, "5"], ["remove", limit, "--yes"], ["raise", limit, "7"]):
        done = CliRunner().invoke(app, ["limit", *command, "--admin", "http://127.0.0.1:9"])
        assert done.exit_code == 2
        assert says in done.output


@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("meter", Meter)
def test_ids_that_can_be_pass(level: Level, meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_ADMIN_TOKEN", "t" * 24)
    window = Window.NOW if meter is Meter.CONCURRENT_REQUESTS else Window.DAY
    limit = state_key(Scope(level, "" if level is Level.GLOBAL else "acme/web"), meter, window)
    done = CliRunner().invoke(app, ["limit", "set", limit, "5", "--admin", "http://127.0.0.1:9"])
    assert done.exit_code == 1, "nobody is there to ask"


def test_a_soft_threshold_above_the_amount_is_refused_with_the_reason(tmp_path: Path) -> None:
    with admin_socket(tmp_path) as port:
        port.run("tenant", "create", "acme")
        refused = port.run("limit", "set", "tenant:acme:requests:day", "10", "--soft", "11")
        assert (refused.exit_code, "soft 11: above the amount, 10" in refused.stderr) == (1, True)
        assert port.run("limit", "set", "tenant:acme:requests:day", "10", "--soft", "10").exit_code == 0
