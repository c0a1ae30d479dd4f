"""`tidegate guard test`: what rules would do to the texts of a file."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import app
from tests.admin_socket import admin_socket
from tests.command_line import Commands

RULES = """\
rules:
  - {id: keys, kind: secrets, mode: block}
  - {id: people, kind: pii, mode: redact, types: [email, card]}
  - {id: trial, kind: pii, mode: shadow, types: [iban]}
"""
CARD = "4111 1111 1111 1111"


def run(folder: Path, lines: list[Any], *options: str, rules: str = RULES) -> Any:
    (folder / "rules.yaml").write_text(rules)
    (folder / "texts.jsonl").write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    arguments = ["guard", "test", str(folder / "texts.jsonl"), "--rules", str(folder / "rules.yaml"), *options]
    return Commands(env={"COLUMNS": "200"}).invoke(app, arguments)


def private_key() -> str:
    return "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC" * 4 + "\n-----END PRIVATE KEY-----"


def test_the_types_that_rules_may_name_are_listed() -> None:
    done = Commands().invoke(app, ["guard", "list", "--json"])
    kinds = {(one["kind"], one["type"]) for one in json.loads(done.stdout)}
    assert {("pii", "card"), ("pii", "iban"), ("secrets", "private_key")} <= kinds


def test_findings_are_counted_by_rule_without_contents(tmp_path: Path) -> None:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": f"pay with {CARD}"}, {"role": "assistant", "content": "ann@example.com"}],
    }
    done = run(tmp_path, [json.dumps("nothing here"), {"text": "mail ann@example.com and bob@example.org", "on": "output"}, body], "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [(one["line"], one["count"]) for one in found][:2] == [(2, 2), (3, 1)]
    assert "example.com" not in done.stdout
    assert "4111" not in done.stdout
    assert "would be refused" in done.stderr


def test_every_kind_of_rule_finds_what_it_is_for(tmp_path: Path) -> None:
    rules = """\
rules:
  - {id: words, kind: words, mode: flag, words: [project falcon]}
  - {id: orders, kind: pattern, mode: flag, pattern: "ORD-[0-9]{6}"}
  - {id: hosts, kind: links, mode: flag, allow: [example.com]}
  - {id: keys, kind: secrets, mode: flag}
  - {id: people, kind: pii, mode: flag, types: [email]}
"""
    lines = ["about Project Falcon", "see ORD-123456", "https://evil.example.net/x", private_key(), "a@example.com"]
    done = run(tmp_path, [{"text": line} for line in lines], "--json", rules=rules)
    found = {record["line"]: {one["rule"] for one in record["findings"]} for record in json.loads(done.stdout)}
    assert done.exit_code == 0, done.output
    for line, rule in enumerate(("words", "orders", "hosts", "keys", "people"), 1):
        assert rule in found[line]


def test_calls_of_tools_are_judged_as_calls_in_lines_and_in_requests(tmp_path: Path) -> None:
    rules = "rules: [{id: tools, kind: tools, mode: block, allow: ['find*'], arguments: {find: {required: [q]}}}]\n"
    turn = {"role": "assistant", "tool_calls": [{"function": {"name": "drop", "arguments": "{}"}}]}
    lines = [
        {"call": "find", "arguments": '{"q": 1}'},
        {"call": "find", "arguments": "{}"},
        {"call": "find_all"},
        {"messages": [turn, {"role": "user", "content": "x"}]},
    ]
    done = run(tmp_path, lines, "--json", rules=rules)
    found = [(one["line"], one["path"], [finding["kind"] for finding in one["findings"]]) for one in json.loads(done.stdout)]
    assert found == [(2, "call", ["arguments_schema"]), (4, "messages[0].tool_calls[0].function", ["tool_not_allowed"])]
    assert done.exit_code == 1


def test_an_answer_is_judged_with_the_system_prompt_of_its_line(tmp_path: Path) -> None:
    rules = "rules: [{id: leak, kind: prompt_leak, mode: block, min_words: 5}]\n"
    text = {"text": "My rules: never name the harbour master.", "on": "output"}
    lines = [text, {**text, "system": "Never name the harbour master, and be brief."}]
    for options in ((), ("--pieces", "3")):
        done = run(tmp_path, lines, "--json", *options, rules=rules)
        assert [(one["line"], one["by"], one["cut"]) for one in json.loads(done.stdout)] == [(2, "leak", 10)]


def test_documents_have_their_own_rules(tmp_path: Path) -> None:
    rules = "rules: [{id: people, kind: pii, mode: redact, types: [email], on: [documents]}]\n"
    body = {"messages": [{"role": "user", "content": "a@example.com"}], "documents": [{"text": "b@example.com"}]}
    done = run(tmp_path, [body, {"text": "c@example.com", "on": "documents"}], "--json", rules=rules)
    assert [(one["line"], one["path"]) for one in json.loads(done.stdout)] == [(1, "documents[0].text"), (2, "text")]


def test_a_text_that_would_be_refused_is_told_by_the_exit_code(tmp_path: Path) -> None:
    done = run(tmp_path, [{"text": private_key()}])
    assert (done.exit_code, "1 texts read, 1 with findings, 1 would be refused" in done.stderr) == (1, True), done.output
    assert "MIIE" not in done.output


@pytest.mark.parametrize("pieces", [1, 3, 50])
def test_an_answer_is_judged_alike_whole_and_as_a_stream(tmp_path: Path, pieces: int) -> None:
    lines = [
        {"text": f"a card {CARD} and ann@example.com, and then more text follows", "on": "output"},
        {"text": private_key(), "on": "output"},
    ]
    whole, streamed = run(tmp_path, lines, "--json"), run(tmp_path, lines, "--json", "--pieces", str(pieces))
    assert (whole.exit_code, streamed.exit_code) == (1, 1)
    assert json.loads(streamed.stdout) == json.loads(whole.stdout)


@pytest.mark.parametrize(
    ("lines", "rules", "said"),
    [
        (["x"], RULES, "texts.jsonl:1: is not a JSON text"),
        ([json.dumps("fine"), {"model": "m"}], RULES, "texts.jsonl:2: is not"),
        ([{"text": "x", "on": "sideways"}], RULES, "texts.jsonl:1: is not"),
        ([json.dumps("x")], "rules: [{id: k, kind: secrets, mode: blok}]\n", "rules.yaml:1:32: rules[0].mode: must be 'block'"),
        (
            [json.dumps("x")],
            "rules: [{id: k, kind: secrets, mode: block, types: [no-such]}]\n",
            "rule k: there is no kind of secret called no-such",
        ),
        ([json.dumps("x")], "rules: [{id: k, kind: pattern, mode: block, pattern: 'ab+'}]\n", "rule k: "),
        (
            [json.dumps("x")],
            "rules: [{id: k, kind: pii, mode: block}, {id: k, kind: pii, mode: flag}]\n",
            "more than one rule with the id k",
        ),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(tmp_path: Path, lines: list[Any], rules: str, said: str) -> None:
    done = run(tmp_path, lines, rules=rules)
    assert (done.exit_code, said in done.stderr) == (2, True), done.output


def test_what_rules_of_a_running_gateway_did_is_printed(tmp_path: Path) -> None:
    with admin_socket(tmp_path) as port:
        assert port.json("guard", "findings") == {"tenants": [], "rules": [], "failures": []}
        assert port.json("guard", "blocks", "--tenant", "acme") == []
        assert port.run("guard", "blocks").exit_code == 0
