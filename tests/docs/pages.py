"""Reads Markdown pages: their fences, and the words behind a fence's language that say how the example is executed.

    ```sh                    run in the page's shell; must exit with 0
    ```sh fails=1            must exit with 1
    ```sh background         servers, one for each command: started, and awaited until they say that they are ready
    ```sh not-run: REASON    for the reader only; `MOST_NOT_RUN` of all pages together
    ```yaml file=a.yaml      written to the page's folder before the page goes on; any language may have it
    ```yaml as=policy        checked as a policy, where its keys do not say so (tests/docs/fragments.py has the kinds)
    ```text                  right below a `sh` fence: its output; a `…` matches any text, a line of `…` any lines
    ```text output           the output of the last `sh` fence, with prose between the two
    ```json output           the same, compared as JSON: a "…" matches any value, and `"…": "…"` any other members

`<!-- examples: NAME -->` at the top of a page: the page starts in the state that tests/docs/states/NAME.md leaves behind.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
STATES: Final = Path(__file__).parent / "states"
MOST_NOT_RUN: Final = 15
"""Fences marked `not-run`, of all pages together."""

EXECUTED: Final = {"sh", "yaml", "json", "python"}
SHOWN: Final = {"text", "csv", "diff", "dockerfile", "http", "ini", "jinja", "nginx", "promql"}
"""Languages of fences that are not executed; with `file=` they are written."""

_FLAG: Final = re.compile(r"(?P<name>background|output)|fails=(?P<code>\d+)|file=(?P<file>\S+)|as=(?P<kind>[a-z]+)")


class BadFence(Exception):
    """A fence that this convention does not know; the message names its page and line."""


@dataclass(frozen=True)
class Fence:
    """One example of a page."""

    page: Path
    line: int
    """The line number of the opening fence, from 1."""
    language: str
    text: str
    background: bool = False
    output: bool = False
    """Whether the fence shows what the `sh` fence before it prints."""
    code: int = 0
    """The exit code that it must have."""
    file: str = ""
    kind: str = ""
    not_run: str = ""
    """Why it is not executed; empty for one that is."""

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def runs(self) -> bool:
        return self.language == "sh" and not self.not_run


@dataclass(frozen=True)
class Page:
    """A page and its fences in order."""

    path: Path
    fences: list[Fence] = field(default_factory=list)
    state: str = ""
    """The name of the state that it starts in; empty for an empty folder."""

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def runs(self) -> bool:
        """Whether it has commands, so that its other fences are examples of the same folder."""
        return any(fence.runs for fence in self.fences)


def page_paths() -> list[Path]:
    """Every page whose examples are executed."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def read_page(path: Path) -> Page:
    """The page at a path. Raises BadFence."""
    fences: list[Fence] = []
    text = path.read_text(encoding="utf-8")
    state = re.search(r"^<!-- examples: (\S+) -->$", text, re.MULTILINE)
    lines = text.splitlines()
    at = after_command = 0
    while at < len(lines):
        opening = re.match(r"( *)(`{3,})(.*)$", lines[at])
        if opening is None:
            after_command = after_command if not lines[at].strip() else 0
            at += 1
            continue
        indent, ticks, info = opening.groups()
        end = next((n for n in range(at + 1, len(lines)) if lines[n].strip() == ticks), None)
        if end is None:
            raise BadFence(f"{path.relative_to(ROOT)}:{at + 1}: the fence has no end")
        fence = _fence(path, at + 1, info.strip(), "\n".join(line.removeprefix(indent) for line in lines[at + 1 : end]) + "\n")
        if after_command and fence.language == "text" and not fence.file and not fence.not_run:
            fence = Fence(fence.page, fence.line, fence.language, fence.text, output=True)
        if fence.output and not any(before.language == "sh" for before in fences):
            raise BadFence(f"{fence.where}: no `sh` fence stands above this output")
        fences.append(fence)
        after_command = fence.runs and not fence.background
        at = end + 1
    return Page(path, fences, state[1] if state else "")


def state_fences(name: str) -> list[Fence]:
    """The examples that make a state, with those of the state that it builds on; none for no name. Raises BadFence."""
    if not name:
        return []
    state = read_page(STATES / f"{name}.md")
    return state_fences(state.state) + state.fences


def _fence(page: Path, line: int, info: str, text: str) -> Fence:
    where = f"{page.relative_to(ROOT)}:{line}"
    language, _, rest = info.partition(" ")
    if language not in EXECUTED | SHOWN:
        known = ", ".join(sorted(EXECUTED | SHOWN))
        raise BadFence(f"{where}: {language!r} is no language of an example; write one of: {known} (commands are `sh`, without a prompt)")
    flags, stands, reason = rest.partition("not-run:")
    if stands and not reason.strip():
        raise BadFence(f"{where}: not-run needs a reason: ```{language} not-run: needs a GPU")
    found: dict[str, str] = {}
    for word in flags.split():
        match = _FLAG.fullmatch(word)
        if match is None:
            raise BadFence(
                f"{where}: {word!r} says nothing about an example; known: background, output, fails=1, file=NAME, as=KIND, not-run: REASON"
            )
        found |= {key: value for key, value in match.groupdict().items() if value is not None} | {match[0]: "yes"}
    return Fence(
        page,
        line,
        language,
        text,
        background="background" in found,
        output="output" in found,
        code=int(found.get("code", 0)),
        file=found.get("file", ""),
        kind=found.get("kind", ""),
        not_run=reason.strip(),
    )
