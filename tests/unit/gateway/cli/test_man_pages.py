"""The files of docs/terminal are those of the commands; manual pages are without mistakes, and shells complete commands and options."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.cli import ENTRIES
from gateway.cli.man_pages import man_pages, terminal_files
from policies.export import REGENERATE

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "docs" / "terminal"
FILES = terminal_files(ENTRIES)
PAGES = man_pages(ENTRIES)


def test_the_files_of_the_project_are_those_of_the_commands() -> None:
    found = {str(path.relative_to(FOLDER)): path.read_text() for path in FOLDER.rglob("*") if path.is_file()}
    assert sorted(found) == sorted(FILES), f"run: {REGENERATE}"
    assert [name for name in found if found[name] != FILES[name]] == [], f"run: {REGENERATE}"


def test_every_command_has_a_page_with_its_options() -> None:
    assert set(PAGES) == {"tidegate.1", *(f"tidegate-{name}.1" for name in ENTRIES)}
    assert ".B \\-\\-run\\-dir PATH\n" in PAGES["tidegate-serve.1"]
    assert '.SS "tidegate key create"\n' in PAGES["tidegate-key.1"]
    assert ".BR tidegate\\-serve (1)\n" in PAGES["tidegate.1"]


def test_text_is_never_taken_for_a_macro() -> None:
    macros = {".TH", ".SH", ".SS", ".TP", ".PP", ".B", ".BR", ".I"}
    lines = [line for page in PAGES.values() for line in page.splitlines() if line.startswith((".", "'"))]
    assert {line.partition(" ")[0] for line in lines} <= macros


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="needs mandoc")
def test_a_checker_of_manual_pages_finds_nothing(tmp_path: Path) -> None:
    for name, text in PAGES.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning", *sorted(PAGES)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    # a date would make other bytes of the same commands
    assert [line for line in done.stdout.splitlines() if "missing date" not in line] == []


BASH = """
source docs/terminal/completion/tidegate.bash
COMP_WORDS=({words}) COMP_CWORD={at}
_tidegate_completion tidegate
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def in_shell(*command: str) -> list[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.skipif(not (Path(sys.executable).parent / "tidegate").exists(), reason="needs the command tidegate")
@pytest.mark.parametrize(
    ("words", "expected"),
    [("tidegate roll", ["rollout"]), ("tidegate key cre", ["create"]), ("tidegate serve --run", ["--run-dir"])],
)
def test_bash_completes(words: str, expected: list[str]) -> None:
    assert in_shell("bash", "--norc", "-c", BASH.format(words=words, at=len(words.split()) - 1)) == expected


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_completes() -> None:
    (line,) = in_shell("fish", "--no-config", "-c", "source docs/terminal/completion/tidegate.fish; complete -C 'tidegate roll'")
    assert line.split("\t")[0] == "rollout"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_completes_at_the_first_time() -> None:
    script = """
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z 'PS1=; fpath=(docs/terminal/completion $fpath); autoload -Uz compinit; compinit -D; echo loaded'
zpty -r z out '*loaded*loaded*'
zpty -n -w z $'tidegate roll\\t'
zpty -r z out '*rollout*'
print -r -- "$out"
zpty -d z
"""
    assert any("rollout" in line for line in in_shell("zsh", "-f", "-c", script))
