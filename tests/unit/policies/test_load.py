import contextlib
import gc
import os
from pathlib import Path

import pytest

from policies import load
from policies.load import PolicyFolder, load_policies
from policies.yaml.problems import ConfigError

EXAMPLES = Path(load.__file__).parent / "examples"
GOOD = sorted(file for file in EXAMPLES.glob("*.yaml") if not file.name.startswith("settings-"))
BAD = sorted(file for file in (EXAMPLES / "bad").glob("*.yaml") if not file.name.startswith("settings-"))
POOLS = ["chat", "chat-small", "embeddings"]
LORAS = {"chat": ["support-bot"]}
PROMPTS = EXAMPLES / "prompts"


@pytest.fixture
def folder(tmp_path):
    """Writes files by name into one folder."""

    def written(**files):
        for name, text in files.items():
            (tmp_path / f"{name}.yaml").write_text(text)
        return tmp_path

    return written


def refused(folder, pools=POOLS):
    with pytest.raises(ConfigError) as caught:
        load_policies(folder, pools, LORAS, PROMPTS)
    return [str(problem).removeprefix(f"{folder}/") for problem in caught.value.problems]


@pytest.mark.parametrize("file", GOOD, ids=lambda file: file.stem)
def test_every_shipped_example_loads(file, tmp_path):
    (tmp_path / file.name).write_bytes(file.read_bytes())
    assert len(load_policies(tmp_path, POOLS, LORAS, PROMPTS).policies()) == 1


@pytest.mark.parametrize("file", BAD, ids=lambda file: file.stem)
def test_every_bad_example_fails_where_and_how_it_says(file, tmp_path):
    (tmp_path / file.name).write_bytes(file.read_bytes())
    expected = [line.removeprefix("# expect: ").split(": ", 1) for line in file.read_text().splitlines() if line.startswith("# expect: ")]
    problems = refused(tmp_path)
    assert expected
    assert len(problems) == len(expected)
    for (line, words), problem in zip(expected, problems, strict=True):
        assert problem.startswith(f"{file.name}:{line}:")
        assert words in problem


def test_there_are_examples():
    assert len(GOOD) >= 2
    assert len(BAD) >= 15


def test_files_are_read_in_order_and_folders_and_hidden_files_left_out(folder, tmp_path):
    (tmp_path / "more.yaml").mkdir()
    (tmp_path / ".draft.yaml").write_text("broken: [")
    (tmp_path / "notes.txt").write_text("tenant: x")
    with pytest.raises(ConfigError, match=r"more\.yaml:1:1: cannot be read: Is a directory"):
        load_policies(folder(a="tenant: a\n"), POOLS)
    (tmp_path / "more.yaml").rmdir()
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b.yaml").write_text("tenant: b\n")
    assert [policy.tenant for policy in load_policies(tmp_path, POOLS).policies()] == ["a"]


def test_a_yml_is_a_mistake_because_its_tenant_would_be_governed_by_everyones_policy(folder, tmp_path):
    (tmp_path / "acme.yml").write_text("tenant: acme\n")
    assert refused(folder(a='tenant: "*"\n')) == ["acme.yml:1:1: would not be read; call it *.yaml"]


def test_a_folder_without_policies(tmp_path):
    assert refused(tmp_path) == [f"{tmp_path}:1:1: has no *.yaml file; write at least one policy"]
    assert "cannot be read: No such file or directory" in refused(tmp_path / "none")[0]


def test_two_policies_for_one_tenant(folder):
    problems = refused(folder(a="tenant: acme\n", b="\ntenant: acme\n"))
    assert problems == [f"b.yaml:2:1: tenant: 'acme' has a policy already; keep this one or {folder()}/a.yaml"]


def test_mistakes_of_all_files_come_together(folder):
    problems = refused(folder(a="tenant: a\nx: 1\n", b="models: [{name: m, pool: nowhere}]\n", c="tenant: [\n", d="tenant: d\n"))
    assert [problem.split(":")[0] for problem in problems] == ["a.yaml", "b.yaml", "b.yaml", "c.yaml"]
    assert "there is no pool 'nowhere'; there are: chat, chat-small, embeddings" in problems[2]


