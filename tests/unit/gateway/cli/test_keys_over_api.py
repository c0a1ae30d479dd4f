"""Keys over a real admin port, by command: who sees which, and what ends one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.admin_harness import bearer
from tests.admin_socket import AdminSocket, admin_socket


@pytest.fixture
def port(tmp_path: Path) -> Iterator[AdminSocket]:
    with admin_socket(tmp_path) as made:
        yield made


def test_keys_and_tenants_are_listed_over_the_api_as_they_are_on_the_store(port: AdminSocket) -> None:
    made = {}
    for tenant in ("acme", "bolt"):
        assert port.run("tenant", "create", tenant).exit_code == 0
        made[tenant] = port.json("key", "create", "--tenant", tenant, "--label", f"of {tenant}")
    rows = port.json("key", "list")
    assert [(row["id"], row["tenant"], row["label"], row["state"], row["expires_unix"]) for row in rows] == [
        (made[tenant]["id"], tenant, f"of {tenant}", "active", None) for tenant in ("acme", "bolt")
    ]
    assert [row["tenant"] for row in port.json("key", "list", "--tenant", "bolt")] == ["bolt"]
    table = port.run("key", "list")
    assert all(one["id"] in table.stdout and one["key"] not in table.stdout for one in made.values())
    assert [row["name"] for row in port.json("tenant", "list")] == ["acme", "bolt"]

    own = bearer("tenant-admin")["authorization"].removeprefix("Bearer ")
    seen = port.run("key", "list", token=own)
    assert (made["acme"]["id"] in seen.stdout, made["bolt"]["id"] in seen.stdout) == (True, False)
    assert port.run("key", "list", "--tenant", "bolt", token=own).exit_code == 1


def test_states_are_told_and_revoking_asks_first(port: AdminSocket) -> None:
    port.run("tenant", "create", "acme")
    made = [port.json("key", "create", "--tenant", "acme", "--label", label) for label in ("revoked", "disabled", "active")]
    assert port.run("key", "revoke", made[0]["id"], "--tenant", "acme").exit_code == 1, "nobody said yes"
    assert {row["state"] for row in port.json("key", "list")} == {"active"}
    assert port.run("key", "revoke", made[0]["id"], "--tenant", "acme", "--yes").exit_code == 0
    assert port.run("key", "disable", made[1]["id"], "--tenant", "acme").exit_code == 0
    assert {row["label"]: row["state"] for row in port.json("key", "list")} == {label: label for label in ("revoked", "disabled", "active")}


def test_networks_are_set_as_a_whole_and_stay_whatever_else_is_changed(port: AdminSocket) -> None:
    port.run("tenant", "create", "acme")
    made = port.json("key", "create", "--tenant", "acme", "--networks", "203.0.113.0/24, 2001:db8::/32")
    at = (made["id"], "--tenant", "acme")
    assert port.run("key", "set", *at, "--label", "ci").exit_code == 0
    assert port.json("key", "show", *at)["networks"] == ["2001:db8::/32", "203.0.113.0/24"]
    assert "203.0.113.0/24" in port.run("key", "show", *at).stdout
    wrong = port.run("key", "set", *at, "--networks", "203.0.113.9/24")
    assert (wrong.exit_code, "'203.0.113.9/24' is no network" in wrong.stderr) == (2, True)
    assert port.run("key", "set", *at, "--networks", "198.51.100.7").exit_code == 0
    assert port.json("key", "show", *at)["networks"] == ["198.51.100.7/32"]
    assert port.run("key", "set", *at, "--networks", "any").exit_code == 0
    assert port.json("key", "show", *at)["networks"] == []


def test_tags_are_set_one_by_one_and_stay_whatever_else_is_changed(port: AdminSocket) -> None:
    port.run("tenant", "create", "acme")
    made = port.json("key", "create", "--tenant", "acme", "--tag", "team=search", "--tag", "tier=gold")
    at = (made["id"], "--tenant", "acme")
    assert port.run("key", "set", *at, "--tag", "tier=silver", "--tag", "site=zurich", "--untag", "team").exit_code == 0
    assert port.run("key", "disable", *at).exit_code == 0
    seen = port.json("key", "show", *at)
    assert seen["tags"] == {"tier": "silver", "site": "zurich"}
    assert "tier" in port.run("key", "show", *at).stdout
    nothing = port.run("key", "set", *at)
    assert (nothing.exit_code, "nothing to change" in nothing.stderr) == (2, True)
    assert port.run("key", "set", *at, "--tag", "Tier=x").exit_code == 2
