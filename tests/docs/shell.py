"""Executes the examples of a page: one bash for its commands, a folder of its own, servers in the background.

Nothing here waits for a time: a command is awaited until it ends, a server until it says that it is ready or ends. The test's own time
limit is the only one.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, Self

from tests.docs.fragments import WrongExample, kind_of
from tests.docs.output import difference
from tests.docs.pages import ROOT, Fence, Page, state_fences
from tests.docs.ports import PortMap

READY: Final = re.compile(r"\bready\b|\blistening on\b|\bregistered\b", re.IGNORECASE)
"""How servers say that they are ready."""
TOOLS: Final = ("curl", "jq", "nginx", "openssl", "promtool", "psql")
"""Programs that examples use and that not every machine has."""
POLL_S: Final = 0.05


def missing_tools(page: Page) -> list[str]:
    """Programs that the page's commands need and this machine lacks."""
    words = set(re.findall(r"[\w-]+", "".join(fence.text for fence in page.fences if fence.runs)))
    return [tool for tool in TOOLS if tool in words and shutil.which(tool) is None]


class PageRun:
    """The run of one page, a context manager: its end is the end of every process that the page started.

    Args:
        folder: an empty folder; the page's commands run in its sub-folder `work`.
    """

    def __init__(self, page: Page, folder: Path) -> None:
        self._page = page
        self._states = state_fences(page.state)
        self._ports = PortMap("".join(fence.text for fence in [*self._states, *page.fences]))
        self._logs = folder / "logs"
        self._work = folder / "work"
        home = folder / "home"
        for made in (self._logs, self._work, home):
            made.mkdir()
        self._count = 0
        self._groups: list[int] = []
        self._printed = ""
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=self._work,
            env=_environment(home),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        for group in reversed(self._groups):
            _end(group)
        _end(self._bash.pid)
        self._bash.wait()
        while daemons := _working_in(self._work):  # they have left their group
            for process in daemons:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(POLL_S)
        with contextlib.suppress(BrokenPipeError):
            self._bash.stdin.close()
        self._bash.stdout.close()

    def run(self) -> None:
        """Execute every example. Raises WrongExample."""
        self._ask("set -Eeuo pipefail")
        for fence in [*self._states, *self._page.fences]:
            try:
                self._example(fence)
            except BaseException as error:
                error.add_note(f"in the example at {fence.where}:\n{fence.text}")
                raise

    def _example(self, fence: Fence) -> None:
        if fence.not_run:
            return
        if fence.file:
            self._write(fence)
        elif fence.background:
            for command in _commands(fence.text):
                self._serve(fence, command)
        elif fence.language == "sh":
            self._printed = self._command(fence, fence.text)
        elif fence.language == "python":
            self._command(fence, f"python - <<'PYTHON_EXAMPLE'\n{fence.text}PYTHON_EXAMPLE\n")
        elif fence.output:
            wrong = difference(fence.language, self._ports.replaced(fence.text), self._printed)
            if wrong:
                raise WrongExample(f"{fence.where}: the output differs:\n{wrong}")

    def _write(self, fence: Fence) -> None:
        path = self._work / fence.file
        path.parent.mkdir(parents=True, exist_ok=True)
        is_settings = fence.language == "yaml" and kind_of(fence) == "settings"
        path.write_text((self._ports.settings if is_settings else self._ports.replaced)(fence.text), encoding="utf-8")

    def _command(self, fence: Fence, text: str) -> str:
        """Run a fence in the page's shell; returns what it printed."""
        script, log = self._script(text)
        mark = script.with_suffix(".failed")
        trap = f"trap 'echo \"$LINENO $BASH_COMMAND\" >{mark}' ERR"
        if fence.code:
            # only a subshell ends by the failure
            subshell = f"( {trap}; set -Eeuo pipefail; . {script} ) >{log} 2>&1 </dev/null"
            code = self._ask(f"set +e; {subshell}; code=$?; set -e", "$code")
        else:
            code = self._ask(f"{trap}; . {script} >{log} 2>&1 </dev/null; trap - ERR", "0")
        printed = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        if code != fence.code:
            line, _, command = mark.read_text().partition(" ") if mark.exists() else ("0", "", "")
            at = f"{fence.page.relative_to(ROOT)}:{fence.line + int(line)}" if fence.language == "sh" else fence.where
            raise WrongExample(
                f"{at}: exit code {code}, not {fence.code}\ncommand: {command.strip() or text.strip()}\noutput:\n{printed or '(none)'}"
            )
        return printed

    def _serve(self, fence: Fence, command: str) -> None:
        script, log = self._script(command)
        # job control gives the server a process group of its own, by which it is ended
        printed = self._asked(f'set -m; ( . {script} ) >{log} 2>&1 </dev/null & echo "$!"; set +m')
        group = int(printed)
        self._groups.append(group)
        while not READY.search(text := log.read_text(errors="replace") if log.exists() else ""):
            if not running(group):
                raise WrongExample(f"{fence.where}: the server ended before it was ready\ncommand: {command.strip()}\noutput:\n{text}")
            time.sleep(POLL_S)

    def _script(self, text: str) -> tuple[Path, Path]:
        self._count += 1
        script = self._logs / f"{self._count}.sh"
        script.write_text(self._ports.replaced(text), encoding="utf-8")
        return script, self._logs / f"{self._count}.log"

    def _ask(self, commands: str, status: str = "0") -> int:
        """Run commands in bash and wait for their end; returns the exit code of a bash that ended by that, else `status`."""
        answer = self._asked(f'{commands}; echo "{status}"')
        return int(answer) if answer else self._bash.wait()

    def _asked(self, commands: str) -> str:
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._bash.stdin.write(commands + "\n")
            self._bash.stdin.flush()
        return self._bash.stdout.readline().strip()


def _commands(text: str) -> list[str]:
    joined = text.replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def _environment(home: Path) -> dict[str, str]:
    binaries = str(Path(sys.executable).parent)
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR", "LD_LIBRARY_PATH") if name in os.environ}
    return kept | {
        "PATH": f"{binaries}{os.pathsep}{kept.get('PATH', os.defpath)}",
        "HOME": str(home),
        "LC_ALL": "C.UTF-8",
        "PYTHONPATH": str(ROOT),
        "NO_COLOR": "1",
        "no_proxy": "127.0.0.1,localhost",
    }


def running(group: int) -> list[int]:
    """The processes of a group that have not ended; bash collects its ended jobs between commands only, so they may stay as zombies."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _parent, of = status.read_text().rpartition(")")[2].split()[:3]
            if int(of) == group and state != "Z":
                found.append(int(status.parent.name))
    return found


def _working_in(folder: Path) -> list[int]:
    """The processes whose current directory is this folder or below it."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if link.readlink().is_relative_to(folder):
                found.append(int(link.parent.name))
    return found


def _end(group: int) -> None:
    """End a process group: politely, then for good. A gateway that was told to end accepts connections for seconds; it ends at once at an
    interrupt."""
    for number, polls in ((signal.SIGTERM, 10), (signal.SIGINT, int(20 / POLL_S)), (signal.SIGKILL, int(20 / POLL_S))):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, number)
        for _ in range(polls):
            if not running(group):
                return
            time.sleep(POLL_S)
