import json
from pathlib import Path

import pytest

from gateway.cli import app
from tests.command_line import Commands, Result

EXAMPLES = Path(__file__).parents[4] / "policies" / "examples"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somewhere without a settings file."""
    monkeypatch.chdir(tmp_path)


def folder(name: str, *examples: str) -> Path:
    made = Path(name)
    made.mkdir()
    for example in examples:
        (made / f"{example}.yaml").write_text((EXAMPLES / f"{example}.yaml").read_text())
    return made


def request(**fields: object) -> str:
    Path("request.json").write_text(json.dumps({"model": "chat", "messages": [{"role": "user", "content": "hi"}], **fields}))
    return "request.json"


def run(*arguments: str) -> Result:
    return Commands().invoke(app, ["policy", *arguments])


def test_a_folder_is_checked_with_and_without_settings() -> None:
    folder("policies", "rules")
    assert run("check", "policies").output.startswith("ok, 1 policies, digest ")
    assert run("check").exit_code == 1  # neither a folder nor settings
    Path("policies/wrong.yaml").write_text("tenant: x\nmodls: []\n")
    refused = run("check", "policies")
    assert (refused.exit_code, "wrong.yaml:2:1: modls: is no known key; did you mean models?" in refused.output) == (1, True)


RULES = """tenant: acme
models: [{name: chat, pool: chat}]
rules:
  - {name: gold, if: 'key_tags["tier"] == "gold" || "vip" in key_tags', then: {class: critical}}
  - {name: ours, if: 'key_tags["own.tier"] == "gold"', then: {class: critical}}
  - {name: any, if: 'key_tags.exists(k, k == "gold")', then: {class: critical}}
"""


def test_tags_that_rules_read_are_named_with_who_sets_them() -> None:
    Path("policies").mkdir()
    Path("policies/acme.yaml").write_text(RULES)
    said = run("check", "policies")
    assert said.exit_code == 0
    assert "key tags that rules read, and that only owners and admins set: tier, vip\n" in said.output
    assert "note: rule ours of acme reads the key tag own.tier, which tenant-admins set" in said.output
    assert "note: rule any of acme reads key tags by names that are not written out" in said.output
    assert "rule gold of acme" not in said.output


def test_only_what_means_something_else_is_a_difference() -> None:
    before, after = folder("before", "rules", "levels"), folder("after", "rules", "levels")
    same = run("diff", "before", "after")
    assert (same.exit_code, same.output) == (0, "")
    text = (after / "levels.yaml").read_text()
    (after / "levels.yaml").write_text(text.replace("class: interactive", "class: critical"))
    other = run("diff", "before", "after")
    assert (other.exit_code, other.output) == (1, "levels: class interactive -> critical\n")
    (before / "wrong.yaml").write_text("tenant: x\nmodls: []\n")
    assert run("diff", "before", "after").exit_code == 2


def test_a_request_is_explained_with_every_rule() -> None:
    folder("policies", "rules", "everyone")
    night = ("--header", "X-Job: nightly", "--at", "2027-01-15T22:00:00Z")  # 2027-01-15 23:00 in Berlin
    said = run("explain", request(), "--tenant", "rules", "--folder", "policies", *night).output
    assert "the policy for rules, digest" in said
    assert "rule nightly-jobs: its condition does not hold" in said
    early = ("--header", "X-Job: nightly", "--at", "2027-01-16T03:00+01:00")  # three in the morning
    said = run("explain", request(), "--tenant", "rules", "--folder", "policies", *early).output
    assert "rule nightly-jobs: it counts" in said
    assert "class: batch" in said
    said = run("explain", request(), "--tenant", "rules", "--folder", "policies", *early[2:]).output
    assert "rule nightly-jobs: its condition asks for what the request does not have" in said
    assert "answered by chat on pool chat" in said


def test_guard_rules_are_explained_with_the_level_they_come_from() -> None:
    folder("policies", "guards")
    Path("policies/everyone.yaml").write_text('tenant: "*"\nguards: {rules: [{id: house, kind: secrets, mode: flag, on: [input]}]}\n')
    asked = ("--tenant", "guards", "--folder", "policies", "--project", "research")
    said = run("explain", request(guardrails=["strict-links"]), *asked).output
    assert "  guard rule house of *: flag secrets on input\n  guard rule keys of guards: block secrets on input, output\n" in said
    assert 'guard rule study-names of guards, project research: replace words on input, output; replacement "[study]"; words ["pro' in said
    assert "guard rule strict-links of guards: block links on output; where a key or a request asks for it" in said
    applying = "house, keys, people, strict-links, study-names; at most 524288 bytes of an answer are held for them"
    assert f"guard rules that apply to this request: {applying}" in said
    unknown = run("explain", request(), *asked, "--header", "X-Tidegate-Guards: nope")
    assert (unknown.exit_code, "would be refused: There is no guard rule 'nope' for this request" in unknown.output) == (1, True)


def test_a_change_of_guard_rules_is_a_difference() -> None:
    folder("old", "guards")
    folder("new", "guards")
    assert run("diff", "old", "new").exit_code == 0
    text = Path("new/guards.yaml").read_text()
    Path("new/guards.yaml").write_text(text.replace("mode: block, on: [tool_results]", "mode: flag, on: [tool_results]"))
    said = run("diff", "old", "new")
    assert said.exit_code == 1
    assert said.output == (
        "guards, guards of rule agents: agent-injection becomes flag injection on tool_results (was block injection on tool_results)\n"
    )
    assert "that only owners and admins set: guard.strict-links\n" in run("check", "new").output


def test_what_answers_instead_is_told() -> None:
    folder("policies", "fallback")
    said = run("explain", request(model="big"), "--tenant", "fallback", "--folder", "policies").output
    assert "else, on no_capacity, error, by small on pool chat-small\nelse, on context_too_long, content_filter, by long on pool" in said


def test_a_request_that_would_be_refused_says_why() -> None:
    folder("policies", "rules", "everyone")
    unknown = run("explain", request(model="nope"), "--tenant", "rules", "--folder", "policies")
    assert (unknown.exit_code, "has no model 'nope'; there are: chat, chat-small, embed" in unknown.output) == (1, True)
    broken = run("explain", request(n=0), "--tenant", "rules", "--folder", "policies")
    assert (broken.exit_code, "the request would be refused: Invalid value for 'n'" in broken.output) == (1, True)
    for wrong in (("--header", "nothing"), ("--endpoint", "/v1/nope")):
        assert run("explain", request(), "--tenant", "rules", "--folder", "policies", *wrong).exit_code == 2
    assert run("explain", "missing.json", "--tenant", "rules", "--folder", "policies").exit_code == 2
