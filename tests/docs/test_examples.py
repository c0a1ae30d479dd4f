"""The examples of README.md and docs/: fragments are checked, commands are executed, and few are exempt."""

import contextlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.fragments import check
from tests.docs.pages import MOST_NOT_RUN, ROOT, STATES, BadFence, Page, page_paths, read_page
from tests.docs.shell import PageRun, missing_tools

PATHS = page_paths()


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def readable() -> list[Page]:
    """The pages that can be read; `test_fragments_are_right` fails for the others."""
    pages = []
    for path in PATHS:
        with contextlib.suppress(BadFence):
            pages.append(read_page(path))
    return pages


WITH_COMMANDS = [page.path for page in readable() if page.runs]


@pytest.mark.parametrize("path", PATHS, ids=named)
def test_fragments_are_right(path: Path) -> None:
    page = read_page(path)
    for fence in page.fences:
        check(fence)
        if fence.language == "python" and not page.runs and not fence.not_run:
            done = subprocess.run([sys.executable, "-c", fence.text], cwd=ROOT, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{fence.where}:\n{done.stderr}"


@pytest.mark.parametrize("path", PATHS, ids=named)
def test_commands_are_written_as_commands(path: Path) -> None:
    """A `$` before a command would keep it from being executed, and from being copied."""
    prompts = [fence.where for fence in read_page(path).fences if re.search(r"^\$ ", fence.text, re.MULTILINE)]
    assert prompts == []


def test_few_examples_are_exempt() -> None:
    exempt = [f"{fence.where}: {fence.not_run}" for page in readable() for fence in page.fences if fence.not_run]
    assert len(exempt) <= MOST_NOT_RUN, "\n".join(exempt)


def test_states_exist() -> None:
    assert [page.name for page in readable() if page.state and not (STATES / f"{page.state}.md").is_file()] == []


@pytest.mark.slow
@pytest.mark.parametrize("path", WITH_COMMANDS, ids=named)
def test_pages_do_as_they_say(path: Path, tmp_path: Path) -> None:
    page = read_page(path)
    if missing := missing_tools(page):
        pytest.skip(f"this machine has no {', '.join(missing)}")
    with PageRun(page, tmp_path) as run:
        run.run()
