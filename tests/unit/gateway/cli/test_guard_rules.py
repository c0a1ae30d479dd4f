"""`tidegate guard test` with the rules of a tenant's policy, and what new rules would do otherwise."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import app
from tests.command_line import Commands

EVERYONE = """\
tenant: "*"
models: [{name: chat, pool: chat}, {name: nick, alias_of: chat}, {name: small, pool: chat}]
guards: {rules: [{id: house, kind: words, mode: block, words: [falcon]}]}
"""
ACME = """\
tenant: acme
guards:
  rules:
    - {id: mail, kind: pii, mode: redact, types: [email]}
    - {id: extra, kind: words, mode: flag, words: [heron], default_on: false}
    - {id: judge, kind: detector, mode: flag, detector: guard}
for_project: {lab: {guards: {rules: [{id: lab, kind: words, mode: flag, words: [osprey]}]}}}
for_model: {chat: {guards: {rules: [{id: chat-only, kind: words, mode: flag, words: [eagle]}]}}}
"""
LINES = ["a falcon", "a heron", "an osprey", "an eagle", "ann@example.com", "nothing"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of policies, and no settings file."""
    monkeypatch.chdir(tmp_path)
    Path("policies").mkdir()
    Path("policies/everyone.yaml").write_text(EVERYONE)
    Path("policies/acme.yaml").write_text(ACME)
    Path("texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))


def run(*options: str) -> Any:
    return Commands(env={"COLUMNS": "200"}).invoke(app, ["guard", "test", "texts.jsonl", *options])


def of_tenant(*options: str, tenant: str = "acme") -> Any:
    return run("--tenant", tenant, "--folder", "policies", "--json", *options)


def found(done: Any) -> dict[int, list[str]]:
    return {record["line"]: [one["rule"] for one in record["findings"]] for record in json.loads(done.stdout)}


@pytest.mark.parametrize(
    ("options", "rules"),
    [
        ((), {1: ["house"], 5: ["mail"]}),
        (("--guards", "extra"), {1: ["house"], 2: ["extra"], 5: ["mail"]}),
        (("--project", "lab"), {1: ["house"], 3: ["lab"], 5: ["mail"]}),
        (("--model", "nick", "--project", "lab"), {1: ["house"], 3: ["lab"], 4: ["chat-only"], 5: ["mail"]}),
        (("--model", "small"), {1: ["house"], 5: ["mail"]}),
    ],
)
def test_the_rules_are_those_of_a_tenants_requests(options: tuple[str, ...], rules: dict[int, list[str]]) -> None:
    done = of_tenant(*options)
    assert (done.exit_code, found(done)) == (1, rules), done.output
    assert "rules of acme: house, mail, " in done.stderr
    assert "judge would ask a detector over the network, and is left out here" in done.stderr


def test_a_tenant_without_a_policy_has_the_rules_of_everyone() -> None:
    assert found(of_tenant(tenant="somebody")) == {1: ["house"]}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "either --rules FILE or --tenant NAME"),
        (("--tenant", "acme", "--rules", "x.yaml"), "either --rules FILE or --tenant NAME"),
        (("--tenant", "acme", "--folder", "policies", "--model", "big"), "has no model 'big'; there are: chat, nick, small"),
        (("--tenant", "acme", "--folder", "policies", "--guards", "nope"), "no rule 'nope' here; there are: extra, house, judge, mail"),
        (("--tenant", "acme", "--folder", "missing"), "missing"),
        (("--tenant", "acme", "--folder", "policies", "--against", "new.yaml"), "new.yaml"),
        (("--tenant", "acme", "--folder", "policies", "--against", "new.yaml", "--pieces", "3"), "--against and --pieces: choose one"),
    ],
)
def test_what_cannot_be_tried_is_told(options: tuple[str, ...], said: str) -> None:
    done = run(*options)
    assert (done.exit_code, said in done.stderr) == (2, True), done.output


def test_a_policy_without_guards_is_told() -> None:
    Path("policies/everyone.yaml").write_text(EVERYONE.partition("guards")[0])
    done = of_tenant(tenant="somebody")
    assert (done.exit_code, "the policy for somebody has no guards" in done.stderr) == (2, True)


NEW = """\
rules:
  - {id: house, kind: words, mode: flag, words: [falcon]}
  - {id: mail, kind: pii, mode: replace, replacement: "(mail)", types: [email]}
  - {id: birds, kind: words, mode: block, words: [heron, osprey]}
"""


def test_new_rules_are_compared_with_those_now() -> None:
    Path("new.yaml").write_text(NEW)
    done = run("--tenant", "acme", "--folder", "policies", "--against", "new.yaml", "--csv")
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        "rule,kind,mode,texts_now,texts_then,lines",
        'birds,word,block,0,2,"2, 3"',
        "house,word,block,1,0,1",
        "house,word,flag,0,1,1",
        "mail,email,redact,1,0,5",
        "mail,email,replace,0,1,5",
    ]
    assert (
        "6 texts read; with the new rules: 2 refused that pass now, 1 passed that are refused now, 1 passed with another text"
        in done.stderr
    )
    differing = json.loads(run("--tenant", "acme", "--folder", "policies", "--against", "new.yaml", "--json").stdout)
    assert [one["line"] for one in differing] == [1, 2, 3, 5]
    assert (differing[1]["now"]["ended"], differing[1]["then"]["ended"], differing[1]["then"]["by"]) == ("", "block", "birds")
    assert "example.com" not in done.output


def test_rules_that_do_the_same_differ_in_nothing() -> None:
    Path("new.yaml").write_text(NEW)
    done = run("--rules", "new.yaml", "--against", "new.yaml", "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (0, [])
    assert "0 refused that pass now, 0 passed that are refused now, 0 passed with another text" in done.stderr
