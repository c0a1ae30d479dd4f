"""The runner on a tree of two files: killed, survived, struck out, no longer applying; and the mutants of the product's tree."""

import subprocess
from pathlib import Path

import pytest

from tests.mutants.__main__ import ROOT, chosen, main
from tests.mutants.mutant import PLANTED, BadMutant, Mutant, mutated, read_mutants
from tests.mutants.running import run_mutants

PRODUCT = "def price(tokens: int) -> int:\n    return 3 * tokens\n\n\ndef unused() -> int:\n    return 1\n"
TEST = "from shop import price\n\n\ndef test_two_cost_six() -> None:\n    assert price(2) == 6\n"
HARM = "A caller pays too much."


class Tree:
    """A checkout with one product file, one test file, and a folder of mutants."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.planted = root / "tests" / "mutants" / "planted"
        self.planted.mkdir(parents=True)
        (root / "shop.py").write_text(PRODUCT)
        (root / "test_shop.py").write_text(TEST)
        for command in (["init", "-q"], ["add", "shop.py", "test_shop.py"], ["commit", "-q", "-m", "A shop"]):
            subprocess.run(
                ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *command], cwd=root, check=True, capture_output=True
            )

    def plant(self, name: str, old: str, new: str, more: str = "") -> None:
        text = f"file = 'shop.py'\ntests = ['test_shop.py']\nharm = '{HARM}'\nold = '{old}'\nnew = '{new}'\n{more}"
        (self.planted / f"{name}.toml").write_text(text)

    def run(self, *arguments: str) -> int:
        return main([*arguments, "--jobs", "1"], root=self.root, folder=self.planted)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # the tree needs none, and starts sooner without
    return Tree(tmp_path)


@pytest.mark.slow
def test_what_is_killed_and_what_is_not_is_shown_and_the_checkout_stays_as_it_was(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.plant("a-dearer", "3 * tokens", "4 * tokens")
    # of the same size as the one before: the byte code of that one must not be run again
    tree.plant("b-unnoticed", "return 1", "return 2")
    tree.plant("c-broken", "3 * tokens", "3 tokens")
    tree.plant("d-no-change", "return 3 * tokens", "return tokens * 3", "equivalent = 'A product has no order.'\n")
    before = {path: (path.read_text(), path.stat().st_mtime_ns) for path in tree.root.glob("*.py")}
    assert tree.run() == 1
    out = capsys.readouterr().out
    table = out[out.index("\nmutant ") :].splitlines()
    assert table[2].startswith("a-dearer ") and table[2].endswith(" test_shop.py::test_two_cost_six")
    assert "NOT KILLED: it survives test_shop.py: write the test that notices it" in table[3]
    assert "NOT KILLED: test_shop.py decided nothing (pytest's exit code 2" in table[4]
    assert table[5] == "d-no-change: struck out, equivalent: A product has no order."
    assert table[6] == "3 mutants: 1 killed, 2 not killed; 1 struck out"
    assert {path: (path.read_text(), path.stat().st_mtime_ns) for path in tree.root.glob("*.py")} == before
    assert tree.run("a-dearer") == 0, "where all are killed"


def test_a_test_that_is_red_anyway_kills_nothing(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    (tree.root / "test_shop.py").write_text(TEST.replace("== 6", "== 7"))
    tree.plant("dearer", "3 * tokens", "4 * tokens")
    assert tree.run() == 1
    assert "NOT KILLED: test_shop.py fails without the mutant; mend the test first" in capsys.readouterr().out


@pytest.mark.slow
def test_a_time_out_is_a_kill_only_where_it_is_said(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.mutants.running.LEAST_TIMEOUT_S", 0.5)
    monkeypatch.setattr("tests.mutants.running.SLOWER", 3)
    tree.plant("a-hangs", "return 3 * tokens", "while True: pass")
    tree.plant("b-hangs-as-said", "return 3 * tokens", "while True: pass", "hangs = true\n")
    silent, told = run_mutants(tree.root, read_mutants(tree.planted), jobs=1, tell=lambda _line: None)
    assert (silent.killed, told.killed, told.how) == (False, True, "test_shop.py (time-out)")
    assert "say `hangs = true`" in silent.how


@pytest.mark.parametrize(
    ("name", "old", "why"),
    [
        ("gone", "5 * tokens", "gone no longer applies: its old text occurs 0 times in shop.py, not once"),
        ("twice", "return", "twice no longer applies: its old text occurs 2 times in shop.py, not once"),
    ],
)
def test_a_mutant_that_no_longer_applies_is_named_and_nothing_runs(
    tree: Tree, capsys: pytest.CaptureFixture[str], name: str, old: str, why: str
) -> None:
    tree.plant("dearer", "3 * tokens", "4 * tokens")
    tree.plant(name, old, "pass")
    assert tree.run("dearer") == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(why) and f"tests/mutants/planted/{name}.toml" in captured.err
    assert captured.out == ""


def test_a_data_file_with_a_mistake_is_named(tree: Tree) -> None:
    for number, (more, why) in enumerate([("tset = 1\n", "unknown field"), ("hangs = 1\n", "hangs"), ("old", "Expected '='")]):
        tree.plant("odd", "3 * tokens", "4 * tokens", more)
        with pytest.raises(BadMutant, match=r"odd\.toml: ") as refused:
            read_mutants(tree.planted)
        assert why in str(refused.value), number


def test_a_sample_is_the_same_for_one_seed_and_has_whatever_changed() -> None:
    mutants = [Mutant(f"p{n}.py", "a", "b", (f"test_p{n}.py",), HARM, name=f"m{n}") for n in range(40)]
    changed = {"p7.py", "test_p8.py", "tests/mutants/planted/m9.toml", "other.py"}
    first = chosen(mutants, changed, 5, "seed")
    assert first == chosen(mutants, changed, 5, "seed") != chosen(mutants, changed, 5, "another seed")
    assert {"m7", "m8", "m9"} <= {mutant.name for mutant in first} and len(first) == 8
    assert chosen(mutants, set(), 100, "seed") == mutants


@pytest.mark.slow
def test_since_a_commit_those_of_changed_files_run(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.plant("dearer", "3 * tokens", "4 * tokens")
    assert tree.run("--since", "HEAD", "--sample", "0") == 0
    assert "1 of 1 mutants" in capsys.readouterr().out, "its data file is new"
    assert tree.run("--since", "nowhere") == 2
    assert "name a commit that it has" in capsys.readouterr().err


def test_every_planted_mutant_applies_and_most_are_run() -> None:
    """The tree's own: `make mutants` runs them, and here one that no longer applies is noticed at once."""
    mutants = read_mutants(PLANTED)
    for mutant in mutants:
        mutated(mutant, ROOT)
    assert len([mutant for mutant in mutants if not mutant.equivalent]) >= 60
