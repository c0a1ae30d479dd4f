import json
import re
from pathlib import Path

import pytest

from policies import load
from policies.load import load_policies
from policies.prompts.folder import PromptFolder

EXAMPLES = Path(load.__file__).parent / "examples"
BAD = sorted((EXAMPLES / "bad" / "prompts").glob("*.yaml"))
HELLO = "id: {}\nversion: {}\nmessages: [{{role: system, content: hello}}]\n"


def test_every_shipped_example_loads():
    registry, problems = PromptFolder(EXAMPLES / "prompts").read()
    assert problems == []
    assert sorted(registry["customer_support"]) == [1, 2]


@pytest.mark.parametrize("file", BAD, ids=lambda file: file.stem)
def test_every_bad_example_fails_where_and_how_it_says(file, tmp_path):
    (tmp_path / file.name).write_bytes(file.read_bytes())
    expected = [line.removeprefix("# expect: ").split(": ", 1) for line in file.read_text().splitlines() if line.startswith("# expect: ")]
    registry, problems = PromptFolder(tmp_path).read()
    assert registry == {}
    assert len(problems) == len(expected) > 0, problems
    for (line, words), problem in zip(sorted(expected, key=lambda one: int(one[0])), sorted(problems), strict=True):
        assert str(problem).startswith(f"{tmp_path / file.name}:{line}:"), problem
        assert words in str(problem), problem


def test_a_folder_that_is_not_there_has_no_prompts(tmp_path):
    folder = PromptFolder(tmp_path / "none")
    assert folder.read() == ({}, [])
    assert folder.marks() == {}


def test_files_are_read_again_only_when_they_change(tmp_path):
    folder = PromptFolder(tmp_path)
    (tmp_path / "a@1.yaml").write_text(HELLO.format("a", 1))
    (tmp_path / ".a@2.yaml").write_text("draft: [")
    first, marks = folder.read()[0]["a"][1], folder.marks()
    (tmp_path / "b@1.yaml").write_text(HELLO.format("b", 1))
    assert folder.marks() != marks
    again = folder.read()[0]
    assert again["a"][1] is first
    assert again["b"][1].digest != first.digest


def test_what_would_not_be_read_and_what_is_no_folder_is_said(tmp_path):
    (tmp_path / "a@1.yml").write_text(HELLO.format("a", 1))
    [problem] = PromptFolder(tmp_path).read()[1]
    assert str(problem).endswith("a@1.yml:1:1: would not be read; call it ID@VERSION.yaml")
    [problem] = PromptFolder(tmp_path / "a@1.yml").read()[1]
    assert "cannot be read: Not a directory" in str(problem)


def test_secrets_are_not_for_prompts(tmp_path):
    (tmp_path / "a@1.yaml").write_text(HELLO.format("a", 1).replace("hello", "sk-abcdefghijklmnopqrstuvwxyz123456"))
    [problem] = PromptFolder(tmp_path).read()[1]
    assert "holds a secret itself" in str(problem)


def test_the_pages_own_examples_work_together(tmp_path):
    page = (EXAMPLES.parents[1] / "docs" / "reference" / "prompts.md").read_text()
    prompt, policy = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    request = json.loads(re.search(r"```json\n(.*?)```", page, re.DOTALL)[1])
    prompts = tmp_path / "prompts"
    prompts.mkdir()
    (tmp_path / "policies").mkdir()
    (prompts / "order_help@1.yaml").write_text(prompt)
    for name, version in (("order_help", 2), ("refunds", 3), ("greeting_x", 1)):
        (prompts / f"{name}@{version}.yaml").write_text(HELLO.format(name, version))
    (tmp_path / "policies" / "acme.yaml").write_text(policy)
    mine = load_policies(tmp_path / "policies", ["chat"], prompts=prompts).prompts_for("acme")
    named = request["prompt"]
    [message] = mine[named["id"]].version(int(named["version"]), "k").rendered(named["variables"])
    assert message["content"] == 'You are the support of a shop. Be friendly to "Ann".\nThey bought a lamp.'
    assert sorted(mine) == ["greeting_x", "order_help", "refunds"]
