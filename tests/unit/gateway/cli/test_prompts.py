import json
import shutil
from pathlib import Path

import pytest

from gateway.cli import app
from tests.command_line import Commands, Result

EXAMPLES = Path(__file__).parents[4] / "policies" / "examples"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with prompts and policies, and no settings."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(EXAMPLES / "prompts", "prompts")
    Path("policies").mkdir()
    shutil.copy(EXAMPLES / "shop.yaml", "policies")


def run(*arguments: str) -> Result:
    return Commands().invoke(app, [*arguments])


def prompt(*arguments: str) -> Result:
    return run("prompt", *arguments, "--folder", "prompts")


def test_every_version_is_listed_with_its_variables() -> None:
    first, second = json.loads(prompt("list", "--json").stdout)[:2]
    assert first == {"prompt": "customer_support@1", "messages": 1, "model": "", "variables": ["customer: string", "[language: enum]"]}
    assert (second["prompt"], second["messages"], second["model"]) == ("customer_support@2", 2, "smollm2")
    assert second["variables"][:3] == ["customer: string", "[language: enum]", "order: integer"]
    assert "customer: string, [language: enum]" in prompt("list").output


def test_a_prompt_is_rendered_as_an_engine_would_get_it() -> None:
    given = ("--var", "customer=Ann=5", "--var", "order=7", "--var", "bought=a", "--var", "bought=b", "--var", "refund=true")
    system, greeting = json.loads(prompt("render", "customer_support", *given).output)
    assert system["role"] == "system"
    assert system["content"].splitlines() == [
        'You are the support of a shop. Answer "Ann=5" in English.',
        "Order 7 has 2 parts:",
        "1. a",
        "2. b",
        "A refund is due.",
    ]
    assert greeting == {"role": "assistant", "content": "Hello Ann=5, how can I help you?"}
    [first] = json.loads(prompt("render", "customer_support", "--version", "1", "--var", "customer=Ann").output)
    assert first["content"] == "You are the support of a shop. Answer Ann in English."


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("customer_support",), 1, "the variable customer is missing: expected a string of at most 80 characters"),
        (("customer_support", "--var", "customer=A", "--var", "order=x"), 1, "the variable order: expected an integer between 1 and"),
        (("customer_support", "--var", "costumer=A"), 1, "there is no variable 'costumer'; there are: customer, language"),
        (("customer_support", "--var", "customer"), 2, "write name=value"),
        (("customer_support", "--version", "9"), 2, "has no version 9; there are: 1, 2"),
        (("other",), 2, "there is no prompt 'other'; there are: customer_support"),
    ],
)
def test_what_cannot_be_rendered_says_why(arguments: tuple[str, ...], code: int, words: str) -> None:
    found = prompt("render", *arguments)
    assert (found.exit_code, words in found.output) == (code, True), found.output


def test_prompts_are_checked_compared_and_explained_with_the_policies() -> None:
    assert run("policy", "check", "policies").output.startswith("ok, 1 policies")
    shutil.copytree(".", "../after", dirs_exist_ok=True)
    policy = Path("../after/policies/shop.yaml")
    policy.write_text(policy.read_text().replace("weight: 95", "weight: 5"))
    said = run("policy", "diff", "policies", "../after/policies").output
    assert said == "shop: prompt 95 % customer_support@1, 5 % customer_support@2 becomes 50 % customer_support@1, 50 % customer_support@2\n"
    variables = {"customer": "Ann", "order": 3}
    Path("request.json").write_text(json.dumps({"prompt": {"id": "customer_support", "version": 2, "variables": variables}}))
    explained = run("policy", "explain", "request.json", "--tenant", "shop", "--folder", "policies").output
    assert "prompt customer_support@2 of 95 % customer_support@1, 5 % customer_support@2" in explained
    assert "answered by smollm2 on pool chat" in explained
    assert "parameters: temperature 0.2 by default, seed 7 by default" in explained
    foreign = run("policy", "explain", "request.json", "--tenant", "nobody", "--folder", "policies")
    assert "does not exist or you do not have access to it" in foreign.output
    Path("prompts/customer_support@2.yaml").write_text("id: [")
    broken = run("policy", "check", "policies")
    assert (broken.exit_code, "customer_support@2.yaml:" in broken.output) == (1, True)
    assert prompt("list").exit_code == 1
