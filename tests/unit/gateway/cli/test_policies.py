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
