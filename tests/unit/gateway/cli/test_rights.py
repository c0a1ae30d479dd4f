"""Rights by command: set one by one, lifted, and shown, over the API of a gateway."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.cli.rights import RightsOptions
from tests.admin_socket import AdminSocket, admin_socket

NONE = {"models": None, "loras": None, "endpoints": None, "caps": {"tools": True}, "priority_class": None}


@pytest.fixture
def port(tmp_path: Path) -> Iterator[AdminSocket]:
    with admin_socket(tmp_path) as made:
        yield made


def test_only_what_is_written_changes() -> None:
    assert not RightsOptions().given
    assert RightsOptions().applied(NONE) == NONE
    some = RightsOptions(models="a, b", endpoints="", max_output_tokens="10", tools=False, highest="batch").applied(NONE)
    assert some == {
        **NONE,
        "models": ["a", "b"],
        "endpoints": [],
        "caps": {"tools": False, "max_output_tokens": 10},
        "priority_class": "batch",
    }
    lifted = RightsOptions(models="any", max_output_tokens="any", tools=True, highest="any").applied(some)
    assert lifted == {**NONE, "endpoints": [], "caps": {"tools": True, "max_output_tokens": None}}


@pytest.mark.parametrize(("kind", "at"), [("org", ("default",)), ("tenant", ("acme",)), ("project", ("default", "--tenant", "acme"))])
def test_every_account_takes_rights(port: AdminSocket, kind: str, at: tuple[str, ...]) -> None:
    assert port.run("tenant", "create", "acme", "--models", "chat,code", "--label", "Acme").exit_code == 0
    done = port.run(kind, "set", *at, "--models", "chat", "--max-input-tokens", "5", "--adapters", "sql")
    assert done.exit_code == 0, done.output
    assert port.run(kind, "set", *at, "--label", "another").exit_code == 0
    seen = port.json(kind, "show", *at)
    assert (seen["label"], seen["rights"]["models"], seen["rights"]["loras"]) == ("another", ["chat"], ["sql"])
    assert seen["rights"]["caps"]["max_input_tokens"] == 5
    table = port.run(kind, "show", *at).stdout
    assert all(said in table for said in ("chat", "sql", "max input tokens"))
    nothing = port.run(kind, "set", *at)
    assert (nothing.exit_code, "nothing to change" in nothing.stderr) == (2, True)
    assert port.run("tenant", "show", "acme", "--csv").stdout.splitlines()[0].startswith("name,organisation,label,disabled,created")


def test_a_key_is_made_with_rights_and_keeps_what_is_not_written(port: AdminSocket) -> None:
    port.run("tenant", "create", "acme")
    key = port.json("key", "create", "--tenant", "acme", "--models", "chat", "--expires", "7d", "--tag", "team=x")["id"]
    assert port.run("key", "set", key, "--max-output-tokens", "100", "--expires", "never", "--no-tools").exit_code == 0
    seen = port.json("key", "show", key)
    assert (seen["rights"]["models"], seen["expires_unix"], seen["tags"]) == (["chat"], None, {"team": "x"})
    assert (seen["rights"]["caps"]["max_output_tokens"], seen["rights"]["caps"]["tools"]) == (100, False)
    actions = port.within(port.admin.actions())
    assert actions == ["tenant.create", "key.create", "key.change"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--max-output-tokens", "many"), "--max-output-tokens 'many' is no whole number"),
        (("--max-output-tokens", "0"), "max_output_tokens"),
        (("--class", "urgent"), "interactive"),
        (("--org", "nowhere"), "there is no 'nowhere'"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_its_name(port: AdminSocket, arguments: tuple[str, ...], says: str) -> None:
    port.run("tenant", "create", "acme")
    done = port.run("tenant", "set", "acme", *arguments)
    assert done.exit_code != 0
    assert says in done.stderr