def test_pools_are_not_looked_at_where_they_are_not_known(folder):
    assert load_policies(folder(a="tenant: a\nmodels: [{name: m, pool: nowhere}]\n"), None).for_tenant("a") is not None


def test_hints_stay_short(folder):
    [problem] = refused(folder(a="tenant: a\nmodels: [{name: m, pool: nowhere}]\n"), [f"pool-{i:03}" for i in range(100)])
    assert problem.endswith("pool-009, …")


@pytest.mark.parametrize("models", ["models: 5\n", "models: [5]\n", "models: [{name: [], pool: {}}]\n", "models: {a: b}\n"])
def test_nonsense_is_refused_without_an_accident(folder, models):
    assert refused(folder(a="tenant: []\n" + models))


def test_prompts_are_read_with_the_policies_and_are_part_of_their_digest(folder, tmp_path):
    policies, prompts = folder(a="tenant: a\nprompts: [x]\n"), tmp_path / "prompts"
    assert load_policies(policies, POOLS).prompts_for("a") == {}  # nobody said where prompts are
    reading = PolicyFolder(policies, POOLS, prompts=prompts)
    with pytest.raises(ConfigError, match="there is no prompt 'x'; there are: none"):
        reading.read()
    prompts.mkdir()
    before = reading.marks()
    (prompts / "x@1.yaml").write_text("id: x\nversion: 1\nmessages: [{role: system, content: hello}]\n")
    assert reading.marks() != before
    first = reading.read()
    assert first.prompts_for("a")["x"].version(None, "k").rendered({}) == [{"role": "system", "content": "hello"}]
    assert first.prompts_for("b") == {}
    (prompts / "x@1.yaml").write_text("id: x\nversion: 1\nmessages: [{role: system, content: goodbye}]\n")
    assert reading.read().digest != first.digest
    (prompts / "x@2.yaml").write_text("id: x\n")
    with pytest.raises(ConfigError, match=r"x@2\.yaml:1:1: version: is missing"):
        reading.read()


@pytest.mark.parametrize("written", ['tenant: "*"\n', "tenant: [\n"])
def test_the_collector_is_on_again_after_reading(written: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(written)
    with contextlib.suppress(ConfigError):
        load_policies(tmp_path, None)
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("files", "warned"),
    [
        ({"a": "tenant: acme\nmodels: []\n"}, ["a.yaml:2:1: models: the policy of tenant acme has no model, so every"]),
        (
            {"a": "tenant: acme\n"},
            ["a.yaml:1:1: tenant: the policy of tenant acme has no model, and there is no policy with"],
        ),
        ({"a": "tenant: acme\n", "all": 'tenant: "*"\nmodels: [{name: m, pool: chat}]\n'}, []),
        (
            {"a": "tenant: acme\nmodels: [{name: m, pool: chat}]\n", "all": 'tenant: "*"\n'},
            ["all.yaml:1:1: tenant: the policy of every"],
        ),
    ],
)
def test_a_policy_that_allows_no_model_is_a_warning_with_its_line(tmp_path, files, warned):
    for name, text in files.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    told = [str(warning).removeprefix(f"{tmp_path}/") for warning in load_policies(tmp_path, ["chat"]).warnings]
    assert len(told) == len(warned)
    assert all(text.startswith(start) for text, start in zip(told, warned, strict=True)), told


def test_a_link_that_comes_to_lead_elsewhere_is_a_change(tmp_path):
    """As git-sync publishes a commit: /git/current leads to the worktree of one, and is replaced. Sizes and times of files may be alike."""
    for commit, text in (("a1", "tenant: a\n"), ("b2", "tenant: b\n")):
        (tmp_path / commit / "policies").mkdir(parents=True)
        file = tmp_path / commit / "policies" / "one.yaml"
        file.write_text(text)
        os.utime(file, ns=(10**18, 10**18))
    current = tmp_path / "current"
    current.symlink_to("a1")
    folder = PolicyFolder(current / "policies", POOLS)
    before = folder.marks()
    assert [policy.tenant for policy in folder.read().policies()] == ["a"]
    (tmp_path / "new").symlink_to("b2")
    (tmp_path / "new").replace(current)
    assert folder.marks() != before
    assert [policy.tenant for policy in folder.read().policies()] == ["b"]
