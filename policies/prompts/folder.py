"""Reads the folder of prompts: one file `ID@VERSION.yaml` for each version of each prompt, every mistake at once, with file and line.

One file per version, so that a new version is a new file in review, a version that was rolled out is never edited, and going back
changes the policy alone.
"""

import re
from pathlib import Path
from typing import Final

import msgspec

from policies.prompts.allowed import Registry
from policies.prompts.prompt import RegisteredPrompt, prompt_of
from policies.prompts.schema import PromptDocument
from policies.yaml.folder import Mark, mark_of, visible_files
from policies.yaml.located import Located, read_yaml
from policies.yaml.problems import ConfigError, Path_, Problem
from policies.yaml.validate import checked, literal_secrets

MAX_FILES: Final = 10_000
"""Versions of all prompts. All are read at every start; a folder with more has versions that are out of use."""

_LITERAL_BLOCK: Final = re.compile(r":\s+\|[+-]?\s*(#.*)?$")


class _PromptFile(msgspec.Struct, frozen=True):
    mark: Mark
    prompt: RegisteredPrompt | None
    problems: tuple[Problem, ...]


class PromptFolder:
    """A folder of prompts that may change. The parsed content of a file is cached while the file is unchanged.

    Args:
        folder: without subfolders; a folder that does not exist has no prompts.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[Path, _PromptFile] = {}

    def marks(self) -> dict[str, Mark]:
        """The change mark of every file by path; differs as soon as a file changed. Empty when the folder cannot be read."""
        try:
            return {str(file): mark_of(file) for file in visible_files(self._folder)}
        except OSError:
            return {}

    def read(self) -> tuple[Registry, list[Problem]]:
        """The prompts as they are now, by id and version, and every problem of every file; no prompts when the folder is unreadable."""
        try:
            visible = visible_files(self._folder)
            marks = {file: mark_of(file) for file in visible if file.suffix == ".yaml"}
        except FileNotFoundError:
            return {}, []
        except OSError as error:
            return {}, [Problem(str(self._folder), 1, 1, "", f"cannot be read: {error.strerror}", "make it a folder of prompts")]
        if len(marks) > MAX_FILES:
            return {}, [Problem(str(self._folder), 1, 1, "", f"has more than {MAX_FILES} files", "remove versions that nobody uses")]
        cached = self._files
        self._files = {
            file: cached[file] if file in cached and cached[file].mark == mark else _read(file, mark) for file, mark in marks.items()
        }
        problems = [
            Problem(str(file), 1, 1, "", "would not be read", "call it ID@VERSION.yaml") for file in visible if file.suffix == ".yml"
        ]
        registry: dict[str, dict[int, RegisteredPrompt]] = {}
        for prompt_file in self._files.values():
            problems += prompt_file.problems
            prompt = prompt_file.prompt
            if prompt is not None:
                registry.setdefault(prompt.id, {})[prompt.version] = prompt
        return registry, problems


def _read(file: Path, mark: Mark) -> _PromptFile:
    try:
        located = read_yaml(file, None)
    except ConfigError as error:
        return _PromptFile(mark, None, tuple(error.problems))
    located = msgspec.structs.replace(located, problems=(*located.problems, *literal_secrets(located)))
    document, problems = checked(PromptDocument, located)
    if document is None:
        return _PromptFile(mark, None, tuple(problems))
    # requests, policies and logs use the file's name, which no two files can share
    if file.stem != f"{document.id}@{document.version}":
        message = f"this file is not called {document.id}@{document.version}.yaml"
        return _PromptFile(mark, None, (located.problem(("id",), message, "rename it, or mend id and version"),))
    prompt, mistakes = prompt_of(document)
    return _PromptFile(
        mark, prompt, tuple(_placed(located, path, mistake.line, mistake.message, mistake.hint) for path, mistake in mistakes)
    )


def _placed(located: Located, path: Path_, line: int, message: str, hint: str) -> Problem:
    """A mistake in a text as a problem, at its line of the file when that is known: in a literal block, after `|`."""
    problem = located.problem(path, message, hint)
    if not line:
        return problem
    try:
        written = Path(located.file).read_text(encoding="utf-8", errors="replace").splitlines()[problem.line - 1]
    except (OSError, IndexError):  # the file was changed meanwhile
        written = ""
    if _LITERAL_BLOCK.search(written):
        return msgspec.structs.replace(problem, line=problem.line + line, column=1)
    return msgspec.structs.replace(problem, message=f"line {line} of it {message}") if line > 1 else problem


def names_in(folder: Path) -> set[str]:
    """The names (`id@version`) of all versions in a folder that have no mistakes."""
    registry, _ = PromptFolder(folder).read()
    return {prompt.name for versions in registry.values() for prompt in versions.values()}
