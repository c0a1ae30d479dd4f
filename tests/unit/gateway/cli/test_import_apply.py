"""`tidegate import apply` over a real admin port: made once, kept the second time, never overwritten."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.importing.plan import FORMAT
from tests.admin_harness import bearer
from tests.admin_socket import AdminSocket, admin_socket

DOCUMENT: dict[str, Any] = {
    "format": FORMAT,
    "tenants": [{"name": "search", "label": "Search"}, {"name": "research", "disabled": True}],
    "keys": [
        {"tenant": "search", "project": "default", "label": "ci", "expires_at": "2037-01-01T00:00:00Z",
         "models": ["qwen"], "priority_class": "batch",
         "limits": [{"meter": "tokens", "window": "minute", "amount": 5000}]},
        {"tenant": "research", "project": "default", "label": ""},
        {"tenant": "research", "project": "default", "label": ""},
    ],
    "limits": [
        {"scope": {"level": "tenant", "name": "search"}, "meter": "cost_usd", "window": "day", "amount": "10"},
        {"scope": {"level": "global", "name": ""}, "meter": "concurrent_requests", "window": "now", "amount": 64},
    ],
    "prices": [{"model": "qwen", "revision": "*", "usd_per_mtok": {"uncached_input": "0.10", "output": "0.4"}}],
}  # fmt: skip


@pytest.fixture
def port(tmp_path: Path) -> Iterator[AdminSocket]:
    with admin_socket(tmp_path) as made:
        yield made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "import.json"
    path.write_text(json.dumps(DOCUMENT))
    return path


def applied(port: AdminSocket, file: Path) -> tuple[int, list[dict[str, str]]]:
    done = port.run("import", "apply", file, "--json")
    return done.exit_code, [json.loads(line) for line in done.stdout.splitlines()]


def counts(lines: list[dict[str, str]]) -> dict[str, int]:
    return dict(Counter(line["outcome"] for line in lines))


def test_the_whole_file_is_made_once_and_kept_the_second_time(port: AdminSocket, file: Path) -> None:
    first = port.run("import", "apply", file)
    assert first.exit_code == 0, first.output
    assert "made: tenant search\n" in first.stdout
    assert "9 made, 0 kept, 0 differs, 0 refused" in first.stdout
    keys = [line.rpartition(" ")[2] for line in first.stdout.splitlines() if line.startswith("made: key ")]
    assert len({key for key in keys if key.startswith("gw_live_")}) == 3
    again = port.run("import", "apply", file)
    assert again.exit_code == 0, again.output
    assert "0 made, 9 kept, 0 differs, 0 refused" in again.stdout
    assert "gw_live_" not in again.output
    ci = port.json("key", "show", keys[0].split("_")[2], "--tenant", "search")
    assert (ci["label"], ci["rights"]["models"], ci["expires_unix"]) == ("ci", ["qwen"], 2_114_380_800.0)
    assert ci["rights"]["priority_class"] == "batch"
    limits = {one["id"]: one["amount"] for one in port.json("limit", "list")}
    assert limits == {
        "tenant:search:cost_usd:day": 10_000_000_000,
        "global::concurrent_requests:now": 64,
        f"key:{ci['id']}:tokens:minute": 5000,
    }
    assert port.json("tenant", "show", "research")["disabled"] is True
    (price,) = port.json("price", "list")
    assert price["nanousd_per_mtok"] == {
        "uncached_input": 100_000_000, "cached_input": 100_000_000, "output": 400_000_000, "reasoning": 400_000_000,
    }  # fmt: skip
    assert Counter(row["action"] for row in port.json("audit", "list")) == {
        "tenant.create": 2, "key.create": 3, "limit.set": 3, "price.set": 1,
    }  # fmt: skip


def test_what_was_changed_since_is_left_and_told(port: AdminSocket, file: Path) -> None:
    applied(port, file)
    assert port.run("limit", "set", "tenant:search:cost_usd:day", "$20").exit_code == 0
    assert port.run("tenant", "enable", "research").exit_code == 0
    port.admin.wall.now += 1
    assert port.run("price", "set", "qwen", "--input", "0.2", "--output", "0.8").exit_code == 0
    changed = {**DOCUMENT, "keys": [{**DOCUMENT["keys"][0], "priority_class": None}, *DOCUMENT["keys"][1:]]}
    file.write_text(json.dumps(changed))
    code, lines = applied(port, file)
    assert (code, counts(lines)) == (1, {"kept": 5, "differs": 4})
    (limit,) = [line for line in lines if line["name"] == "tenant:search:cost_usd:day"]
    assert limit["said"] == "it is $20.00, and $10.00 in the file"
    assert {one["id"]: one["amount"] for one in port.json("limit", "list")}["tenant:search:cost_usd:day"] == 20_000_000_000


def test_tags_that_ask_for_guard_rules_are_set_and_missing_ones_are_told(port: AdminSocket, file: Path) -> None:
    tagged = {**DOCUMENT["keys"][0], "tags": {"guard.strict": "on"}}
    file.write_text(json.dumps({**DOCUMENT, "keys": [tagged]}))
    _, lines = applied(port, file)
    ci = next(line for line in lines if "'ci'" in line["name"])
    assert port.json("key", "show", ci["id"], "--tenant", "search")["tags"] == {"guard.strict": "on"}
    assert counts(applied(port, file)[1]).keys() == {"kept"}
    file.write_text(json.dumps({**DOCUMENT, "keys": [{**tagged, "tags": {"guard.strict": "on", "guard.more": "on"}}]}))
    differing = [line for line in applied(port, file)[1] if line["outcome"] == "differs"]
    assert [(line["what"], line["id"]) for line in differing] == [("key", ci["id"])]


def test_a_revoked_key_is_made_again_and_one_more_with_the_same_label_is_one_more(port: AdminSocket, file: Path) -> None:
    _, lines = applied(port, file)
    ci = next(line for line in lines if "'ci'" in line["name"])
    assert port.run("key", "revoke", ci["id"], "--tenant", "search", "--yes").exit_code == 0
    file.write_text(json.dumps({**DOCUMENT, "keys": [*DOCUMENT["keys"], DOCUMENT["keys"][2]]}))
    code, lines = applied(port, file)
    made = [line["what"] for line in lines if line["outcome"] == "made"]
    assert (code, made) == (0, ["key", "limit", "key"])


def test_what_is_refused_does_not_keep_the_rest_from_being_made(port: AdminSocket, file: Path) -> None:
    keys = [
        {"tenant": "search", "project": "nothing"},
        {"tenant": "nobody"},
        {"tenant": "search", "expires_at": "soon"},
        {"tenant": "search", "label": "good", "limits": [{"meter": "cost_usd", "window": "minute", "amount": "5"}]},
    ]
    limits = [{"scope": {"level": "moon"}, "meter": "tokens", "window": "day", "amount": 5}]
    file.write_text(json.dumps({**DOCUMENT, "tenants": [*DOCUMENT["tenants"], {"name": "Bad Name"}], "keys": keys, "limits": limits}))
    code, lines = applied(port, file)
    refused = [(line["what"], line["said"]) for line in lines if line["outcome"] == "refused"]
    assert (code, counts(lines)) == (1, {"made": 4, "refused": 6})
    assert [what for what, _ in refused] == ["tenant", "key", "key", "key", "limit", "limit"]
    assert all(said for _, said in refused)


def test_who_may_not_and_what_cannot_be_read_is_one_sentence(port: AdminSocket, file: Path) -> None:
    wrong = port.run("import", "apply", file, token="wrong")
    assert (wrong.exit_code, wrong.output.count("admin token is missing or wrong")) == (1, 1)
    reader = port.run("import", "apply", file, token=bearer("auditor")["authorization"].removeprefix("Bearer "))
    assert (reader.exit_code, "0 made, 0 kept" in reader.stdout) == (1, True)
    assert "This needs one of the roles owner, admin" in reader.stdout
    file.write_text("{")
    assert port.run("import", "apply", file).exit_code == 2
    assert port.run("import", "apply", file.with_name("nowhere")).exit_code == 2


def limits_file(file: Path, *limits: tuple[str, object]) -> None:
    scope = {"level": "global", "name": ""}
    wanted = [{"scope": scope, "meter": meter, "window": "day", "amount": amount} for meter, amount in limits]
    file.write_text(json.dumps({"format": FORMAT, "limits": wanted}))


def test_an_older_file_with_nano_dollars_says_the_same(port: AdminSocket, file: Path) -> None:
    limits_file(file, ("cost_usd", "12.50"))
    assert applied(port, file)[0] == 0
    limits_file(file, ("cost_nanousd", 12_500_000_000))
    assert counts(applied(port, file)[1]) == {"kept": 1}


def test_amounts_in_the_wrong_form_or_hardly_meant_are_refused_by_name(port: AdminSocket, file: Path) -> None:
    wrong = [("cost_usd", 50), ("cost_usd", "-1"), ("cost_usd", "NaN"), ("cost_nanousd", "50"), ("tokens", "50"), ("cost_usd", "0.005")]
    for meter, amount in [*wrong, ("cost_nanousd", 50), ("cost_usd", "0"), ("tokens", 0), ("cost_eur", 5)]:
        limits_file(file, (meter, amount))
        code, (line,) = applied(port, file)
        assert (code, line["outcome"]) == (1, "refused"), (meter, amount)
        assert line["said"].startswith("amount") or "cost_usd" in line["said"]
    assert port.json("limit", "list") == []
    limits_file(file, ("tokens", 0))
    assert port.run("import", "apply", file, "--yes").exit_code == 0
